//! Scenarios in which the members of the cluster change under faults, for a minute and more.
//!
//! Seeds that end in 5 have such a scenario: some episodes, one after the other, under a
//! light load. The watch for two owners of a token runs over all of it. Example, a replacement:
//!
//! ```text
//! Await(LiveVoters)  Crash n2  Start n4  Await(LiveVoters)  Crash n3  Start n5  ...
//! ```
//!
//! Where the next step must wait for the cluster, such as until the successor of a dead voter
//! votes, the scenario has a [`Fault::Await`], and everything behind it moves.

use crate::dice::Dice;
use crate::fault::{Awaited, Fault, Incident};
use crate::layout::Layout;
use crate::scenario::{Family, GLOBAL_DEADLINE_MS, Scenario};

/// What happens to the members. The first episode of a seed is the next one for each such seed, so
/// that a few seeds reach all of them.
#[derive(Clone, Copy, Debug)]
enum Episode {
    /// Nodes are killed and restart inside a partition of 10 to 60 s; new ones start there.
    RestartInPartition,
    /// Nodes are killed one after the other and replaced under new names.
    Replacement,
    /// All nodes lose their power at once, and start one after the other.
    PowerLoss,
    /// A minority of the voters loses its disks.
    WipedMinority,
    /// Large datagrams are lost between two nodes while a third one crashes.
    BlackHole,
    /// Nodes join while one member does not reach some of the others.
    Growth,
    /// All but one node lose their disks, and an operator recovers the cluster.
    WipedMajority,
    /// Two nodes do not reach each other, so one of them is evicted when a node joins. Then they
    /// reach each other again, and a node crashes.
    LostLink,
}

const EPISODES: [Episode; 7] = [
    Episode::RestartInPartition,
    Episode::Replacement,
    Episode::PowerLoss,
    Episode::WipedMinority,
    Episode::BlackHole,
    Episode::Growth,
    Episode::WipedMajority,
];
/// Of this many such seeds one begins with [`Episode::LostLink`]. It is not drawn otherwise, so
/// that the other seeds keep their scenarios.
const LOST_LINK_EVERY: usize = 8;

/// A scenario under construction.
struct Draft {
    dice: Dice,
    /// When the next incident happens, without the time that is waited.
    at_ms: u64,
    /// The nodes that run between two episodes.
    running: Vec<usize>,
    /// Names given so far.
    names: usize,
    incidents: Vec<Incident>,
}

/// Most nodes that run at once.
const RUNNING_MAX: usize = 6;
const PARTITION_MS: (u64, u64) = (10_000, 60_000);
/// Of partitions after the first episode, so that a run does not take too long.
const LATER_PARTITION_MS: (u64, u64) = (10_000, 15_000);
/// Between the starts of the first and the last node after a loss of power.
const STAGGERED_MS: u64 = 20_000;
/// Longest time from one episode to the next.
const GAP_MAX_MS: u64 = 6_000;
const LOAD_AFTER_MS: u64 = 1_000;
/// No episode begins later, with the time that is waited.
const EXPECTED_MIN_MS: u64 = 50_000;
/// What a [`Fault::Await`] takes, about, if a voter has to be replaced.
const WAIT_MS: u64 = 8_000;
const HALF_PPM: u32 = 500_000;
const THIRD_PPM: u32 = 333_333;
const TWO_THIRDS_PPM: u32 = 666_667;

