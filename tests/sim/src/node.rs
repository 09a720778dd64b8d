//! A node: its card and clock, which last, and its processes, one after the other.
//!
//! A process has a tokio runtime of its own whose clock stands still unless the simulation steps
//! it. To crash is to drop the runtime with every task in it. To pause is to step it no more for a
//! while, and then to let its clock jump by what it missed: the process finds every timer late, its
//! socket full and its peers changed, as after SIGSTOP and SIGCONT.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::config::Config;
use tidegate::node::{Core, Setup};
use tidegate_cluster::environment::{Clock, Environment};
use tidegate_cluster::pki::Identity;
use tidegate_limiter::policy::Scope;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_rules::book::Book;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::Listener;
use crate::clock::NodeClock;
use crate::entropy::SimEntropy;
use crate::net::{Card, SimNet};

/// A node of the simulated cluster.
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) card: Card,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) identity: Identity,
    /// Processes that were started so far.
    pub(crate) starts: u32,
    pub(crate) process: Option<Process>,
    /// Milliseconds that the process has yet to stand still.
    pause_left_ms: u64,
    /// Milliseconds that it stood still so far.
    paused_ms: u64,
}

/// One run of a node's program.
pub(crate) struct Process {
    pub(crate) core: Arc<Core>,
    pub(crate) book: Arc<ArcSwap<Book>>,
    runtime: Runtime,
    stop: CancellationToken,
    /// The node's own tasks; they end only when the process does.
    running: JoinHandle<Result<(), String>>,
    /// What clients see, once it has joined.
    pub(crate) listener: Option<Listener>,
    /// Set when it leaves; ends when it has left.
    leaving: Option<JoinHandle<()>>,
}

/// How a step of a node ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// As it should.
    Well,
    /// The process left in order and is gone.
    Left,
    /// A task of the process ended that must not.
    Failed(String),
}

/// What one step of the simulation lasts.
pub(crate) const STEP: Duration = Duration::from_millis(1);
impl Node {
    pub(crate) fn new(id: String, card: Card, clock: Arc<NodeClock>, identity: Identity) -> Self {
        Self { id, card, clock, identity, starts: 0, process: None, pause_left_ms: 0, paused_ms: 0 }
    }

    /// Starts a process.
    pub(crate) fn start(
        &mut self,
        mut config: Config,
        book: Arc<ArcSwap<Book>>,
        entropy: SimEntropy,
    ) -> Result<(), String> {
        config.node.id.clone_from(&self.id);
        config.cluster.listen = Some(self.card.addr);
        let node = NodeId::new(&self.id).map_err(|error| error.to_string())?;
        let identity = Some(self.identity.clone());
        let setup = Setup { config, node, identity, book: book.clone(), http: None };
        let environment = Environment {
            clock: self.clock.clone() as Arc<dyn Clock>,
            entropy: Arc::new(entropy),
            net: Arc::new(SimNet(self.card.clone())),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|error| error.to_string())?;
        let stop = CancellationToken::new();
        let built = runtime.block_on(Core::build(setup, environment));
        let (core, tasks) = built.map_err(|error| error.to_string())?;
        let run = core.clone().run(tasks, stop.clone());
        let running = runtime.spawn(async move { run.await.map_err(|error| error.to_string()) });
        self.process =
            Some(Process { core, book, runtime, stop, running, listener: None, leaving: None });
        self.starts += 1;
        (self.pause_left_ms, self.paused_ms) = (0, 0);
        Ok(())
    }

    /// The process and all it knew is gone.
    pub(crate) fn crash(&mut self) {
        self.process = None;
    }

    /// The process stands still.
    pub(crate) fn pause(&mut self, for_ms: u64) {
        self.pause_left_ms = self.pause_left_ms.max(for_ms);
    }

    /// Whether it stands still, or has not noticed yet that it goes on.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause_left_ms > 0 || self.paused_ms > 0
    }

    /// The process begins to leave, its doors still open.
    pub(crate) fn leave(&mut self) {
        let Some(process) = &mut self.process else { return };
        let (core, stop) = (process.core.clone(), process.stop.clone());
        let closed = process.listener.as_ref().map(|listener| listener.closed.clone());
        let leaving = process.runtime.spawn(async move {
            core.leave().await;
            if let Some(closed) = closed {
                closed.cancel();
            }
            // Asks that are under way end by their deadline.
            tokio::time::sleep(Duration::from_millis(200)).await;
            stop.cancel();
        });
        process.leaving = Some(leaving);
    }

    /// Lets the node live for a millisecond.
    pub(crate) fn step(&mut self) -> Stepped {
        self.clock.follow();
        let Some(process) = &mut self.process else { return Stepped::Well };
        if self.pause_left_ms > 0 {
            self.pause_left_ms -= 1;
            self.paused_ms += 1;
            return Stepped::Well;
        }
        if self.paused_ms > 0 {
            let missed = Duration::from_millis(std::mem::take(&mut self.paused_ms));
            process.runtime.block_on(async { tokio::time::advance(missed).await });
        }
        process.runtime.block_on(async { tokio::time::sleep(STEP).await });
        if !process.running.is_finished() {
            return Stepped::Well;
        }
        let ended = process.runtime.block_on(&mut process.running);
        let was_leaving = process.leaving.is_some();
        self.process = None;
        match ended {
            Ok(Ok(())) if was_leaving => Stepped::Left,
            Ok(Ok(())) => Stepped::Failed("it ended".to_owned()),
            Ok(Err(error)) => Stepped::Failed(error),
            Err(error) => Stepped::Failed(error.to_string()),
        }
    }
}

impl Process {
    /// Whether it knows its fellow members and holds what is its own, so that the product would
    /// open its doors.
    pub(crate) fn has_joined(&self) -> bool {
        self.core.joined.as_ref().is_none_or(|joined| joined.is_member.is_cancelled())
    }

    /// Whether it would decide the strict key at `token` if it were asked now.
    pub(crate) fn decides(&self, token: u64) -> bool {
        // Leases are told by the process's own clock.
        let _inside = self.runtime.enter();
        self.core.ownership.owns(Scope::Region, token)
    }

    /// Opens the door: its clients run from now on.
    pub(crate) fn open(
        &mut self,
        listener: Listener,
        clients: impl Iterator<Item = crate::dice::Dice>,
    ) {
        for dice in clients {
            self.runtime.spawn(listener.clone().visit(dice));
        }
        self.listener = Some(listener);
    }

    /// Runs something beside the process's own tasks.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// The places that it decides; `None` while it has no lease.
    pub(crate) fn deciding(&self) -> Option<Ranges> {
        let _inside = self.runtime.enter();
        let ownership = &self.core.ownership;
        let has_lease = ownership.has_lease(Scope::Region);
        has_lease.then(|| ownership.owned_ranges(Scope::Region).decides.clone())
    }

    /// Calls that its mesh did not send: no connection, a silent peer, or a full lane.
    pub(crate) fn unsent(&self) -> u64 {
        let mesh = self.core.joined.as_ref().map(|joined| &joined.mesh.counters);
        mesh.map_or(0, |counters| counters.unsent.load(Ordering::Relaxed))
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}
