//! The scenario of a seed: a cluster, a load and timed faults. It is drawn before the run, so it
//! can be printed, or written by hand for a test.

use crate::dice::Dice;
use crate::fault::{Fault, Incident};
use crate::keys::Selection;
use crate::layout::Layout;
use crate::{membership, regions};

/// The input of a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) family: Family,
    pub(crate) layout: Layout,
    /// Number of nodes that are no edges, including those that start later.
    pub(crate) nodes: usize,
    /// Nodes that start at the beginning; the others start by [`Fault::Start`].
    pub(crate) initial_nodes: usize,
    /// Duration of the load, without the time in which [`Fault::Await`] waits.
    pub(crate) load_ms: u64,
    /// Duration of one simulation step.
    pub(crate) step_ms: u64,
    /// Largest latency of the network itself; the simulation adds one or two steps.
    pub(crate) latency_max_ms: u64,
    /// `cluster.deadline`
    pub(crate) deadline_ms: u64,
    /// `cluster.global_deadline`
    pub(crate) global_deadline_ms: u64,
    /// `limits.keys_max`
    pub(crate) keys_max: usize,
    /// Offset of each node's system clock from the true time.
    pub(crate) clock_offsets_ms: Vec<i64>,
    /// How much faster than time each node's monotonic clock runs.
    pub(crate) clock_drifts_ppm: Vec<i64>,
    /// Whether it has keys of leased rules.
    pub(crate) has_leased_keys: bool,
    /// Whether it has keys with reservations.
    pub(crate) has_reserved_keys: bool,
    /// Sorted by time; includes the end of every fault that lasts.
    pub(crate) incidents: Vec<Incident>,
}

/// What a scenario is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Faults of the network, the clocks and the load, within 10 s; a minority restarts or leaves.
    Requests,
    /// See [`membership`].
    Membership {
        /// `cluster.forget_after`, in seconds.
        forget_after_s: u64,
    },
    /// See [`regions`].
    Regions {
        /// `global.lease`
        lease_ms: u64,
        /// `global.down_after`
        down_after_ms: u64,
    },
}

/// Seeds that end in this digit are of [`Family::Membership`].
pub(crate) const MEMBERSHIP_DIGIT: u64 = 5;
/// Seeds that end in this digit are of [`Family::Regions`].
pub(crate) const REGIONS_DIGIT: u64 = 7;
/// Of the other seeds those that end in one of these have keys of leased rules; of the two families
/// above those whose last but one digit is one of these. The others keep the runs that they had.
const LEASED_DIGITS: [u64; 2] = [2, LEASED_DIGIT];
pub(crate) const LEASED_DIGIT: u64 = 4;
const LEASED_TENS: [u64; 2] = [3, 8];
/// Of the other seeds those that end in one of these have reservations; of the membership scenarios
/// those whose last but one digit is one of the tens.
const RESERVED_DIGITS: [u64; 2] = [EDGES_DIGIT, RESERVED_DIGIT];
pub(crate) const RESERVED_DIGIT: u64 = 9;
const RESERVED_TENS: [u64; 2] = [EDGES_TENS, 9];
/// The same of those with edges.
pub(crate) const EDGES_DIGIT: u64 = 6;
const EDGES_TENS: u64 = 1;
const EDGES_MAX: u64 = 3;
/// Of the load one fault of an edge at most falls into such a time.
const EDGE_FAULT_EVERY_MS: u64 = 2_500;
/// How long an edge is away.
const EDGE_AWAY_MS: (u64, u64) = (700, 3_000);
/// `cluster.deadline` where checks are to be exact: an edge opens a connection within it.
const EDGE_DEADLINE_MS: u64 = 100;
/// How many of a million runs with leased keys and faults change modes.
const MODES_PPM: u32 = 666_667;
/// From the first node that learns of other modes to the last.
const MODES_SPREAD_MS: u64 = 400;
/// The default of `cluster.global_deadline`.
pub(crate) const GLOBAL_DEADLINE_MS: u64 = 150;