/// Draws the scenario of `seed`, one of this family.
pub(crate) fn draw(seed: u64) -> Scenario {
    let mut dice = Dice::new(seed, "membership");
    let initial_nodes = dice.pick(&[3, 3, 4, 5]);
    let (running, incidents) = ((0..initial_nodes).collect(), Vec::new());
    let mut draft = Draft { dice, at_ms: 1_000, running, names: initial_nodes, incidents };
    let has_noise = draft.dice.chance(THIRD_PPM);
    if has_noise {
        draft.add(Fault::PacketFaults {
            loss_ppm: 10_000,
            duplicate_ppm: 50_000,
            delay_ppm: 100_000,
            delay_ms: 20,
        });
    }
    let number = usize::try_from(seed / 10).unwrap_or(0);
    let is_lost_link = number % LOST_LINK_EVERY == LOST_LINK_EVERY - 1;
    draft.play(if is_lost_link { Episode::LostLink } else { EPISODES[number % EPISODES.len()] });
    while draft.expected_ms() < EXPECTED_MIN_MS {
        draft.later(0, GAP_MAX_MS);
        let episode = draft.dice.pick(&EPISODES);
        draft.play(episode);
    }
    if has_noise {
        draft.add(Fault::PacketFaults { loss_ppm: 0, duplicate_ppm: 0, delay_ppm: 0, delay_ms: 0 });
    }
    let Draft { mut dice, at_ms, names, incidents, .. } = draft;
    let skew_ms = dice.pick(&[0, 20, 500]);
    let drift_ppm = dice.pick(&[0, 100_000]);
    Scenario {
        seed,
        family: Family::Membership { forget_after_s: dice.pick(&[10, 20, 3_600]) },
        layout: Layout::single(names),
        nodes: names,
        initial_nodes,
        load_ms: at_ms + LOAD_AFTER_MS,
        step_ms: 1,
        latency_max_ms: dice.below(3),
        deadline_ms: dice.pick(&[10, 20, 50]),
        global_deadline_ms: GLOBAL_DEADLINE_MS,
        keys_max: 100_000,
        clock_offsets_ms: (0..names).map(|_| dice.around(skew_ms)).collect(),
        clock_drifts_ppm: (0..names).map(|_| dice.around(drift_ppm)).collect(),
        has_leased_keys: false,
        has_reserved_keys: false,
        incidents,
    }
}

impl Draft {
    fn play(&mut self, episode: Episode) {
        match episode {
            Episode::RestartInPartition => self.restart_in_partition(),
            Episode::Replacement => self.replacement(),
            Episode::PowerLoss => self.power_loss(),
            Episode::WipedMinority => self.wiped_minority(),
            Episode::BlackHole => self.black_hole(),
            Episode::Growth => self.growth(),
            Episode::WipedMajority => self.wiped_majority(),
            Episode::LostLink => self.lost_link(),
        }
    }

    fn restart_in_partition(&mut self) {
        let (least, most) =
            if self.at_ms < LATER_PARTITION_MS.1 { PARTITION_MS } else { LATER_PARTITION_MS };
        let end = self.at_ms + self.dice.between(least, most);
        let mut side = self.some_of_running(self.running.len() - 1);
        let is_joined = self.has_room() && self.dice.chance(THIRD_PPM);
        if is_joined && self.dice.chance(HALF_PPM) {
            // It starts on this side.
            side.push(self.names);
        }
        self.add(Fault::Partition { side });
        let restarts = self.dice.between(1, 3);
        for _ in 0..restarts {
            let node = self.dice.pick(&self.running);
            self.later(300, 4_000);
            self.add(Fault::Crash { node });
            self.later(200, 3_000);
            self.add(Fault::Start { node });
        }
        if is_joined {
            self.start_another();
        }
        self.at_ms = self.at_ms.max(end);
        self.add(Fault::Heal);
        self.later(1, GAP_MAX_MS);
        self.add(Fault::Await(Awaited::LiveVoters));
    }

    fn replacement(&mut self) {
        let replaced = self.dice.between(1, 4);
        for _ in 0..replaced {
            self.add(Fault::Await(Awaited::LiveVoters));
            let at = self.dice.index(self.running.len());
            let node = self.running.remove(at);
            self.later(0, 1_000);
            self.add(Fault::Crash { node });
            self.later(200, 3_000);
            self.start_another();
        }
        self.later(1, 1_000);
        self.add(Fault::Await(Awaited::LiveVoters));
    }

    fn power_loss(&mut self) {
        self.add(Fault::PowerLoss);
        let nodes = self.some_of_running(self.running.len());
        self.start_staggered(&nodes, STAGGERED_MS);
    }

    fn wiped_minority(&mut self) {
        self.add(Fault::Await(Awaited::LiveVoters));
        // Of 3 or 4 members 3 vote, of more 5.
        let wiped_max = if self.running.len() < 5 { 1 } else { 2 };
        let nodes = self.some_of_running(wiped_max);
        for node in &nodes {
            self.add(Fault::Crash { node: *node });
        }
        self.later(200, 500);
        for node in &nodes {
            self.add(Fault::Wipe { node: *node });
        }
        self.start_staggered(&nodes, 3_000);
        self.later(1, 3_000);
        self.add(Fault::Await(Awaited::LiveVoters));
    }

