//! A node: its network interface, clock and disk, which persist, and its processes, one at a time.
//!
//! A process has its own tokio runtime, whose clock advances only when the simulation steps it. A
//! crash drops the runtime with every task in it. During a pause it is not stepped; afterwards its
//! clock jumps by the length of the pause. The process then finds timers overdue, its socket full
//! and its peers changed, as after SIGSTOP and SIGCONT.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::config::Config;
use tidegate::node::{Core, Setup};
use tidegate::traces::Traces;
use tidegate_cluster::consensus::{Disk, MemoryDisk, Saved};
use tidegate_cluster::environment::{Clock, Environment};
use tidegate_cluster::global::Global;
use tidegate_cluster::ownership::OwnedRanges;
use tidegate_cluster::pki::{Identity, Role};
use tidegate_limiter::engine::preview;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{Counter, KeyHasher};
use tidegate_limiter::units::Hits;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{ClusterMap, Versions};
use tidegate_rules::book::Book;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::Listener;
use crate::clock::NodeClock;
use crate::dice::{Dice, SimEntropy};
use crate::disk::SimDisk;
use crate::keys::Key;
use crate::net::{Nic, SimNet};

pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) nic: Nic,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) identity: Identity,
    disk: SimDisk,
    /// Number of processes started so far.
    pub(crate) starts: u32,
    pub(crate) process: Option<Process>,
    /// Remaining milliseconds of the current pause.
    pause_left_ms: u64,
    /// Milliseconds paused and not yet added to the process's clock.
    paused_ms: u64,
    /// The pause is that of a virtual machine, whose clocks stand still.
    is_stopped: bool,
    /// When some others did not reach it, or it did not run, for the last time.
    pub(crate) isolated_ms: Option<u64>,
    /// What its earlier processes granted and were granted.
    pub(crate) past_grants: Grants,
    /// Whether its rules have other modes than at the start.
    pub(crate) has_other_modes: Arc<AtomicBool>,
}

/// Hits that processes granted, and that were granted to them, in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Grants {
    pub(crate) granted: u64,
    pub(crate) taken_back: u64,
    pub(crate) received: u64,
    /// Spent, and put back by a refund.
    pub(crate) refunded: u64,
    pub(crate) spent: u64,
    pub(crate) given_back: u64,
    pub(crate) late: u64,
    pub(crate) held: u64,
    /// Of those given back: the owner had refused others.
    pub(crate) recalled: u64,
}

/// One process of a node.
pub(crate) struct Process {
    pub(crate) core: Arc<Core>,
    pub(crate) book: Arc<ArcSwap<Book>>,
    runtime: Runtime,
    stop: CancellationToken,
    /// The node's tasks; they end only when the process does.
    tasks: JoinHandle<Result<(), String>>,
    /// Set once the node has joined.
    pub(crate) listener: Option<Listener>,
    /// Set when leaving; the task ends when the node has left.
    leaving: Option<JoinHandle<()>>,
}

/// What a process decides at a moment, as it has a lease.
#[derive(Clone)]
pub(crate) struct Deciding {
    pub(crate) owned: Arc<OwnedRanges>,
    /// Whether its region has one as well.
    pub(crate) has_region_lease: bool,
}

/// Result of a step of a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// The process is running, paused or not started.
    Running,
    /// The process left gracefully and exited, with so many granted hits that it did not give back.
    Left { held: u64 },
    /// The process ended unexpectedly.
    Failed(String),
}

impl Node {
    pub(crate) fn new(
        id: String,
        nic: Nic,
        clock: Arc<NodeClock>,
        identity: Identity,
        disk: SimDisk,
    ) -> Self {
        let process = None;
        let (starts, pause_left_ms, paused_ms) = (0, 0, 0);
        let is_stopped = false;
        Self {
            id,
            nic,
            clock,
            identity,
            disk,
            starts,
            process,
            pause_left_ms,
            paused_ms,
            is_stopped,
            isolated_ms: None,
            past_grants: Grants::default(),
            has_other_modes: Arc::default(),
        }
    }

