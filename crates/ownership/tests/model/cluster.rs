//! A cluster as one value: the machines of every node, and what is on its way between them.
//!
//! The machines are driven as the node drives them. What the network does to a message is decided by
//! whoever moves the cluster: answered at once, late, twice or never.

use std::sync::Arc;

use tidegate_limiter::units::Span;
use tidegate_ownership::HandoffReply;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ranges::{Range, Ranges};
use tidegate_ownership::{
    Epoch, LeaseState, LiveMember, Members, MembershipTable, Monotonic, Place, Quorum,
    RecordedGrant, Ring, Step,
};

/// How many ticks a grant counts.
pub(crate) const LEASE: u64 = 2;

/// All nodes, and the network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cluster {
    pub(crate) now: u64,
    pub(crate) arcs: usize,
    pub(crate) nodes: Vec<Node>,
    /// In no order: any may arrive next.
    pub(crate) flying: Vec<Flight>,
    /// Whether a release came back refused, and its ranges thawed.
    pub(crate) has_thawed: bool,
}

/// One member; its machines are gone while it is down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) generation: u64,
    pub(crate) machines: Option<Arc<Machines>>,
}

/// What one node remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Machines {
    pub(crate) table: MembershipTable,
    pub(crate) ring: Ring,
    born: u64,
    /// What gossip told it of each.
    pub(crate) view: Vec<Option<Fact>>,
}

/// A live member, as gossip tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fact {
    pub(crate) generation: u64,
    pub(crate) is_up: bool,
}

/// What the network does to one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CountingMode {
    /// Asked and answered at once.
    Clear,
    /// What was asked arrives later.
    AskLate,
    /// The answer arrives later, or never.
    AnswerLate,
}

/// A message that may arrive now, later, or twice. An answer finds only the start that asked.
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
    grant: Option<RecordedGrant>,
}

impl Cluster {
    /// `nodes` nodes that all start now and know all, on a circle of so many arcs.
    pub(crate) fn start(nodes: usize, arcs: usize) -> Self {
        let down = Node { generation: 0, machines: None };
        let mut cluster =
            Self { now: 10, arcs, nodes: vec![down; nodes], flying: Vec::new(), has_thawed: false };
        for node in 0..nodes {
            cluster.rejoin(node);
        }
        for node in 0..nodes {
            for other in 0..nodes {
                cluster.hear(node, other, cluster.fact(other));
            }
        }
        cluster
    }

    /// The same, some time after everybody got what is its own.
    pub(crate) fn settled(nodes: usize, arcs: usize) -> Self {
        let mut cluster = Self::start(nodes, arcs);
        cluster.settle();
        cluster
    }

    /// Lets time pass without a fault, until everybody has what it should have.
    pub(crate) fn settle(&mut self) {
        self.flying.clear();
        for _ in 0..6 * LEASE {
            self.pass(|_, _| true);
            for (node, other) in self.pairs() {
                if self.is_up(node) {
                    self.hear(node, other, self.fact(other));
                }
            }
            for _ in 0..6 {
                for (node, other) in self.pairs() {
                    self.work(node, other, CountingMode::Clear);
                }
            }
        }
    }

    /// A tick: grants run out, seats are struck off, and those that reach each other ping.
    pub(crate) fn pass(&mut self, reach: impl Fn(usize, usize) -> bool) {
        self.now += 1;
        for node in 0..self.nodes.len() {
            self.evict(node);
        }
        for (node, other) in self.pairs() {
            if reach(node, other) {
                self.ping(node, other, CountingMode::Clear);
            }
        }
        for node in 0..self.nodes.len() {
            self.tick(node);
        }
    }

    /// Time passes, and nobody does anything.
    pub(crate) fn wait(&mut self) {
        self.now += 1;
    }

    /// Loses all that `node` remembers.
    pub(crate) fn crash(&mut self, node: usize) {
        self.nodes[node].machines = None;
    }

    /// Starts `node` anew; it hears who is alive.
    pub(crate) fn rejoin(&mut self, node: usize) {
        let generation = self.nodes[node].generation + 1;
        let (me, now) = (id(node), monotonic(self.now));
        let machines = Machines {
            table: MembershipTable::new(me.clone(), LEASE_SPAN),
            ring: Ring::new(me, LEASE_SPAN),
            born: self.now,
            view: self.node_metadata(),
        };
        self.nodes[node] = Node { generation, machines: Some(Arc::new(machines)) };
        let fact = self.fact(node);
        self.change(node, |machines, all| {
            machines.view[node] = fact;
            machines.listen(now, all);
        });
    }

    /// Begins to leave.
    pub(crate) fn drain(&mut self, node: usize) {
        let now = monotonic(self.now);
        self.change(node, |machines, all| {
            if let Some(fact) = &mut machines.view[node] {
                fact.is_up = false;
            }
            machines.listen(now, all);
        });
    }

