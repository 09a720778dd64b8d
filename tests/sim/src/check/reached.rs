//! Which situations the history shows.

use tidegate::decide::VerdictSource;

use super::Case;
use crate::coverage::Situation;
use crate::history::Record;
use crate::world::{Crash, is_lasting};

pub(super) fn note(case: &mut Case<'_, '_>) {
    let crashes = &case.world.crashes;
    let (asks, by_policy, reached) = case.world.history.with(|records| {
        let by = |source| records.iter().filter(move |record| record.source() == Some(source));
        let by_policy = by(VerdictSource::Fallback).count() as u64;
        let is_refused = |record: &&Record| record.outcome.is_some_and(|o| !o.is_allowed);
        let mut reached = Vec::new();
        if by_policy > 0 {
            reached.push(Situation::PolicyAnswered);
        }
        if by(VerdictSource::Owner).any(|record| is_refused(&record)) {
            reached.push(Situation::LimitReached);
        }
        if crashes.iter().any(|crash| has_survived(crash, records)) {
            reached.push(Situation::PromotedReplica);
        }
        (records.len() as u64, by_policy, reached)
    });
    let report = &mut case.world.report;
    (report.asks, report.by_policy) = (asks, by_policy);
    report.reached.extend(reached);
}

/// Whether the first verdict on a key after its owner crashed knew of the hits before.
fn has_survived(crash: &Crash, records: &[Record]) -> bool {
    crash.owned.iter().filter(|key| is_lasting(key.kind)).any(|key| {
        let of_key = || records.iter().filter(|record| record.key == *key);
        let answered = |record: &&Record| {
            record.is_decided() && record.outcome.is_some_and(|o| o.at_ms <= crash.at_ms)
        };
        let before: u64 = of_key().filter(answered).map(Record::admitted_by_owner).sum();
        let after = of_key().find(|record| record.is_decided() && record.at_ms > crash.at_ms);
        let counted = after
            .and_then(|record| record.outcome)
            .map_or(0, |outcome| u64::from(key.kind.limit().saturating_sub(outcome.remaining)));
        // One hit more is the ask itself: a count that began anew shows no more than that.
        before > 1 && counted > 1 && counted >= before
    })
}
