//! The simulated world: a network, its nodes, and one millisecond after the other.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::cluster::mesh::IN_FLIGHT_MAX;
use tidegate::cluster::ranges::Ranges;
use tidegate::config::Config;
use tidegate::rules::book::Book;
use tidegate::rules::descriptor::Entry;
use tidegate::store::KeyHasher;
use turmoil::Sim;

use crate::client::{CLIENTS, Door, Traffic};
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
use crate::scenario::{LOAD_MS, Scenario};

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
    /// Whether a node that others could not know came while links were cut.
    pub(crate) has_grown_in_split: bool,
    /// When a node that the others did not know was last started.
    newcomer_ms: Option<u64>,
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
/// A pause longer than this outlives a lease.
const LONG_PAUSE_MS: u64 = 400;
/// `cluster.replicas`
const REPLICAS: usize = 1;
/// `cluster.lease`, and some for a ping that was under way.
const LEASE_MS: u64 = 500;
/// How long a doomed node is waited for.
const DOOM_MS: u64 = 100;
/// After this long without trouble a crash finds its replicas complete, and a newcomer is known.
const QUIET_MS: u64 = 2_000;
/// Asks that are looked through for one that waits: more than are under way.
const RECENT: usize = 500;
/// How often owners are compared.
const WATCH_EVERY_MS: u64 = 5;

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
        config.cluster.deadline_ms = scenario.deadline_ms;
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
            has_grown_in_split: false,
            newcomer_ms: None,
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
        self.processes().filter(|process| process.door.is_some()).count() == count
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
                self.doomed.push((node, self.time.millis() + DOOM_MS));
                return Ok(());
            }
            Fault::Start { node } => {
                self.note_handoff();
                // One that crashed is remembered by the others; one that left is not.
                if !self.crashed.contains(&node) {
                    self.newcomer_ms = Some(self.time.millis());
                }
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
                    && let Some(door) = &process.door
                {
                    process.spawn(door.clone().burst());
                    self.bursting = Some((node, process.unsent()));
                }
            }
        }
        self.note_growth();
        if fault.moves_keys() || self.is_stormy() {
            self.troubled_ms = self.time.millis();
        }
        Ok(())
    }

    /// Notes when links are cut before everybody can have heard of a newcomer.
    fn note_growth(&mut self) {
        let is_new = |since: u64| self.time.millis() - since < QUIET_MS;
        if self.is_any_cut() && self.newcomer_ms.is_some_and(is_new) {
            self.has_grown_in_split = true;
        }
    }

    /// Notes for how long an owner may decide what no replica hears of.
    fn note_isolation(&mut self, fault: &Fault) {
        let now = self.time.millis();
        let lasts_ms = match fault {
            // It may decide until its lease has run out.
            Fault::Split { .. } | Fault::CutOneWay { .. } => LEASE_MS,
            // It decides nothing more, but what it sent last may not have arrived.
            Fault::Pause { .. } => 0,
            // Leases come and go until the end of it, which is an incident of its own.
            Fault::Weather { .. } | Fault::Slow { .. } if fault.moves_keys() => LOAD_MS,
            _ => return,
        };
        // An owner and its one replica may be on one side, and the quorum on the other.
        let takes_both = match fault {
            Fault::Split { side } => side.len().min(self.nodes.len() - side.len()) > REPLICAS,
            _ => false,
        };
        let from_ms = if takes_both || self.is_troubled() { 0 } else { now };
        self.isolations.push(Isolation { from_ms, to_ms: now + lasts_ms });
    }

    /// Whether something else is wrong, or was a moment ago, so that replicas may be incomplete.
    fn is_troubled(&self) -> bool {
        let is_recent = self.time.millis() - self.troubled_ms <= QUIET_MS;
        self.is_stormy() || self.troubled_ms > 0 && is_recent
    }

    fn is_any_cut(&self) -> bool {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner).is_any_cut()
    }

    /// Whether any link is worse than it should be.
    fn is_stormy(&self) -> bool {
        !self.weather.lock().unwrap_or_else(PoisonError::into_inner).is_fair()
    }

    /// Lets a client of every process that has joined ask for `hits` of every key of some kinds, one
    /// after the other, and returns the number of the first such ask.
    pub(crate) fn ask_everywhere(&mut self, concerns: fn(Kind) -> bool, hits: i64) -> usize {
        let first = self.history.with(<[_]>::len);
        for process in self.processes() {
            let Some(door) = process.door.clone() else { continue };
            process.spawn(async move {
                for key in keys::checked().filter(|key| concerns(key.kind)) {
                    door.ask(key, hits).await;
                }
            });
        }
        first
    }

    /// Adds up for how long two nodes that run both decide some place on the circle: whatever the
    /// keys, there is to be none.
    fn watch_owners(&mut self) {
        if !self.time.millis().is_multiple_of(WATCH_EVERY_MS) {
            return;
        }
        // A process that stands still decides nothing, whatever its own clock says.
        let running = self.nodes.iter().filter(|node| !node.is_paused());
        let deciding: Vec<(&str, Ranges)> = running
            .filter_map(|node| Some((node.id.as_str(), node.process.as_ref()?.deciding()?)))
            .collect();
        let pairs = deciding.iter().enumerate();
        let pairs = pairs.flat_map(|(rank, one)| deciding[..rank].iter().map(move |o| (o, one)));
        let overlap = pairs.filter(|((_, ours), (_, theirs))| !ours.shared_with(theirs).is_empty());
        for ((one, _), (other, _)) in overlap {
            self.log.say(format_args!("{one} and {other} decide the same places"));
            self.report.two_owners_ms += WATCH_EVERY_MS;
        }
    }

    /// Whether `node` would decide `key` if it were asked now.
    pub(crate) fn decides(&self, node: &Node, key: Key) -> bool {
        node.process.as_ref().is_some_and(|process| process.decides(self.place(key)))
    }

    fn place(&self, key: Key) -> u64 {
        let value = key.number.to_string();
        let entries = [Entry { key: key.kind.name(), value: &value }];
        self.hasher.descriptor(DOMAIN, &entries).place()
    }

    /// Crashes the doomed whose time has come: the best moment is when another node waits for a
    /// verdict.
    fn crash_doomed(&mut self) {
        let now = self.time.millis();
        for (index, at_the_latest) in std::mem::take(&mut self.doomed) {
            let node = &self.nodes[index];
            let owned: Vec<Key> = keys::checked()
                .filter(|key| key.kind.is_strict() && self.decides(node, *key))
                .collect();
            let is_awaited = self.is_awaited(index, &owned);
            if !is_awaited && now < at_the_latest {
                self.doomed.push((index, at_the_latest));
                continue;
            }
            if is_awaited {
                self.report.reached.insert(Situation::OwnerDiedMidAsk);
            }
            let is_alone = !self.is_troubled();
            self.log.say(format_args!("n{} crashes, alone={is_alone}", index + 1));
            self.crashes.push(Crash { at_ms: now, owned, is_alone });
            self.crashed.push(index);
            self.stalls.push(Stall { node: index, from_ms: now, to_ms: now });
            self.troubled_ms = now;
            self.nodes[index].crash();
        }
    }

    /// Whether another node waits for a verdict on one of `owned`, which `index` decides.
    fn is_awaited(&self, index: usize, owned: &[Key]) -> bool {
        self.history.with(|records| {
            records.iter().rev().take(RECENT).any(|record| {
                record.outcome.is_none() && record.node != index && owned.contains(&record.key)
            })
        })
    }

    fn pause(&mut self, index: usize, for_ms: u64) {
        let from_ms = self.time.millis();
        self.stalls.push(Stall { node: index, from_ms, to_ms: from_ms + for_ms });
        self.nodes[index].pause(for_ms);
        if for_ms > LONG_PAUSE_MS {
            self.report.reached.insert(Situation::LongPause);
        }
    }

    /// Whether a burst of the step before filled a lane: some of it was not sent, but not all, as
    /// it would be to a silent peer.
    fn note_full_lane(&mut self) {
        let Some((node, unsent_before)) = self.bursting.take() else { return };
        let Some(process) = &self.nodes[node].process else { return };
        let unsent = process.unsent() - unsent_before;
        if (1..IN_FLIGHT_MAX as u64).contains(&unsent) {
            self.report.reached.insert(Situation::FullQueue);
        }
    }

    fn note_handoff(&mut self) {
        if self.is_any_cut() {
            self.report.reached.insert(Situation::HandoffInSplit);
        }
    }

    fn weather(&self, concerns: impl Fn(usize, usize) -> bool, change: impl Fn(&mut Link)) {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner).change(concerns, change);
    }

    /// Lets clients in when a process has joined.
    fn open_if_joined(&mut self, index: usize) {
        let Some(process) = &self.nodes[index].process else { return };
        if process.door.is_some() || process.is_leaving() || !process.has_joined() {
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
        let door = Door { core, node: index, history, traffic, closed };
        process.open(door, dice.into_iter());
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
