//! Random walks of the regions' leases: two regions never decide one global key.
//!
//! Nodes of three regions and a witness follow a list of global maps, each at its own time, and
//! with clocks of different speeds. The maps add and remove homes and replace voters, as the
//! leader's autopilot would: one change after the other, a joint phase for voters. Messages are
//! delayed or lost. After every event each token has at most one region that decides it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::cluster_map::{ClusterId, HomeRegions, Voters};
use tidegate_ownership::grants::hold;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::region_right::{RegionGrants, RegionRight};
use tidegate_ownership::{ClusterMap, Epoch, Identity};

const SPAN: Span = Span::from_millis(1_000);
const NODES: [(&str, &str); 6] =
    [("e1", "eu"), ("e2", "eu"), ("u1", "us"), ("u2", "us"), ("a1", "ap"), ("w1", "w")];
const REGIONS: [&str; 3] = ["ap", "eu", "us"];
const SEEDS: u64 = 100;
const STEPS: usize = 1_500;
const STEP_MS: u64 = 20;

struct Node {
    me: Identity,
    region: &'static str,
    right: RegionRight,
    grants: RegionGrants,
    map: Arc<ClusterMap>,
    /// Thousandths of the true speed.
    speed: u64,
    /// How likely a newer map reaches it in a step, percent.
    follows: u64,
    /// It reaches no other node.
    is_cut: bool,
}

impl Node {
    fn clock(&self, at_ms: u64) -> Monotonic {
        Monotonic::from_nanos((at_ms + 10_000) * self.speed * 1_000)
    }
}

/// A ping under way to a voter, or its answer on the way back.
struct Message {
    from: usize,
    to: usize,
    sent: Monotonic,
    arrives_ms: u64,
    /// What the voter answered: report and grant.
    answer: Option<(Epoch, Option<Epoch>)>,
}

/// Marsaglia's xorshift: the same seed walks the same path.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % end
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length")
    }
}

struct Walk {
    random: Random,
    now_ms: u64,
    nodes: Vec<Node>,
    maps: Vec<Arc<ClusterMap>>,
    messages: Vec<Message>,
    /// The newest epoch that each node has reported, as the leader has heard.
    reported: BTreeMap<Identity, Epoch>,
    /// Since when majorities have reported the joint phase.
    joint_since: Option<u64>,
    decided: usize,
    moved: usize,
}

