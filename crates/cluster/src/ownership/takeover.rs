//! What a takeover may have lost: when this node claims ranges of a member that was evicted, their
//! counters go on with the copies that are left.
//!
//! Before a claim every other member has sent the states that it holds of these ranges, so the
//! store has all copies that there are. Hits that the evicted member counted after its last copy
//! are lost; in ranges whose replicas are gone as well, all counters begin anew.
//!
//! **Example.** c is evicted, and a takes a part of its ranges over. Of these, b was the replica of
//! some, and d, which was evicted with c, of the others: these have no copy.

use std::sync::Arc;

use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::ClusterMap;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::route::Topology;

use super::counters::Counters;
use crate::count;
use crate::replication::Replicator;

/// Ranges of an evicted member that this node is going to claim.
#[derive(Debug)]
pub(super) struct Takeover {
    pub(super) member: NodeId,
    pub(super) ranges: Ranges,
    /// When the member was heard last.
    heard: Option<Monotonic>,
    /// As it was before the eviction.
    before: Arc<Topology>,
    /// The map without the member.
    map: Arc<ClusterMap>,
}

impl Takeover {
    /// `None` if this node is to claim no range that the member owned. A member that was draining
    /// owned none by the ring, so what it did not hand over before it died is not reported.
    pub(super) fn of(
        member: &NodeId,
        heard: Option<Monotonic>,
        before: &Arc<Topology>,
        map: &Arc<ClusterMap>,
        claims: &Ranges,
    ) -> Option<Self> {
        let ranges = before.ring()?.arcs(member).shared_with(claims);
        let (member, before, map) = (member.clone(), before.clone(), map.clone());
        (!ranges.is_empty()).then_some(Self { member, ranges, heard, before, map })
    }

    /// Logs and counts it. The ranges are claimed.
    pub(super) async fn report(self, now: Monotonic, replicator: &Replicator, counters: &Counters) {
        let keys = replicator.count_copies(&self.ranges).await;
        let without_copy = self.ranges_without_copy(replicator.replicas()) as u64;
        let received = replicator.received_from(&self.member);
        let millis = |span: Span| span.as_nanos() / 1_000_000;
        count(&counters.takeovers, 1);
        count(&counters.takeover_keys, keys);
        count(&counters.takeover_ranges, self.ranges.iter().len() as u64);
        count(&counters.takeover_ranges_without_copy, without_copy);
        tracing::warn!(
            member = %self.member,
            keys,
            ranges = self.ranges.iter().len(),
            ranges_without_copy = without_copy,
            heard_ms_ago = self.heard.map(|at| millis(now.since(at))),
            last_copy_ms_ago = received.map(|received| millis(now.since(received.last))),
            states_refused = received.map_or(0, |received| received.refused),
            "took over ranges of an evicted member: hits that it counted after its last copy are \
             lost, and counters of ranges without a copy begin anew"
        );
    }

    /// The ranges of which neither this node nor another member that is left was to hold copies. A
    /// range lies between two vnodes of other nodes, so all its tokens have the same replicas.
    fn ranges_without_copy(&self, replicas: usize) -> usize {
        let Some(ring) = self.before.ring() else { return 0 };
        let is_left = |node: &&NodeId| {
            **node != self.member && self.map.present().any(|one| one.identity.node == **node)
        };
        let has_copy = |token| ring.replicas(token, replicas).iter().any(is_left);
        self.ranges.iter().filter(|range| !has_copy(range.first)).count()
    }
}
