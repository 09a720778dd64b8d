//! A cluster as one value: the state machines of every node, and the messages in flight.
//!
//! The state machines are driven as a node drives them. Whether a message is delivered at once,
//! late, twice or never is an argument of each event.

use std::sync::Arc;

use tidegate_limiter::units::Span;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ranges::{Range, Ranges};
use tidegate_ownership::{
    EntryId, Epoch, HandoffReply, LiveMember, MembershipTable, Monotonic, Quorum, RingMember,
    RingMembers, RingOwnership, TransferStep,
};

/// Ticks for which a grant is valid.
pub(crate) const LEASE: u64 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cluster {
    pub(crate) now: u64,
    pub(crate) arcs: usize,
    pub(crate) nodes: Vec<Node>,
    /// Unordered: any may arrive next.
    pub(crate) flying: Vec<Flight>,
    /// Whether any release was refused, so that its ranges returned.
    pub(crate) has_rolled_back: bool,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) generation: u64,
    /// `None` while it is down.
    pub(crate) machines: Option<Arc<Machines>>,
}

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Machines {
    pub(crate) table: MembershipTable,
    pub(crate) ring: RingOwnership,
    started_at: u64,
    /// What gossip last reported of each node.
    pub(crate) view: Vec<Option<Metadata>>,
}

/// A live member, as reported by gossip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Metadata {
    pub(crate) generation: u64,
    pub(crate) is_up: bool,
}

/// What the network does to one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Delivery {
    /// Request and reply arrive at once.
    Immediate,
    /// The request arrives later.
    RequestDelayed,
    /// The reply arrives later, or never.
    ReplyDelayed,
}

/// A message in flight. A reply reaches only the incarnation that sent the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flight {
    Pong { from: usize, to: usize, to_generation: u64, pong: Pong },
    Ready { from: usize, to: usize, to_generation: u64, epoch: Epoch, reply: HandoffReply },
    Release { from: usize, generation: u64, to: usize, epoch: Epoch, number: u64, ranges: Ranges },
    Released { from: usize, to: usize, to_generation: u64, number: u64, reply: HandoffReply },
}

/// The answer to a ping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pong {
    sent: Monotonic,
    epoch: Option<Epoch>,
    grant: Option<EntryId>,
}

impl Cluster {
    /// `nodes` nodes that start now and recognise each other, on a ring of `arcs` arcs.
    pub(crate) fn start(nodes: usize, arcs: usize) -> Self {
        let down = Node { generation: 0, machines: None };
        let mut cluster = Self {
            now: 10,
            arcs,
            nodes: vec![down; nodes],
            flying: Vec::new(),
            has_rolled_back: false,
        };
        for node in 0..nodes {
            cluster.rejoin(node);
        }
        for node in 0..nodes {
            for other in 0..nodes {
                cluster.gossip(node, other, cluster.metadata(other));
            }
        }
        cluster
    }

    /// The same, after every node has claimed its arcs.
    pub(crate) fn settled(nodes: usize, arcs: usize) -> Self {
        let mut cluster = Self::start(nodes, arcs);
        cluster.settle();
        cluster
    }

    /// Lets time pass without faults until every node decides its arcs.
    pub(crate) fn settle(&mut self) {
        self.flying.clear();
        for _ in 0..6 * LEASE {
            self.pass(|_, _| true);
            for (node, other) in self.pairs() {
                if self.is_up(node) {
                    self.gossip(node, other, self.metadata(other));
                }
            }
            for _ in 0..6 {
                for (node, other) in self.pairs() {
                    self.step(node, other, Delivery::Immediate);
                }
            }
        }
    }

    /// A tick: grants expire, members are evicted, and pairs that reach each other ping.
    pub(crate) fn pass(&mut self, reach: impl Fn(usize, usize) -> bool) {
        self.now += 1;
        for node in 0..self.nodes.len() {
            self.evict(node);
        }
        for (node, other) in self.pairs() {
            if reach(node, other) {
                self.ping(node, other, Delivery::Immediate);
            }
        }
        for node in 0..self.nodes.len() {
            self.tick(node);
        }
    }

    /// A tick without any activity.
    pub(crate) fn wait(&mut self) {
        self.now += 1;
    }

    pub(crate) fn crash(&mut self, node: usize) {
        self.nodes[node].machines = None;
    }

    /// Restarts `node`, which learns all live members.
    pub(crate) fn rejoin(&mut self, node: usize) {
        let generation = self.nodes[node].generation + 1;
        let (me, now) = (id(node), monotonic(self.now));
        let machines = Machines {
            table: MembershipTable::new(me.clone(), LEASE_SPAN),
            ring: RingOwnership::new(me, LEASE_SPAN),
            started_at: self.now,
            view: self.all_metadata(),
        };
        self.nodes[node] = Node { generation, machines: Some(Arc::new(machines)) };
        let metadata = self.metadata(node);
        self.change(node, |machines, all| {
            machines.view[node] = metadata;
            machines.update_table(now, all);
        });
    }

