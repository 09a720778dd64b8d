//! Which members an order for all nodes has not reached.
//!
//! A node that is cut off is connected to none that could say so: it is a member by the cluster
//! map, and evicted after a while. Both are named, because it may go on answering from what it
//! knows. Of other regions the map is not known here, and gossip forgets a node that is cut off, so
//! their members are [remembered](SeenElsewhere) for as long as evicted ones are in a map. Which
//! edges there are is known of connected ones alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_cluster::Announced;
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::ClusterMap;
use tidegate_ownership::cluster_map::MapState;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{MEMBERS_MAX, MemberState};
use tidegate_ownership::route::Topology;

use super::core::Core;
use crate::admin::key::Reached;

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
    fn missing(&self, now: Monotonic) -> Vec<NodeId> {
        let missing = &mut self.seen.lock().missing;
        missing.retain(|_, since| since.is_none_or(|since| now.since(since) < self.forget_after));
        let gone = missing.iter().filter(|(_, since)| since.is_some());
        gone.map(|(node, _)| node.clone()).collect()
    }
}

/// The members by the maps that this node knows, and of all regions those that it has seen; true if
/// they were evicted, or are missing.
pub(super) fn members(core: &Core) -> BTreeMap<NodeId, bool> {
    let mut members = BTreeMap::new();
    for node in core.seen_elsewhere.missing(core.clock.monotonic()) {
        members.insert(node, true);
    }
    if let Some(joined) = &core.joined {
        add(&mut members, &joined.ownership_driver.map());
        if let Some(global) = &joined.global {
            add(&mut members, &global.membership.maps().borrow());
        }
    }
    for member in core.topology.load().view.members() {
        members.insert(member.id.clone(), false);
    }
    members
}

fn add(members: &mut BTreeMap<NodeId, bool>, map: &ClusterMap) {
    for member in &map.members {
        let is_evicted = member.state == MapState::Down;
        // A node may have returned under another admission.
        let evicted = members.entry(member.identity.node.clone()).or_insert(is_evicted);
        *evicted &= is_evicted;
    }
}

/// Adds the members that were not connected; all but this node and the one that it is about.
pub(super) fn reached(core: &Core, announced: &Announced, except: Option<&NodeId>) -> Reached {
    of(announced, members(core), &[except, Some(core.incarnation.node())])
}

fn of(
    announced: &Announced,
    members: BTreeMap<NodeId, bool>,
    except: &[Option<&NodeId>],
) -> Reached {
    let Announced { confirmed, missed } = announced;
    let names = |nodes: &[NodeId]| nodes.iter().map(ToString::to_string).collect();
    let mut reached =
        Reached { confirmed: names(confirmed), missed: names(missed), down: Vec::new() };
    let is_named = |node: &NodeId| {
        except.contains(&Some(node)) || confirmed.contains(node) || missed.contains(node)
    };
    for (node, is_evicted) in members.into_iter().filter(|(node, _)| !is_named(node)) {
        let list = if is_evicted { &mut reached.down } else { &mut reached.missed };
        list.push(node.to_string());
    }
    reached
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

    #[test]
    fn members_that_are_not_connected_have_not_confirmed_an_order() {
        let announced = Announced { confirmed: vec![id("n2")], missed: vec![id("n3")] };
        let members = [("n1", false), ("n2", false), ("n4", false), ("n5", true), ("n6", false)];
        let members = members.map(|(name, is_evicted)| (id(name), is_evicted)).into();
        let (me, revoked) = (id("n1"), id("n6"));
        let reached = of(&announced, members, &[Some(&revoked), Some(&me)]);
        assert_eq!(reached.confirmed, ["n2"]);
        assert_eq!(reached.missed, ["n3", "n4"]);
        assert_eq!(reached.down, ["n5"]);
    }
}
