//! Node identity: a stable id, and a generation that grows at each start.
//!
//! The id places the node on the ring, so it survives restarts. Id and generation together are an
//! *incarnation*, which names the *actor* whose entry of a G-counter the node increments: a
//! restarted node has lost its counts, so it must not continue the entry of its previous
//! incarnation.

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tidegate_limiter::engine::ActorId;

use crate::name::is_label_or_number;

/// A node's stable name: a DNS label, because the node's certificate carries it.
///
/// ```
/// use tidegate_ownership::identity::NodeId;
///
/// assert!(NodeId::new("edge-7").is_ok());
/// assert!(NodeId::new("Edge 7").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(Arc<str>);

/// A text that is not a node id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a node id: use 1 to 63 lower-case letters, digits and '-', \
     with no '-' at either end"
)]
pub struct InvalidNodeId(pub String);

impl NodeId {
    /// # Errors
    ///
    /// [`InvalidNodeId`] when `id` is not a DNS label.
    pub fn new(id: &str) -> Result<Self, InvalidNodeId> {
        if is_label_or_number(id) { Ok(Self(id.into())) } else { Err(InvalidNodeId(id.to_owned())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The incarnation number of a node: the wall clock at its start in milliseconds, or one more than
/// the highest generation that a peer has seen of this node, whichever is higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// The actor of the per-actor counters that `node` increments in its `generation`.
pub fn node_actor(node: &NodeId, generation: Generation) -> ActorId {
    let mut sip = SipHasher13::new_with_key(b"tidegate n actor");
    sip.write(node.as_str().as_bytes());
    ActorId::of_start(sip.finish() & !REGION_BIT, generation.0)
}

/// The actor that stands for a whole region in synchronisation between regions.
pub fn region_actor(region: &str) -> ActorId {
    let mut sip = SipHasher13::new_with_key(b"tidegate r actor");
    sip.write(region.as_bytes());
    ActorId::new(sip.finish() | REGION_BIT)
}

/// Whether `actor` is a node; otherwise it is a region. The id itself carries this, so it can be
/// answered for nodes and regions that are gone.
pub fn is_node(actor: ActorId) -> bool {
    actor.writer() & REGION_BIT == 0
}

const REGION_BIT: u64 = 1 << 63;

impl TryFrom<String> for NodeId {
    type Error = InvalidNodeId;

    fn try_from(id: String) -> Result<Self, Self::Error> {
        Self::new(&id)
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_labels_are_ids() {
        for good in ["a", "n1", "edge-7", &"x".repeat(63)] {
            assert!(NodeId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a b", "ü", &"x".repeat(64)] {
            assert!(NodeId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_restart_is_another_actor() {
        let id = NodeId::new("n1").expect("valid");
        assert_ne!(node_actor(&id, Generation(1)), node_actor(&id, Generation(2)));
        assert_ne!(region_actor("eu"), region_actor("us"));
    }
}
