//! Long random walks through the events of a cluster.
//!
//! Each seed also draws the frequency of each kind of event: a walk that loses most answers, or in
//! which no node crashes, reaches states that an even mixture rarely reaches.

use super::cluster::{Change, Cluster, Delivery, EXPIRED};

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
    Hit,
    DropStrays,
    Tick,
    Learn,
    Save,
    Admit,
    Evict,
    Drain,
    Replace,
    EndJoint,
    Deliver,
    Lose,
    Crash,
    Restart,
    Cut,
    Heal,
}

/// Each kind with its average frequency.
const KINDS: [(Kind, usize); 20] = [
    (Kind::Wait, 8),
    (Kind::Pass, 8),
    (Kind::Ping, 40),
    (Kind::Step, 80),
    (Kind::Hit, 20),
    (Kind::DropStrays, 4),
    (Kind::Tick, 16),
    (Kind::Learn, 20),
    (Kind::Save, 20),
    (Kind::Admit, 6),
    (Kind::Evict, 3),
    (Kind::Drain, 1),
    (Kind::Replace, 2),
    (Kind::EndJoint, 4),
    (Kind::Deliver, 20),
    (Kind::Lose, 1),
    (Kind::Crash, 1),
    (Kind::Restart, 2),
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
        let kind = self.kind();
        let mut detail = String::new();
        let cluster = &mut self.cluster;
        let has_happened = match kind {
            Kind::Admit => cluster.commit(Change::Admit(node)),
            Kind::Evict => cluster.commit(Change::Evict(node)),
            Kind::Drain => cluster.commit(Change::Drain(node)),
            Kind::Replace => cluster.commit(Change::Replace(node, other)),
            Kind::EndJoint => cluster.commit(Change::EndJoint),
            Kind::Step => does_reach && cluster.step(node, other, delivery),
            Kind::Hit => does_reach && cluster.hit(node, other),
            Kind::DropStrays => cluster.drop_strays(node),
            Kind::Wait => {
                cluster.wait();
                true
            }
            Kind::Pass => {
                let reach = self.reach.clone();
                cluster.pass(|a, b| reach[a * nodes + b]);
                true
            }
            Kind::Ping => {
                if does_reach {
                    cluster.ping(node, other, delivery);
                }
                does_reach
            }
            Kind::Tick => {
                cluster.tick(node);
                true
            }
            Kind::Learn => {
                let is_behind = cluster.is_behind(node);
                cluster.learn(node);
                is_behind
            }
            Kind::Save => {
                let is_unsaved = cluster.is_unsaved(node);
                cluster.save(node);
                is_unsaved
            }
            Kind::Deliver if cluster.flying.is_empty() => false,
            Kind::Deliver => {
                let index = self.below(self.cluster.flying.len());
                let stays = self.below(3) == 0;
                detail = format!("{:?} stays: {stays}", self.cluster.flying[index]);
                self.cluster.deliver(index, stays);
                true
            }
            Kind::Lose => {
                cluster.flying.clear();
                true
            }
            Kind::Crash => {
                cluster.crash(node);
                true
            }
            Kind::Restart if cluster.is_up(node) => false,
            Kind::Restart => {
                let has_disk = self.below(2) == 0;
                detail = format!("disk: {has_disk}");
                self.cluster.restart(node, has_disk);
                true
            }
            Kind::Cut => {
                self.reach[node * nodes + other] = false;
                self.reach[other * nodes + node] = false;
                true
            }
            Kind::Heal => {
                self.reach.fill(true);
                true
            }
        };
        if self.cluster.flying.len() > FLYING_MAX {
            self.cluster.flying.remove(0);
        }
        if has_happened {
            let now = self.cluster.now;
            self.steps.push(format!("{now}: {kind:?} {node} {other} {delivery:?} {detail}"));
        }
    }

    /// Whether a majority of the voters could be there: otherwise the cluster is lost.
    pub(crate) fn has_majority(&self) -> bool {
        let newest = &self.cluster.maps[self.cluster.maps.len() - 1];
        newest
            .voters
            .is_majority(|voter| self.cluster.nodes.iter().any(|node| node.identity == *voter))
    }

    /// Restarts all crashed nodes, makes every node a member and every voter one that is there, and
    /// lets the cluster settle.
    pub(crate) fn heal_all(&mut self) {
        let nodes = self.cluster.nodes.len();
        self.reach.fill(true);
        for node in 0..nodes {
            if !self.cluster.is_up(node) {
                self.cluster.restart(node, true);
            }
            self.cluster.commit(Change::Evict(node));
            self.cluster.commit(Change::Admit(node));
        }
        for _ in 0..2 * nodes {
            self.cluster.now += EXPIRED;
            self.cluster.settle();
            self.cluster.commit(Change::EndJoint);
            let newest = self.cluster.maps[self.cluster.maps.len() - 1].clone();
            let is_there = |voter: &tidegate_ownership::Identity| {
                self.cluster.nodes.iter().any(|node| node.identity == *voter)
            };
            let of = |voter: &tidegate_ownership::Identity| {
                self.cluster.nodes.iter().position(|node| node.identity.node == voter.node)
            };
            let gone = newest.voters.current.iter().find(|voter| !is_there(voter)).and_then(of);
            if let Some(gone) = gone {
                self.cluster.commit(Change::Replace(gone, gone));
            }
        }
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
