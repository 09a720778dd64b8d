//! From the roll to the rings, and from the rings to everybody who asks.

use std::sync::Arc;

use tidegate_limiter::policy::Scope;
use tidegate_ownership::QuorumRule;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{Known, Member, MemberState, View};
use tidegate_ownership::roll::Seat;
use tidegate_ownership::route::Topology;
use tidegate_ownership::{Alive, Members, Moment, Place, Quorum, Standing};

use super::{Driver, Machines, Options, RINGS};
use crate::owning::Holding;

impl Driver {
    /// Tells the roll who is alive: whom gossip sees, but for those that do not hear.
    pub(super) fn call_the_roll(&self, machines: &mut Machines) {
        let start = |member: &Member| (member.id.clone(), member.generation);
        let is_there = |member: &&Member| !machines.deaf.contains(&start(member));
        let alive = |member: &Member| Alive {
            id: member.id.clone(),
            generation: member.generation,
            is_up: member.state == MemberState::Up,
        };
        let alive: Vec<Alive> =
            machines.view.members().iter().filter(is_there).map(alive).collect();
        machines.roll.hear(self.shared.tenancy.moment(), &alive);
    }

    /// The roll or what is known may have changed: so do the rings.
    pub(super) fn follow_roll(&self, machines: &mut Machines) {
        let shared = &self.shared;
        let now = shared.clock.system();
        let forget = shared.options.forget_after;
        machines.acquaintance.follow(&machines.roll, &machines.view, now, forget);
        let on_roll = |(id, seat): (&NodeId, &Seat)| {
            // Gossip forgets whom it gives up; the roll does not yet.
            let member = machines.view.get(id).or_else(|| machines.recognised.get(id))?;
            (member.generation == seat.generation).then(|| member.clone())
        };
        let recognised = View::new(machines.roll.seats().iter().filter_map(on_roll));
        // Bounded by who is known: of the others nothing is remembered.
        let roll = &machines.roll;
        machines
            .unanswered
            .retain(|id, _| roll.seats().contains_key(id) || machines.view.get(id).is_some());
        machines.deaf.retain(|(id, _)| machines.view.get(id).is_some());
        let known = machines.acquaintance.who_counts();
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
        let electorate = machines.acquaintance.electorate();
        shared.electorate.send_if_modified(|told| {
            let is_new = *told != electorate;
            *told = electorate;
            is_new
        });
        machines.recognised = recognised;
        shared.topology.store(Arc::new(topology));
        self.publish(machines);
        shared.wake.notify_one();
    }

    fn members(&self, scope: Scope, topology: &Topology, known: &Known) -> Members {
        let region = &self.shared.options.region;
        let is_on = |its_region: &str| scope == Scope::Global || its_region == region;
        let ring = match scope {
            Scope::Region => topology.region_ring(region),
            Scope::Global => Some(topology.global_ring()),
        };
        let seats = topology.view.members().iter().filter(|member| is_on(&member.region));
        let seats = seats.map(|member| {
            let arcs = ring.map(|ring| ring.arcs(&member.id)).unwrap_or_default();
            (member.id.clone(), Place { generation: member.generation, arcs })
        });
        let counts = known.nodes().iter().filter(|(_, its_region)| is_on(its_region));
        let quorum = match self.shared.options.quorum {
            QuorumRule::Majority => Quorum::Of(counts.map(|(id, _)| id.clone()).collect()),
            QuorumRule::None => Quorum::Everyone,
        };
        Members { seats: seats.collect(), quorum }
    }

    /// Lets every decision know.
    pub(super) fn publish(&self, machines: &mut Machines) {
        for (scope, at) in RINGS.into_iter().zip(0..) {
            let ring = machines.ring(scope);
            let holding = Holding {
                epoch: ring.epoch(),
                decides: ring.decides(),
                given: ring.given().iter().map(|(to, what)| (what.clone(), to.clone())).collect(),
            };
            let until = match ring.standing() {
                Standing::Whole(until) | Standing::Broken(until) => until,
                Standing::Nothing => Moment::EPOCH,
            };
            self.shared.tenancy.lease(scope, until);
            if machines.published[at] != holding {
                machines.published[at] = holding.clone();
                self.shared.tenancy.hold(scope, holding);
            }
        }
    }
}
