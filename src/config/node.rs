//! `[node]`: who this node is.

use serde::Deserialize;

/// `[node]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// Stable name of this node, the same after a restart: lower-case letters, digits and `-`, at
    /// least one letter, at most 63. It is the name in the node's certificate, and its place on the
    /// ring hangs on it alone: renaming a node moves its keys, changing its address does not.
    ///
    /// Default `node-1`, for a node that stands alone. Give each node of a cluster its own.
    pub id: String,
    /// The region the node is in, written like `id`. Nodes of one region share strict limits; one
    /// region should be where a forwarded check returns within `cluster.deadline_ms`.
    ///
    /// Default `local`. Set it as soon as nodes stand further apart than a few milliseconds.
    pub region: String,
    /// The zone inside the region, written like `id`: what fails together. Replicas go to another
    /// zone where there is one.
    ///
    /// Default `local`. Set it to the cloud's availability zone or the rack.
    pub zone: String,
    /// Threads that serve everything but the door for clients of Redis, 0 to 256; 0 is as many as
    /// there are cores for this process.
    ///
    /// Default 0. Give a node that shares its machine with others the cores that it is to have: the
    /// threads of several nodes together should not be many more than the cores, or they take them
    /// from each other.
    pub threads: usize,
}

/// Most threads of a kind.
pub(super) const THREADS_MAX: usize = 256;

impl Default for Node {
    fn default() -> Self {
        Self { id: "node-1".into(), region: "local".into(), zone: "local".into(), threads: 0 }
    }
}
