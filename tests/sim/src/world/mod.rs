//! The simulated world: a network, its nodes, and one millisecond after the other.

mod trouble;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::config::Config;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::store::KeyHasher;
use tidegate_limiter::units::Span;
use tidegate_rules::book::Book;
use turmoil::Sim;

use crate::client::{CLIENTS, Listener, Traffic};
use crate::clock::{NodeClock, Time};
use crate::coverage::Situation;
use crate::dice::Dice;
use crate::entropy::SimEntropy;
use crate::fault::Fault;
use crate::history::History;
use crate::identity::{SECRET, identities};
use crate::keys::{self, DOMAIN, Key, Kind};
use crate::log::Log;
use crate::net::{Card, Link, PORT, Plugged, Weather, serve};
use crate::node::{Node, Process, STEP, Stepped};
use crate::report::Report;
use crate::scenario::Scenario;

/// Everything there is in one run.
pub(crate) struct World<'a> {
    pub(crate) time: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) history: History,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) report: Report,
    /// When processes stood still or ended: asks of theirs have an excuse.
    pub(crate) stalls: Vec<Stall>,
    /// When an owner may have been cut off from its replicas and have gone on deciding.
    pub(crate) isolations: Vec<Isolation>,
    /// Crashes, and what was lost with them.
    pub(crate) crashes: Vec<Crash>,
    log: Log,
    sim: Sim<'a>,
    weather: Arc<Mutex<Weather>>,
    /// Before and after a reload.
    books: [Arc<Book>; 2],
    is_reloaded: bool,
    config: Config,
    seed: u64,
    hasher: KeyHasher,
    /// Nodes that crashed and were not started since.
    crashed: Vec<usize>,
    /// Nodes that crash as soon as somebody waits for them, or at this time.
    doomed: Vec<(usize, u64)>,
    /// The node that bursts in the step to come, and what its mesh had not sent before.
    bursting: Option<(usize, u64)>,
    /// When something last happened that may move keys, the end of such a thing included.
    troubled_ms: u64,
}

