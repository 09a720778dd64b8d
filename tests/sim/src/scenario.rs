//! What a seed stands for: a cluster, a load, and what goes wrong when. Drawn before anything runs,
//! so that a scenario can be printed, and written by hand for a case of its own.

use crate::dice::Dice;
use crate::fault::{Fault, Incident};

/// Everything that a run is made from.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// Nodes that there are, first to last.
    pub(crate) nodes: usize,
    /// How many of them start at the beginning; the others come by [`Fault::Start`].
    pub(crate) starters: usize,
    /// The most that the network itself delays a datagram; every step of the simulation adds one
    /// or two milliseconds.
    pub(crate) latency_max_ms: u64,
    /// `cluster.deadline`
    pub(crate) deadline_ms: u64,
    /// `limits.keys_max`
    pub(crate) keys_max: usize,
    /// What each node's system clock is ahead of the right time.
    pub(crate) clocks_ahead_ms: Vec<i64>,
    /// Sorted by time; every fault that lasts has its end among them.
    pub(crate) incidents: Vec<Incident>,
}

/// Time for the first nodes to find each other, at most.
pub(crate) const FORMING_MS: u64 = 8_000;
/// How long the load lasts.
pub(crate) const LOAD_MS: u64 = 10_000;
/// Nothing goes wrong after this, counted from the start of the load.
const LAST_FAULT_MS: u64 = 8_500;
/// From the end of the load, which is 1.5 s after the last fault, to the final look.
pub(crate) const SETTLING_MS: u64 = 5_000;
/// Room for the checked keys, and not for a flood.
const KEYS_MAX_SMALL: usize = 400;
/// Fewest nodes of a cluster.
const NODES_MIN: usize = 3;
const HALF_PPM: u32 = 500_000;
/// Most things that go wrong in one run.
const TROUBLES_MAX: u64 = 4;
/// Every so many seeds nothing goes wrong: what must be exact then is looked at most closely.
const CALM_EVERY: u64 = 8;

/// What may go wrong; each becomes one or more incidents.
#[derive(Clone, Copy)]
enum Trouble {
    Weather,
    Slow,
    Split,
    CutOneWay,
    Crash,
    Pause,
    Clock,
    Churn,
    Reload,
    Hot,
    Flood,
    Burst,
    /// A node comes or goes while the others are split.
    ChurnInSplit,
}

const TROUBLES: [Trouble; 13] = [
    Trouble::Weather,
    Trouble::Slow,
    Trouble::Split,
    Trouble::CutOneWay,
    Trouble::Crash,
    Trouble::Pause,
    Trouble::Clock,
    Trouble::Churn,
    Trouble::Reload,
    Trouble::Hot,
    Trouble::Flood,
    Trouble::Burst,
    Trouble::ChurnInSplit,
];

/// A scenario being drawn.
struct Draft {
    dice: Dice,
    nodes: usize,
    starters: usize,
    /// Nodes that crash, leave or come; each does so once, and no more than a minority.
    restless: Vec<usize>,
    incidents: Vec<Incident>,
}

impl Scenario {
    /// Whether stores may run full: then there is no room for what a key brings along when it moves
    /// either, and new keys share a counter.
    pub(crate) fn may_fill_stores(&self) -> bool {
        let is_flood = |incident: &Incident| matches!(incident.fault, Fault::Flood(_));
        self.keys_max == KEYS_MAX_SMALL && self.incidents.iter().any(is_flood)
    }

    /// The scenario of `seed`.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, "scenario");
        let nodes = dice.pick(&[NODES_MIN, NODES_MIN, 4, 5]);
        let is_calm = seed.is_multiple_of(CALM_EVERY);
        let latency_max_ms = dice.below(3);
        let deadline_ms = dice.pick(&[10, 20, 50]);
        let keys_max = dice.pick(&[KEYS_MAX_SMALL, 100_000]);
        let skew_ms = dice.pick(&[0, 20, 500, 3_000]);
        let clocks_ahead_ms = (0..nodes).map(|_| dice.around(skew_ms)).collect();
        let mut draft =
            Draft { dice, nodes, starters: nodes, restless: Vec::new(), incidents: Vec::new() };
        if !is_calm {
            for _ in 0..draft.dice.between(1, TROUBLES_MAX) {
                let trouble = draft.dice.pick(&TROUBLES);
                draft.add(trouble);
            }
        }
        let Draft { starters, mut incidents, .. } = draft;
        incidents.sort_by_key(|incident| incident.at_ms);
        Self {
            seed,
            nodes,
            starters,
            latency_max_ms,
            deadline_ms,
            keys_max,
            clocks_ahead_ms,
            incidents,
        }
    }
}