/// Longest time for the initial nodes to form a cluster.
pub(crate) const FORMING_MS: u64 = 8_000;
/// Duration of the load of [`Family::Requests`].
const LOAD_MS: u64 = 10_000;
/// Time of the last fault, from the start of the load.
const LAST_FAULT_MS: u64 = 8_500;
/// Time from the end of the load to the final read. The load ends 1.5 s after the last fault.
pub(crate) const SETTLING_MS: u64 = 5_000;
/// Enough for the checked keys, too small for a flood.
const KEYS_MAX_SMALL: usize = 400;
const KEYS_MAX_LARGE: usize = 100_000;
/// Smallest cluster.
const NODES_MIN: usize = 3;
const HALF_PPM: u32 = 500_000;
/// A clock that is disciplined may run a tenth faster or slower than time.
const DRIFT_PPM_MAX: i64 = 100_000;
/// How many of a million runs with faults set all clocks, and by how much: more than an hour, and
/// the day goes on.
const ALL_CLOCKS_PPM: u32 = 250_000;
const SET_MS: i64 = 70 * 60 * 1_000;
/// Largest number of faults drawn for a run.
const FAULTS_MAX: u64 = 4;
/// Every this many seeds a run has no faults; such runs must be exact.
const FAULT_FREE_EVERY: u64 = 8;

/// Kinds of faults that are drawn; each adds one or more incidents.
#[derive(Clone, Copy)]
enum FaultKind {
    PacketFaults,
    Slow,
    Partition,
    OneWayPartition,
    Crash,
    Pause,
    ClockStep,
    Churn,
    Reload,
    HotKey,
    Flood,
    Burst,
    /// A node joins or leaves during a partition.
    ChurnInPartition,
}

const FAULT_KINDS: [FaultKind; 13] = [
    FaultKind::PacketFaults,
    FaultKind::Slow,
    FaultKind::Partition,
    FaultKind::OneWayPartition,
    FaultKind::Crash,
    FaultKind::Pause,
    FaultKind::ClockStep,
    FaultKind::Churn,
    FaultKind::Reload,
    FaultKind::HotKey,
    FaultKind::Flood,
    FaultKind::Burst,
    FaultKind::ChurnInPartition,
];

/// A scenario under construction.
struct Draft {
    dice: Dice,
    nodes: usize,
    initial_nodes: usize,
    /// Nodes that crash, leave or join: each at most once, and never a majority.
    churned: Vec<usize>,
    incidents: Vec<Incident>,
}

impl Scenario {
    /// Whether stores may become full. A store then has no room for a transferred key, and new keys
    /// share a counter.
    pub(crate) fn may_fill_stores(&self) -> bool {
        let is_flood = |incident: &Incident| matches!(incident.fault, Fault::Flood(_));
        self.keys_max == KEYS_MAX_SMALL && self.incidents.iter().any(is_flood)
    }

