//! Strict limits hold, and no hit that was admitted is forgotten or counted twice.

use super::Case;
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
}

pub(super) fn check(case: &mut Case<'_, '_>) {
    let tallies: Vec<(Key, Tally)> = case.world.history.with(|records| {
        keys::checked().map(|key| (key, tally(key, records, case.looked_from))).collect()
    });
    for (key, tally) in tallies {
        for problem in problems(case, key, &tally) {
            case.world.report.violation(format!("{key}: {problem}: {tally:?}"));
        }
    }
    if case.guarantee.is_exact && case.world.report.two_owners_ms > 0 {
        let for_ms = case.world.report.two_owners_ms;
        case.world.report.violation(format!("two owners of one key for {for_ms} ms"));
    }
}

fn tally(key: Key, records: &[Record], looked_from: usize) -> Tally {
    let (asks, looks) = records.split_at(looked_from);
    let mut tally = Tally { by_oracle: oracle::admitted(key, asks), ..Tally::default() };
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
    let mut found = Vec::new();
    let limit = u64::from(key.kind.limit());
    if !key.kind.is_strict() {
        return found;
    }
    if key.kind != Kind::Shared && tally.by_policy > 0 {
        found.push("a rule that refuses while nobody decides let hits pass");
    }
    if key.kind == Kind::Brief {
        if case.guarantee.is_exact && tally.by_owner > limit * windows(case) {
            found.push("more hits passed than all its windows hold");
        }
        return found;
    }
    if case.guarantee.is_exact {
        if tally.by_owner > limit {
            found.push("more hits passed than the limit");
        }
        if tally.counted.is_some_and(|counted| counted < tally.by_owner) {
            found.push("hits that were admitted are forgotten");
        }
    }
    if tally.counted.is_some_and(|counted| counted > tally.asked) {
        found.push("hits were counted twice");
    }
    if case.guarantee.is_undisturbed {
        if tally.by_owner != tally.by_oracle {
            found.push("the cluster admits other than one exact node does");
        }
        if tally.by_policy > 0 {
            found.push("an ask was answered by policy though nothing was wrong");
        }
    }
    found
}

/// The most windows of [`Kind::Brief`] that the clocks of all nodes together show in a run.
fn windows(case: &Case<'_, '_>) -> u64 {
    let ahead = case.scenario.clocks_ahead_ms.iter().map(|ms| ms.unsigned_abs()).max().unwrap_or(0);
    // The decision clock follows a step at a tenth of the speed of time.
    let run = FORMING_MS + LOAD_MS + SETTLING_MS;
    (run + run / 10 + 2 * ahead) / (keys::BRIEF_SECONDS * 1_000) + 2
}
