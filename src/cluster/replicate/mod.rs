//! Stand-in until replication lands.
#![allow(missing_docs)]
use crate::cluster::identity::NodeId;
use crate::cluster::mesh::CallError;
use crate::cluster::ranges::Ranges;
use crate::config::policy::Scope;
use crate::store::KeyHash;

#[derive(Clone, Debug)]
pub struct Replicator;

impl Replicator {
    pub fn follow(&self, _: Scope, _: NodeId, _: Ranges) {}
    pub fn unfollow(&self, _: Scope, _: &NodeId) {}
    pub async fn copy(
        &self,
        _: &NodeId,
        _: impl Fn(KeyHash) -> bool + Send,
    ) -> Result<u64, CallError> {
        Ok(0)
    }
    pub async fn flush(&self, _: &NodeId) -> Result<(), CallError> {
        Ok(())
    }
}
