//! Which members an order for all nodes has not reached.
//!
//! A node that is cut off is connected to none that could say so: it is a member by the cluster
//! map, and evicted after a while. Both are named, because it may go on answering from what it
//! knows. Of other regions the map is not known here, and gossip forgets a node that is cut off, so
//! their members are remembered (`seen_elsewhere.rs`) for as long as evicted ones are in a map.
//! Which edges there are is known of connected ones alone.

use std::collections::BTreeMap;

use tidegate_cluster::Announced;
use tidegate_ownership::ClusterMap;
use tidegate_ownership::cluster_map::MapState;
use tidegate_ownership::identity::NodeId;

use super::core::Core;
use crate::admin::key::Reached;

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
    use super::*;

    fn id(name: &str) -> NodeId {
        NodeId::new(name).expect("a valid id")
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
