//! What is asked of each target, and what is right.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Asker, Claim, Connect};
use crate::peers::Limit;
use crate::results::Bout;

const ONE: Limit = Limit { burst: 1, count: 1, period: 1 };
const FIVE: Limit = Limit { burst: 5, count: 5, period: 1 };
/// One every quarter of a second, and none saved up.
const QUARTER: Limit = Limit { burst: 1, count: 4, period: 1 };
const EDGE: Limit = Limit { burst: 10, count: 10, period: 2 };
const CROWD: Limit = Limit { burst: 100, count: 100, period: 3_600 };
/// Each has a rule, for doors whose clients name no limit.
pub const LIMITS: [Limit; 5] = [ONE, FIVE, QUARTER, EDGE, CROWD];

const CLIENTS: u32 = 32;
const ASKS_EACH: u32 = 20;
/// How much earlier or later than the right moment is asked: more than the system is late.
const MARGIN: Duration = Duration::from_millis(60);

type Judged = io::Result<(bool, String)>;
type Fight = fn(&mut dyn Asker, Claim) -> Judged;

/// The bouts of one client.
pub fn timed(connect: &Connect, claim: Claim) -> Vec<Bout> {
    let bouts: [(&str, Fight); 5] = [
        ("burst of 1", burst_of_one),
        ("idle, then burst", idle_then_burst),
        ("retry below a second", retry),
        ("window edge", window_edge),
        ("windows of 1 s", second_windows),
    ];
    let fight = |fight: Fight| fight(&mut *connect()?, claim);
    bouts.into_iter().map(|(what, bout)| judge(what, fight(bout))).collect()
}

/// Many clients on one key.
pub fn crowd(connect: &Connect) -> Bout {
    let one = || -> io::Result<u32> {
        let mut asker = connect()?;
        let mut admitted = 0;
        for _ in 0..ASKS_EACH {
            admitted += u32::from(asker.ask("crowd", CROWD)?.is_admitted);
        }
        Ok(admitted)
    };
    let admitted: io::Result<u32> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
        let died = || Err(io::Error::other("a client's thread"));
        running.into_iter().map(|one| one.join().unwrap_or_else(|_| died())).sum()
    });
    let judged = admitted.map(|admitted| {
        let asked = CLIENTS * ASKS_EACH;
        (admitted == CROWD.burst, format!("{admitted} of {asked}, right {}", CROWD.burst))
    });
    judge(&format!("{CLIENTS} clients, one key"), judged)
}

/// Five at once where one may pass.
fn burst_of_one(asker: &mut dyn Asker, claim: Claim) -> Judged {
    let (begin, admitted) = (Instant::now(), ask(asker, "one", ONE, 5)?);
    Ok(within(admitted, 1, most(claim, ONE, begin.elapsed())))
}

/// Used up, then idle for longer than it takes to fill, then four times the burst.
fn idle_then_burst(asker: &mut dyn Asker, claim: Claim) -> Judged {
    ask(asker, "idle", FIVE, 7)?;
    std::thread::sleep(Duration::from_millis(2_200));
    let (begin, admitted) = (Instant::now(), ask(asker, "idle", FIVE, 20)?);
    Ok(within(admitted, FIVE.burst, most(claim, FIVE, begin.elapsed())))
}

