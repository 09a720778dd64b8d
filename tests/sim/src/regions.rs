//! Scenarios of several regions, in which a region is lost, cut off, or badly connected.
//!
//! Seeds that end in 7 have such a scenario. Two or three regions are homes of global keys, and one
//! is a witness, which is none. As in [`membership`](crate::membership) there are some episodes,
//! one after the other, under a light load from clients in every region. Example, a region that is
//! cut off, grows and returns, and then one that is lost with its disks:
//!
//! ```text
//! Partition eu | us, w   Start n6   Start n7   Heal   Await(GlobalSettled)   Blackout us
//! Wipe n3   Wipe n4   Start n3   Start n4   ...
//! ```
//!
//! At most one region at a time is lost or cut off, so that the others have a majority of the
//! global voters.

use std::collections::BTreeMap;

use crate::dice::Dice;
use crate::fault::{Awaited, Fault, Incident};
use crate::layout::{Failover, Layout};
use crate::scenario::{Family, Scenario};

/// What happens to a region. The first episode of a seed is the next one for each such seed, so
/// that a few seeds reach all of them.
#[derive(Clone, Copy, Debug)]
enum Episode {
    /// No other region reaches it for 10 to 60 s. Meanwhile nodes restart.
    CutOff,
    /// It is cut off, and new nodes start in it.
    GrownInCutOff,
    /// All of its nodes are killed at once, and start again, with their disks or without.
    Lost,
    /// Datagrams to, or from, another region are lost.
    OneWay,
    /// It is cut off, for less time than its lease lasts, or about as long.
    Blink,
    /// The node that stands for it is killed.
    StandingKilled,
    /// A global voter is killed, whichever.
    VoterKilled,
    /// Links between regions lose and delay datagrams, and a node restarts.
    BadLinks,
    /// It is cut off, and then reaches all other regions but one for a while. A node of it dies
    /// when it reaches that one as well.
    HalfReturned,
    /// It is cut off and returns, and another one is cut off at once.
    OneAfterTheOther,
    /// It is cut off for about as long as it takes to strike it off, and restarts there with other
    /// clocks. Soon after it has returned a voter restarts, and a while later it is killed.
    OtherClocks,
}

const EPISODES: [Episode; 8] = [
    Episode::CutOff,
    Episode::Lost,
    Episode::GrownInCutOff,
    Episode::OneWay,
    Episode::StandingKilled,
    Episode::Blink,
    Episode::VoterKilled,
    Episode::BadLinks,
];
/// Of each 16 such seeds these begin with other episodes. They are not drawn otherwise, so that the
/// other seeds keep their scenarios.
const RARE: [(usize, Episode); 3] =
    [(4, Episode::OneAfterTheOther), (9, Episode::OtherClocks), (15, Episode::HalfReturned)];
const RARE_EVERY: usize = 16;

/// A scenario under construction.
struct Draft {
    dice: Dice,
    /// When the next incident happens, without the time that is waited.
    at_ms: u64,
    layout: Layout,
    lease_ms: u64,
    down_after_ms: u64,
    incidents: Vec<Incident>,
}

/// Nodes of each region at the start; the last is the witness.
const SIZES: [&[usize]; 6] =
    [&[2, 2, 1], &[3, 2, 1], &[2, 3, 1], &[3, 3, 1], &[2, 2, 2, 1], &[3, 2, 2, 1]];
const NAMES: [&str; 3] = ["eu", "us", "ap"];
const WITNESS: &str = "w";
/// Most nodes of all regions.
const NODES_MAX: usize = 9;
/// Of a datagram between two regions: half of a round trip of 50 to 300 ms.
const LATENCY_MS: (u64, u64) = (25, 150);
/// `global.lease` and `global.down_after`; the last are the defaults.
const LEASES_MS: [(u64, u64); 4] =
    [(1_000, 3_000), (2_000, 4_000), (2_000, 5_000), (5_000, 10_000)];
