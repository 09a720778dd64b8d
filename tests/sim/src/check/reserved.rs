//! What is reserved is there when it is committed, and free when it has ended; a commit counts
//! once.
//!
//! - *Room*: at each time the hits that certainly were counted and the reservations that certainly
//!   were live sum to the limit at most, and what was committed beyond a reservation or lost.
//! - *In its life* a commit finds its reservation.
//! - *Once*: of the confirmations of one id all but one say that it was committed before.
//! - *An owner answers*, where no fault keeps a request from it.
//! - *Capacity returns*: when all reservations have ended a check passes at every node, if there is
//!   room by the counts.
//!
//! A reservation is certainly live from its answer to the first attempt to commit it, and as long
//! as its time to live by any clock that owners had. A change of the owner may have lost it as it
//! may have lost hits ([`guarantee`](crate::guarantee)); a machine that had been stopped decides
//! for a moment what it does not own any more.

use tidegate::decide::COMMIT_PATIENCE;
use tidegate_limiter::store::Settled;

use super::Case;
use super::deadlines::is_excused;
use crate::coverage::Situation;
use crate::guarantee::REPLICATION_LAG_MS;
use crate::history::{Asked, Record};
use crate::keys::{self, Key};
use crate::reservations::{Commit, Made, Reserved};
use crate::world::{Cause, Change};

/// The clocks of owners are followed every 10 ms, and a change of an owner is seen after 5.
const MARGIN_MS: u64 = 20;
/// How long a machine that was stopped may decide what others have taken over: its lease, and time
/// for a ping in flight.
const UNAWARE_MS: u64 = 700;
/// After [`COMMIT_PATIENCE`]: an answer is recorded in the next step.
const COMMIT_MARGIN_MS: u64 = 100;

pub(super) fn check(case: &mut Case<'_, '_>) {
    if !case.scenario.has_reserved_keys {
        return;
    }
    let run = &*case;
    let (found, reached) =
        run.world.reservations.with(|all| (problems(run, all), situations(run, all)));
    for what in found {
        case.world.report.violation(what);
    }
    case.world.report.reached.extend(reached);
}

fn problems(case: &Case<'_, '_>, all: &[Reserved]) -> Vec<String> {
    let mut found: Vec<String> = late_attempt(case, all).into_iter().collect();
    // A full store reserves nothing, and does not remember commits.
    if case.guarantee.may_fill_stores {
        return found;
    }
    // The owner of an eventual key is not followed.
    let is_followed = |key: &Key| key.kind.is_strict() || case.guarantee.is_exact;
    for (number, reserved) in all.iter().enumerate() {
        if reserved.keys.iter().all(is_followed)
            && let Some(problem) = unexpected_end(case, reserved)
        {
            found.push(format!("reservation {number}: {problem}: {reserved:?}"));
        }
    }
    let keys = keys::checked(case.scenario.selection()).filter(|key| key.kind.is_reserved());
    case.world.history.with(|records| {
        for key in keys.filter(is_followed) {
            let of_key = |record: &&Record| record.key == key;
            let requests = records[..case.final_read_from].iter().filter(of_key);
            let requests: Vec<&Record> = requests.collect();
            // What each node admits of an eventual limit at once is not bounded by it.
            let is_bounded =
                |record: &&&Record| key.kind.is_strict() || record.asked != Asked::Check;
            let bounded: Vec<&Record> = requests.iter().filter(is_bounded).copied().collect();
            found.extend(over(case, key, &bounded, all));
            found.extend(unanswered(case, key, &requests));
            let probes = records[case.probes_from..case.final_read_from].iter();
            let probes: Vec<&Record> = probes.filter(of_key).collect();
            found.extend(kept_from(case, key, &probes, all));
            let reads = records[case.final_read_from..].iter().filter(of_key);
            let reads = reads.filter(|record| record.is_decided());
            let left = reads.filter_map(|record| Some(record.response?.remaining)).min();
            if let Some(left) = left {
                found.extend(counted_otherwise(case, key, &requests, left));
            }
        }
    });
    found
}

/// What commits of `key` counted beyond what was reserved for them.
pub(super) fn excess(key: Key, all: &[Reserved]) -> u64 {
    let of_key = all.iter().filter(|reserved| reserved.keys.contains(&key));
    of_key.map(|reserved| excess_of(reserved, u64::MAX)).sum()
}

/// The same of one reservation, of the commits that were confirmed by a time.
fn excess_of(reserved: &Reserved, until_ms: u64) -> u64 {
    let Some(cost) = reserved.cost else { return 0 };
    let confirmed = reserved.commits.iter().filter(|commit| commit.is_confirmed(until_ms));
    let confirmed: Vec<Settled> = confirmed.filter_map(|commit| commit.settled).collect();
    if confirmed.is_empty() {
        return 0;
    }
    // An attempt before, which was not confirmed, may have found it ended.
    let is_expected = confirmed.contains(&Settled::Committed);
    u64::from(if is_expected { cost.saturating_sub(reserved.amount) } else { cost })
}

