//! Leased limits hold in every window, and each granted hit is accounted for.
//!
//! A hit passed between its request and its answer. All hits that certainly passed between two
//! times are at most what the windows that these times can touch allow, by any of the clocks that
//! owners had; of a bucket at most its burst and what drained. In a run without faults that reach
//! a request, no hit is lost either: what an owner has counted in the end is what was admitted.

use tidegate::decide::VerdictSource;

use super::Case;
use crate::history::Record;
use crate::keys::{self, Key, Kind, SLICES};
use crate::node::Grants;
use crate::world::{Cause, UNAWARE_MS, outlasts_run};

/// The longest term of a grant, in its region and for another one. A hit was charged at most so
/// long before it passed.
const TERM_MS: u64 = 1_000;
const FAR_TERM_MS: u64 = 4_000;
/// `cluster.lease`, and time for a ping in flight: how long a machine that was stopped may spend
/// what had ended meanwhile.
const LEASE_MS: u64 = 700;
/// How long a refund may wait for hits that were granted before it.
const REFUND_WAITS_MS: u64 = 2 * FAR_TERM_MS;
/// Times of up to so many windows are looked at.
const WINDOWS: u64 = 3;
/// In a run without faults at least so many of a hundred hits are admitted where more are checked.
const USED_MIN_PERCENT: u64 = 98;

pub(super) fn check(case: &mut Case<'_, '_>) {
    if !case.scenario.has_leased_keys && !case.scenario.has_reserved_keys {
        return;
    }
    let mut found = grants_at_rest(case);
    let keys: Vec<Key> =
        keys::checked(case.scenario.selection()).filter(|key| key.kind.is_leased()).collect();
    case.world.history.with(|records| {
        let records = &records[..case.final_read_from];
        for key in keys {
            let of_key: Vec<&Record> = records.iter().filter(|it| it.key == key).collect();
            if outlasts_run(key.kind) {
                found.extend(counted_at_rest(case, key, &of_key));
            } else {
                found.extend(over_in_a_window(case, key, &of_key));
            }
        }
    });
    for what in found {
        case.world.report.violation(what);
    }
}

/// What was granted is spent, given back or came late; and nothing is held any more.
fn grants_at_rest(case: &Case<'_, '_>) -> Vec<String> {
    let mut found = Vec::new();
    let at_rest = &case.world.grants_at_rest;
    for (id, grants) in at_rest {
        let Grants { received, refunded, spent, given_back, late, held, .. } = *grants;
        if held > 0 {
            found.push(format!("{id} holds granted hits at rest: {grants:?}"));
        }
        if received + refunded != spent + given_back + late + held {
            found.push(format!("granted hits of {id} do not add up: {grants:?}"));
        }
    }
    let zero = Grants::default();
    let all = at_rest.iter().map(|(_, grants)| *grants).fold(zero, Grants::plus);
    let of_ended = case.world.nodes.iter().map(|node| node.past_grants).fold(zero, Grants::plus);
    let all = all.plus(of_ended);
    if all.received > all.granted {
        found.push(format!("more hits were received than granted: {all:?}"));
    }
    if all.spent + all.taken_back > all.granted + all.refunded {
        found.push(format!("more hits were spent and taken back than granted: {all:?}"));
    }
    let passed = case.world.history.with(|records| {
        let of_grant = records[..case.final_read_from].iter().filter(|it| it.is_of_grant());
        of_grant.map(|record| u64::try_from(record.hits).unwrap_or(0)).sum::<u64>()
    });
    // An answer may be lost with its process.
    let has_crashed = !case.world.crashes.is_empty();
    if passed > all.spent || passed < all.spent && !has_crashed {
        found.push(format!("{passed} granted hits passed, by the nodes {}", all.spent));
    }
    found
}

/// Without faults that reach a request, an owner has counted what was admitted, and refused nothing
/// early.
fn counted_at_rest(case: &Case<'_, '_>, key: Key, records: &[&Record]) -> Vec<String> {
    let mut found = Vec::new();
    let admitted: u64 = records.iter().map(|record| record.admitted_by_owner()).sum();
    // Of other modes there are other counters, and a strict window counts what it refuses.
    let is_plain = !matches!(key.kind, Kind::Switched | Kind::Loosened);
    // A check whose answer waited for a replica for too long may be counted.
    let are_answered = records.iter().all(|it| it.source() != Some(VerdictSource::Fallback));
    let counted = case.world.counts_at_rest.get(&key);
    if !case.guarantee.is_exact || !is_plain || !are_answered {
        return found;
    }
    let refunded: u64 = records.iter().map(|it| it.hits.min(0).unsigned_abs()).sum();
    // A commit counts beyond the limit, which the count does not show.
    let most = if key.kind.is_reserved() { u64::from(key.kind.limit()) } else { u64::MAX };
    let may_be_counted = admitted.saturating_sub(refunded).min(most)..=admitted.min(most);
    if counted.is_some_and(|counted| !may_be_counted.contains(counted)) {
        found.push(format!("{key}: {counted:?} hits are counted, {admitted} were admitted"));
    }
    let requested: u64 = records.iter().map(|it| u64::try_from(it.hits).unwrap_or(0)).sum();
    let limit = u64::from(key.kind.limit());
    // What is reserved is refused to others, and may cost nothing.
    let is_asked_for = requested >= 2 * limit && !key.kind.is_reserved();
    let has_demand = is_asked_for && case.scenario.incidents.is_empty();
    if has_demand && admitted * 100 < limit * USED_MIN_PERCENT {
        found.push(format!("{key}: {admitted} of {limit} were admitted of {requested} checked"));
    }
    found
}

