//! Strict limits hold, and no hit that was admitted is forgotten or counted twice.

use super::Case;
use crate::fault::Fault;
use crate::history::Record;
use crate::keys::{self, Key, Kind};
use crate::oracle;
use crate::scenario::{FORMING_MS, LOAD_MS, SETTLING_MS};

/// What became of one key's hits.
#[derive(Debug, Default)]
struct Tally {
    asked: u64,
    /// Admitted by an owner, as callers were told.
    by_owner: u64,
    /// Admitted by the rule's `on_unavailable`.
    by_policy: u64,
    /// What the oracle admits of the same asks.
    by_oracle: u64,
    /// The most hits that a node found counted in the final look, if one was answered by an owner.
    counted: Option<u64>,
    /// How many of the admitted may be forgotten; `None` without a bound.
    forgotten_max: Option<u64>,
}

pub(super) fn check(case: &mut Case<'_, '_>) {
    let tallies: Vec<(Key, Tally)> = case.world.history.with(|records| {
        let strict = keys::checked().filter(|key| key.kind.is_strict());
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
            .violation(format!("two nodes decided the same places for {two_owners_ms} ms"));
    }
}

fn tally(case: &Case<'_, '_>, key: Key, records: &[Record]) -> Tally {
    let (asks, looks) = records.split_at(case.looked_from);
    let mut tally = Tally {
        by_oracle: oracle::admitted(key, asks),
        forgotten_max: case.guarantee.forgotten_max(
            key,
            asks,
            &case.world.crashes,
            &case.world.isolations,
        ),
        ..Tally::default()
    };
    for record in asks.iter().filter(|record| record.key == key) {
        tally.asked += record.hits.unsigned_abs();
        tally.by_owner += record.admitted_by_owner();
        tally.by_policy += record.admitted_by_policy();
    }
    let looks = looks.iter().filter(|record| record.key == key && record.is_decided());
    let left = looks.filter_map(|record| record.outcome.map(|outcome| outcome.remaining)).min();
    tally.counted = left.map(|left| u64::from(key.kind.limit().saturating_sub(left)));
    tally
}

fn problems(case: &Case<'_, '_>, key: Key, tally: &Tally) -> Vec<&'static str> {
    let Tally { asked, by_owner, by_policy, by_oracle, counted, forgotten_max } = *tally;
    let limit = u64::from(key.kind.limit());
    let mut found = Vec::new();
    // The shares of all nodes sum to the limit; a node that comes, goes or starts anew makes new
    // ones.
    let policy_max =
        if key.kind == Kind::Shared { limit * (1 + comings_and_goings(case)) } else { 0 };
    if by_policy > policy_max {
        found.push("more hits passed by policy than the policy has to give");
    }
    let windows = if key.kind == Kind::Brief { windows(case) } else { 1 };
    if forgotten_max.is_some_and(|forgotten| by_owner > limit * windows + forgotten) {
        found.push("more hits passed than the limit and what a crash may lose");
    }
    if key.kind == Kind::Brief {
        return found;
    }
    if let (Some(forgotten), Some(counted)) = (forgotten_max, counted)
        && counted < limit.min(by_owner.saturating_sub(forgotten))
    {
        found.push("hits that were admitted are forgotten");
    }
    if counted.is_some_and(|counted| counted > asked) {
        found.push("hits were counted twice");
    }
    // A hit that no replica confirmed in time is counted, and refused.
    let may_be_unconfirmed = key.kind == Kind::Durable;
    let is_undisturbed = case.guarantee.is_undisturbed && !may_be_unconfirmed;
    if is_undisturbed && (by_owner != by_oracle || by_policy > 0) {
        found.push("the cluster decides other than one exact node does");
    }
    found
}

/// How often the members changed.
fn comings_and_goings(case: &Case<'_, '_>) -> u64 {
    let changes = |fault: &Fault| {
        matches!(fault, Fault::Start { .. } | Fault::Leave { .. } | Fault::Crash { .. })
    };
    case.scenario.incidents.iter().filter(|incident| changes(&incident.fault)).count() as u64
}

/// The most windows of [`Kind::Brief`] that the clocks of all nodes together show in a run.
fn windows(case: &Case<'_, '_>) -> u64 {
    let ahead = case.scenario.clocks_ahead_ms.iter().map(|ms| ms.unsigned_abs()).max().unwrap_or(0);
    // The decision clock follows a step at a tenth of the speed of time.
    let run = FORMING_MS + LOAD_MS + SETTLING_MS;
    (run + run / 10 + 2 * ahead) / (keys::BRIEF_SECONDS * 1_000) + 2
}