fn identity(name: &str) -> Identity {
    Identity { node: NodeId::new(name).expect("a valid name"), birth: 1 }
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let voters = Voters::of(["e1", "u1", "w1"].map(identity));
        let first = Arc::new(ClusterMap {
            cluster: ClusterId(1),
            epoch: Epoch(1),
            voters,
            homes: HomeRegions::of(REGIONS.map(str::to_owned)),
            ..ClusterMap::default()
        });
        let mut node = |(name, region): (&str, &'static str)| {
            let speed = 900 + random.below(201);
            let start = Monotonic::from_nanos(10_000 * speed * 1_000);
            let mut right = RegionRight::new(identity(name), region.to_owned(), SPAN);
            let mut grants = RegionGrants::new(start, SPAN);
            right.follow(&first);
            grants.follow(start, &first);
            let map = first.clone();
            let (follows, is_cut) = ([1, 3, 20][random.index(3)], false);
            Node { me: identity(name), region, right, grants, map, speed, follows, is_cut }
        };
        let nodes = NODES.map(&mut node).into();
        Self {
            random,
            now_ms: 0,
            nodes,
            maps: vec![first],
            messages: Vec::new(),
            reported: BTreeMap::new(),
            joint_since: None,
            decided: 0,
            moved: 0,
        }
    }

    fn step(&mut self) {
        self.now_ms += STEP_MS;
        match self.random.below(100) {
            0 => {
                let at = self.random.index(self.nodes.len());
                self.nodes[at].is_cut ^= true;
            }
            1..4 => self.change_homes(),
            4..6 => self.change_voters(),
            _ => {}
        }
        self.end_joint_phase();
        for at in 0..self.nodes.len() {
            if !self.nodes[at].is_cut && self.random.percent(self.nodes[at].follows) {
                self.follow(at);
            }
            self.report(at);
            if self.random.percent(20) {
                self.ping(at);
            }
        }
        self.deliver();
        self.check();
    }

    /// A newer map reaches a node; those between may be skipped.
    fn follow(&mut self, at: usize) {
        let (now_ms, node) = (self.now_ms, &mut self.nodes[at]);
        let newer = self.maps.iter().filter(|map| map.epoch > node.map.epoch).count();
        if newer == 0 {
            return;
        }
        let skip = self.random.index(newer);
        let map = self.maps[self.maps.len() - newer + skip].clone();
        let now = node.clock(now_ms);
        node.right.follow(&map);
        node.grants.follow(now, &map);
        node.map = map;
    }

    fn report(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let now = node.clock(self.now_ms);
        let report = node.grants.report(now, node.map.epoch);
        node.right.report_received(&node.me.clone(), report);
        if !node.is_cut {
            self.reported.insert(node.me.clone(), report);
        }
    }

    fn ping(&mut self, from: usize) {
        let sent = self.nodes[from].clock(self.now_ms);
        let voters: Vec<Identity> = self.nodes[from].map.voters.all().cloned().collect();
        for to in 0..self.nodes.len() {
            if to != from && voters.contains(&self.nodes[to].me) {
                let arrives_ms = self.now_ms + self.random.below(400);
                self.messages.push(Message { from, to, sent, arrives_ms, answer: None });
            }
        }
    }

    fn deliver(&mut self) {
        let (due, later) = std::mem::take(&mut self.messages)
            .into_iter()
            .partition::<Vec<_>, _>(|message| message.arrives_ms <= self.now_ms);
        self.messages = later;
        for message in due {
            let Message { from, to, sent, answer, .. } = message;
            if self.nodes[from].is_cut || self.nodes[to].is_cut {
                continue;
            }
            if let Some((report, granted)) = answer {
                let voter = self.nodes[to].me.clone();
                self.nodes[from].right.pong_received(&voter, sent, report, granted);
                continue;
            }
            let region = self.nodes[from].region;
            let voter = &mut self.nodes[to];
            let now = voter.clock(self.now_ms);
            let answer =
                Some((voter.grants.report(now, voter.map.epoch), voter.grants.grant(now, region)));
            let arrives_ms = self.now_ms + self.random.below(400);
            self.messages.push(Message { from, to, sent, arrives_ms, answer });
        }
    }

    fn newest(&self) -> Arc<ClusterMap> {
        self.maps.last().expect("the first").clone()
    }

    fn has_reported(&self, voter: &Identity, epoch: Epoch) -> bool {
        self.reported.get(voter).is_some_and(|reported| *reported >= epoch)
    }

    fn change_homes(&mut self) {
        let map = self.newest();
        let at = map.homes.changed_at;
        if !map.voters.is_majority(|voter| self.has_reported(voter, at)) {
            return;
        }
        let names: Vec<String> = REGIONS
            .iter()
            .filter(|_| self.random.percent(60))
            .map(|&name| name.to_owned())
            .collect();
        if !names.is_empty() && names != map.homes.names {
            let epoch = map.epoch.next();
            let homes = map.homes.followed_by(names, epoch);
            self.maps.push(Arc::new(ClusterMap { epoch, homes, ..ClusterMap::clone(&map) }));
            self.moved += 1;
        }
    }

    fn change_voters(&mut self) {
        let map = self.newest();
        if map.voters.are_joint() {
            return;
        }
        let mut current: Vec<Identity> = Vec::new();
        while current.len() < 3 {
            let one = self.nodes[self.random.index(self.nodes.len())].me.clone();
            if !current.contains(&one) {
                current.push(one);
            }
        }
        current.sort();
        if current == map.voters.current {
            return;
        }
        let epoch = map.epoch.next();
        let replaced = map.voters.current.clone();
        let voters = Voters { current, replaced, changed_at: epoch };
        self.maps.push(Arc::new(ClusterMap { epoch, voters, ..ClusterMap::clone(&map) }));
        self.joint_since = None;
    }

    fn end_joint_phase(&mut self) {
        let map = self.newest();
        let began = map.voters.changed_at;
        let is_reported = map.voters.is_majority(|voter| self.has_reported(voter, began));
        if !map.voters.are_joint() || !is_reported {
            return;
        }
        let since = *self.joint_since.get_or_insert(self.now_ms);
        // The leader's clock may be the fastest.
        let hold_ms = hold(SPAN).as_nanos() * 10 / 11 / 1_000_000 + 1;
        if self.now_ms >= since + hold_ms {
            let epoch = map.epoch.next();
            let mut voters = map.voters.clone();
            voters.replaced.clear();
            self.maps.push(Arc::new(ClusterMap { epoch, voters, ..ClusterMap::clone(&map) }));
        }
    }

    fn check(&mut self) {
        for token in (0..16).map(|n| n << 60) {
            let decides = |node: &&Node| {
                let has_lease = node.clock(self.now_ms) < node.right.lease_until();
                has_lease && node.right.homes().decides(token)
            };
            let deciding = self.nodes.iter().filter(decides);
            let regions: BTreeSet<&str> = deciding.map(|node| node.region).collect();
            assert!(regions.len() < 2, "{regions:?} decide {token:#x} at {} ms", self.now_ms);
            self.decided += regions.len();
        }
    }
}

#[test]
fn two_regions_never_decide_one_key() {
    let (mut decided, mut moved) = (0, 0);
    for seed in 0..SEEDS {
        let walk = std::panic::catch_unwind(|| {
            let mut walk = Walk::new(seed);
            for _ in 0..STEPS {
                walk.step();
            }
            (walk.decided, walk.moved)
        });
        let Ok(walk) = walk else { panic!("seed {seed}") };
        (decided, moved) = (decided + walk.0, moved + walk.1);
    }
    // A walk in which nothing is decided, or nothing moves, would prove nothing.
    assert!(moved as u64 > SEEDS && decided as u64 > SEEDS * STEPS as u64);
}