/// Between regions a millisecond matters little, and half as many steps take half as long.
const STEP_MS: u64 = 2;
const CUT_MS: (u64, u64) = (10_000, 60_000);
/// Of cuts after the first episode, so that a run does not take too long.
const LATER_CUT_MS: (u64, u64) = (10_000, 20_000);
/// Longest time from one episode to the next.
const GAP_MAX_MS: u64 = 6_000;
const LOAD_AFTER_MS: u64 = 1_000;
/// No episode begins later, with the time that is waited.
const EXPECTED_MIN_MS: u64 = 40_000;
/// What a [`Fault::Await`] takes, about, after a region has returned.
const WAIT_MS: u64 = 8_000;
const HALF_PPM: u32 = 500_000;
const THIRD_PPM: u32 = 333_333;
const TWO_THIRDS_PPM: u32 = 666_667;

/// Draws the scenario of `seed`, one of this family.
pub(crate) fn draw(seed: u64) -> Scenario {
    let mut dice = Dice::new(seed, "regions");
    let layout = draw_layout(&mut dice);
    let (lease_ms, down_after_ms) = dice.pick(&LEASES_MS);
    let initial_nodes = layout.of_nodes.len();
    let incidents = Vec::new();
    let mut draft = Draft { dice, at_ms: 2_000, layout, lease_ms, down_after_ms, incidents };
    let number = usize::try_from(seed / 10).unwrap_or(0);
    let rare = RARE.iter().find(|(at, _)| number % RARE_EVERY == *at);
    draft.play(rare.map_or(EPISODES[number % EPISODES.len()], |(_, episode)| *episode));
    while draft.expected_ms() < EXPECTED_MIN_MS {
        draft.pause();
        let episode = draft.dice.pick(&EPISODES);
        draft.play(episode);
    }
    let Draft { mut dice, at_ms, layout, incidents, .. } = draft;
    let nodes = layout.of_nodes.len();
    let skew_ms = dice.pick(&[0, 20, 500]);
    let drift_ppm = dice.pick(&[0, 100_000]);
    Scenario {
        seed,
        family: Family::Regions { lease_ms, down_after_ms },
        layout,
        nodes,
        initial_nodes,
        load_ms: at_ms + LOAD_AFTER_MS,
        step_ms: STEP_MS,
        latency_max_ms: dice.below(3),
        deadline_ms: dice.pick(&[20, 50]),
        global_deadline_ms: dice.pick(&[600, 1_000]),
        keys_max: 100_000,
        clock_offsets_ms: (0..nodes).map(|_| dice.around(skew_ms)).collect(),
        clock_drifts_ppm: (0..nodes).map(|_| dice.around(drift_ppm)).collect(),
        has_leased_keys: false,
        has_reserved_keys: false,
        incidents,
    }
}

fn draw_layout(dice: &mut Dice) -> Layout {
    let sizes = dice.pick(&SIZES);
    let homes = sizes.len() - 1;
    let names = NAMES[..homes].iter().copied().chain([WITNESS]).collect();
    let of_nodes = sizes.iter().enumerate().flat_map(|(region, size)| vec![region; *size]);
    let of_nodes = of_nodes.collect();
    // By pair, the larger number first.
    let mut pairs = BTreeMap::new();
    for one in 1..sizes.len() {
        for other in 0..one {
            pairs.insert((one, other), dice.between(LATENCY_MS.0, LATENCY_MS.1));
        }
    }
    let between = |one: usize, other: usize| {
        pairs.get(&(one.max(other), one.min(other))).copied().unwrap_or(0)
    };
    let regions = 0..sizes.len();
    let row = |one| regions.clone().map(|other| between(one, other)).collect();
    let latency_ms = regions.clone().map(row).collect();
    let (auto, manual) = (Some(Failover::Auto), Some(Failover::Manual));
    let failover = dice.pick(&[auto, auto, auto, auto, manual, None]);
    Layout { names, homes, of_nodes, edges: 0, latency_ms, failover }
}

impl Draft {
    fn play(&mut self, episode: Episode) {
        match episode {
            Episode::CutOff => self.cut_off(false),
            Episode::GrownInCutOff => self.cut_off(true),
            Episode::Lost => self.lost(),
            Episode::OneWay => self.one_way(),
            Episode::Blink => self.blink(),
            Episode::StandingKilled => {
                let region = self.some_region();
                self.killed(Fault::CrashStanding { region });
            }
            Episode::VoterKilled => {
                let rank = self.dice.index(3);
                self.killed(Fault::CrashGlobalVoter { rank });
            }
            Episode::BadLinks => self.bad_links(),
            Episode::HalfReturned => self.half_returned(),
            Episode::OneAfterTheOther => self.one_after_the_other(),
            Episode::OtherClocks => self.other_clocks(),
        }
    }

