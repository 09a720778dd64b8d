//! Every request is answered within its deadline by the node that received it, whatever fails
//! elsewhere.

use tidegate_limiter::policy::Scope;

use super::Case;
use crate::history::{Asked, Record};
use crate::world::Stall;

/// A response that arrives in one step is recorded in the next, and the timers of the attempts of
/// one check round up to a step each.
const MARGIN_STEPS: u64 = 5;
/// Violations reported per run; the log has all requests.
const REPORTED_MAX: usize = 3;

pub(super) fn check(case: &mut Case<'_, '_>) {
    let deadline_ms = |record: &Record| {
        let deadline_ms = match record.key.kind.scope() {
            Scope::Region => case.scenario.deadline_ms,
            Scope::Global => case.scenario.global_deadline_ms,
        };
        deadline_ms + MARGIN_STEPS * case.scenario.step_ms
    };
    let end_ms = case.world.time.millis();
    let stalls = &case.world.stalls;
    let late: Vec<String> = case.world.history.with(|records| {
        let numbered = records.iter().enumerate();
        // A commit waits for an owner (`reserved.rs`).
        let numbered = numbered.filter(|(_, record)| record.asked != Asked::Commit);
        let late = numbered.filter(|(_, record)| {
            let until_ms = record.response.map_or(end_ms, |response| response.at_ms);
            until_ms - record.at_ms > deadline_ms(record)
                && !is_excused(record.node, record.at_ms, until_ms, stalls)
        });
        let reports = late.map(|(number, record)| match record.response {
            Some(response) => {
                format!("request {number} was answered after {} ms", response.at_ms - record.at_ms)
            }
            None => format!("request {number} was not answered"),
        });
        reports.take(REPORTED_MAX).collect()
    });
    for violation in late {
        case.world.report.violation(violation);
    }
}

/// Whether the node was paused or ended while a request was pending.
pub(super) fn is_excused(node: usize, from_ms: u64, until_ms: u64, stalls: &[Stall]) -> bool {
    stalls
        .iter()
        .any(|stall| stall.node == node && stall.from_ms <= until_ms && stall.to_ms >= from_ms)
}