    /// What all of its processes granted and were granted.
    pub(crate) fn grants(&self) -> Grants {
        let present = self.process.as_ref().map(Process::grants).unwrap_or_default();
        self.past_grants.plus(present)
    }

    /// Whether a write to its disk has failed.
    pub(crate) fn has_failed_write(&self) -> bool {
        self.disk.has_failed()
    }

    pub(crate) fn start(
        &mut self,
        mut config: Config,
        book: Arc<ArcSwap<Book>>,
        entropy: SimEntropy,
        versions: Versions,
    ) -> Result<(), String> {
        config.node.id.clone_from(&self.id);
        config.node.role = self.identity.role;
        config.cluster.listen = Some(self.nic.addr);
        let node = NodeId::new(&self.id).map_err(|error| error.to_string())?;
        let identity = Some(self.identity.clone());
        let (rules, traces) = (book.clone(), Traces::default());
        let setup = Setup { config, node, identity, book: rules, http: None, traces };
        // An edge keeps nothing on a disk.
        let disk: Arc<dyn Disk> = match self.identity.role {
            Role::Core => Arc::new(self.disk.clone()),
            Role::Edge => Arc::new(MemoryDisk::default()),
        };
        self.clock.start();
        let environment = Environment {
            clock: self.clock.clone() as Arc<dyn Clock>,
            entropy: Arc::new(entropy),
            net: Arc::new(SimNet(self.nic.clone())),
            disk,
            versions,
        };
        let runtime = runtime()?;
        let stop = CancellationToken::new();
        let built = runtime.block_on(Core::build(setup, environment));
        let (core, tasks) = built.map_err(|error| error.to_string())?;
        let run = core.clone().run(tasks, stop.clone());
        let displaced = core.clone();
        let handle = runtime.spawn(async move {
            tokio::select! {
                ended = run => ended.map_err(|error| error.to_string()),
                // No two processes of a simulation have one name.
                () = displaced.displaced() => Err("it was displaced by itself".to_owned()),
            }
        });
        self.process = Some(Process {
            core,
            book,
            runtime,
            stop,
            tasks: handle,
            listener: None,
            leaving: None,
        });
        self.starts += 1;
        (self.pause_left_ms, self.paused_ms, self.is_stopped) = (0, 0, false);
        Ok(())
    }

    /// Ends the process without shutdown; its state is lost, and what was not synced.
    pub(crate) fn crash(&mut self) {
        self.past_grants = self.grants();
        self.process = None;
        self.disk.lose_power();
    }

    /// Replaces the disk by an empty one. The process must have ended.
    pub(crate) fn wipe(&mut self) {
        self.disk.wipe();
    }

