//! The simulated cluster: a network and its nodes, advanced in steps of one millisecond.

mod edges;
mod ledger;
mod monitor;
mod offsets;
mod overlap;
mod standing;
mod state;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::config::{self, Config};
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{Counter, KeyHasher};
use tidegate_limiter::units::Span;
use tidegate_ownership::identity::NodeId;
use tidegate_rules::book::Book;
use turmoil::Sim;

use crate::client::{CLIENTS, Listener, RESERVING_CLIENTS, Traffic};
use crate::clock::{NodeClock, Time};
use crate::coverage::Situation;
use crate::dice::{Dice, SimEntropy};
use crate::disk::SimDisk;
use crate::fault::Fault;
use crate::history::History;
use crate::identity::{SECRET, identities};
use crate::keys::{self, Key, Kind, Selection};
use crate::layout::{Failover, Layout};
use crate::log::Log;
use crate::net::{Link, Links, Nic, NicHost, PORT, serve};
use crate::node::{Grants, Node, Process, Stepped};
use crate::release::Releases;
use crate::report::Report;
use crate::reservations::Reservations;
use crate::scenario::{Family, Scenario};

use edges::Edges;
use ledger::Ledger;
pub(crate) use ledger::{Cause, Change};
pub(crate) use monitor::UNAWARE_MS;
use offsets::Offsets;
use overlap::Overlaps;
use standing::Standing;
use trouble::Troubles;

/// The state of one run.
pub(crate) struct World<'a> {
    pub(crate) time: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) history: History,
    pub(crate) reservations: Reservations,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) report: Report,
    /// Pauses and ends of processes: their requests may miss the deadline.
    pub(crate) stalls: Vec<Stall>,
    pub(crate) ledger: Ledger,
    /// The counters of the strict keys, by key and share.
    counters: Vec<(Key, usize, Counter)>,
    /// Machines that were stopped, and when they went on.
    pub(crate) stops: Vec<(usize, u64)>,
    /// Crashes, with the keys of the crashed owners.
    pub(crate) crashes: Vec<Crash>,
    /// How far the decision clocks were from the true time.
    pub(crate) offsets: Offsets,
    /// What nodes had granted and were granted then.
    pub(crate) grants_at_rest: Vec<(String, Grants)>,
    /// What the owners of leased keys and of those with reservations had counted when nothing was
    /// held any more. What is reserved is not counted.
    pub(crate) counts_at_rest: BTreeMap<Key, u64>,
    selection: Selection,
    is_long: bool,
    layout: Layout,
    step_ms: u64,
    log: Log,
    sim: Sim<'a>,
    links: Arc<Mutex<Links>>,
    /// The rules before and after a reload, each with the modes of the start and with others.
    books: [[Arc<Book>; 2]; 2],
    is_reloaded: bool,
    /// By region.
    configs: Vec<Config>,
    releases: Releases,
    seed: u64,
    hasher: KeyHasher,
    /// Nodes that crashed and have not rejoined.
    crashed: Vec<usize>,
    /// Nodes that crash when another node waits for them, at the latest at the given time.
    pending_crashes: Vec<(usize, u64)>,
    /// The node with a burst in the next step, and its count of unsent calls before it.
    bursting: Option<(usize, u64)>,
    /// Time of the last start or end of a fault that may move keys inside of a region, by region.
    last_disruption_ms: Vec<u64>,
    /// When the links inside of each region had their last fault.
    last_link_fault_ms: Vec<Option<u64>>,
    overlaps: Overlaps,
    troubles: Troubles,
    standing: Standing,
    pub(crate) edges: Edges,
}