    fn cut_off(&mut self, grows: bool) {
        let region = self.some_region();
        let end = self.at_ms + self.draw_cut();
        // Those that start there later are on this side as well.
        let first_cut = self.incidents.len();
        self.add(Fault::Partition { side: Vec::new() });
        if self.dice.chance(HALF_PPM) {
            self.later(0, 2_000);
            self.add(Fault::RegionLost { region });
        }
        if grows {
            for _ in 0..2 {
                self.later(300, 3_000);
                if self.layout.of_nodes.len() < NODES_MAX {
                    self.add(Fault::Start { node: self.layout.of_nodes.len() });
                    self.layout.of_nodes.push(region);
                }
            }
        }
        for _ in 0..self.dice.below(3) {
            let region = if self.dice.chance(TWO_THIRDS_PPM) { region } else { self.some_region() };
            let node = self.some_node(region);
            self.later(300, 4_000);
            self.add(Fault::Crash { node });
            self.later(200, 3_000);
            self.add(Fault::Start { node });
        }
        let side = self.layout.nodes(region).collect();
        self.incidents[first_cut].fault = Fault::Partition { side };
        self.at_ms = self.at_ms.max(end);
        self.heal();
    }

    fn half_returned(&mut self) {
        let (region, other) = self.two_homes();
        let [ours, theirs]: [Vec<usize>; 2] =
            [region, other].map(|region| self.layout.nodes(region).collect());
        self.lose(region);
        self.add(Fault::Heal);
        self.add(Fault::OneWayCut { from: ours.clone(), to: theirs.clone() });
        self.add(Fault::OneWayCut { from: theirs, to: ours });
        self.later(5_000, 15_000);
        self.add(Fault::Heal);
        self.later(0, 2_000);
        let node = self.some_node(region);
        self.add(Fault::Crash { node });
        self.later(3_000, 8_000);
        self.add(Fault::Start { node });
        self.heal();
    }

    fn one_after_the_other(&mut self) {
        let (region, other) = self.two_homes();
        self.lose(region);
        self.add(Fault::Heal);
        self.add(Fault::Await(Awaited::AllHomes));
        self.later(0, 200);
        self.lose(other);
        self.heal();
    }

    fn other_clocks(&mut self) {
        let region = self.dice.index(self.layout.homes);
        let nodes: Vec<usize> = self.layout.nodes(region).collect();
        let by_ms = self.dice.pick(&[-20_000, 8_000, 20_000, 40_000]);
        let end = self.at_ms + self.dice.between(self.down_after_ms / 2, self.down_after_ms);
        self.add(Fault::Partition { side: nodes.clone() });
        self.add(Fault::Blackout { region });
        self.restart_with(&nodes, by_ms);
        self.at_ms = self.at_ms.max(end);
        self.add(Fault::Heal);
        if self.dice.chance(HALF_PPM) {
            self.later(100, 1_500);
            self.add(Fault::CrashStanding { region: self.layout.homes });
            self.later(100, 1_000);
            for node in self.layout.nodes(self.layout.homes).collect::<Vec<_>>() {
                self.add(Fault::Start { node });
            }
        }
        self.later(12_000, 25_000);
        self.add(Fault::Blackout { region });
        self.later(10_000, 15_000);
        self.restart_with(&nodes, -by_ms);
        self.heal();
    }

    fn restart_with(&mut self, nodes: &[usize], by_ms: i64) {
        for node in nodes {
            self.add(Fault::ClockStep { node: *node, by_ms });
            self.later(0, 300);
            self.add(Fault::Start { node: *node });
        }
    }

    /// Two regions that are homes.
    fn two_homes(&mut self) -> (usize, usize) {
        let homes = self.layout.homes;
        let region = self.dice.index(homes);
        (region, (region + 1 + self.dice.index(homes - 1)) % homes)
    }

    /// Cuts the region off until its keys have moved, and have been used up elsewhere.
    fn lose(&mut self, region: usize) {
        let side = self.layout.nodes(region).collect();
        self.add(Fault::Partition { side });
        self.add(Fault::RegionLost { region });
        self.later(15_000, 25_000);
    }