    /// What `tidegate recover` does with the disk. The process must have ended.
    pub(crate) fn recover(&mut self) -> Result<(), String> {
        let runtime = runtime()?;
        let node = NodeId::new(&self.id).map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let loaded = Saved::load(&self.disk, &node).await;
            let Some(mut saved) = loaded.map_err(|error| error.to_string())? else {
                return Err("nothing to recover".to_owned());
            };
            // A map that was not on the disk of this one yet was only on those that are lost. The
            // operator is told so, and the founders found again.
            let Some(cluster) = saved.map.as_ref().map(|map| map.cluster.to_string()) else {
                self.disk.wipe();
                return Ok(());
            };
            saved.recover(&cluster).map_err(|error| error.to_string())?;
            // On a full disk the operator makes room, and repeats it.
            while let Err(error) = saved.save(&self.disk).await {
                if !self.disk.is_full() {
                    return Err(error.to_string());
                }
            }
            Ok(())
        })
    }

    /// Pauses the process; with `is_machine` all that it could read the time from as well.
    pub(crate) fn pause(&mut self, for_ms: u64, is_machine: bool) {
        self.pause_left_ms = self.pause_left_ms.max(for_ms);
        self.is_stopped = is_machine;
    }

    /// Whether it is paused, or has been resumed but not stepped.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause_left_ms > 0 || self.paused_ms > 0
    }

    /// Starts a graceful leave; the listener stays open until the node has left the cluster.
    pub(crate) fn leave(&mut self) {
        let Some(process) = &mut self.process else { return };
        let (core, stop) = (process.core.clone(), process.stop.clone());
        let closed = process.listener.as_ref().map(|listener| listener.closed.clone());
        let leaving = process.runtime.spawn(async move {
            let _ = core.leave().await;
            if let Some(closed) = closed {
                closed.cancel();
            }
            // Requests in flight end by their deadline.
            tokio::time::sleep(Duration::from_millis(200)).await;
            stop.cancel();
        });
        process.leaving = Some(leaving);
    }

    /// Runs the node for this number of milliseconds.
    pub(crate) fn step(&mut self, for_ms: u64) -> Stepped {
        self.clock.tick(for_ms);
        let Some(process) = &mut self.process else { return Stepped::Running };
        if self.pause_left_ms > 0 {
            self.pause_left_ms = self.pause_left_ms.saturating_sub(for_ms);
            self.paused_ms += for_ms;
            return Stepped::Running;
        }
        if self.paused_ms > 0 {
            let missed_ms = std::mem::take(&mut self.paused_ms);
            if std::mem::take(&mut self.is_stopped) {
                self.clock.stand_still(missed_ms);
            } else {
                let missed = Duration::from_millis(missed_ms);
                process.runtime.block_on(async { tokio::time::advance(missed).await });
            }
        }
        let step = Duration::from_millis(for_ms);
        process.runtime.block_on(async { tokio::time::sleep(step).await });
        if !process.tasks.is_finished() {
            return Stepped::Running;
        }
        let ended = process.runtime.block_on(&mut process.tasks);
        let was_leaving = process.leaving.is_some();
        let held = process.grants().held;
        self.past_grants = self.grants();
        self.process = None;
        match ended {
            Ok(Ok(())) if was_leaving => Stepped::Left { held },
            Ok(Ok(())) => Stepped::Failed("the process ended unexpectedly".to_owned()),
            Ok(Err(error)) => Stepped::Failed(error),
            Err(error) => Stepped::Failed(error.to_string()),
        }
    }
}

impl Grants {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            granted: self.granted + other.granted,
            taken_back: self.taken_back + other.taken_back,
            received: self.received + other.received,
            refunded: self.refunded + other.refunded,
            spent: self.spent + other.spent,
            given_back: self.given_back + other.given_back,
            late: self.late + other.late,
            held: self.held + other.held,
            recalled: self.recalled + other.recalled,
        }
    }
}

impl Deciding {
    pub(crate) fn has(&self, scope: Scope, token: u64) -> bool {
        let is_of_region = || self.has_region_lease && self.owned.homes.decides(token);
        self.owned.decides.contains(token) && (scope == Scope::Region || is_of_region())
    }
}

/// A runtime whose clock advances only when it is stepped.
fn runtime() -> Result<Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().map_err(|error| error.to_string())
}

impl Process {
    /// Whether the product would open its listeners: it is a member and has its ranges, or is an
    /// edge that knows where keys are decided.
    pub(crate) fn has_joined(&self) -> bool {
        let Core { joined, edge, .. } = &*self.core;
        joined.as_ref().is_some_and(|joined| joined.is_member.is_cancelled())
            || edge.as_ref().is_some_and(|edge| edge.is_open.is_cancelled())
    }

    /// Whether it would decide the strict key at `token` now.
    pub(crate) fn decides(&self, scope: Scope, token: u64) -> bool {
        // Lease expiry is read from the runtime's clock.
        let _runtime = self.runtime.enter();
        self.core.ownership.decides(scope, token)
    }

