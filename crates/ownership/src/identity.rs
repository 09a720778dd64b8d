//! Who a node is: a stable id, and a generation that grows at each start.
//!
//! Ids move keys on the ring, so they survive restarts; generations tell a node from its own past.
//! A node that lost its memory must not write into the column it wrote before: the two together
//! name the column (the *actor*).

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tidegate_limiter::engine::ActorId;

/// A node's stable name: a DNS label, because it is also the name in its certificate.
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

/// A text that is no node id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no node id: use 1 to 63 lower-case letters, digits and '-', with no '-' at either end"
)]
pub struct InvalidNodeId(pub String);

impl NodeId {
    /// Validates `id`.
    pub fn new(id: &str) -> Result<Self, InvalidNodeId> {
        let label = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let valid = (1..=63).contains(&id.len())
            && id.bytes().all(label)
            && !id.starts_with('-')
            && !id.ends_with('-');
        if valid { Ok(Self(id.into())) } else { Err(InvalidNodeId(id.to_owned())) }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which start of a node this is: the wall clock's milliseconds at the start, or one more than the
/// highest that a peer remembers, whichever is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// The column that `node` writes in its `generation`.
pub fn node_actor(node: &NodeId, generation: Generation) -> ActorId {
    let mut sip = SipHasher13::new_with_key(b"tidegate n actor");
    sip.write(node.as_str().as_bytes());
    sip.write_u64(generation.0);
    ActorId::new(sip.finish() & !REGION_BIT)
}

/// The column that a whole region has on the link to other regions.
pub fn region_actor(region: &str) -> ActorId {
    let mut sip = SipHasher13::new_with_key(b"tidegate r actor");
    sip.write(region.as_bytes());
    ActorId::new(sip.finish() | REGION_BIT)
}

/// Whether a column is a node's; otherwise it is a region's. Told by the column itself, so that it
/// stays true when the node or the region is gone.
pub fn is_node(actor: ActorId) -> bool {
    actor.get() & REGION_BIT == 0
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
    fn a_restart_writes_another_column() {
        let id = NodeId::new("n1").expect("valid");
        assert_ne!(node_actor(&id, Generation(1)), node_actor(&id, Generation(2)));
        assert_ne!(region_actor("eu"), region_actor("us"));
    }
}
