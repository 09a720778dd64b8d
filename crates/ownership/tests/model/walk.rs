//! Long random walks through the events of a cluster.
//!
//! Each seed also draws the frequency of each kind of event: a walk that loses most answers, or in
//! which no node crashes, reaches states that an even mixture rarely reaches.

use super::cluster::{Cluster, Delivery, LEASE};

/// Moves a cluster at random; the same seed walks the same path.
pub(crate) struct Walk {
    pub(crate) cluster: Cluster,
    /// The events so far, for the failure message.
    pub(crate) steps: Vec<String>,
    /// Which ordered pairs reach each other.
    reach: Vec<bool>,
    weights: [usize; KINDS.len()],
    /// One in this many exchanges is answered at once.
    late: usize,
    random: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Wait,
    Pass,
    Ping,
    Step,
    Tick,
    Evict,
    Gossip,
    FalseAlarm,
    Deliver,
    Lose,
    Crash,
    Rejoin,
    Drain,
    Cut,
    Heal,
}

/// Each kind with its average frequency.
const KINDS: [(Kind, usize); 15] = [
    (Kind::Wait, 8),
    (Kind::Pass, 8),
    (Kind::Ping, 40),
    (Kind::Step, 80),
    (Kind::Tick, 16),
    (Kind::Evict, 12),
    (Kind::Gossip, 20),
    (Kind::FalseAlarm, 4),
    (Kind::Deliver, 20),
    (Kind::Lose, 1),
    (Kind::Crash, 1),
    (Kind::Rejoin, 2),
    (Kind::Drain, 1),
    (Kind::Cut, 2),
    (Kind::Heal, 2),
];

/// Messages in flight; beyond it the oldest is lost.
const FLYING_MAX: usize = 6;

impl Walk {
    pub(crate) fn new(cluster: Cluster, seed: u64) -> Self {
        let reach = vec![true; cluster.nodes.len() * cluster.nodes.len()];
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let weights = KINDS.map(|(_, weight)| weight);
        let mut walk = Self { cluster, steps: Vec::new(), reach, weights, late: 0, random };
        for _ in 0..16 {
            walk.below(2);
        }
        for kind in 0..KINDS.len() {
            walk.weights[kind] *= [1, 4, 4, 4, 16][walk.below(5)];
        }
        walk.late = 1 + walk.below(4);
        walk
    }

    /// One random event, if it is possible.
    pub(crate) fn step(&mut self) {
        let nodes = self.cluster.nodes.len();
        let node = self.below(nodes);
        let other = (node + 1 + self.below(nodes - 1)) % nodes;
        let delivery = match self.below(2 * self.late) {
            0 | 1 => Delivery::Immediate,
            turn if turn % 2 == 0 => Delivery::RequestDelayed,
            _ => Delivery::ReplyDelayed,
        };
        let does_reach = self.reach[node * nodes + other];
        let is_up = self.cluster.is_up(node);
        let kind = self.kind();
        let mut detail = String::new();
        match kind {
            Kind::Wait => self.cluster.wait(),
            Kind::Pass => {
                let reach = self.reach.clone();
                self.cluster.pass(|a, b| reach[a * nodes + b]);
            }
            Kind::Ping if does_reach => self.cluster.ping(node, other, delivery),
            Kind::Step if does_reach => {
                self.cluster.step(node, other, delivery);
            }
            Kind::Tick => self.cluster.tick(node),
            Kind::Evict => self.cluster.evict(node),
            Kind::Gossip => self.cluster.gossip(node, other, self.cluster.metadata(other)),
            Kind::FalseAlarm => self.cluster.gossip(node, other, None),
            Kind::Deliver if !self.cluster.flying.is_empty() => {
                let index = self.below(self.cluster.flying.len());
                let stays = self.below(3) == 0;
                detail = format!("{:?} stays: {stays}", self.cluster.flying[index]);
                self.cluster.deliver(index, stays);
            }
            Kind::Lose => self.cluster.flying.clear(),
            Kind::Crash => self.cluster.crash(node),
            Kind::Rejoin if !is_up => self.cluster.rejoin(node),
            Kind::Drain if self.below(4) == 0 => self.cluster.drain(node),
            Kind::Cut => {
                self.reach[node * nodes + other] = false;
                self.reach[other * nodes + node] = false;
            }
            Kind::Heal => self.reach.fill(true),
            _ => return,
        }
        if self.cluster.flying.len() > FLYING_MAX {
            self.cluster.flying.remove(0);
        }
        self.steps
            .push(format!("{}: {kind:?} {node} {other} {delivery:?} {detail}", self.cluster.now));
    }

    /// Restarts all crashed nodes, and lets the cluster settle.
    pub(crate) fn heal_all(&mut self) {
        for node in 0..self.cluster.nodes.len() {
            if !self.cluster.is_up(node) {
                self.cluster.rejoin(node);
            }
        }
        self.cluster.now += LEASE;
        self.cluster.settle();
    }

    fn kind(&mut self) -> Kind {
        let mut at = self.below(self.weights.iter().sum());
        for ((kind, _), weight) in KINDS.iter().zip(self.weights) {
            match at.checked_sub(weight) {
                Some(rest) => at = rest,
                None => return *kind,
            }
        }
        Kind::Wait
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % end
    }
}
