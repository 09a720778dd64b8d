//! Strict limits hold, and no admitted hit is lost or counted twice.

use tidegate_limiter::engine::{State, decide};
use tidegate_limiter::units::{Hits, Span, Timestamp};

use super::Case;
use super::reserved::excess;
use crate::fault::Fault;
use crate::guarantee::Losses;
use crate::history::Record;
use crate::keys::{self, Key, Kind};

/// A time such that no window of a day ends within a run.
const ORACLE_START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Hits of one key.
#[derive(Debug, Default)]
struct Tally {
    requested: u64,
    /// Admitted by an owner, according to the responses.
    by_owner: u64,
    /// Admitted by the rule's `on_unavailable`.
    fallbacks: u64,
    /// Admitted by one exact node for the same requests.
    by_oracle: u64,
    /// Highest count that an owner returned in the final read; `None` without one.
    counted: Option<u64>,
    /// Given back by clients, whether or not an owner was told.
    given_back: u64,
    /// By changes of the owner.
    losses: Losses,
    /// Committed beyond what was reserved.
    excess: u64,
}

pub(super) fn check(case: &mut Case<'_, '_>) {
    let tallies: Vec<(Key, Tally)> = case.world.history.with(|records| {
        let keys = keys::checked(case.scenario.selection());
        let strict = keys.filter(|key| key.kind.is_strict());
        strict.map(|key| (key, tally(case, key, records))).collect()
    });
    for (key, tally) in tallies {
        for problem in problems(case, key, &tally) {
            case.world.report.violation(format!("{key}: {problem}: {tally:?}"));
        }
    }
    let two_owners_ms = case.world.report.two_owners_ms;
    if two_owners_ms > 0 {
        case.world
            .report
            .violation(format!("two nodes owned the same tokens for {two_owners_ms} ms"));
    }
}

fn tally(case: &Case<'_, '_>, key: Key, records: &[Record]) -> Tally {
    let (requests, reads) = records.split_at(case.final_read_from);
    let mut tally = Tally {
        by_oracle: oracle_admitted(key, requests),
        losses: case.guarantee.losses(key, requests, &case.world.ledger.changes),
        excess: case.world.reservations.with(|all| excess(key, all)),
        ..Tally::default()
    };
    for record in requests.iter().filter(|record| record.key == key) {
        tally.requested += u64::try_from(record.hits).unwrap_or(0);
        tally.given_back += record.hits.min(0).unsigned_abs();
        tally.by_owner += record.admitted_by_owner();
        tally.fallbacks += record.admitted_by_fallback();
    }
    let reads = reads.iter().filter(|record| record.key == key && record.is_decided());
    let left = reads.filter_map(|record| record.response.map(|response| response.remaining)).min();
    tally.counted = left.map(|left| u64::from(key.kind.limit().saturating_sub(left)));
    if key.kind.is_divided() {
        // What a node says of shares elsewhere is an estimate.
        tally.counted = case.world.counts_at_rest.get(&key).copied();
    }
    tally
}