/// A commit that waited for longer than it may.
fn late_attempt(case: &Case<'_, '_>, all: &[Reserved]) -> Option<String> {
    let end_ms = case.world.time.millis();
    let patience_ms = u64::try_from(COMMIT_PATIENCE.as_millis()).unwrap_or(u64::MAX);
    all.iter().flat_map(|reserved| &reserved.commits).find_map(|attempt| {
        let node = attempt.node;
        let until_ms = attempt.ended_ms.unwrap_or(end_ms);
        let is_late = until_ms - attempt.at_ms > patience_ms + COMMIT_MARGIN_MS;
        let is_late = is_late && !is_excused(node, attempt.at_ms, until_ms, &case.world.stalls);
        is_late.then(|| format!("a commit at {} ms took until {until_ms} ms", attempt.at_ms))
    })
}

/// A commit that did not find what it must, or was counted twice.
fn unexpected_end(case: &Case<'_, '_>, reserved: &Reserved) -> Option<&'static str> {
    let made = reserved.made?;
    let is_of_stop = |commit: &Commit| is_of_a_stopped_machine(case, commit.at_ms, commit.until());
    if is_of_a_stopped_machine(case, reserved.at_ms, made.at_ms)
        || reserved.commits.iter().any(is_of_stop)
    {
        return None;
    }
    let live_until_ms = ends_after(case, reserved, made);
    for commit in &reserved.commits {
        let is_in_time = commit.until() < live_until_ms;
        let was_lost = || lost_between(case, reserved, reserved.at_ms, made.at_ms, commit.until());
        if commit.settled == Some(Settled::Reported) && is_in_time && !was_lost() {
            return Some("it was not found within its life");
        }
    }
    let mut counted = reserved.commits.iter().filter(|commit| commit.has_counted());
    let first = counted.next()?;
    counted.find_map(|second| {
        let acknowledged_ms = first.until().min(second.until());
        let since_ms = first.at_ms.min(second.at_ms);
        let until_ms = first.until().max(second.until());
        // Of two at once each may be the first for one of several keys.
        let is_apart = reserved.keys.len() == 1 || second.at_ms > first.until();
        let was_lost = lost_between(case, reserved, since_ms, acknowledged_ms, until_ms);
        (is_apart && !was_lost).then_some("it was counted twice")
    })
}

/// Whether a change of an owner between two times may have lost what was acknowledged at a time.
fn lost_between(
    case: &Case<'_, '_>,
    reserved: &Reserved,
    from_ms: u64,
    acknowledged_ms: u64,
    to_ms: u64,
) -> bool {
    case.world.ledger.changes.iter().any(|change| {
        reserved.keys.contains(&change.key)
            && (from_ms..=to_ms + MARGIN_MS).contains(&change.at_ms)
            && may_lose(change, acknowledged_ms)
    })
}

/// Whether what was acknowledged at a time may be lost by `change`.
fn may_lose(change: &Change, acknowledged_ms: u64) -> bool {
    match change.cause {
        Cause::Handover => false,
        Cause::Crash { at_ms, is_only_fault: true } => {
            !change.key.kind.is_durable() && acknowledged_ms + REPLICATION_LAG_MS >= at_ms
        }
        _ => true,
    }
}

/// Whether a machine that had been stopped may have decided between two times what others had taken
/// over.
fn is_of_a_stopped_machine(case: &Case<'_, '_>, from_ms: u64, to_ms: u64) -> bool {
    let mut stops = case.world.stops.iter();
    stops.any(|(_, end_ms)| from_ms <= end_ms + UNAWARE_MS && to_ms >= *end_ms)
}

/// Until when it was certainly live, if it was not committed.
fn ends_after(case: &Case<'_, '_>, reserved: &Reserved, made: Made) -> u64 {
    let at_ms = reserved.at_ms;
    (at_ms + made.ttl_ms).saturating_sub(spread(case, at_ms, at_ms + made.ttl_ms) + MARGIN_MS)
}

/// From when on it certainly is over.
fn ends_before(case: &Case<'_, '_>, reserved: &Reserved) -> u64 {
    let answered_ms = match reserved.made {
        Some(made) => made.at_ms,
        None => reserved.at_ms + case.scenario.deadline_ms,
    };
    let ends_ms = answered_ms + reserved.ttl_ms;
    ends_ms + spread(case, reserved.at_ms, case.world.time.millis()) + MARGIN_MS
}

