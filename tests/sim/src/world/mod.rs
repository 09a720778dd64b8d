//! The simulated cluster: a network and its nodes, advanced in steps of one millisecond.

mod monitor;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::config::Config;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::store::KeyHasher;
use tidegate_limiter::units::Span;
use tidegate_ownership::identity::NodeId;
use tidegate_rules::book::Book;
use turmoil::Sim;

use crate::client::{CLIENTS, Listener, Traffic};
use crate::clock::{NodeClock, Time};
use crate::coverage::Situation;
use crate::dice::{Dice, SimEntropy};
use crate::fault::Fault;
use crate::history::History;
use crate::identity::{SECRET, identities};
use crate::keys::{self, DOMAIN, Key, Kind};
use crate::log::Log;
use crate::net::{Link, Links, Nic, NicHost, PORT, serve};
use crate::node::{Node, Process, STEP, Stepped};
use crate::report::Report;
use crate::scenario::Scenario;

/// The state of one run.
pub(crate) struct World<'a> {
    pub(crate) time: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) history: History,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) report: Report,
    /// Pauses and ends of processes: their requests may miss the deadline.
    pub(crate) stalls: Vec<Stall>,
    /// Periods in which an owner may have decided without its replicas.
    pub(crate) isolations: Vec<Isolation>,
    /// Machines that were stopped, and when they went on.
    pub(crate) stops: Vec<(usize, u64)>,
    /// Crashes, with the keys of the crashed owners.
    pub(crate) crashes: Vec<Crash>,
    log: Log,
    sim: Sim<'a>,
    links: Arc<Mutex<Links>>,
    /// The rules before and after a reload.
    books: [Arc<Book>; 2],
    is_reloaded: bool,
    config: Config,
    seed: u64,
    hasher: KeyHasher,
    /// Nodes that crashed and have not rejoined.
    crashed: Vec<usize>,
    /// Nodes that crash when another node waits for them, at the latest at the given time.
    pending_crashes: Vec<(usize, u64)>,
    /// The node with a burst in the next step, and its count of unsent calls before it.
    bursting: Option<(usize, u64)>,
    /// Time of the last start or end of a fault that may move keys.
    last_disruption_ms: u64,
}

/// A period in which a node did not answer.
pub(crate) struct Stall {
    pub(crate) node: usize,
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// A period in which hits decided by an owner may not have reached its replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isolation {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// The end of a process without shutdown.
pub(crate) struct Crash {
    pub(crate) at_ms: u64,
    pub(crate) owned: Vec<Key>,
    /// Whether no other fault was active then or shortly before.
    pub(crate) is_only_fault: bool,
}

/// Upper bound on the simulated time of a run.
const SIMULATION_MAX: Duration = Duration::from_secs(3_600);

impl World<'_> {
    pub(crate) fn new(scenario: &Scenario, log: Log) -> Result<Self, Box<dyn std::error::Error>> {
        let seed = scenario.seed;
        let mut sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(STEP)
            .simulation_duration(SIMULATION_MAX)
            .min_message_latency(Duration::ZERO)
            .max_message_latency(Duration::from_millis(scenario.latency_max_ms))
            .udp_capacity(4_096)
            .build();
        let ids: Vec<String> = (1..=scenario.nodes).map(|number| format!("n{number}")).collect();
        let addrs: Vec<SocketAddr> =
            ids.iter().map(|id| SocketAddr::new(sim.lookup(id.as_str()), PORT)).collect();
        let links = Arc::new(Mutex::new(Links::new(seed, scenario.nodes)));
        let time = log.time().clone();
        let mut nodes = Vec::new();
        for (index, identity) in identities(&ids)?.into_iter().enumerate() {
            let (nic, sent) = Nic::new(addrs[index]);
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
            nodes.push(Node::new(ids[index].clone(), nic, Arc::new(clock), identity));
        }
        let mut config = Config::default();
        config.cluster.seeds = addrs.iter().take(2).map(ToString::to_string).collect();
        let founders = ids.iter().take(scenario.initial_nodes);
        config.cluster.founders = founders.map(|id| NodeId::new(id)).collect::<Result<_, _>>()?;
        config.cluster.deadline = Span::from_millis(scenario.deadline_ms);
        config.limits.keys_max = scenario.keys_max;
        Ok(Self {
            history: History::new(time.clone(), log.clone()),
            time,
            nodes,
            traffic: Arc::default(),
            report: Report::default(),
            stalls: Vec::new(),
            isolations: Vec::new(),
            stops: Vec::new(),
            crashes: Vec::new(),
            log,
            sim,
            links,
            books: keys::books(),
            is_reloaded: false,
            config,
            seed,
            hasher: KeyHasher::new(SECRET),
            crashed: Vec::new(),
            pending_crashes: Vec::new(),
            bursting: None,
            last_disruption_ms: 0,
        })
    }