fn problems(case: &Case<'_, '_>, key: Key, tally: &Tally) -> Vec<&'static str> {
    let Tally { requested, by_owner, fallbacks, by_oracle, counted, given_back, losses, excess } =
        *tally;
    let limit = u64::from(key.kind.limit());
    let mut found = Vec::new();
    // The shares of all nodes sum to the limit, but a region that is no home of global keys has one
    // part more; each membership change creates new shares.
    let layout = &case.scenario.layout;
    let homes = layout.homes as u64;
    let others = layout.names.len() as u64 - homes;
    let shares =
        if key.kind == Kind::GlobalShared { limit + others * limit / (homes + 1) } else { limit };
    // An edge that reaches no core has the whole limit.
    let edges = layout.edges as u64;
    let fallback_max =
        if key.kind.has_shares() { shares * (1 + membership_changes(case) + edges) } else { 0 };
    if fallbacks > fallback_max {
        found.push("the fallback admitted more hits than it may");
    }
    // Those of leased rules are followed more closely (`leased.rs`).
    let windows = match key.kind {
        Kind::Brief => windows(case),
        kind if kind.is_brief() => u64::from(u32::MAX),
        _ => 1,
    };
    // A new key of a full store is counted in a shared counter, and in its own when there is room.
    // Clients check leased keys seldom, so some are new then.
    let shared = case.guarantee.may_fill_stores && key.kind.is_leased();
    let windows = windows + u64::from(shared);
    if by_owner > limit * windows + given_back + losses.hits + excess {
        found.push("more hits admitted than the limit, the refunds and the losses");
    }
    if losses.unexplained > 0 {
        found.push("hits were lost without a reason");
    }
    if key.kind.is_brief() {
        return found;
    }
    let kept = by_owner.saturating_sub(losses.hits).min(limit).saturating_sub(given_back);
    if !case.guarantee.may_fill_stores && counted.is_some_and(|counted| counted < kept) {
        found.push("admitted hits are lost");
    }
    // A full store has a counter for the hits of several new keys.
    let may_share = case.guarantee.may_fill_stores && key.kind.is_reserved();
    let is_counted_alone = !key.kind.is_leased() && !may_share;
    if is_counted_alone && counted.is_some_and(|counted| counted > requested) {
        found.push("hits are counted twice");
    }
    // A hit that no replica confirmed in time is counted and refused. So is one whose call brings a
    // grant, which waits for a replica.
    let may_lack_confirmation = key.kind.is_durable() || key.kind.is_leased();
    // Which of several hits pass depends on the order, and the second limit on the time.
    let has_oracle = !matches!(key.kind, Kind::Weighted | Kind::Layered)
        && !key.kind.is_leased()
        && !key.kind.is_reserved();
    let is_exact = case.guarantee.is_exact && !may_lack_confirmation;
    if is_exact && (has_oracle && by_owner != by_oracle || fallbacks > 0) {
        found.push("verdicts differ from those of one exact node");
    }
    found
}

/// Number of changes that create new shares: of the members, and where there are several regions
/// restarts of any kind.
fn membership_changes(case: &Case<'_, '_>) -> u64 {
    if case.scenario.layout.has_global_keys() {
        let starts: u64 = case.world.nodes.iter().map(|node| u64::from(node.starts)).sum();
        let first = case.scenario.initial_nodes as u64;
        return starts.saturating_sub(first);
    }
    let changes = |fault: &Fault| {
        matches!(fault, Fault::Start { .. } | Fault::Leave { .. } | Fault::Crash { .. })
    };
    case.scenario.incidents.iter().filter(|incident| changes(&incident.fault)).count() as u64
}

/// Largest number of windows of [`Kind::Brief`] that the clocks of all nodes can go through in a
/// run.
fn windows(case: &Case<'_, '_>) -> u64 {
    let offset =
        case.scenario.clock_offsets_ms.iter().map(|ms| ms.unsigned_abs()).max().unwrap_or(0);
    // The decision clock slews at a tenth of the speed of time.
    let duration = case.world.time.millis();
    (duration + duration / 10 + 2 * offset) / (keys::BRIEF_SECONDS * 1_000) + 2
}

/// The oracle: hits of `key` that one exact node admits, of the requests in `records` that an owner
/// decided, each applied at the time of its request.
///
/// Exact for windows that outlast the run: the number of admitted hits then does not depend on
/// their order.
fn oracle_admitted(key: Key, records: &[Record]) -> u64 {
    let quota = key.kind.quota();
    let mut state = State::Absent;
    let mut admitted = 0;
    for record in records.iter().filter(|record| record.key == key && record.is_authoritative()) {
        let now = ORACLE_START.plus(Span::from_millis(record.at_ms));
        if decide(&mut state, &quota, Hits::new(record.hits), now).allowed {
            admitted += u64::try_from(record.hits).unwrap_or(0);
        }
    }
    admitted
}
