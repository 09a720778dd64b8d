//! Members of other regions from which nothing arrives any more.
//!
//! This node has no map of another region. It knows the members there by gossip, which forgets a
//! node that is cut off. The report of an order for all nodes has to name that node, so it is
//! remembered for as long as an evicted one stays in a map. One that leaves in order is not.
//!
//! **Example.** `us1` has seen `eu1` and `eu2` when the ocean is cut off. An order at `us1` names
//! both, until they are heard again or `cluster.forget_after` is over.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{MEMBERS_MAX, MemberState};
use tidegate_ownership::route::Topology;

/// The members of other regions that this node has seen, at most [`MEMBERS_MAX`]; further ones are
/// not remembered.
#[derive(Debug)]
pub(super) struct SeenElsewhere {
    /// How long one is remembered that is seen no more.
    forget_after: Span,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    of: Option<Arc<Topology>>,
    /// Since when each is missing; `None` while it is not.
    missing: BTreeMap<NodeId, Option<Monotonic>>,
}

impl SeenElsewhere {
    pub(super) fn new(forget_after: Span) -> Self {
        Self { forget_after, seen: Mutex::default() }
    }

    /// To be called after every change of the topology.
    pub(super) fn look(&self, topology: &Arc<Topology>, now: Monotonic) {
        let Seen { of, missing } = &mut *self.seen.lock();
        if of.as_ref().is_some_and(|of| Arc::ptr_eq(of, topology)) {
            return;
        }
        for (node, since) in &mut *missing {
            if topology.view.get(node).is_none() {
                since.get_or_insert(now);
            }
        }
        for member in topology.view.members() {
            // One that leaves in order is not missed afterwards.
            if member.region == topology.region || member.state == MemberState::Draining {
                missing.remove(&member.id);
            } else if missing.len() < MEMBERS_MAX || missing.contains_key(&member.id) {
                missing.insert(member.id.clone(), None);
            }
        }
        *of = Some(topology.clone());
    }

    /// Those that are missing and not forgotten.
    pub(super) fn missing(&self, now: Monotonic) -> Vec<NodeId> {
        let missing = &mut self.seen.lock().missing;
        missing.retain(|_, since| since.is_none_or(|since| now.since(since) < self.forget_after));
        let gone = missing.iter().filter(|(_, since)| since.is_some());
        gone.map(|(node, _)| node.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::identity::Generation;
    use tidegate_ownership::membership::{Member, View};

    use super::*;

    fn id(name: &str) -> NodeId {
        NodeId::new(name).expect("a valid id")
    }

    fn member(name: &str, region: &str, state: MemberState) -> Member {
        Member {
            id: id(name),
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 7000).into(),
            region: region.to_owned(),
            zone: String::new(),
            state,
            rule_book: 0,
            http: None,
            has_lease: true,
        }
    }

    #[test]
    fn a_member_of_another_region_that_is_cut_off_is_remembered_for_a_while() {
        let seen = SeenElsewhere::new(Span::from_secs(60));
        let look = |members: &[Member], secs| {
            let view = View::new(members.to_vec());
            let topology = Topology::new(id("us1"), "us".to_owned(), view, 16);
            seen.look(&Arc::new(topology), Monotonic::from_secs(secs));
        };
        let missing = |secs| seen.missing(Monotonic::from_secs(secs));
        let up = |name, region| member(name, region, MemberState::Up);
        let (own, here) = (up("us1", "us"), up("us2", "us"));
        look(&[own.clone(), here, up("eu1", "eu"), up("eu2", "eu"), up("eu3", "eu")], 1);
        assert_eq!(missing(1), []);
        let leaves = member("eu3", "eu", MemberState::Draining);
        look(&[own.clone(), up("eu1", "eu"), leaves], 2);
        assert_eq!(missing(3), [id("eu2")], "the map has those of this region");
        look(std::slice::from_ref(&own), 10);
        assert_eq!(missing(10), [id("eu1"), id("eu2")]);
        look(&[own.clone(), up("eu1", "eu")], 20);
        assert_eq!(missing(61), [id("eu2")]);
        assert_eq!(missing(62), []);
    }
}