    /// Gossip tells `node` of `other`: how it lives, or that it is dead.
    pub(crate) fn hear(&mut self, node: usize, other: usize, fact: Option<Fact>) {
        let now = monotonic(self.now);
        self.change(node, |machines, all| {
            machines.view[other] = fact;
            machines.listen(now, all);
        });
    }

    /// `node` strikes off whose last grant has run out.
    pub(crate) fn evict(&mut self, node: usize) {
        let now = monotonic(self.now);
        self.change(node, |machines, all| {
            if machines.table.evict(now) {
                machines.follow(all);
            }
        });
    }

    /// `node` looks at its lease, and at what is ownerless.
    pub(crate) fn tick(&mut self, node: usize) {
        let now = monotonic(self.now);
        self.change(node, |machines, _| machines.ring.tick(now));
    }

    /// `node` pings `other`.
    pub(crate) fn ping(&mut self, node: usize, other: usize, way: CountingMode) {
        let (now, generation) = (self.now, self.nodes[node].generation);
        let Some(epoch) = self.ring(node).map(Ring::epoch) else { return };
        let granting = Generation(self.nodes[other].generation);
        let Some(pong) = self.change(other, |machines, _| {
            machines.ring.met(epoch);
            let serial = machines.table.grant(monotonic(now), &id(node), Generation(generation));
            Pong {
                sent: monotonic(now),
                epoch: (now - machines.born >= LEASE).then(|| machines.ring.epoch()),
                grant: serial.map(|serial| RecordedGrant { generation: granting, serial }),
            }
        }) else {
            return;
        };
        let flight = Flight::Pong { from: other, to: node, to_generation: generation, pong };
        self.answer(flight, way);
    }

    /// `node` does the next thing it owes `other`. Returns whether there was one.
    pub(crate) fn work(&mut self, node: usize, other: usize, way: CountingMode) -> bool {
        let (now, generation) = (monotonic(self.now), self.nodes[node].generation);
        let step = self.change(node, |machines, _| machines.ring.next(&id(other), now)).flatten();
        let Some(epoch) = self.ring(node).map(Ring::epoch) else { return false };
        let ours = (node, generation);
        match step {
            None => return false,
            Some(Step::Offer(epoch)) => {
                let Some(reply) =
                    self.change(other, |machines, _| machines.ring.offered(&id(node), epoch))
                else {
                    return true;
                };
                let (to, to_generation) = ours;
                self.answer(Flight::Ready { from: other, to, to_generation, epoch, reply }, way);
            }
            Some(Step::Copy { .. }) => {
                self.change(node, |machines, _| machines.ring.copied(&id(other), epoch));
            }
            Some(Step::Flush) => {
                let is_done = way == CountingMode::Clear;
                self.change(node, |machines, _| machines.ring.flushed(&id(other), epoch, is_done));
            }
            Some(Step::Release { epoch, number, ranges }) => {
                let (from, to) = (node, other);
                let flight = Flight::Release { from, generation, to, epoch, number, ranges };
                if way == CountingMode::AskLate {
                    self.send(flight);
                } else {
                    self.arrive(flight, way);
                }
            }
        }
        true
    }

    /// The message at this index of those in flight arrives, or one of two equal ones does.
    pub(crate) fn deliver(&mut self, index: usize, stays: bool) {
        let flight = if stays { self.flying[index].clone() } else { self.flying.remove(index) };
        self.arrive(flight, CountingMode::Clear);
    }

    // === what it looks like ===

    /// The nodes that may decide the keys of this arc now.
    pub(crate) fn deciders(&self, arc: usize) -> Vec<usize> {
        let decides = |node: &usize| {
            self.may_own(*node)
                && self.ring(*node).is_some_and(|ring| ring.decides().contains(token(arc)))
        };
        (0..self.nodes.len()).filter(decides).collect()
    }

    /// Whether `node` has a lease that counts now.
    pub(crate) fn may_own(&self, node: usize) -> bool {
        match self.ring(node).map(Ring::lease_state) {
            Some(LeaseState::Whole(until) | LeaseState::Broken(until)) => {
                monotonic(self.now) < until
            }
            Some(LeaseState::Nothing) | None => false,
        }
    }

    /// Whose arc it is while the nodes of which this is true are up.
    pub(crate) fn owner(&self, arc: usize, is_up: impl Fn(usize) -> bool) -> Option<usize> {
        owner(self.nodes.len(), arc, is_up)
    }

    pub(crate) fn ring(&self, node: usize) -> Option<&Ring> {
        self.nodes[node].machines.as_deref().map(|machines| &machines.ring)
    }