    fn lost(&mut self) {
        let region = self.some_region();
        self.add(Fault::Blackout { region });
        if self.dice.chance(HALF_PPM) {
            self.later(0, 2_000);
            self.add(Fault::RegionLost { region });
        }
        let down_ms = self.dice.between(500, LATER_CUT_MS.1);
        self.at_ms += down_ms;
        // A disk that was not used yet is empty.
        let nodes: Vec<usize> = self.layout.nodes(region).collect();
        let is_wiped = self.dice.chance(THIRD_PPM);
        if is_wiped {
            for node in &nodes {
                self.add(Fault::Wipe { node: *node });
            }
        }
        for node in nodes {
            self.later(0, 1_000);
            self.add(Fault::Start { node });
        }
        self.heal();
        // Its vote has to be replaced before another region loses its disks too: after that only an
        // operator could make a majority of the global voters (`tidegate recover --global`).
        if is_wiped {
            self.add(Fault::Await(Awaited::GlobalSettled));
        }
    }

    fn one_way(&mut self) {
        let region = self.some_region();
        let other =
            (region + 1 + self.dice.index(self.layout.names.len() - 1)) % self.layout.names.len();
        let (from, to) = if self.dice.chance(HALF_PPM) { (region, other) } else { (other, region) };
        let [from, to] = [from, to].map(|region| self.layout.nodes(region).collect());
        self.add(Fault::OneWayCut { from, to });
        let cut_ms = self.dice.between(LATER_CUT_MS.0, LATER_CUT_MS.1);
        self.at_ms += cut_ms;
        self.heal();
    }

    fn blink(&mut self) {
        let region = self.some_region();
        for _ in 0..3 {
            let side = self.layout.nodes(region).collect();
            self.add(Fault::Partition { side });
            let cut_ms = self.dice.between(300, self.lease_ms * 2);
            self.at_ms += cut_ms;
            self.add(Fault::Heal);
            self.later(500, 3_000);
        }
        self.heal();
    }

    fn killed(&mut self, fault: Fault) {
        self.add(fault);
        self.later(1_000, 12_000);
        // Those that run are not started again.
        for node in 0..self.layout.of_nodes.len() {
            self.add(Fault::Start { node });
        }
        self.heal();
    }

    fn bad_links(&mut self) {
        let region = self.some_region();
        let (loss_ppm, delay_ppm) =
            (self.dice.pick(&[10_000, 50_000, 150_000]), self.dice.pick(&[0, 100_000, 300_000]));
        let delay_ms = self.dice.pick(&[20, 100]);
        self.add(Fault::FarFaults { loss_ppm, delay_ppm, delay_ms });
        self.later(500, 4_000);
        let node = self.some_node(region);
        self.add(Fault::Crash { node });
        self.later(300, 4_000);
        self.add(Fault::Start { node });
        self.later(1_000, 8_000);
        self.add(Fault::FarFaults { loss_ppm: 0, delay_ppm: 0, delay_ms: 0 });
        self.heal();
    }

    /// Ends what was cut. Half of the time what follows waits until the regions have settled.
    fn heal(&mut self) {
        self.add(Fault::Heal);
        if self.dice.chance(HALF_PPM) {
            self.later(0, 1_000);
            self.add(Fault::Await(Awaited::GlobalSettled));
        }
    }

    fn pause(&mut self) {
        self.later(0, GAP_MAX_MS);
    }

    fn draw_cut(&mut self) -> u64 {
        let is_first = self.incidents.is_empty();
        let (least, most) = if is_first { CUT_MS } else { LATER_CUT_MS };
        self.dice.between(least, most)
    }

    fn expected_ms(&self) -> u64 {
        let waits = self.incidents.iter().filter(|it| matches!(it.fault, Fault::Await(_)));
        self.at_ms + waits.count() as u64 * WAIT_MS
    }

    /// A home more often than the witness.
    fn some_region(&mut self) -> usize {
        let homes = self.layout.homes;
        if self.dice.chance(100_000) { homes } else { self.dice.index(homes) }
    }

    fn some_node(&mut self, region: usize) -> usize {
        let nodes: Vec<usize> = self.layout.nodes(region).collect();
        self.dice.pick(&nodes)
    }

    fn later(&mut self, least_ms: u64, most_ms: u64) {
        self.at_ms += self.dice.between(least_ms, most_ms);
    }

    fn add(&mut self, fault: Fault) {
        self.incidents.push(Incident { at_ms: self.at_ms, fault });
    }
}
