//! Records the situations that the history shows.

use tidegate::decide::VerdictSource;

use super::Case;
use crate::coverage::Situation;
use crate::history::Record;
use crate::world::{Crash, outlasts_run};

pub(super) fn record(case: &mut Case<'_, '_>) {
    let crashes = &case.world.crashes;
    let (requests, fallbacks, reached) = case.world.history.with(|records| {
        let by = |source| records.iter().filter(move |record| record.source() == Some(source));
        let fallbacks = by(VerdictSource::Fallback).count() as u64;
        let is_refused = |record: &&Record| record.response.is_some_and(|o| !o.is_allowed);
        let mut reached = Vec::new();
        if fallbacks > 0 {
            reached.push(Situation::FallbackAnswered);
        }
        if by(VerdictSource::Grant).next().is_some() {
            reached.push(Situation::GrantSpent);
        }
        if by(VerdictSource::Owner).any(|record| is_refused(&record)) {
            reached.push(Situation::LimitReached);
        }
        if crashes.iter().any(|crash| counts_survived(crash, records)) {
            reached.push(Situation::PromotedReplica);
        }
        (records.len() as u64, fallbacks, reached)
    });
    if case.world.nodes.iter().any(|node| node.grants().recalled > 0) {
        case.world.report.reached.insert(Situation::GrantRecalled);
    }
    if case.world.has_failed_write() {
        case.world.report.reached.insert(Situation::FailedWrite);
    }
    let report = &mut case.world.report;
    (report.requests, report.fallbacks) = (requests, fallbacks);
    report.reached.extend(reached);
}

/// Whether the first verdict on some key after its owner crashed includes the earlier hits.
fn counts_survived(crash: &Crash, records: &[Record]) -> bool {
    crash.owned.iter().filter(|key| outlasts_run(key.kind)).any(|key| {
        let of_key = || records.iter().filter(|record| record.key == *key);
        let answered = |record: &&Record| {
            record.is_decided() && record.response.is_some_and(|o| o.at_ms <= crash.at_ms)
        };
        let before: u64 = of_key().filter(answered).map(Record::admitted_by_owner).sum();
        let after = of_key().find(|record| record.is_decided() && record.at_ms > crash.at_ms);
        let counted = after
            .and_then(|record| record.response)
            .map_or(0, |response| u64::from(key.kind.limit().saturating_sub(response.remaining)));
        // One hit is the request's own: a count that restarted shows only that.
        before > 1 && counted > 1 && counted >= before
    })
}