/// Whether more hits passed between two times than the windows there allow.
fn over_in_a_window(case: &Case<'_, '_>, key: Key, records: &[&Record]) -> Option<String> {
    let mut passed: Vec<(u64, u64, u64)> = Vec::new();
    for record in records.iter().filter(|record| !is_of_a_stopped_machine(case, record)) {
        let hits = record.admitted_by_owner();
        if let Some(response) = record.response.filter(|_| hits > 0) {
            passed.push((record.at_ms, response.at_ms, hits));
        }
    }
    passed.sort_by_key(|(_, to_ms, _)| *to_ms);
    let mut starts: Vec<u64> = passed.iter().map(|(from_ms, ..)| *from_ms).collect();
    starts.sort_unstable();
    starts.dedup();
    for start_ms in starts {
        let mut hits = 0;
        let first = passed.partition_point(|(_, to_ms, _)| *to_ms < start_ms);
        let last_ms = start_ms + WINDOWS * key.kind.window().as_nanos() / 1_000_000;
        for (from_ms, to_ms, of_one) in &passed[first..] {
            if *to_ms > last_ms {
                break;
            }
            if *from_ms < start_ms {
                continue;
            }
            hits += of_one;
            if hits <= u64::from(key.kind.limit()) {
                continue;
            }
            let most = most_within(case, key, start_ms, *to_ms);
            let most = most + refunded_before(records, start_ms, *to_ms);
            if hits > most {
                return Some(format!(
                    "{key}: {hits} hits passed from {start_ms} to {to_ms} ms, at most {most} may"
                ));
            }
        }
    }
    None
}

/// What clients gave back between two times, or so shortly before that it may be taken then.
fn refunded_before(records: &[&Record], from_ms: u64, to_ms: u64) -> u64 {
    let since_ms = from_ms.saturating_sub(REFUND_WAITS_MS);
    let refunds = records.iter().filter(|it| (since_ms..=to_ms).contains(&it.at_ms));
    refunds.map(|record| record.hits.min(0).unsigned_abs()).sum()
}

/// The most hits that may pass between two times, those that takeovers lost included.
fn most_within(case: &Case<'_, '_>, key: Key, from_ms: u64, to_ms: u64) -> u64 {
    let limit = u64::from(key.kind.limit());
    let window_ms = key.kind.window().as_nanos() / 1_000_000;
    let term_ms = if key.kind.is_divided() { FAR_TERM_MS } else { TERM_MS };
    let (least, most) = case.world.offsets.between(from_ms.saturating_sub(term_ms), to_ms);
    // The true time begins with a window of any of these lengths.
    let first_ms = i64::try_from(from_ms).unwrap_or(i64::MAX) + least;
    let last_ms = i64::try_from(to_ms).unwrap_or(i64::MAX) + most;
    let allowed = match key.kind {
        Kind::LeasedBucket => {
            let passed_ms = u64::try_from(last_ms - first_ms).unwrap_or(0);
            limit + limit * passed_ms / window_ms
        }
        kind => {
            let slices = u64::from(if kind == Kind::LeasedSliced { SLICES } else { 1 });
            let slice_ms = i64::try_from(window_ms / slices).unwrap_or(i64::MAX);
            let touched = last_ms.div_euclid(slice_ms) - first_ms.div_euclid(slice_ms) + 1;
            limit * u64::try_from(touched).unwrap_or(0).div_ceil(slices)
        }
    };
    let since_ms = from_ms.saturating_sub(window_ms + 2 * term_ms);
    let changes = case.world.ledger.changes.iter().filter(|change| {
        let is_of_it = change.key == key && change.cause != Cause::Handover;
        is_of_it && (since_ms..=to_ms).contains(&change.at_ms)
    });
    // A store without room for a count of another starts it again.
    let full = if case.guarantee.may_fill_stores { allowed } else { 0 };
    allowed + full + limit * changes.count() as u64
}

/// Whether a machine that had been stopped spent it before it knew.
fn is_of_a_stopped_machine(case: &Case<'_, '_>, record: &Record) -> bool {
    let went_on = |(node, at_ms): &(usize, u64)| {
        *node == record.node && (*at_ms..=at_ms + LEASE_MS.max(UNAWARE_MS)).contains(&record.at_ms)
    };
    record.is_of_grant() && case.world.stops.iter().any(went_on)
}