impl Draft {
    fn add(&mut self, trouble: Trouble) {
        let start = self.dice.between(500, LAST_FAULT_MS - 2_500);
        let end = (start + self.dice.between(200, 3_500)).min(LAST_FAULT_MS);
        let node = self.dice.index(self.nodes);
        match trouble {
            Trouble::Weather => {
                let weather = Fault::Weather {
                    loss_ppm: self.dice.pick(&[0, 10_000, 50_000, 200_000]),
                    duplicate_ppm: self.dice.pick(&[0, 50_000, 300_000]),
                    late_ppm: self.dice.pick(&[0, 100_000, 500_000]),
                    late_ms: self.dice.pick(&[5, 30, 200]),
                };
                let good =
                    Fault::Weather { loss_ppm: 0, duplicate_ppm: 0, late_ppm: 0, late_ms: 0 };
                self.lasting(start, weather, end, good);
            }
            Trouble::Slow => {
                let late_ms = self.dice.pick(&[8, 40, 250]);
                let slow = Fault::Slow { node, late_ms };
                self.lasting(start, slow, end, Fault::Slow { node, late_ms: 0 });
            }
            Trouble::Split => self.split(start, end),
            Trouble::CutOneWay => {
                let to = (node + 1 + self.dice.index(self.nodes - 1)) % self.nodes;
                self.lasting(start, Fault::CutOneWay { from: node, to }, end, Fault::Heal);
            }
            Trouble::Crash => self.restart(node, start, end, Fault::Crash { node }),
            Trouble::Pause => {
                let for_ms = self.dice.pick(&[50, 300, 450, 1_000, 2_000]);
                self.at(start, Fault::Pause { node, for_ms });
            }
            Trouble::Clock => {
                let by_ms = self.dice.around(5_000);
                self.at(start, Fault::ClockStep { node, by_ms });
            }
            Trouble::Churn => self.churn(node, start, end),
            Trouble::Reload => self.at(start, Fault::Reload),
            Trouble::Hot => self.lasting(start, Fault::Hot(true), end, Fault::Hot(false)),
            Trouble::Flood => self.lasting(start, Fault::Flood(true), end, Fault::Flood(false)),
            Trouble::Burst => self.at(start, Fault::Burst { node }),
            Trouble::ChurnInSplit => {
                self.split(start, end);
                let between = self.dice.between(start, end);
                self.churn(node, between, end);
            }
        }
    }

    /// Some nodes, fewer than all, lose sight of the others.
    fn split(&mut self, start: u64, end: u64) {
        let count = self.dice.between(1, self.nodes as u64 - 1);
        let first = self.dice.index(self.nodes);
        let count = usize::try_from(count).unwrap_or(1);
        let side = (first..first + count).map(|node| node % self.nodes).collect();
        self.lasting(start, Fault::Split { side }, end, Fault::Heal);
    }

    /// A node leaves and comes back, or comes for the first time.
    fn churn(&mut self, node: usize, start: u64, end: u64) {
        let last = self.nodes - 1;
        let may_come = self.starters == self.nodes && self.nodes > NODES_MIN;
        if may_come && self.dice.chance(HALF_PPM) && self.may_be_restless(last) {
            self.starters = last;
            self.at(start, Fault::Start { node: last });
        } else {
            self.restart(node, start, end, Fault::Leave { node });
        }
    }

    /// A node ends by `fault` and starts again, if it may.
    fn restart(&mut self, node: usize, start: u64, end: u64, fault: Fault) {
        if self.may_be_restless(node) {
            // Leaving takes some gossip rounds.
            let again = end.max(start + 1_500).min(LAST_FAULT_MS);
            self.lasting(start, fault, again, Fault::Start { node });
        }
    }

    fn may_be_restless(&mut self, node: usize) -> bool {
        let is_free = !self.restless.contains(&node) && self.restless.len() < (self.nodes - 1) / 2;
        if is_free {
            self.restless.push(node);
        }
        is_free
    }

    fn lasting(&mut self, start: u64, fault: Fault, end: u64, its_end: Fault) {
        self.at(start, fault);
        self.at(end, its_end);
    }

    fn at(&mut self, at_ms: u64, fault: Fault) {
        self.incidents.push(Incident { at_ms, fault });
    }
}