    /// Starts the clients of the process.
    pub(crate) fn start_clients(
        &mut self,
        listener: Listener,
        clients: impl Iterator<Item = (Dice, Dice)>,
        leased: Option<Dice>,
        reserving: Vec<Dice>,
    ) {
        for (dice, heavy) in clients {
            self.runtime.spawn(listener.clone().run_client(dice, heavy));
        }
        if let Some(dice) = leased {
            self.runtime.spawn(listener.clone().run_leased_client(dice));
        }
        for dice in reserving {
            self.runtime.spawn(listener.clone().run_reserving_client(dice));
        }
        self.listener = Some(listener);
    }

    /// Spawns a task on the process's runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// What it decides; `None` without a lease.
    pub(crate) fn deciding(&self) -> Option<Deciding> {
        let _runtime = self.runtime.enter();
        let ownership = &self.core.ownership;
        ownership.has_lease().then(|| Deciding {
            owned: ownership.owned_ranges(),
            has_region_lease: ownership.has_region_lease(),
        })
    }

    /// `None` where homes never change.
    pub(crate) fn global(&self) -> Option<&Arc<Global>> {
        self.core.joined.as_ref()?.global.as_ref()
    }

    /// The newest global map that is in force here.
    pub(crate) fn global_map(&self) -> Arc<ClusterMap> {
        self.global().map(|global| global.membership.maps().borrow().clone()).unwrap_or_default()
    }

    /// The newest map that is in force here.
    pub(crate) fn map(&self) -> Arc<ClusterMap> {
        let joined = self.core.joined.as_ref();
        joined.map(|joined| joined.ownership_driver.map()).unwrap_or_default()
    }

    /// Its name and birth; `None` without a mesh.
    pub(crate) fn identity(&self) -> Option<tidegate_ownership::Identity> {
        self.core.joined.as_ref().map(|joined| joined.membership.identity().clone())
    }

    /// Whether it holds all ranges that it owns, and every transfer is complete.
    pub(crate) fn is_settled(&self) -> bool {
        self.core.joined.as_ref().is_some_and(|joined| joined.ownership_driver.is_settled())
    }

    /// The hits of a strict key that its store has counted.
    pub(crate) fn count(&self, hasher: &KeyHasher, key: Key) -> u32 {
        self.count_of(&key.counter(hasher))
    }

    /// The same of one counter. What is reserved beside it is not counted.
    pub(crate) fn count_of(&self, counter: &Counter) -> u32 {
        let (store, now) = (&self.core.store, self.core.clock.now());
        if let Some(stored) = store.get(counter.key, now) {
            let remaining = preview(&stored.state, &counter.quota, Hits::PEEK, now).remaining;
            return counter.quota.limit().saturating_sub(remaining);
        }
        if store.stats().overflowed == 0 {
            return 0;
        }
        // It may share a counter.
        let verdicts = store.check(&[*counter], Hits::PEEK, now);
        counter.quota.limit().saturating_sub(verdicts[0].remaining)
    }

    /// What it granted and was granted.
    pub(crate) fn grants(&self) -> Grants {
        let (hits, held) = self.core.decider.granted_hits();
        let counters = self.core.decider.counters();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Grants {
            granted: read(&counters.hits_granted),
            taken_back: read(&counters.taken_back),
            received: read(&hits.received),
            refunded: read(&hits.refunded),
            spent: read(&hits.spent),
            given_back: read(&hits.given_back) + read(&hits.recalled),
            late: read(&hits.late),
            held,
            recalled: read(&hits.recalled),
        }
    }

    /// Calls that its mesh did not send: no connection, an unresponsive peer or a full queue.
    pub(crate) fn unsent(&self) -> u64 {
        let counters = self.core.mesh().map(|mesh| &mesh.counters);
        counters.map_or(0, |counters| counters.unsent.load(Ordering::Relaxed))
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}