/// Refused shortly before the right moment, admitted at the time that was named, and that is not
/// later than the right moment in whole seconds.
fn retry(asker: &mut dyn Asker, claim: Claim) -> Judged {
    let begin = Instant::now();
    // When the next may pass, and when the whole limit is there again, counted from `begin`.
    let (right, whole) = match claim {
        Claim::Bucket => {
            ask(asker, "retry", QUARTER, 1)?;
            (Duration::from_millis(250), Duration::from_millis(250))
        }
        Claim::Log => {
            ask(asker, "retry", QUARTER, 1)?;
            std::thread::sleep(Duration::from_millis(500));
            ask(asker, "retry", QUARTER, 3)?;
            (Duration::from_secs(1), Duration::from_millis(1_500))
        }
    };
    let refused = asker.ask("retry", QUARTER)?;
    let asked = begin.elapsed();
    let Some(named) = refused.retry_s.filter(|_| !refused.is_admitted) else {
        let seen = if refused.is_admitted { "admitted at once" } else { "no time named" };
        return Ok((
            false,
            format!("{seen}, right {:.3} s", right.saturating_sub(asked).as_secs_f64()),
        ));
    };
    let wait = right.saturating_sub(asked).as_secs_f64();
    let least = if refused.is_reset { whole } else { right };
    let latest = least.saturating_sub(asked).as_secs_f64().ceil() + 0.1;
    let seen = format!("named {named:.3} s, right {wait:.3} s");
    let named_at = asked + Duration::from_secs_f64(named.max(0.0));
    // What is named too early is asked at that time; what is right, shortly before it.
    let before = named_at.min(right.saturating_sub(MARGIN));
    sleep_until(begin + before);
    if asker.ask("retry", QUARTER)?.is_admitted {
        return Ok((false, format!("{seen}; admitted {MARGIN:?} early")));
    }
    if named_at + MARGIN < right {
        return Ok((false, format!("{seen}; refused at the named time")));
    }
    sleep_until(begin + named_at.max(right) + Duration::from_millis(5));
    if !asker.ask("retry", QUARTER)?.is_admitted {
        return Ok((false, format!("{seen}; refused at the named time")));
    }
    Ok((named <= latest, seen))
}

/// The whole limit shortly before a window of the clock ends, and twice that behind it.
fn window_edge(asker: &mut dyn Asker, claim: Claim) -> Judged {
    let apart = Duration::from_millis(150);
    let window = Duration::from_secs(EDGE.period.into());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let into =
        Duration::from_nanos(u64::try_from(now.as_nanos() % window.as_nanos()).unwrap_or_default());
    let to_edge = window.checked_sub(into).filter(|left| *left > apart * 2);
    let to_edge = to_edge.unwrap_or_else(|| (window * 2).saturating_sub(into));
    let edge = Instant::now() + to_edge;
    std::thread::sleep(to_edge.saturating_sub(apart));
    let begin = Instant::now();
    let mut admitted = ask(asker, "edge", EDGE, EDGE.burst)?;
    sleep_until(edge + apart);
    admitted += ask(asker, "edge", EDGE, EDGE.burst * 2)?;
    Ok(within(admitted, EDGE.burst, most(claim, EDGE, begin.elapsed())))
}

/// Asked every 20 ms for three windows and a quarter.
fn second_windows(asker: &mut dyn Asker, claim: Claim) -> Judged {
    let begin = Instant::now();
    let (mut admitted, mut last) = (0, Duration::ZERO);
    for n in 0..=162 {
        sleep_until(begin + Duration::from_millis(20) * n);
        admitted += ask(asker, "seconds", FIVE, 1)?;
        last = begin.elapsed();
    }
    let most = match claim {
        Claim::Bucket => most(claim, FIVE, last),
        // Five in each window that has begun.
        Claim::Log => FIVE.count * (u32::try_from(last.as_secs()).unwrap_or_default() + 1),
    };
    // One may be due in the last 20 ms.
    Ok(within(admitted, most - 1, most))
}

/// How many hits of so many pass.
fn ask(asker: &mut dyn Asker, key: &str, limit: Limit, hits: u32) -> io::Result<u32> {
    let mut admitted = 0;
    for _ in 0..hits {
        admitted += u32::from(asker.ask(key, limit)?.is_admitted);
    }
    Ok(admitted)
}

/// The most that may pass within a span that begins with everything unused.
fn most(claim: Claim, limit: Limit, span: Duration) -> u32 {
    match claim {
        Claim::Log => limit.count,
        Claim::Bucket => {
            let refilled = span.as_secs_f64() * f64::from(limit.count) / f64::from(limit.period);
            limit.burst + refilled.floor() as u32
        }
    }
}

fn within(admitted: u32, least: u32, most: u32) -> (bool, String) {
    let right = if least == most { least.to_string() } else { format!("{least}–{most}") };
    ((least..=most).contains(&admitted), format!("{admitted}, right {right}"))
}

fn judge(what: &str, judged: Judged) -> Bout {
    let (is_right, seen) = judged.unwrap_or_else(|error| (false, format!("error: {error}")));
    Bout { what: what.into(), is_right, seen }
}

fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}