    fn wiped_majority(&mut self) {
        self.add(Fault::Await(Awaited::LiveVoters));
        self.add(Fault::PowerLoss);
        let mut nodes = self.some_of_running(self.running.len());
        for node in &nodes[1..] {
            self.add(Fault::Wipe { node: *node });
        }
        let survivor = nodes.remove(0);
        self.later(200, 2_000);
        self.add(Fault::Recover { node: survivor });
        self.add(Fault::Start { node: survivor });
        // The operator starts the others once the survivor runs: wiped founders that reach no
        // member found another cluster.
        self.later(5_000, 6_000);
        self.start_staggered(&nodes, 3_000);
        self.later(1, 3_000);
        self.add(Fault::Await(Awaited::LiveVoters));
    }

    fn black_hole(&mut self) {
        // Two of three cannot evict one another.
        while self.running.len() < 4 {
            self.start_another();
            self.later(1_000, 2_000);
        }
        self.add(Fault::Await(Awaited::LiveVoters));
        let nodes = self.some_of_running(self.running.len());
        let (one, other, crashed) = (nodes[0], nodes[1], nodes[2]);
        let bytes = self.dice.pick(&[350, 600, 1_000, 1_250]);
        self.add(Fault::BlackHole { one, other, over_bytes: Some(bytes) });
        self.later(500, 5_000);
        self.add(Fault::Crash { node: crashed });
        self.later(300, 500);
        self.add(Fault::Await(Awaited::AllOwned));
        self.later(0, 3_000);
        self.add(Fault::BlackHole { one, other, over_bytes: None });
        self.later(0, 3_000);
        self.add(Fault::Start { node: crashed });
    }

    fn growth(&mut self) {
        let is_cut = self.dice.chance(TWO_THIRDS_PPM);
        if is_cut {
            // It reaches one other node: of three voters a majority, of five none.
            let nodes = self.some_of_running(self.running.len());
            let from = nodes[2..].iter().copied().chain([self.names, self.names + 1]).collect();
            self.add(Fault::PartialPartition { node: nodes[0], from });
        }
        for _ in 0..2 {
            self.later(0, 500);
            if self.has_room() {
                self.start_another();
            }
        }
        if is_cut {
            self.later(6_000, 15_000);
            self.add(Fault::Heal);
        }
    }

    fn lost_link(&mut self) {
        self.add(Fault::Await(Awaited::LiveVoters));
        let nodes = self.some_of_running(self.running.len());
        self.add(Fault::PartialPartition { node: nodes[0], from: vec![nodes[1]] });
        self.later(0, 2_000);
        // The two wait for each other's ranges now.
        self.start_another();
        self.add(Fault::Await(Awaited::OneEvicted));
        self.later(0, 500);
        self.add(Fault::Heal);
        self.later(0, 500);
        let crashed = nodes[1 + self.dice.index(nodes.len() - 1)];
        self.add(Fault::Crash { node: crashed });
        self.later(300, 500);
        self.add(Fault::Await(Awaited::TakenOver));
        self.later(0, 3_000);
        self.add(Fault::Start { node: crashed });
        self.later(1, 3_000);
        self.add(Fault::Await(Awaited::LiveVoters));
    }

    fn expected_ms(&self) -> u64 {
        let waits = self.incidents.iter().filter(|it| matches!(it.fault, Fault::Await(_)));
        self.at_ms + waits.count() as u64 * WAIT_MS
    }

    /// Starts a node of another name.
    fn start_another(&mut self) {
        self.add(Fault::Start { node: self.names });
        self.running.push(self.names);
        self.names += 1;
    }

    fn has_room(&self) -> bool {
        self.running.len() < RUNNING_MAX
    }

    /// The first at once, the last after up to `most_ms`.
    fn start_staggered(&mut self, nodes: &[usize], most_ms: u64) {
        let each_ms = most_ms / nodes.len() as u64;
        for node in nodes {
            self.later(0, each_ms);
            self.add(Fault::Start { node: *node });
        }
    }

    /// One to `most` of the running nodes, in any order; all of them if `most` is all.
    fn some_of_running(&mut self, most: usize) -> Vec<usize> {
        let mut left = self.running.clone();
        let is_all = most == left.len();
        let count = if is_all { most } else { 1 + self.dice.index(most) };
        (0..count).map(|_| left.swap_remove(self.dice.index(left.len()))).collect()
    }

    fn later(&mut self, least_ms: u64, most_ms: u64) {
        self.at_ms += self.dice.between(least_ms, most_ms);
    }

    fn add(&mut self, fault: Fault) {
        self.incidents.push(Incident { at_ms: self.at_ms, fault });
    }
}