/// How far the clocks of owners were from each other.
fn spread(case: &Case<'_, '_>, from_ms: u64, to_ms: u64) -> u64 {
    let (least, most) = case.world.offsets.between(from_ms, to_ms);
    (most - least).unsigned_abs()
}

/// Whether more was counted and reserved at a time than the limit.
fn over(case: &Case<'_, '_>, key: Key, requests: &[&Record], all: &[Reserved]) -> Option<String> {
    let of_key: Vec<&Reserved> =
        all.iter().filter(|reserved| reserved.keys.contains(&key)).collect();
    let counted: Vec<(u64, u64)> = requests
        .iter()
        .filter_map(|record| Some((record.response?.at_ms, record)))
        .filter(|(at_ms, record)| !is_of_a_stopped_machine(case, record.at_ms, *at_ms))
        .map(|(at_ms, record)| (at_ms, record.admitted_by_owner()))
        .collect();
    let live: Vec<(u64, u64, u64)> = of_key
        .iter()
        .filter_map(|reserved| Some((reserved, reserved.made?)))
        .filter(|(reserved, made)| !is_of_a_stopped_machine(case, reserved.at_ms, made.at_ms))
        .map(|(reserved, made)| {
            let ends_ms = ends_after(case, reserved, made);
            let commit_ms = reserved.commit_ms().unwrap_or(u64::MAX);
            (made.at_ms, ends_ms.min(commit_ms), u64::from(reserved.amount))
        })
        .collect();
    let times = counted.iter().map(|(at_ms, _)| *at_ms).chain(live.iter().map(|it| it.0));
    let limit = u64::from(key.kind.limit());
    times.into_iter().find_map(|now_ms| {
        let used: u64 = counted.iter().filter(|it| it.0 <= now_ms).map(|it| it.1).sum();
        let is_live = |it: &&(u64, u64, u64)| it.0 <= now_ms && now_ms < it.1;
        let reserved: u64 = live.iter().filter(is_live).map(|it| it.2).sum();
        if used + reserved <= limit {
            return None;
        }
        let excess: u64 = of_key.iter().map(|reserved| excess_of(reserved, now_ms)).sum();
        let most = limit + excess + lost_until(case, key, requests, &of_key, now_ms);
        (used + reserved > most).then(|| {
            format!(
                "{key}: at {now_ms} ms {used} are counted and {reserved} reserved, at most {most} \
                 may be, {excess} of them committed beyond what was reserved"
            )
        })
    })
}

/// What changes of the owner by a time may have lost of `key`: hits, and reservations.
fn lost_until(
    case: &Case<'_, '_>,
    key: Key,
    requests: &[&Record],
    of_key: &[&Reserved],
    now_ms: u64,
) -> u64 {
    let changes = case.world.ledger.changes.iter();
    let changes: Vec<Change> = changes
        .filter(|change| change.key == key && change.at_ms <= now_ms + MARGIN_MS)
        .copied()
        .collect();
    let requests: Vec<Record> = requests.iter().map(|record| (*record).clone()).collect();
    let hits = case.guarantee.losses(key, &requests, &changes).hits;
    let may_be_lost = |reserved: &&&Reserved| {
        reserved.made.is_some_and(|made| {
            changes.iter().any(|change| {
                change.at_ms + MARGIN_MS >= reserved.at_ms && may_lose(change, made.at_ms)
            })
        })
    };
    let lost = of_key.iter().filter(may_be_lost).map(|reserved| u64::from(reserved.amount));
    hits + lost.sum::<u64>()
}

/// A check that was refused although there was room, and nothing was reserved any more.
fn kept_from(
    case: &Case<'_, '_>,
    key: Key,
    probes: &[&Record],
    all: &[Reserved],
) -> Option<String> {
    let left = u64::from(key.kind.limit()).checked_sub(*case.world.counts_at_rest.get(&key)?)?;
    // Other nodes may hold hits of a leased limit.
    if left == 0 || key.kind.is_leased() {
        return None;
    }
    let of_key = all.iter().filter(|reserved| reserved.keys.contains(&key));
    let over_ms = of_key.map(|reserved| ends_before(case, reserved)).max().unwrap_or(0);
    // Hits that an owner lost may be remembered by the refusals of other nodes.
    let mut changes = case.world.ledger.changes.iter();
    let was_lost = changes.any(|it| it.key == key && it.cause != Cause::Handover);
    let is_refused = |record: &&&Record| {
        let is_of_use = record.is_decided() || record.is_authoritative() && !was_lost;
        let response = record.response.filter(|_| is_of_use);
        response.is_some_and(|response| !response.is_allowed) && record.at_ms > over_ms
    };
    let refused = probes.iter().find(is_refused)?;
    Some(format!("{key}: refused with {left} left and nothing reserved: {refused:?}"))
}