/// A period in which a node did not answer.
pub(crate) struct Stall {
    pub(crate) node: usize,
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// The end of a process without shutdown.
pub(crate) struct Crash {
    pub(crate) node: usize,
    /// Which process of the node ended.
    pub(crate) start: u32,
    pub(crate) at_ms: u64,
    pub(crate) owned: Vec<Key>,
    /// Whether no other fault was active then or shortly before.
    pub(crate) is_only_fault: bool,
}

const VERSIONS_INTERVAL_MS: u64 = 100;
/// Upper bound on the simulated time of a run.
const SIMULATION_MAX: Duration = Duration::from_secs(3_600);
/// Nodes that found the global map: those of as many regions.
const FOUNDERS: usize = 3;

impl World<'_> {
    pub(crate) fn new(scenario: &Scenario, log: Log) -> Result<Self, Box<dyn std::error::Error>> {
        let seed = scenario.seed;
        let mut sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(Duration::from_millis(scenario.step_ms))
            .simulation_duration(SIMULATION_MAX)
            .min_message_latency(Duration::ZERO)
            .max_message_latency(Duration::from_millis(scenario.latency_max_ms))
            .udp_capacity(4_096)
            .build();
        let cores = scenario.layout.cores();
        let names = (1..=cores).map(|number| format!("n{number}"));
        let edges = (1..=scenario.layout.edges).map(|number| format!("e{number}"));
        let ids: Vec<String> = names.chain(edges).collect();
        let addrs: Vec<SocketAddr> =
            ids.iter().map(|id| SocketAddr::new(sim.lookup(id.as_str()), PORT)).collect();
        let layout = scenario.layout.clone();
        let links = Arc::new(Mutex::new(Links::new(seed, layout.clone())));
        let time = log.time().clone();
        let is_long = scenario.family != Family::Requests;
        let mut nodes = Vec::new();
        let places: Vec<(String, &str)> =
            ids.iter().enumerate().map(|(node, id)| (id.clone(), layout.name(node))).collect();
        for (index, identity) in identities(&places, cores)?.into_iter().enumerate() {
            let (nic, sent) = Nic::new(addrs[index], is_long);
            let host = Arc::new(NicHost {
                index,
                nic: nic.clone(),
                addrs: addrs.clone(),
                links: links.clone(),
                outbound: Mutex::new(Some(sent)),
            });
            sim.host(ids[index].as_str(), move || serve(host.clone()));
            let clock = NodeClock::new(
                time.clone(),
                scenario.clock_offsets_ms[index],
                scenario.clock_drifts_ppm[index],
            );
            let dice = Dice::new(seed, &format!("disk of {}", ids[index]));
            let disk = SimDisk::new(dice, is_long);
            nodes.push(Node::new(ids[index].clone(), nic, Arc::new(clock), identity, disk));
        }
        let mut config = Config::default();
        // All nodes of the start may be replaced.
        let seeds = if is_long { cores } else { 2 };
        config.cluster.seeds = addrs.iter().take(seeds).map(ToString::to_string).collect();
        config.cluster.deadline = Span::from_millis(scenario.deadline_ms);
        config.cluster.global_deadline = Span::from_millis(scenario.global_deadline_ms);
        match scenario.family {
            Family::Requests => {}
            Family::Membership { forget_after_s } => {
                config.cluster.forget_after = Span::from_secs(forget_after_s);
            }
            Family::Regions { lease_ms, down_after_ms } => {
                config.global = global_section(&layout, &ids, lease_ms, down_after_ms)?;
            }
        }
        let homes = layout.names[..layout.homes].iter();
        config.cluster.regions = homes.map(|&region| region.to_owned()).collect();
        let configs = (0..layout.names.len()).map(|region| {
            let mut config = config.clone();
            layout.names[region].clone_into(&mut config.node.region);
            let founders = layout.nodes(region).filter(|node| *node < scenario.initial_nodes);
            let founders = founders.map(|node| NodeId::new(&ids[node]));
            config.cluster.founders = founders.collect::<Result<_, _>>()?;
            config.limits.keys_max = scenario.keys_max;
            Ok(config)
        });
        let configs = configs.collect::<Result<Vec<Config>, Box<dyn std::error::Error>>>()?;
        let regions = layout.names.len();
        Ok(Self {
            history: History::new(time.clone(), log.clone()),
            reservations: Reservations::new(time.clone(), log.clone()),
            time,
            nodes,
            traffic: Arc::default(),
            report: Report::default(),
            stalls: Vec::new(),
            ledger: Ledger::default(),
            counters: Self::strict_counters(
                &KeyHasher::new(SECRET),
                scenario.selection(),
                &scenario.layout.home_names(),
            ),
            selection: scenario.selection(),
            is_long,
            offsets: Offsets::default(),
            grants_at_rest: Vec::new(),
            counts_at_rest: BTreeMap::new(),
            stops: Vec::new(),
            crashes: Vec::new(),
            layout,
            step_ms: scenario.step_ms,
            log,
            sim,
            links,
            books: keys::books(scenario.selection()),
            is_reloaded: false,
            configs,
            releases: Releases::draw(scenario),
            seed,
            hasher: KeyHasher::new(SECRET),
            crashed: Vec::new(),
            pending_crashes: Vec::new(),
            bursting: None,
            last_disruption_ms: vec![0; regions],
            last_link_fault_ms: vec![None; regions],
            overlaps: Overlaps::default(),
            troubles: Troubles::new(regions),
            standing: Standing::default(),
            edges: Edges::default(),
        })
    }

