//! From the roll to the rings, and from the rings to everybody who asks.

use std::sync::Arc;

use tidegate_limiter::policy::Scope;
use tidegate_ownership::QuorumRule;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{KnownMembers, Member, MemberState, View};
use tidegate_ownership::membership_table::TableEntry;
use tidegate_ownership::route::Topology;
use tidegate_ownership::{LeaseState, LiveMember, Members, Monotonic, Place, Quorum};

use super::{Driver, Machines, Options, RINGS};
use crate::ownership::OwnedRanges;

impl Driver {
    /// Tells the roll who is alive: whom gossip sees, but for those that do not hear.
    pub(super) fn call_the_roll(&self, machines: &mut Machines) {
        let start = |member: &Member| (member.id.clone(), member.generation);
        let is_there = |member: &&Member| !machines.deaf.contains(&start(member));
        let alive = |member: &Member| LiveMember {
            id: member.id.clone(),
            generation: member.generation,
            is_up: member.state == MemberState::Up,
        };
        let alive: Vec<LiveMember> =
            machines.view.members().iter().filter(is_there).map(alive).collect();
        machines.table.hear(self.shared.ownership.monotonic(), &alive);
    }

    /// The roll or what is known may have changed: so do the rings.
    pub(super) fn follow_roll(&self, machines: &mut Machines) {
        let shared = &self.shared;
        let now = shared.clock.system();
        let forget = shared.options.forget_after;
        machines.voters.follow(&machines.table, &machines.view, now, forget);
        let on_roll = |(id, seat): (&NodeId, &TableEntry)| {
            // Gossip forgets whom it gives up; the roll does not yet.
            let member = machines.view.get(id).or_else(|| machines.recognised.get(id))?;
            (member.generation == seat.generation).then(|| member.clone())
        };
        let recognised = View::new(machines.table.entries().iter().filter_map(on_roll));
        // Bounded by who is known: of the others nothing is remembered.
        let table = &machines.table;
        machines
            .unanswered
            .retain(|id, _| table.entries().contains_key(id) || machines.view.get(id).is_some());
        machines.deaf.retain(|(id, _)| machines.view.get(id).is_some());
        let known = machines.voters.known();
        let current = shared.topology.load();
        let me = shared.incarnation.node().clone();
        let Options { region, vnodes, .. } = &shared.options;
        let topology = Topology::new(me, region.clone(), recognised.clone(), *vnodes)
            .with_known(known.clone())
            .after(&current);
        for scope in RINGS {
            let members = self.members(scope, &topology, &known);
            machines.ring_mut(scope).follow(members);
        }
        let voter_set = machines.voters.voter_set();
        shared.voter_set.send_if_modified(|told| {
            let is_new = *told != voter_set;
            *told = voter_set;
            is_new
        });
        machines.recognised = recognised;
        shared.topology.store(Arc::new(topology));
        self.publish(machines);
        shared.wake.notify_one();
    }

    fn members(&self, scope: Scope, topology: &Topology, known: &KnownMembers) -> Members {
        let region = &self.shared.options.region;
        let is_on = |its_region: &str| scope == Scope::Global || its_region == region;
        let ring = match scope {
            Scope::Region => topology.region_ring(region),
            Scope::Global => Some(topology.global_ring()),
        };
        let entries = topology.view.members().iter().filter(|member| is_on(&member.region));
        let entries = entries.map(|member| {
            let arcs = ring.map(|ring| ring.arcs(&member.id)).unwrap_or_default();
            (member.id.clone(), Place { generation: member.generation, arcs })
        });
        let counts = known.nodes().iter().filter(|(_, its_region)| is_on(its_region));
        let quorum = match self.shared.options.quorum {
            QuorumRule::Majority => Quorum::Of(counts.map(|(id, _)| id.clone()).collect()),
            QuorumRule::None => Quorum::Everyone,
        };
        Members { entries: entries.collect(), quorum }
    }

    /// Lets every decision know.
    pub(super) fn publish(&self, machines: &mut Machines) {
        for (scope, at) in RINGS.into_iter().zip(0..) {
            let ring = machines.ring(scope);
            let owned_ranges = OwnedRanges {
                epoch: ring.epoch(),
                decides: ring.decides(),
                given: ring.given().iter().map(|(to, what)| (what.clone(), to.clone())).collect(),
            };
            let until = match ring.lease_state() {
                LeaseState::Whole(until) | LeaseState::Broken(until) => until,
                LeaseState::Nothing => Monotonic::EPOCH,
            };
            self.shared.ownership.lease(scope, until);
            if machines.published[at] != owned_ranges {
                machines.published[at] = owned_ranges.clone();
                self.shared.ownership.hold(scope, owned_ranges);
            }
        }
    }
}
