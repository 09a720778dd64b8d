//! Every ask is answered within its deadline, by the node that was asked, whatever goes wrong
//! elsewhere.

use super::Case;
use crate::history::Record;
use crate::world::Stall;

/// Scheduling: an answer that arrives in one step is seen in the next.
const MARGIN_MS: u64 = 3;
/// Violations of a run that are told; the log has all asks.
const TOLD_MAX: usize = 3;

pub(super) fn check(case: &mut Case<'_, '_>) {
    let deadline_ms = case.scenario.deadline_ms + MARGIN_MS;
    let end_ms = case.world.time.millis();
    let stalls = &case.world.stalls;
    let late: Vec<String> = case.world.history.with(|records| {
        let numbered = records.iter().enumerate();
        let late = numbered.filter(|(_, record)| {
            let until_ms = record.outcome.map_or(end_ms, |outcome| outcome.at_ms);
            until_ms - record.at_ms > deadline_ms && !is_excused(record, until_ms, stalls)
        });
        let told = late.map(|(number, record)| match record.outcome {
            Some(outcome) => {
                format!("ask {number} was answered after {} ms", outcome.at_ms - record.at_ms)
            }
            None => format!("ask {number} was not answered"),
        });
        told.take(TOLD_MAX).collect()
    });
    for what in late {
        case.world.report.violation(what);
    }
}

/// Whether the node that was asked stood still or ended while it was being asked.
fn is_excused(record: &Record, until_ms: u64, stalls: &[Stall]) -> bool {
    stalls.iter().any(|stall| {
        stall.node == record.node && stall.from_ms <= until_ms && stall.to_ms >= record.at_ms
    })
}