    /// Advances one step: the network, then every node in turn, then clients and checks.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.sim.step().map_err(|error| format!("the simulated network failed: {error}"))?;
        self.time.advance(self.step_ms);
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            self.log.set_source(Some(&node.id));
            let stepped = node.step(self.step_ms);
            self.log.set_source(None);
            match stepped {
                Stepped::Running => self.start_clients_if_joined(index),
                Stepped::Left { held } => {
                    let id = &self.nodes[index].id;
                    self.log.event(format_args!("{id} has left"));
                    if held > 0 {
                        let left = format!("{id} left with {held} granted hits");
                        self.report.violation(left);
                    }
                    let is_edge = self.layout.is_edge(index);
                    let left = if is_edge { Situation::EdgeLeft } else { Situation::Left };
                    self.report.reached.insert(left);
                    // Listeners, which would complete requests in flight, are not part of a core.
                    let now = self.time.millis();
                    self.stalls.push(Stall { node: index, from_ms: now, to_ms: now });
                }
                Stepped::Failed(error) => {
                    return Err(format!("{} failed: {error}", self.nodes[index].id));
                }
            }
        }
        self.record_full_queue();
        self.check_single_owner();
        self.follow_clocks();
        self.follow_regions();
        self.record_versions();
        self.follow_edges();
        self.run_pending_crashes();
        Ok(())
    }

    pub(crate) fn start(&mut self, index: usize) -> Result<(), String> {
        let node = &self.nodes[index];
        if node.process.is_some() {
            return Ok(());
        }
        self.log.set_source(Some(&node.id));
        let dice = Dice::new(self.seed, &format!("entropy of {} {}", node.id, node.starts));
        let book = keys::cell(self.book_of(index));
        let node = &mut self.nodes[index];
        let config = self.configs[self.layout.of_nodes[index]].clone();
        let versions = self.releases.versions(index, node.starts);
        let started = node.start(config, book, SimEntropy::new(dice), versions);
        self.log.set_source(None);
        started
    }

    /// The rules of node `index`.
    fn book_of(&self, index: usize) -> &Arc<Book> {
        let are_other = self.nodes[index].has_other_modes.load(Ordering::Relaxed);
        &self.books[usize::from(self.is_reloaded)][usize::from(are_other)]
    }

    /// The operator upgrades nodes that were away when the others were: these refuse them.
    pub(crate) fn upgrade_left_behind(&mut self) -> Result<(), String> {
        for region in 0..self.layout.names.len() {
            if !self.releases.is_newer(self.newest_map(region).version) {
                continue;
            }
            for index in self.layout.nodes(region).collect::<Vec<_>>() {
                let process = self.nodes[index].process.as_ref();
                let joined = process.and_then(|process| process.core.joined.as_ref());
                let highest = joined.map(|joined| joined.mesh.versions.highest);
                if highest.is_some_and(|highest| !self.releases.is_newer(highest)) {
                    self.crash(index);
                    self.start(index)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the time is one of those that are `interval_ms` apart, about.
    fn is_time(&self, interval_ms: u64) -> bool {
        self.time.millis() % interval_ms < self.step_ms
    }

    /// Records which versions of the mesh protocol are spoken and in force.
    fn record_versions(&mut self) {
        if !self.is_time(VERSIONS_INTERVAL_MS) {
            return;
        }
        let mut reached = Vec::new();
        for joined in self.processes().filter_map(|process| process.core.joined.as_ref()) {
            let in_force = joined.membership.maps().borrow().version;
            if in_force == 0 || !self.releases.is_newer(joined.mesh.versions.highest) {
                continue;
            }
            reached.push(if self.releases.is_newer(in_force) {
                Situation::NewVersion
            } else {
                Situation::TwoVersions
            });
        }
        self.report.reached.extend(reached);
    }

    /// Whether `count` nodes have joined.
    pub(crate) fn have_all_joined(&self, count: usize) -> bool {
        self.processes().filter(|process| process.listener.is_some()).count() == count
    }

    /// Running processes.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.nodes.iter().filter_map(|node| node.process.as_ref())
    }

    /// Injects `fault`.
    pub(crate) fn inject(&mut self, fault: &Fault) -> Result<(), String> {
        self.log.event(format_args!("FAULT {fault:?}"));
        let regions = 0..self.layout.names.len();
        let had_faults: Vec<bool> = regions.map(|region| self.has_link_faults(region)).collect();
        match *fault {
            Fault::PacketFaults { loss_ppm, duplicate_ppm, delay_ppm, delay_ms } => {
                self.change_links(
                    |_, _| true,
                    |link| {
                        *link = Link { loss_ppm, duplicate_ppm, delay_ppm, delay_ms, ..*link };
                    },
                );
                self.report.reached.insert(Situation::PacketFaults);
            }
            Fault::Slow { node, delay_ms } => {
                let delay_ppm = if delay_ms == 0 { 0 } else { 1_000_000 };
                self.change_links(
                    |from, to| from == node || to == node,
                    |link| {
                        *link = Link { delay_ppm, delay_ms, ..*link };
                    },
                );
                self.report.reached.insert(Situation::SlowPeer);
            }
            Fault::Partition { ref side } => {
                self.change_links(
                    |from, to| side.contains(&from) != side.contains(&to),
                    |link| link.is_cut = true,
                );
                self.report.reached.insert(Situation::Partition);
            }
            Fault::OneWayPartition { from, to } => {
                self.change_links(|a, b| (a, b) == (from, to), |link| link.is_cut = true);
                self.report.reached.insert(Situation::OneWayPartition);
            }
            Fault::PartialPartition { node, ref from } => {
                self.change_links(
                    |a, b| a == node && from.contains(&b) || b == node && from.contains(&a),
                    |link| link.is_cut = true,
                );
                self.report.reached.insert(Situation::PartialPartition);
            }
            Fault::EdgeCut { edge, is_cut } => {
                let (cores, of) = (0..self.layout.cores(), |at: usize| at == edge);
                self.change_links(
                    |a, b| of(a) && cores.contains(&b) || of(b) && cores.contains(&a),
                    |link| link.is_cut = is_cut,
                );
                self.report.reached.insert(Situation::EdgeCutOff);
            }
            Fault::BlackHole { one, other, over_bytes } => {
                self.change_links(
                    |a, b| (a, b) == (one, other) || (a, b) == (other, one),
                    |link| link.bytes_max = over_bytes,
                );
                self.report.reached.insert(Situation::BlackHole);
            }
            Fault::OneWayCut { ref from, ref to } => {
                self.change_links(
                    |a, b| from.contains(&a) && to.contains(&b),
                    |link| link.is_cut = true,
                );
                self.report.reached.insert(Situation::OneWayPartition);
            }
            Fault::FarFaults { loss_ppm, delay_ppm, delay_ms } => {
                let layout = self.layout.clone();
                self.change_links(
                    |from, to| !layout.are_together(from, to),
                    |link| {
                        *link = Link { loss_ppm, delay_ppm, delay_ms, ..*link };
                    },
                );
                self.report.reached.insert(Situation::PacketFaults);
            }
            Fault::Heal => {
                self.change_links(|_, _| true, |link| link.is_cut = false);
                self.standing.order = None;
            }
            Fault::Blackout { region } => {
                let nodes: Vec<usize> = self.layout.nodes(region).collect();
                for node in nodes {
                    self.crash(node);
                }
                self.report.reached.insert(Situation::RegionLost);
            }
            Fault::CrashStanding { region } => {
                let layout = self.layout.clone();
                let of_region = layout.nodes(region);
                let stands = of_region.filter(|node| self.stands(*node)).collect::<Vec<_>>();
                for node in stands {
                    self.crash(node);
                }
            }
            Fault::CrashGlobalVoter { rank } => {
                let voters = self.running_global_voters();
                if let Some(node) = voters.get(rank % voters.len().max(1)) {
                    self.crash(*node);
                }
            }
            Fault::RegionLost { region } => {
                self.standing.order = (self.layout.failover == Some(Failover::Manual)
                    && region < self.layout.homes)
                    .then_some(region);
            }
            Fault::Crash { node } => {
                self.schedule_crash(node);
                return Ok(());
            }
            Fault::PowerLoss => {
                (0..self.layout.cores()).for_each(|node| self.crash(node));
                self.report.reached.insert(Situation::PowerLoss);
            }
            Fault::Wipe { node } => {
                self.nodes[node].wipe();
                self.report.reached.insert(Situation::WipedDisk);
            }
            Fault::Recover { node } => {
                self.nodes[node].recover()?;
                self.report.reached.insert(Situation::Recovered);
            }
            Fault::Start { node } => {
                if !self.layout.is_edge(node) {
                    self.record_handoff();
                }
                self.start(node)?;
                let region = self.layout.of_nodes[node];
                if self.nodes[node].starts == 1 && self.is_cut_off(region) {
                    self.report.reached.insert(Situation::StartInCutOff);
                }
            }
            Fault::Pause { node, for_ms } => self.pause(node, for_ms, false),
            Fault::Stop { node, for_ms } => {
                self.pause(node, for_ms, true);
                self.report.reached.insert(Situation::StoppedMachine);
            }
            Fault::ClockStep { node, by_ms } => {
                self.nodes[node].clock.step(by_ms);
                self.report.reached.insert(Situation::ClockStep);
            }
            Fault::ClocksSet { by_ms } => {
                for node in &self.nodes {
                    node.clock.step(by_ms);
                }
                self.report.reached.insert(Situation::ClocksSet);
            }
            Fault::Leave { node } => {
                if !self.layout.is_edge(node) {
                    self.record_handoff();
                }
                if self.nodes[node].process.as_ref().is_some_and(|it| it.grants().held > 0) {
                    self.report.reached.insert(Situation::GrantReturned);
                }
                self.nodes[node].leave();
            }
            Fault::Reload => {
                self.is_reloaded = true;
                for (index, node) in self.nodes.iter().enumerate() {
                    if let Some(process) = &node.process {
                        process.book.store(self.book_of(index).clone());
                    }
                }
                self.report.reached.insert(Situation::Reloaded);
            }
            Fault::Modes { node, are_other } => {
                self.nodes[node].has_other_modes.store(are_other, Ordering::Relaxed);
                if let Some(process) = &self.nodes[node].process {
                    process.book.store(self.book_of(node).clone());
                    self.report.reached.insert(Situation::ModesChanged);
                }
            }
            Fault::HotKey(is_hot) => {
                self.traffic.hot.store(is_hot, Ordering::Relaxed);
                self.report.reached.insert(Situation::HotKey);
            }
            Fault::Flood(is_flood) => self.traffic.flood.store(is_flood, Ordering::Relaxed),
            Fault::Burst { node } => {
                if let Some(process) = &self.nodes[node].process
                    && let Some(listener) = &process.listener
                {
                    process.spawn(listener.clone().burst());
                    self.bursting = Some((node, process.unsent()));
                }
            }
            Fault::Await(_) => {}
        }
        for (region, had_faults) in had_faults.into_iter().enumerate() {
            if had_faults {
                self.last_link_fault_ms[region] = Some(self.time.millis());
            }
            let moves_keys = fault.moves_keys() && self.touches(fault, region);
            if moves_keys || had_faults || self.has_link_faults(region) {
                self.last_disruption_ms[region] = self.time.millis();
            }
            if fault.cuts() && self.touches(fault, region) {
                self.doubt_recent_crashes(region);
            }
        }
        Ok(())
    }

    /// Whether `fault` is one of cores of `region`, or of links between them.
    fn touches(&self, fault: &Fault, region: usize) -> bool {
        if fault.node().is_some_and(|node| self.layout.is_edge(node)) {
            return false;
        }
        match *fault {
            Fault::Crash { node }
            | Fault::Wipe { node }
            | Fault::Recover { node }
            | Fault::Start { node }
            | Fault::Leave { node } => self.layout.of_nodes[node] == region,
            // Where there are several regions it is one between them, and crashes are recorded
            // by themselves.
            _ => self.layout.names.len() == 1,
        }
    }

    /// On every joined process, a client requests `hits` of every key of the matching kinds, one
    /// after the other. Returns the number of the first request.
    pub(crate) fn request_from_all(&mut self, matches: fn(Kind) -> bool, hits: i64) -> usize {
        let first = self.history.with(<[_]>::len);
        let regions = self.layout.names.len();
        for process in self.processes() {
            let Some(listener) = process.listener.clone() else { continue };
            let keys = keys::checked(self.selection).filter(|key| matches(key.kind));
            let keys: Vec<Key> = keys.filter(|key| listener.may_request(*key)).collect();
            if regions == 1 {
                process.spawn(async move {
                    for key in keys {
                        listener.check(key, hits).await;
                    }
                });
                continue;
            }
            // An answer from another region takes long.
            for key in keys {
                let listener = listener.clone();
                process.spawn(async move { listener.check(key, hits).await });
            }
        }
        first
    }

    /// Records what was granted, and what the owners of leased keys and of those with reservations
    /// have counted.
    pub(crate) fn record_counts_at_rest(&mut self) {
        let grants = |node: &Node| Some((node.id.clone(), node.process.as_ref()?.grants()));
        self.grants_at_rest = self.nodes.iter().filter_map(grants).collect();
        let mut counts: BTreeMap<Key, Option<u64>> = BTreeMap::new();
        let is_recorded = |key: &Key| key.kind.is_leased() || key.kind.is_reserved();
        for (key, _, counter) in self.counters.iter().filter(|(key, ..)| is_recorded(key)) {
            let owner = (0..self.nodes.len()).find(|node| self.decides_token(*node, *key, counter));
            let process = owner.and_then(|owner| self.nodes[owner].process.as_ref());
            let count = process.map(|process| u64::from(process.count_of(counter)));
            let sum = counts.entry(*key).or_insert(Some(0));
            *sum = sum.zip(count).map(|(sum, count)| sum + count);
        }
        let known = counts.into_iter().filter_map(|(key, count)| Some((key, count?)));
        self.counts_at_rest = known.collect();
    }

    fn decides_token(&self, index: usize, key: Key, counter: &Counter) -> bool {
        let process = self.nodes[index].process.as_ref();
        self.may_decide(index, key)
            && process.is_some_and(|process| process.decides(key.kind.scope(), counter.key.token))
    }

    /// The number of nodes that would decide each share of `key` now.
    pub(crate) fn owners(&self, key: Key) -> Vec<usize> {
        let of_key = self.counters.iter().filter(|(other, ..)| *other == key);
        let nodes = |counter| {
            (0..self.nodes.len()).filter(|node| self.decides_token(*node, key, counter)).count()
        };
        of_key.map(|(_, _, counter)| nodes(counter)).collect()
    }

    /// Whether node `index` would decide `key` now, or a share of it.
    pub(crate) fn decides(&self, index: usize, key: Key) -> bool {
        let mut of_key = self.counters.iter().filter(|(other, ..)| *other == key);
        of_key.any(|(_, _, counter)| self.decides_token(index, key, counter))
    }

    /// Whether `key` is one of the region of node `index`, or of all regions.
    fn may_decide(&self, index: usize, key: Key) -> bool {
        key.kind.scope() == Scope::Global || key.region == self.layout.of_nodes[index]
    }

    fn change_links(&self, matches: impl Fn(usize, usize) -> bool, change: impl Fn(&mut Link)) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).change(matches, change);
    }

    /// Starts the clients of a process that has joined.
    fn start_clients_if_joined(&mut self, index: usize) {
        let Some(process) = &self.nodes[index].process else { return };
        if process.listener.is_some() || process.is_leaving() || !process.has_joined() {
            return;
        }
        let (id, start) = (&self.nodes[index].id, self.nodes[index].starts);
        self.log.event(format_args!("{id} has joined"));
        let seed = self.seed;
        let dice: Vec<Dice> = (0..CLIENTS)
            .map(|client| Dice::new(seed, &format!("client {client} of {id} {start}")))
            .collect();
        // Dice of their own, so that a seed keeps its other requests.
        let heavy: Vec<Dice> = (0..CLIENTS)
            .map(|client| Dice::new(seed, &format!("hits of client {client} of {id} {start}")))
            .collect();
        let leased = format!("leased client of {id} {start}");
        let leased = self.selection.are_leased.then(|| Dice::new(seed, &leased));
        let are_reserving = if self.selection.are_reserved { RESERVING_CLIENTS } else { 0 };
        let reserving = (0..are_reserving)
            .map(|client| Dice::new(seed, &format!("reserving client {client} of {id} {start}")));
        let reserving: Vec<Dice> = reserving.collect();
        let (history, traffic) = (self.history.clone(), self.traffic.clone());
        let reservations = self.reservations.clone();
        let has_other_modes = self.nodes[index].has_other_modes.clone();
        let Some(process) = &mut self.nodes[index].process else { return };
        let core = process.core.clone();
        let closed = tokio_util::sync::CancellationToken::new();
        let (region, regions) = (self.layout.of_nodes[index], self.layout.names.len());
        let listener = Listener {
            core,
            node: index,
            region,
            regions,
            is_long: self.is_long,
            history,
            reservations,
            traffic,
            has_other_modes,
            closed,
        };
        process.start_clients(listener, dice.into_iter().zip(heavy), leased, reserving);
        if self.layout.is_edge(index) {
            self.crashed.retain(|crashed| *crashed != index);
            self.report.reached.insert(Situation::EdgeStarted);
            return;
        }
        if let Some(at) = self.crashed.iter().position(|crashed| *crashed == index) {
            self.crashed.swap_remove(at);
            self.report.reached.insert(Situation::RejoinedWithoutState);
            if self.is_any_cut() {
                self.report.reached.insert(Situation::RestartInPartition);
            }
        } else if self.traffic.on.load(Ordering::Relaxed) && start == 1 {
            self.report.reached.insert(Situation::Joined);
        }
    }
}

/// `[global]`: the first node of each region founds, the witness only where it is the third.
fn global_section(
    layout: &Layout,
    ids: &[String],
    lease_ms: u64,
    down_after_ms: u64,
) -> Result<config::Global, Box<dyn std::error::Error>> {
    let founding = (0..FOUNDERS).filter_map(|region| layout.nodes(region).next());
    let founders = founding.map(|node| NodeId::new(&ids[node])).collect::<Result<_, _>>()?;
    let failover = match layout.failover {
        Some(Failover::Manual) => config::Failover::Manual,
        Some(Failover::Auto) | None => config::Failover::Auto,
    };
    Ok(config::Global {
        founders: if layout.failover.is_some() { founders } else { BTreeSet::new() },
        failover,
        lease: Span::from_millis(lease_ms),
        down_after: Span::from_millis(down_after_ms),
    })
}

/// Whether counts of this kind last for the whole run.
pub(crate) fn outlasts_run(kind: Kind) -> bool {
    !kind.is_brief()
}
