//! That certificates of one node are refused.

use serde::{Deserialize, Serialize};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::NodeId;

/// Certificates of `node` that begin until `at` are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub node: NodeId,
    pub at: Timestamp,
}