    pub(crate) fn drain(&mut self, node: usize) {
        let now = monotonic(self.now);
        self.change(node, |machines, all| {
            if let Some(metadata) = &mut machines.view[node] {
                metadata.is_up = false;
            }
            machines.update_table(now, all);
        });
    }

    /// Gossip reports `other` to `node`; `None` if it is dead.
    pub(crate) fn gossip(&mut self, node: usize, other: usize, metadata: Option<Metadata>) {
        let now = monotonic(self.now);
        self.change(node, |machines, all| {
            machines.view[other] = metadata;
            machines.update_table(now, all);
        });
    }

    /// `node` evicts members whose last grant has expired.
    pub(crate) fn evict(&mut self, node: usize) {
        let now = monotonic(self.now);
        self.change(node, |machines, all| {
            if machines.table.evict(now) {
                machines.follow(all);
            }
        });
    }

    /// `node` renews its lease and claims ranges.
    pub(crate) fn tick(&mut self, node: usize) {
        let now = monotonic(self.now);
        self.change(node, |machines, _| machines.ring.tick(now));
    }

    pub(crate) fn ping(&mut self, node: usize, other: usize, delivery: Delivery) {
        let (now, generation) = (self.now, self.nodes[node].generation);
        let Some(epoch) = self.ring(node).map(RingOwnership::epoch) else { return };
        let granting = Generation(self.nodes[other].generation);
        let Some(pong) = self.change(other, |machines, _| {
            machines.ring.observe_epoch(epoch);
            let serial = machines.table.grant(monotonic(now), &id(node), Generation(generation));
            Pong {
                sent: monotonic(now),
                epoch: (now - machines.started_at >= LEASE).then(|| machines.ring.epoch()),
                grant: serial.map(|serial| EntryId { generation: granting, serial }),
            }
        }) else {
            return;
        };
        let flight = Flight::Pong { from: other, to: node, to_generation: generation, pong };
        self.reply(flight, delivery);
    }

    /// `node` takes the next step of its transfer to `other`. Returns whether there was one.
    pub(crate) fn step(&mut self, node: usize, other: usize, delivery: Delivery) -> bool {
        let (now, generation) = (monotonic(self.now), self.nodes[node].generation);
        let step =
            self.change(node, |machines, _| machines.ring.next_step(&id(other), now)).flatten();
        let Some(epoch) = self.ring(node).map(RingOwnership::epoch) else { return false };
        let ours = (node, generation);
        match step {
            None => return false,
            Some(TransferStep::Offer(epoch)) => {
                let Some(reply) = self
                    .change(other, |machines, _| machines.ring.offer_received(&id(node), epoch))
                else {
                    return true;
                };
                let (to, to_generation) = ours;
                self.reply(
                    Flight::Ready { from: other, to, to_generation, epoch, reply },
                    delivery,
                );
            }
            Some(TransferStep::Copy { .. }) => {
                self.change(node, |machines, _| machines.ring.copied(&id(other), epoch));
            }
            Some(TransferStep::Flush) => {
                let is_done = delivery == Delivery::Immediate;
                self.change(node, |machines, _| machines.ring.flushed(&id(other), epoch, is_done));
            }
            Some(TransferStep::Release { epoch, number, ranges }) => {
                let (from, to) = (node, other);
                let flight = Flight::Release { from, generation, to, epoch, number, ranges };
                if delivery == Delivery::RequestDelayed {
                    self.send(flight);
                } else {
                    self.arrive(flight, delivery);
                }
            }
        }
        true
    }

    /// Delivers the message at this index; if it stays, it can be delivered again.
    pub(crate) fn deliver(&mut self, index: usize, stays: bool) {
        let flight = if stays { self.flying[index].clone() } else { self.flying.remove(index) };
        self.arrive(flight, Delivery::Immediate);
    }

    // === state ===

    /// The nodes that decide the keys of this arc now.
    pub(crate) fn deciders(&self, arc: usize) -> Vec<usize> {
        let decides = |node: &usize| {
            self.has_lease(*node)
                && self.ring(*node).is_some_and(|ring| ring.decides().contains(token(arc)))
        };
        (0..self.nodes.len()).filter(decides).collect()
    }

    pub(crate) fn has_lease(&self, node: usize) -> bool {
        let lease_state = self.ring(node).map(RingOwnership::lease_state);
        lease_state.is_some_and(|state| monotonic(self.now) < state.until())
    }

    /// The owner of `arc` while the nodes for which `is_up` is true are up.
    pub(crate) fn owner(&self, arc: usize, is_up: impl Fn(usize) -> bool) -> Option<usize> {
        owner(self.nodes.len(), arc, is_up)
    }

    pub(crate) fn ring(&self, node: usize) -> Option<&RingOwnership> {
        self.nodes[node].machines.as_deref().map(|machines| &machines.ring)
    }