    /// Draws the scenario of `seed`.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut scenario = match seed % 10 {
            MEMBERSHIP_DIGIT => membership::draw(seed),
            REGIONS_DIGIT => regions::draw(seed),
            _ => Self::draw_requests(seed),
        };
        scenario.set_all_clocks();
        scenario.lease_keys();
        scenario.reserve_keys();
        scenario.add_edges();
        scenario
    }

    /// Adds keys of leased rules, and in most seeds with faults reloads that change the modes of
    /// some.
    fn lease_keys(&mut self) {
        self.has_leased_keys = match self.seed % 10 {
            MEMBERSHIP_DIGIT | REGIONS_DIGIT => LEASED_TENS.contains(&(self.seed / 10 % 10)),
            digit => LEASED_DIGITS.contains(&digit),
        };
        let mut dice = Dice::new(self.seed, "leased");
        if !self.has_leased_keys || self.incidents.is_empty() || !dice.chance(MODES_PPM) {
            return;
        }
        let half_ms = self.load_ms / 2;
        for (from_ms, are_other) in [(0, true), (half_ms, false)] {
            let at_ms = dice.between(from_ms, from_ms + half_ms - MODES_SPREAD_MS);
            for node in 0..self.nodes {
                let at_ms = at_ms + dice.below(MODES_SPREAD_MS);
                self.incidents.push(Incident { at_ms, fault: Fault::Modes { node, are_other } });
            }
        }
        self.incidents.sort_by_key(|incident| incident.at_ms);
    }

    fn reserve_keys(&mut self) {
        self.has_reserved_keys = match self.seed % 10 {
            MEMBERSHIP_DIGIT => RESERVED_TENS.contains(&(self.seed / 10 % 10)),
            digit => RESERVED_DIGITS.contains(&digit),
        };
        if self.has_reserved_keys && !self.may_fill_stores() {
            // A reservation is a key until it is forgotten.
            self.keys_max = KEYS_MAX_LARGE;
        }
    }

    /// Adds edges: some start late, leave, crash, are cut off or paused, and their clocks step.
    fn add_edges(&mut self) {
        let has_edges = match self.seed % 10 {
            MEMBERSHIP_DIGIT => self.seed / 10 % 10 == EDGES_TENS,
            digit => digit == EDGES_DIGIT,
        };
        if !has_edges {
            return;
        }
        let is_fault_free = self.incidents.is_empty();
        if is_fault_free {
            self.deadline_ms = EDGE_DEADLINE_MS;
        }
        // Dice of its own, so that a seed keeps its other faults.
        let mut dice = Dice::new(self.seed, "edges");
        let last_ms = self.load_ms.saturating_sub(LOAD_MS - LAST_FAULT_MS);
        for _ in 0..dice.between(1, EDGES_MAX) {
            let edge = self.layout.of_nodes.len();
            self.layout.add_edge();
            let skew_ms = dice.pick(&[0, 500, 3_000]);
            self.clock_offsets_ms.push(dice.around(skew_ms));
            self.clock_drifts_ppm.push(dice.around(DRIFT_PPM_MAX));
            let late_ms = dice.below(last_ms / 2);
            let at_ms = dice.pick(&[0, 0, late_ms]);
            self.incidents.push(Incident { at_ms, fault: Fault::Start { node: edge } });
        }
        for _ in 0..dice.below(self.load_ms / EDGE_FAULT_EVERY_MS + 1) {
            self.add_edge_fault(&mut dice, last_ms, is_fault_free);
        }
        self.incidents.sort_by_key(|incident| incident.at_ms);
    }

    fn add_edge_fault(&mut self, dice: &mut Dice, last_ms: u64, is_planned: bool) {
        let edge = self.layout.cores() + dice.index(self.layout.edges);
        let at_ms = dice.between(500, last_ms - EDGE_AWAY_MS.1);
        let end_ms = at_ms + dice.between(EDGE_AWAY_MS.0, EDGE_AWAY_MS.1);
        let start = Fault::Start { node: edge };
        let kind = if is_planned { 0 } else { dice.below(6) };
        let (fault, end) = match kind {
            0 => (Fault::Leave { node: edge }, Some(start)),
            1 => (Fault::Crash { node: edge }, Some(start)),
            2 | 3 => {
                let cut = |is_cut| Fault::EdgeCut { edge, is_cut };
                (cut(true), Some(cut(false)))
            }
            4 => {
                let for_ms = dice.pick(&[50, 300, 1_000, 2_000]);
                let is_machine = dice.chance(HALF_PPM);
                let paused = Fault::Pause { node: edge, for_ms };
                let stopped = Fault::Stop { node: edge, for_ms };
                (if is_machine { stopped } else { paused }, None)
            }
            _ => (Fault::ClockStep { node: edge, by_ms: dice.around(5_000) }, None),
        };
        self.incidents.push(Incident { at_ms, fault });
        let end = end.map(|fault| Incident { at_ms: end_ms, fault });
        self.incidents.extend(end);
    }

    /// Which keys it has.
    pub(crate) fn selection(&self) -> Selection {
        let (are_leased, are_reserved) = (self.has_leased_keys, self.has_reserved_keys);
        Selection { regions: self.layout.names.len(), are_leased, are_reserved }
    }

    /// In some runs with faults the system clocks of all machines are set at once, by the same. All
    /// running nodes ignore that.
    fn set_all_clocks(&mut self) {
        // Dice of its own, so that a seed keeps its other faults.
        let mut dice = Dice::new(self.seed, "all clocks");
        if self.incidents.is_empty() || !dice.chance(ALL_CLOCKS_PPM) {
            return;
        }
        let at_ms = dice.between(0, self.load_ms / 2);
        let by_ms = dice.pick(&[-SET_MS, SET_MS]);
        self.incidents.push(Incident { at_ms, fault: Fault::ClocksSet { by_ms } });
        self.incidents.sort_by_key(|incident| incident.at_ms);
    }

    fn draw_requests(seed: u64) -> Self {
        let mut dice = Dice::new(seed, "scenario");
        let nodes = dice.pick(&[NODES_MIN, NODES_MIN, 4, 5]);
        let is_fault_free = seed.is_multiple_of(FAULT_FREE_EVERY);
        let latency_max_ms = dice.below(3);
        let deadline_ms = dice.pick(&[10, 20, 50]);
        let keys_max = dice.pick(&[KEYS_MAX_SMALL, KEYS_MAX_LARGE]);
        let skew_ms = dice.pick(&[0, 20, 500, 3_000]);
        let clock_offsets_ms = (0..nodes).map(|_| dice.around(skew_ms)).collect();
        let mut draft =
            Draft { dice, nodes, initial_nodes: nodes, churned: Vec::new(), incidents: Vec::new() };
        if !is_fault_free {
            for _ in 0..draft.dice.between(1, FAULTS_MAX) {
                let kind = draft.dice.pick(&FAULT_KINDS);
                draft.add(kind);
            }
        }
        let Draft { initial_nodes, mut incidents, .. } = draft;
        incidents.sort_by_key(|incident| incident.at_ms);
        // Dice of its own, so that a seed keeps its other faults.
        let mut dice = Dice::new(seed, "clocks");
        let drift_ppm = dice.pick(&[0, DRIFT_PPM_MAX]);
        let clock_drifts_ppm = (0..nodes).map(|_| dice.around(drift_ppm)).collect();
        for incident in &mut incidents {
            if let Fault::Pause { node, for_ms } = incident.fault
                && dice.chance(HALF_PPM)
            {
                incident.fault = Fault::Stop { node, for_ms };
            }
        }
        Self {
            seed,
            family: Family::Requests,
            layout: Layout::single(nodes),
            nodes,
            initial_nodes,
            load_ms: LOAD_MS,
            step_ms: 1,
            latency_max_ms,
            deadline_ms,
            global_deadline_ms: GLOBAL_DEADLINE_MS,
            keys_max,
            clock_offsets_ms,
            clock_drifts_ppm,
            has_leased_keys: false,
            has_reserved_keys: false,
            incidents,
        }
    }
}