    /// Advances one millisecond: the network, then every node in turn, then clients and checks.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.sim.step().map_err(|error| format!("the simulated network failed: {error}"))?;
        self.time.advance();
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            self.log.set_source(Some(&node.id));
            let stepped = node.step();
            self.log.set_source(None);
            match stepped {
                Stepped::Running => self.start_clients_if_joined(index),
                Stepped::Left => {
                    self.log.event(format_args!("n{} has left", index + 1));
                    self.report.reached.insert(Situation::Left);
                    // Listeners, which would complete requests in flight, are not part of a core.
                    let now = self.time.millis();
                    self.stalls.push(Stall { node: index, from_ms: now, to_ms: now });
                }
                Stepped::Failed(error) => return Err(format!("n{} failed: {error}", index + 1)),
            }
        }
        self.record_full_queue();
        self.check_single_owner();
        self.run_pending_crashes();
        Ok(())
    }

    pub(crate) fn start(&mut self, index: usize) -> Result<(), String> {
        let node = &mut self.nodes[index];
        if node.process.is_some() {
            return Ok(());
        }
        self.log.set_source(Some(&node.id));
        let dice = Dice::new(self.seed, &format!("entropy of {} {}", node.id, node.starts));
        let book = keys::cell(&self.books[usize::from(self.is_reloaded)]);
        let started = node.start(self.config.clone(), book, SimEntropy::new(dice));
        self.log.set_source(None);
        started
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
        // Before the injection, so that the fault itself does not count as another fault.
        self.record_isolation(fault);
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
            Fault::Heal => self.change_links(|_, _| true, |link| link.is_cut = false),
            Fault::Crash { node } => {
                self.schedule_crash(node);
                return Ok(());
            }
            Fault::Start { node } => {
                self.record_handoff();
                self.start(node)?;
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
            Fault::Leave { node } => {
                self.record_handoff();
                self.nodes[node].leave();
            }
            Fault::Reload => {
                self.is_reloaded = true;
                for process in self.processes() {
                    process.book.store(self.books[1].clone());
                }
                self.report.reached.insert(Situation::Reloaded);
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
        }
        if fault.moves_keys() || self.has_link_faults() {
            self.last_disruption_ms = self.time.millis();
        }
        Ok(())
    }

    /// On every joined process, a client requests `hits` of every key of the matching kinds, one
    /// after the other. Returns the number of the first request.
    pub(crate) fn request_from_all(&mut self, matches: fn(Kind) -> bool, hits: i64) -> usize {
        let first = self.history.with(<[_]>::len);
        for process in self.processes() {
            let Some(listener) = process.listener.clone() else { continue };
            process.spawn(async move {
                for key in keys::checked().filter(|key| matches(key.kind)) {
                    listener.check(key, hits).await;
                }
            });
        }
        first
    }

    /// Whether `node` would decide `key` now.
    pub(crate) fn decides(&self, node: &Node, key: Key) -> bool {
        node.process.as_ref().is_some_and(|process| process.decides(self.token(key)))
    }

    fn token(&self, key: Key) -> u64 {
        let value = key.number.to_string();
        let entries = [Entry { key: key.kind.name(), value: &value }];
        self.hasher.descriptor(DOMAIN, &entries).token()
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
        let (history, traffic) = (self.history.clone(), self.traffic.clone());
        let Some(process) = &mut self.nodes[index].process else { return };
        let core = process.core.clone();
        let closed = tokio_util::sync::CancellationToken::new();
        let listener = Listener { core, node: index, history, traffic, closed };
        process.start_clients(listener, dice.into_iter());
        if let Some(at) = self.crashed.iter().position(|crashed| *crashed == index) {
            self.crashed.swap_remove(at);
            self.report.reached.insert(Situation::RejoinedWithoutState);
        } else if self.traffic.on.load(Ordering::Relaxed) && start == 1 {
            self.report.reached.insert(Situation::Joined);
        }
    }
}

/// Whether counts of this kind last for the whole run.
pub(crate) fn outlasts_run(kind: Kind) -> bool {
    kind != Kind::Brief
}
