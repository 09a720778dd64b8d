//! What a run has to hold, given what goes wrong in it.
//!
//! This is the one place where a fault buys an allowance. While nothing makes a key change its
//! owner, strict limits are exact. Owners neither replicate nor hand over, so once a key changes
//! its owner its count begins anew: how often that happens is up to the failure detector, and no
//! bound is stated.

use crate::fault::Fault;
use crate::scenario::Scenario;

/// What a run has to hold about its strict keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guarantee {
    /// No key passes more than its limit, no hit that was admitted is forgotten, and at no moment
    /// two nodes take themselves for the owner of one key.
    pub(crate) is_exact: bool,
    /// Nothing stands between a caller and the owner: every ask is decided and none answered by
    /// policy.
    pub(crate) is_undisturbed: bool,
}

impl Guarantee {
    /// What `scenario` has to hold.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        Self {
            is_exact: !scenario.moves_keys(),
            is_undisturbed: !scenario.incidents.iter().any(|i| disturbs(&i.fault)),
        }
    }
}

/// Whether a fault may keep an ask from its owner.
fn disturbs(fault: &Fault) -> bool {
    fault.moves_keys()
        || matches!(
            fault,
            Fault::Pause { .. } | Fault::Slow { .. } | Fault::Weather { .. } | Fault::Burst { .. }
        )
}
