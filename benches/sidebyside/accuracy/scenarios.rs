//! The scenarios and their expected results.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Claim, Client, Connect};
use crate::peers::Limit;
use crate::results::ScenarioResult;

const ONE: Limit = Limit { burst: 1, count: 1, period: 1 };
const FIVE: Limit = Limit { burst: 5, count: 5, period: 1 };
/// One every quarter of a second, without a burst.
const QUARTER: Limit = Limit { burst: 1, count: 4, period: 1 };
const EDGE: Limit = Limit { burst: 10, count: 10, period: 2 };
const SHARED: Limit = Limit { burst: 100, count: 100, period: 3_600 };
/// The limits of all scenarios. Each has a rule.
pub const LIMITS: [Limit; 5] = [ONE, FIVE, QUARTER, EDGE, SHARED];

/// What an eventual limit may be over by in a burst at several nodes, by its documentation.
const OVER_PERCENT: u32 = 5;

const CLIENTS: u32 = 32;
const REQUESTS_PER_CLIENT: u32 = 20;
/// Distance of a request from the expected moment: longer than the delays of the system.
const MARGIN: Duration = Duration::from_millis(60);

/// Whether a target is right, and the observed and expected numbers.
type Finding = io::Result<(bool, String)>;
type Scenario = fn(&mut dyn Client, Claim) -> Finding;

/// The scenarios with a single client.
pub fn single_client(connect: &Connect, claim: Claim) -> Vec<ScenarioResult> {
    let scenarios: [(&str, Scenario); 5] = [
        ("burst of 1", burst_of_one),
        ("idle, then burst", idle_then_burst),
        ("retry below a second", retry),
        ("window edge", window_edge),
        ("windows of 1 s", second_windows),
    ];
    let run = |scenario: Scenario| scenario(&mut *connect()?, claim);
    scenarios.into_iter().map(|(name, scenario)| result(name, run(scenario))).collect()
}

/// Many clients with the same key.
pub fn many_clients(connect: &Connect, claim: Claim) -> ScenarioResult {
    let client = || -> io::Result<u32> {
        let mut client = connect()?;
        let mut admitted = 0;
        for _ in 0..REQUESTS_PER_CLIENT {
            admitted += u32::from(client.check("crowd", SHARED)?.is_admitted);
        }
        Ok(admitted)
    };
    let admitted: io::Result<u32> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let panicked = || Err(io::Error::other("a client thread panicked"));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).sum()
    });
    let finding = admitted.map(|admitted| {
        let least = SHARED.burst;
        let over = if claim == Claim::Eventual { least * OVER_PERCENT / 100 } else { 0 };
        let sent = CLIENTS * REQUESTS_PER_CLIENT;
        let (is_right, seen) = within(admitted, least, least + over);
        (is_right, format!("{seen}, of {sent}"))
    });
    result(&format!("{CLIENTS} clients, one key"), finding)
}

/// Five at once to a limit of one.
fn burst_of_one(client: &mut dyn Client, claim: Claim) -> Finding {
    let (begin, admitted) = (Instant::now(), send(client, "one", ONE, 5)?);
    Ok(within(admitted, 1, most(claim, ONE, begin.elapsed())))
}

/// Uses up the limit, stays idle until it is available again, then sends four times the burst.
fn idle_then_burst(client: &mut dyn Client, claim: Claim) -> Finding {
    send(client, "idle", FIVE, 7)?;
    std::thread::sleep(Duration::from_millis(2_200));
    let (begin, admitted) = (Instant::now(), send(client, "idle", FIVE, 20)?);
    Ok(within(admitted, FIVE.burst, most(claim, FIVE, begin.elapsed())))
}