    pub(crate) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].machines.is_some()
    }

    /// The metadata that `node` publishes.
    pub(crate) fn metadata(&self, node: usize) -> Option<Metadata> {
        let machines = self.nodes[node].machines.as_deref()?;
        let is_up = machines.view[node].is_none_or(|own| own.is_up);
        Some(Metadata { generation: self.nodes[node].generation, is_up })
    }

    /// All ordered pairs of distinct nodes.
    pub(crate) fn pairs(&self) -> Vec<(usize, usize)> {
        let all = 0..self.nodes.len();
        all.clone().flat_map(|a| all.clone().map(move |b| (a, b))).filter(|(a, b)| a != b).collect()
    }

    // === deliveries ===

    fn all_metadata(&self) -> Vec<Option<Metadata>> {
        (0..self.nodes.len()).map(|node| self.metadata(node)).collect()
    }

    fn change<T>(
        &mut self,
        node: usize,
        by: impl FnOnce(&mut Machines, (usize, usize)) -> T,
    ) -> Option<T> {
        let all = (self.nodes.len(), self.arcs);
        let machines = self.nodes[node].machines.as_mut()?;
        Some(by(Arc::make_mut(machines), all))
    }

    fn reply(&mut self, flight: Flight, delivery: Delivery) {
        match delivery {
            Delivery::Immediate => self.arrive(flight, Delivery::Immediate),
            Delivery::RequestDelayed | Delivery::ReplyDelayed => self.send(flight),
        }
    }

    fn send(&mut self, flight: Flight) {
        self.flying.push(flight);
        // Equal sets of messages have to be equal values.
        self.flying.sort_by_cached_key(|flight| format!("{flight:?}"));
    }

    fn arrive(&mut self, flight: Flight, reply_delivery: Delivery) {
        let now = monotonic(self.now);
        let is_current = |node: usize, generation| self.nodes[node].generation == generation;
        match flight {
            Flight::Pong { from, to, to_generation, pong } if is_current(to, to_generation) => {
                self.change(to, |machines, _| {
                    machines.ring.pong_received(&id(from), pong.sent, pong.epoch, pong.grant);
                    machines.ring.tick(now);
                });
            }
            Flight::Ready { from, to, to_generation, epoch, reply }
                if is_current(to, to_generation) =>
            {
                self.change(to, |machines, _| {
                    machines.ring.offer_replied(&id(from), epoch, reply);
                });
            }
            Flight::Release { from, generation, to, epoch, number, ranges } => {
                let reply = self.change(to, |machines, _| {
                    let from = (&id(from), Generation(generation));
                    let reply =
                        machines.ring.release_received(from.0, from.1, epoch, number, &ranges);
                    machines.ring.tick(now);
                    reply
                });
                let Some(reply) = reply else { return };
                let (from, to) = (to, from);
                let to_generation = generation;
                self.reply(
                    Flight::Released { from, to, to_generation, number, reply },
                    reply_delivery,
                );
            }
            Flight::Released { from, to, to_generation, number, reply }
                if is_current(to, to_generation) =>
            {
                self.has_rolled_back |= reply == HandoffReply::Refused;
                self.change(to, |machines, _| {
                    machines.ring.release_replied(&id(from), number, reply);
                });
            }
            _ => {}
        }
    }
}

impl Machines {
    /// Applies the view to the membership table.
    fn update_table(&mut self, now: Monotonic, all: (usize, usize)) {
        let alive: Vec<LiveMember> = self
            .view
            .iter()
            .enumerate()
            .filter_map(|(node, metadata)| metadata.map(|metadata| (node, metadata)))
            .map(|(node, metadata)| LiveMember {
                id: id(node),
                generation: Generation(metadata.generation),
                is_up: metadata.is_up,
            })
            .collect();
        if self.table.update(now, &alive) {
            self.follow(all);
        }
    }

    /// Applies the membership table to the ring.
    fn follow(&mut self, (nodes, arcs): (usize, usize)) {
        let entries = self.table.entries();
        let is_up = |node: usize| entries.get(&id(node)).is_some_and(|entry| entry.is_up);
        let members = (0..nodes).filter_map(|node| {
            let entry = entries.get(&id(node))?;
            let own = (0..arcs).filter(|arc| owner(nodes, *arc, is_up) == Some(node));
            let arcs = Ranges::of(own.map(|arc| Range { first: token(arc), last: token(arc) }));
            Some((id(node), RingMember { generation: entry.generation, arcs }))
        });
        let entries = members.collect();
        let quorum = Quorum::Of((0..nodes).map(id).collect());
        self.ring.follow(RingMembers { entries, quorum });
    }
}

const LEASE_SPAN: Span = Span::from_nanos(LEASE);

fn monotonic(tick: u64) -> Monotonic {
    Monotonic::from_nanos(tick)
}

pub(crate) fn id(node: usize) -> NodeId {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    NodeId::new(NAMES[node]).expect("a valid id")
}

/// The only token of an arc. Arcs are not adjacent, so that they are not merged.
fn token(arc: usize) -> u64 {
    10 * arc as u64
}

/// Consistent, as the ring is: the first node that is up in the arc's own order.
fn owner(nodes: usize, arc: usize, is_up: impl Fn(usize) -> bool) -> Option<usize> {
    let step = if (arc / nodes).is_multiple_of(2) { 1 } else { nodes - 1 };
    (0..nodes).map(|turn| (arc + turn * step) % nodes).find(|node| is_up(*node))
}
