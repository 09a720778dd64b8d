//! The checks: on the history of a run, and on the nodes after the last fault.

mod convergence;
mod deadlines;
mod leased;
mod limits;
mod reserved;
mod situations;

use crate::coverage::Situation;
use crate::guarantee::Guarantee;
use crate::scenario::Scenario;
use crate::world::World;

/// Input of the checks; violations go to the report in `world`.
pub(crate) struct Case<'a, 'b> {
    pub(crate) world: &'a mut World<'b>,
    pub(crate) scenario: &'a Scenario,
    pub(crate) guarantee: Guarantee,
    /// Number of the first request after the load, of the keys that are then checked once more.
    pub(crate) probes_from: usize,
    /// Number of the first request of the final read.
    pub(crate) final_read_from: usize,
}

/// Where the requests of clients end.
#[derive(Clone, Copy)]
pub(crate) struct Reads {
    pub(crate) probes_from: usize,
    pub(crate) final_read_from: usize,
}

/// Runs all checks.
pub(crate) fn all(world: &mut World<'_>, scenario: &Scenario, guarantee: Guarantee, reads: Reads) {
    let Reads { probes_from, final_read_from } = reads;
    let mut case = Case { world, scenario, guarantee, probes_from, final_read_from };
    deadlines::check(&mut case);
    limits::check(&mut case);
    leased::check(&mut case);
    reserved::check(&mut case);
    convergence::check(&mut case);
    check_bounds(&mut case);
    situations::record(&mut case);
}

/// Every store is within its key limit, with half as much for reservations, ids of commits and
/// copies of both.
fn check_bounds(case: &mut Case<'_, '_>) {
    let keys_max = case.scenario.keys_max + 2 * case.scenario.keys_max.div_ceil(4);
    let stats: Vec<_> = case.world.processes().map(|process| process.core.store.stats()).collect();
    for stats in stats {
        let report = &mut case.world.report;
        if stats.keys > keys_max {
            report.violation(format!("a store holds {} keys, more than {keys_max}", stats.keys));
        }
        if stats.overflowed > 0 {
            report.reached.insert(Situation::FullStore);
        }
    }
}