/// The seed with this last digit that `number` others from `from` on precede.
pub(crate) fn seed_ending_in(digit: u64, from: u64, number: u64) -> u64 {
    from.saturating_sub(digit).div_ceil(10) * 10 + digit + 10 * number
}

impl Draft {
    fn add(&mut self, kind: FaultKind) {
        let start = self.dice.between(500, LAST_FAULT_MS - 2_500);
        let end = (start + self.dice.between(200, 3_500)).min(LAST_FAULT_MS);
        let node = self.dice.index(self.nodes);
        match kind {
            FaultKind::PacketFaults => {
                let faulty = Fault::PacketFaults {
                    loss_ppm: self.dice.pick(&[0, 10_000, 50_000, 200_000]),
                    duplicate_ppm: self.dice.pick(&[0, 50_000, 300_000]),
                    delay_ppm: self.dice.pick(&[0, 100_000, 500_000]),
                    delay_ms: self.dice.pick(&[5, 30, 200]),
                };
                let healthy = Fault::PacketFaults {
                    loss_ppm: 0,
                    duplicate_ppm: 0,
                    delay_ppm: 0,
                    delay_ms: 0,
                };
                self.lasting(start, faulty, end, healthy);
            }
            FaultKind::Slow => {
                let delay_ms = self.dice.pick(&[8, 40, 250]);
                let slow = Fault::Slow { node, delay_ms };
                self.lasting(start, slow, end, Fault::Slow { node, delay_ms: 0 });
            }
            FaultKind::Partition => self.partition(start, end),
            FaultKind::OneWayPartition => {
                let to = (node + 1 + self.dice.index(self.nodes - 1)) % self.nodes;
                self.lasting(start, Fault::OneWayPartition { from: node, to }, end, Fault::Heal);
            }
            FaultKind::Crash => self.restart(node, start, end, Fault::Crash { node }),
            FaultKind::Pause => {
                let for_ms = self.dice.pick(&[50, 300, 450, 1_000, 2_000]);
                self.at(start, Fault::Pause { node, for_ms });
            }
            FaultKind::ClockStep => {
                let by_ms = self.dice.around(5_000);
                self.at(start, Fault::ClockStep { node, by_ms });
            }
            FaultKind::Churn => self.churn(node, start, end),
            FaultKind::Reload => self.at(start, Fault::Reload),
            FaultKind::HotKey => {
                self.lasting(start, Fault::HotKey(true), end, Fault::HotKey(false));
            }
            FaultKind::Flood => self.lasting(start, Fault::Flood(true), end, Fault::Flood(false)),
            FaultKind::Burst => self.at(start, Fault::Burst { node }),
            FaultKind::ChurnInPartition => {
                self.partition(start, end);
                let at = self.dice.between(start, end);
                self.churn(node, at, end);
            }
        }
    }

