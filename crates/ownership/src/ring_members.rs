//! What one epoch means for a ring: its members and the tokens each one owns.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster_map::{ClusterMap, Epoch, MapMember, MapState, MemberId};
use crate::identity::NodeId;
use crate::ranges::Ranges;

/// The members of a ring at one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RingMembers {
    map: Arc<ClusterMap>,
    /// The tokens that each present member owns; none while it drains.
    arcs: BTreeMap<NodeId, Ranges>,
}

impl RingMembers {
    /// The members of `map` on a ring with these arcs.
    pub fn new(map: Arc<ClusterMap>, arcs: impl Fn(&NodeId) -> Ranges) -> Self {
        let arcs_of = |member: &MapMember| {
            let node = &member.identity.node;
            (node.clone(), if member.state == MapState::Up { arcs(node) } else { Ranges::EMPTY })
        };
        let arcs = map.present().map(arcs_of).collect();
        Self { map, arcs }
    }

    pub fn map(&self) -> &Arc<ClusterMap> {
        &self.map
    }

    pub fn epoch(&self) -> Epoch {
        self.map.epoch
    }

    /// The names of the members, sorted.
    pub fn names(&self) -> impl Iterator<Item = &NodeId> {
        self.arcs.keys()
    }

    /// The admission of `node`; `None` when it is no member.
    pub fn id(&self, node: &NodeId) -> Option<MemberId> {
        self.arcs.contains_key(node).then(|| self.map.get(node).map(|member| member.id))?
    }

    pub fn contains(&self, node: &NodeId) -> bool {
        self.arcs.contains_key(node)
    }

    /// Whether `node` is a member under this admission.
    pub fn has(&self, node: &NodeId, id: MemberId) -> bool {
        self.id(node) == Some(id)
    }

    /// The tokens that `node` owns.
    pub fn arcs(&self, node: &NodeId) -> Ranges {
        self.arcs.get(node).cloned().unwrap_or_default()
    }

    /// Whether all tokens that `node` owns are in `ranges`.
    pub fn owns_within(&self, node: &NodeId, ranges: &Ranges) -> bool {
        self.arcs.get(node).is_none_or(|arcs| ranges.includes(arcs))
    }

    /// Whether no member owns a token: all of them drain.
    pub fn own_nothing(&self) -> bool {
        self.arcs.values().all(Ranges::is_empty)
    }

    /// The tokens that `node` owns now and did not own in `before`; all of them when it was
    /// admitted anew in between.
    pub fn gained(&self, node: &NodeId, before: &Self) -> Ranges {
        let now = self.arcs(node);
        if before.id(node) == self.id(node) { now.without(&before.arcs(node)) } else { now }
    }

    /// Whether a node was admitted after `before` and is no member any more, so that neither map
    /// has it.
    pub fn have_missed_one(&self, before: &Self) -> bool {
        let last = before.map.last_member;
        let admitted = self.map.last_member.0.saturating_sub(last.0);
        let present = self.map.present().filter(|member| member.id > last).count() as u64;
        present < admitted
    }
}