/// A node that did not answer for a while.
pub(crate) struct Stall {
    pub(crate) node: usize,
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// A time in which what an owner decided may not have reached its replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isolation {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// The end of a process without a word.
pub(crate) struct Crash {
    pub(crate) at_ms: u64,
    /// Strict keys that it owned.
    pub(crate) owned: Vec<Key>,
    /// Whether nothing else was wrong then and for some time before.
    pub(crate) is_alone: bool,
}

/// A run that needs longer than this in simulated time is broken.
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
        let weather = Arc::new(Mutex::new(Weather::new(seed, scenario.nodes)));
        let time = log.time().clone();
        let mut nodes = Vec::new();
        for (index, identity) in identities(&ids)?.into_iter().enumerate() {
            let (card, sent) = Card::new(addrs[index]);
            let plugged = Arc::new(Plugged {
                index,
                card: card.clone(),
                addrs: addrs.clone(),
                weather: weather.clone(),
                outbound: Mutex::new(Some(sent)),
            });
            sim.host(ids[index].as_str(), move || serve(plugged.clone()));
            let clock = NodeClock::new(time.clone(), scenario.clocks_ahead_ms[index]);
            nodes.push(Node::new(ids[index].clone(), card, Arc::new(clock), identity));
        }
        let mut config = Config::default();
        config.cluster.seeds = addrs.iter().take(2).map(ToString::to_string).collect();
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
            crashes: Vec::new(),
            log,
            sim,
            weather,
            books: keys::books(),
            is_reloaded: false,
            config,
            seed,
            hasher: KeyHasher::new(SECRET),
            crashed: Vec::new(),
            doomed: Vec::new(),
            bursting: None,
            troubled_ms: 0,
        })
    }

    /// One millisecond: first the network, then every node in turn, then the clients' doors.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.sim.step().map_err(|error| format!("the network failed: {error}"))?;
        self.time.advance();
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            self.log.running(Some(&node.id));
            let stepped = node.step();
            self.log.running(None);
            match stepped {
                Stepped::Well => self.open_if_joined(index),
                Stepped::Left => {
                    self.log.say(format_args!("n{} has left", index + 1));
                    self.report.reached.insert(Situation::Left);
                    // Doors that finish what is in flight are not part of a core.
                    let now = self.time.millis();
                    self.stalls.push(Stall { node: index, from_ms: now, to_ms: now });
                }
                Stepped::Failed(error) => return Err(format!("n{} failed: {error}", index + 1)),
            }
        }
        self.note_full_lane();
        self.watch_owners();
        self.crash_doomed();
        Ok(())
    }

    /// Starts a process of a node.
    pub(crate) fn start(&mut self, index: usize) -> Result<(), String> {
        let node = &mut self.nodes[index];
        if node.process.is_some() {
            return Ok(());
        }
        self.log.running(Some(&node.id));
        let dice = Dice::new(self.seed, &format!("entropy of {} {}", node.id, node.starts));
        let book = keys::cell(&self.books[usize::from(self.is_reloaded)]);
        let started = node.start(self.config.clone(), book, SimEntropy::new(dice));
        self.log.running(None);
        started
    }

    /// Whether the first `count` nodes have all joined.
    pub(crate) fn have_all_joined(&self, count: usize) -> bool {
        self.processes().filter(|process| process.listener.is_some()).count() == count
    }

    /// Processes that run.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.nodes.iter().filter_map(|node| node.process.as_ref())
    }

    /// Lets `fault` happen.
    pub(crate) fn happen(&mut self, fault: &Fault) -> Result<(), String> {
        self.log.say(format_args!("FAULT {fault:?}"));
        // Asked before it happens: it is no trouble of its own.
        self.note_isolation(fault);
        match *fault {
            Fault::Weather { loss_ppm, duplicate_ppm, late_ppm, late_ms } => {
                self.weather(
                    |_, _| true,
                    |link| {
                        *link = Link { loss_ppm, duplicate_ppm, late_ppm, late_ms, ..*link };
                    },
                );
                self.report.reached.insert(Situation::BadWeather);
            }
            Fault::Slow { node, late_ms } => {
                let late_ppm = if late_ms == 0 { 0 } else { 1_000_000 };
                self.weather(
                    |from, to| from == node || to == node,
                    |link| {
                        *link = Link { late_ppm, late_ms, ..*link };
                    },
                );
                self.report.reached.insert(Situation::SlowPeer);
            }
            Fault::Split { ref side } => {
                self.weather(
                    |from, to| side.contains(&from) != side.contains(&to),
                    |link| link.is_cut = true,
                );
                self.report.reached.insert(Situation::Split);
            }
            Fault::CutOneWay { from, to } => {
                self.weather(|a, b| (a, b) == (from, to), |link| link.is_cut = true);
                self.report.reached.insert(Situation::OneWayCut);
            }
            Fault::Heal => self.weather(|_, _| true, |link| link.is_cut = false),
            Fault::Crash { node } => {
                self.doom(node);
                return Ok(());
            }
            Fault::Start { node } => {
                self.note_handoff();
                self.start(node)?;
            }
            Fault::Pause { node, for_ms } => self.pause(node, for_ms),
            Fault::ClockStep { node, by_ms } => {
                self.nodes[node].clock.step(by_ms);
                self.report.reached.insert(Situation::ClockStep);
            }
            Fault::Leave { node } => {
                self.note_handoff();
                self.nodes[node].leave();
            }
            Fault::Reload => {
                self.is_reloaded = true;
                for process in self.processes() {
                    process.book.store(self.books[1].clone());
                }
                self.report.reached.insert(Situation::Reloaded);
            }
            Fault::Hot(is_hot) => {
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
        if fault.moves_keys() || self.is_stormy() {
            self.troubled_ms = self.time.millis();
        }
        Ok(())
    }

    /// Lets a client of every process that has joined ask for `hits` of every key of some kinds,
    /// one after the other, and returns the number of the first such ask.
    pub(crate) fn ask_everywhere(&mut self, concerns: fn(Kind) -> bool, hits: i64) -> usize {
        let first = self.history.with(<[_]>::len);
        for process in self.processes() {
            let Some(listener) = process.listener.clone() else { continue };
            process.spawn(async move {
                for key in keys::checked().filter(|key| concerns(key.kind)) {
                    listener.ask(key, hits).await;
                }
            });
        }
        first
    }

    /// Whether `node` would decide `key` if it were asked now.
    pub(crate) fn decides(&self, node: &Node, key: Key) -> bool {
        node.process.as_ref().is_some_and(|process| process.decides(self.token(key)))
    }

    fn token(&self, key: Key) -> u64 {
        let value = key.number.to_string();
        let entries = [Entry { key: key.kind.name(), value: &value }];
        self.hasher.descriptor(DOMAIN, &entries).token()
    }

    fn weather(&self, concerns: impl Fn(usize, usize) -> bool, change: impl Fn(&mut Link)) {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner).change(concerns, change);
    }

    /// Lets clients in when a process has joined.
    fn open_if_joined(&mut self, index: usize) {
        let Some(process) = &self.nodes[index].process else { return };
        if process.listener.is_some() || process.is_leaving() || !process.has_joined() {
            return;
        }
        let (id, start) = (&self.nodes[index].id, self.nodes[index].starts);
        self.log.say(format_args!("{id} has joined"));
        let seed = self.seed;
        let dice: Vec<Dice> = (0..CLIENTS)
            .map(|client| Dice::new(seed, &format!("client {client} of {id} {start}")))
            .collect();
        let (history, traffic) = (self.history.clone(), self.traffic.clone());
        let Some(process) = &mut self.nodes[index].process else { return };
        let core = process.core.clone();
        let closed = tokio_util::sync::CancellationToken::new();
        let listener = Listener { core, node: index, history, traffic, closed };
        process.open(listener, dice.into_iter());
        if let Some(at) = self.crashed.iter().position(|crashed| *crashed == index) {
            self.crashed.swap_remove(at);
            self.report.reached.insert(Situation::RejoinedWithoutState);
        } else if self.traffic.on.load(Ordering::Relaxed) && start == 1 {
            self.report.reached.insert(Situation::Joined);
        }
    }
}

/// Kinds of keys whose counts last for the whole run.
pub(crate) fn is_lasting(kind: Kind) -> bool {
    kind != Kind::Brief
}