    /// Separates some nodes from the others.
    fn partition(&mut self, start: u64, end: u64) {
        let count = self.dice.between(1, self.nodes as u64 - 1);
        let first = self.dice.index(self.nodes);
        let count = usize::try_from(count).unwrap_or(1);
        let side = (first..first + count).map(|node| node % self.nodes).collect();
        self.lasting(start, Fault::Partition { side }, end, Fault::Heal);
    }

    /// A node leaves and rejoins, or joins for the first time.
    fn churn(&mut self, node: usize, start: u64, end: u64) {
        let last = self.nodes - 1;
        let can_join = self.initial_nodes == self.nodes && self.nodes > NODES_MIN;
        if can_join && self.dice.chance(HALF_PPM) && self.reserve_churn(last) {
            self.initial_nodes = last;
            self.at(start, Fault::Start { node: last });
        } else {
            self.restart(node, start, end, Fault::Leave { node });
        }
    }

    /// A node ends by `fault` and restarts, unless another restart of it or too many others are
    /// planned.
    fn restart(&mut self, node: usize, start: u64, end: u64, fault: Fault) {
        if self.reserve_churn(node) {
            // Leaving takes several gossip rounds.
            let again = end.max(start + 1_500).min(LAST_FAULT_MS);
            self.lasting(start, fault, again, Fault::Start { node });
        }
    }

    fn reserve_churn(&mut self, node: usize) -> bool {
        let is_allowed = !self.churned.contains(&node) && self.churned.len() < (self.nodes - 1) / 2;
        if is_allowed {
            self.churned.push(node);
        }
        is_allowed
    }

    fn lasting(&mut self, start: u64, fault: Fault, end: u64, undo: Fault) {
        self.at(start, fault);
        self.at(end, undo);
    }

    fn at(&mut self, at_ms: u64, fault: Fault) {
        self.incidents.push(Incident { at_ms, fault });
    }
}
