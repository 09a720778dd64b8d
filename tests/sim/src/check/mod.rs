//! The checkers: what must hold of the history, and of the nodes when all is well again.

mod admitted;
mod agreed;
mod answered;
mod bounds;
mod reached;

use crate::guarantee::Guarantee;
use crate::scenario::Scenario;
use crate::world::World;

/// Everything a checker looks at, and where it puts what it found.
pub(crate) struct Case<'a, 'b> {
    pub(crate) world: &'a mut World<'b>,
    pub(crate) scenario: &'a Scenario,
    pub(crate) guarantee: Guarantee,
    /// The number of the first ask of the final look.
    pub(crate) looked_from: usize,
}

/// Checks everything.
pub(crate) fn all(
    world: &mut World<'_>,
    scenario: &Scenario,
    guarantee: Guarantee,
    looked_from: usize,
) {
    let mut case = Case { world, scenario, guarantee, looked_from };
    answered::check(&mut case);
    admitted::check(&mut case);
    agreed::check(&mut case);
    bounds::check(&mut case);
    reached::note(&mut case);
}