/// Without faults that reach a request what is counted is what was admitted and committed.
fn counted_otherwise(
    case: &Case<'_, '_>,
    key: Key,
    requests: &[&Record],
    left: u32,
) -> Option<String> {
    if !case.guarantee.is_exact || key.kind.is_leased() {
        return None;
    }
    let admitted: u64 = requests.iter().map(|record| record.admitted_by_owner()).sum();
    let unknown = requests.iter().filter(|record| !record.is_authoritative() && record.hits > 0);
    let unknown: u64 = unknown.map(|record| record.hits.unsigned_abs()).sum();
    let counted = u64::from(key.kind.limit().saturating_sub(left));
    let limit = u64::from(key.kind.limit());
    let may_be_counted = admitted.min(limit)..=(admitted + unknown).min(limit);
    (!may_be_counted.contains(&counted)).then(|| {
        format!("{key}: {counted} hits are counted, {admitted} were admitted, {unknown} may be")
    })
}

/// A request without an answer of an owner, where no fault keeps it from one.
fn unanswered(case: &Case<'_, '_>, key: Key, requests: &[&Record]) -> Option<String> {
    // One that no replica confirmed in time is answered by `on_unavailable`.
    if !case.guarantee.is_exact || key.kind.is_durable() {
        return None;
    }
    let is_missing = |record: &&&Record| record.response.is_some() && !record.is_authoritative();
    let is_of_owner = |record: &&&Record| record.asked != Asked::Check;
    let missing = requests.iter().filter(is_of_owner).find(is_missing)?;
    Some(format!("{key}: no owner has answered: {missing:?}"))
}

fn situations(case: &Case<'_, '_>, all: &[Reserved]) -> Vec<Situation> {
    let mut reached = Vec::new();
    for reserved in all {
        let Some(made) = reserved.made else { continue };
        if case.scenario.layout.is_edge(reserved.node) {
            reached.push(Situation::ReservedAtEdge);
        }
        for commit in &reserved.commits {
            let Some(settled) = commit.settled else { continue };
            if commit.node != reserved.node {
                reached.push(Situation::CommittedElsewhere);
            }
            reached.push(match settled {
                Settled::Again => Situation::CommittedAgain,
                Settled::Reported => Situation::CommittedLate,
                Settled::Committed => continue,
            });
        }
        reached.extend(repetition(case, reserved));
        let Some(first) = reserved.commits.first() else { continue };
        if first.settled != Some(Settled::Committed) {
            continue;
        }
        for change in &case.world.ledger.changes {
            let is_between = (made.at_ms + MARGIN_MS..first.at_ms).contains(&change.at_ms);
            if is_between && reserved.keys.contains(&change.key) {
                reached.push(match change.cause {
                    Cause::Handover => Situation::ReservationHandedOver,
                    Cause::Crash { .. } => Situation::ReservationSurvived,
                    _ => continue,
                });
            }
        }
    }
    let is_refused = |record: &Record| {
        let is_refused = record.response.is_some_and(|response| !response.is_allowed);
        record.asked == Asked::Reserve && record.is_decided() && is_refused
    };
    if case.world.history.with(|records| records.iter().any(is_refused)) {
        reached.push(Situation::ReservationRefused);
    }
    reached
}

/// How a commit that was not confirmed at first was sent again.
fn repetition(case: &Case<'_, '_>, reserved: &Reserved) -> Vec<Situation> {
    let unconfirmed = reserved.commits.iter().find(|it| it.settled.is_none());
    let Some((from_ms, ended_ms)) = unconfirmed.and_then(|it| Some((it.at_ms, it.ended_ms?)))
    else {
        return Vec::new();
    };
    let is_after = |commit: &&Commit| commit.settled.is_some() && commit.at_ms >= ended_ms;
    let Some(confirmed) = reserved.commits.iter().find(is_after) else { return Vec::new() };
    let has_moved = case.world.ledger.changes.iter().any(|change| {
        change.cause == Cause::Isolation
            && reserved.keys.contains(&change.key)
            && (from_ms..confirmed.until()).contains(&change.at_ms)
    });
    let mut reached = vec![Situation::CommitUnconfirmed];
    reached.extend(has_moved.then_some(Situation::CommitMoved));
    reached
}

// === impl Commit ===

impl Commit {
    fn until(&self) -> u64 {
        self.ended_ms.unwrap_or(u64::MAX)
    }

    fn is_confirmed(&self, until_ms: u64) -> bool {
        self.settled.is_some() && self.until() <= until_ms
    }

    /// Whether an owner has counted its cost then.
    fn has_counted(&self) -> bool {
        matches!(self.settled, Some(Settled::Committed | Settled::Reported))
    }
}