/// A request shortly before the expected moment is refused. One at the reported retry time is
/// admitted, and the reported time, in whole seconds, is not later than the expected moment.
fn retry(client: &mut dyn Client, claim: Claim) -> Finding {
    let begin = Instant::now();
    // From `begin`: when the next hit is due, and when the whole limit is available.
    let (expected, whole) = match claim {
        Claim::Bucket => {
            send(client, "retry", QUARTER, 1)?;
            (Duration::from_millis(250), Duration::from_millis(250))
        }
        Claim::Log | Claim::Eventual => {
            send(client, "retry", QUARTER, 1)?;
            std::thread::sleep(Duration::from_millis(500));
            send(client, "retry", QUARTER, 3)?;
            (Duration::from_secs(1), Duration::from_millis(1_500))
        }
    };
    let refused = client.check("retry", QUARTER)?;
    let refused_at = begin.elapsed();
    let Some(reported) = refused.retry_s.filter(|_| !refused.is_admitted) else {
        let seen = if refused.is_admitted { "admitted at once" } else { "no retry time" };
        return Ok((
            false,
            format!("{seen}, expected {:.3} s", expected.saturating_sub(refused_at).as_secs_f64()),
        ));
    };
    let wait = expected.saturating_sub(refused_at).as_secs_f64();
    let least = if refused.is_reset { whole } else { expected };
    let latest = least.saturating_sub(refused_at).as_secs_f64().ceil() + 0.1;
    let seen = format!("reported {reported:.3} s, expected {wait:.3} s");
    let reported_at = refused_at + Duration::from_secs_f64(reported.max(0.0));
    // At the reported time if that is too early, else shortly before the expected moment.
    let before = reported_at.min(expected.saturating_sub(MARGIN));
    sleep_until(begin + before);
    if client.check("retry", QUARTER)?.is_admitted {
        return Ok((false, format!("{seen}; admitted {MARGIN:?} early")));
    }
    if reported_at + MARGIN < expected {
        return Ok((false, format!("{seen}; refused at the reported time")));
    }
    sleep_until(begin + reported_at.max(expected) + Duration::from_millis(5));
    if !client.check("retry", QUARTER)?.is_admitted {
        return Ok((false, format!("{seen}; refused at the reported time")));
    }
    Ok((reported <= latest, seen))
}

/// The whole limit shortly before a window of the clock ends, and twice the limit after.
fn window_edge(client: &mut dyn Client, claim: Claim) -> Finding {
    let distance = Duration::from_millis(150);
    let window = Duration::from_secs(EDGE.period.into());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let into =
        Duration::from_nanos(u64::try_from(now.as_nanos() % window.as_nanos()).unwrap_or_default());
    let to_edge = window.checked_sub(into).filter(|left| *left > distance * 2);
    let to_edge = to_edge.unwrap_or_else(|| (window * 2).saturating_sub(into));
    let edge = Instant::now() + to_edge;
    std::thread::sleep(to_edge.saturating_sub(distance));
    let begin = Instant::now();
    let mut admitted = send(client, "edge", EDGE, EDGE.burst)?;
    sleep_until(edge + distance);
    admitted += send(client, "edge", EDGE, EDGE.burst * 2)?;
    Ok(within(admitted, EDGE.burst, most(claim, EDGE, begin.elapsed())))
}

/// One request every 20 ms for three windows and a quarter.
fn second_windows(client: &mut dyn Client, claim: Claim) -> Finding {
    let begin = Instant::now();
    let (mut admitted, mut last) = (0, Duration::ZERO);
    for n in 0..=162 {
        sleep_until(begin + Duration::from_millis(20) * n);
        admitted += send(client, "seconds", FIVE, 1)?;
        last = begin.elapsed();
    }
    let most = match claim {
        Claim::Bucket => most(claim, FIVE, last),
        // Five in each window that has begun.
        Claim::Log | Claim::Eventual => {
            FIVE.count * (u32::try_from(last.as_secs()).unwrap_or_default() + 1)
        }
    };
    // One may be due in the last 20 ms.
    Ok(within(admitted, most - 1, most))
}

/// Sends `hits` requests of one hit and returns how many are admitted.
fn send(client: &mut dyn Client, key: &str, limit: Limit, hits: u32) -> io::Result<u32> {
    let mut admitted = 0;
    for _ in 0..hits {
        admitted += u32::from(client.check(key, limit)?.is_admitted);
    }
    Ok(admitted)
}

/// The most hits that may be admitted in a span that begins with the whole limit available.
fn most(claim: Claim, limit: Limit, span: Duration) -> u32 {
    match claim {
        Claim::Log | Claim::Eventual => limit.count,
        Claim::Bucket => {
            let refilled = span.as_secs_f64() * f64::from(limit.count) / f64::from(limit.period);
            limit.burst + refilled.floor() as u32
        }
    }
}

fn within(admitted: u32, least: u32, most: u32) -> (bool, String) {
    let expected = if least == most { least.to_string() } else { format!("{least}–{most}") };
    ((least..=most).contains(&admitted), format!("{admitted}, expected {expected}"))
}

fn result(name: &str, finding: Finding) -> ScenarioResult {
    let (is_right, seen) = finding.unwrap_or_else(|error| (false, format!("error: {error}")));
    ScenarioResult { name: name.into(), is_right, seen }
}

fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}
