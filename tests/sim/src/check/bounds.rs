//! Nothing grows beyond its bound.

use super::Case;
use crate::coverage::Situation;

pub(super) fn check(case: &mut Case<'_, '_>) {
    let keys_max = case.scenario.keys_max;
    let stats: Vec<_> = case.world.processes().map(|process| process.core.store.stats()).collect();
    for stats in stats {
        let report = &mut case.world.report;
        if stats.keys > keys_max {
            report.violation(format!("a store holds {} keys of {keys_max}", stats.keys));
        }
        if stats.overflowed > 0 {
            report.reached.insert(Situation::FullStore);
        }
    }
}