    pub(crate) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].machines.is_some()
    }

    /// What gossip would tell of `node` if it told the truth.
    pub(crate) fn fact(&self, node: usize) -> Option<Fact> {
        let machines = self.nodes[node].machines.as_deref()?;
        let is_up = machines.view[node].is_none_or(|own| own.is_up);
        Some(Fact { generation: self.nodes[node].generation, is_up })
    }

    /// Every ordered pair of two nodes.
    pub(crate) fn pairs(&self) -> Vec<(usize, usize)> {
        let all = 0..self.nodes.len();
        all.clone().flat_map(|a| all.clone().map(move |b| (a, b))).filter(|(a, b)| a != b).collect()
    }

    // === inside ===

    fn node_metadata(&self) -> Vec<Option<Fact>> {
        (0..self.nodes.len()).map(|node| self.fact(node)).collect()
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

    fn answer(&mut self, flight: Flight, way: CountingMode) {
        match way {
            CountingMode::Clear => self.arrive(flight, CountingMode::Clear),
            CountingMode::AskLate | CountingMode::AnswerLate => self.send(flight),
        }
    }

    fn send(&mut self, flight: Flight) {
        self.flying.push(flight);
        // The order of those in flight means nothing: equal networks are to be equal values.
        self.flying.sort_by_cached_key(|flight| format!("{flight:?}"));
    }

    fn arrive(&mut self, flight: Flight, answer: CountingMode) {
        let now = monotonic(self.now);
        let is_asker = |node: usize, generation| self.nodes[node].generation == generation;
        match flight {
            Flight::Pong { from, to, to_generation, pong } if is_asker(to, to_generation) => {
                self.change(to, |machines, _| {
                    machines.ring.ponged(&id(from), pong.sent, pong.epoch, pong.grant);
                    machines.ring.tick(now);
                });
            }
            Flight::Ready { from, to, to_generation, epoch, reply }
                if is_asker(to, to_generation) =>
            {
                self.change(to, |machines, _| {
                    machines.ring.offer_answered(&id(from), epoch, reply);
                });
            }
            Flight::Release { from, generation, to, epoch, number, ranges } => {
                let reply = self.change(to, |machines, _| {
                    let from = (&id(from), Generation(generation));
                    let reply = machines.ring.released(from.0, from.1, epoch, number, &ranges);
                    machines.ring.tick(now);
                    reply
                });
                let Some(reply) = reply else { return };
                let (from, to) = (to, from);
                let to_generation = generation;
                self.answer(Flight::Released { from, to, to_generation, number, reply }, answer);
            }
            Flight::Released { from, to, to_generation, number, reply }
                if is_asker(to, to_generation) =>
            {
                self.has_thawed |= reply == HandoffReply::Refused;
                self.change(to, |machines, _| {
                    machines.ring.release_answered(&id(from), number, reply);
                });
            }
            _ => {}
        }
    }
}

impl Machines {
    /// Takes in what gossip tells.
    fn listen(&mut self, now: Monotonic, all: (usize, usize)) {
        let alive: Vec<LiveMember> = self
            .view
            .iter()
            .enumerate()
            .filter_map(|(node, fact)| fact.map(|fact| (node, fact)))
            .map(|(node, fact)| LiveMember {
                id: id(node),
                generation: Generation(fact.generation),
                is_up: fact.is_up,
            })
            .collect();
        if self.table.hear(now, &alive) {
            self.follow(all);
        }
    }

    /// Tells the ring who is on the roll, and what is whose.
    fn follow(&mut self, (nodes, arcs): (usize, usize)) {
        let entries = self.table.entries();
        let is_up = |node: usize| entries.get(&id(node)).is_some_and(|seat| seat.is_up);
        let tokens = (0..nodes).filter_map(|node| {
            let seat = entries.get(&id(node))?;
            let own = (0..arcs).filter(|arc| owner(nodes, *arc, is_up) == Some(node));
            let arcs = Ranges::of(own.map(|arc| Range { first: token(arc), last: token(arc) }));
            Some((id(node), Place { generation: seat.generation, arcs }))
        });
        let entries = tokens.collect();
        let quorum = Quorum::Of((0..nodes).map(id).collect());
        self.ring.follow(Members { entries, quorum });
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

/// The only place of an arc; arcs do not touch, so that none is taken for two.
fn token(arc: usize) -> u64 {
    10 * arc as u64
}

/// Consistent, as the ring is: the first of an order of its own that is up.
fn owner(nodes: usize, arc: usize, is_up: impl Fn(usize) -> bool) -> Option<usize> {
    let step = if (arc / nodes).is_multiple_of(2) { 1 } else { nodes - 1 };
    (0..nodes).map(|turn| (arc + turn * step) % nodes).find(|node| is_up(*node))
}
