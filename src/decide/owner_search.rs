//! The search for the node that decides a key, one attempt after the other, until the deadline.
//!
//! [`RoutingAttempts`] chooses the next node; here is what takes time: the wait while a range is in
//! transfer, and the connection that an edge opens. What an attempt asks, and what it means that a
//! connection breaks, is different for checks (`forward.rs`) and reservations (`reserve.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_cluster::mesh::{Mesh, Peer};
use tidegate_cluster::pki::Role;
use tidegate_limiter::policy::Scope;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::route::Topology;
use tokio::time::{Instant, sleep, timeout_at};

use super::decider::{Decider, Peers};
use super::outcome::NoVerdict;
use super::routing_attempts::{Next, RoutingAttempts};

/// The next node that may decide the key.
pub(super) enum Target {
    Here,
    Peer(Arc<Peer>),
}

/// The attempts to reach the owner of one key.
pub(super) struct OwnerSearch<'a> {
    decider: &'a Decider,
    pub(super) mesh: &'a Mesh,
    scope: Scope,
    token: u64,
    deadline: Instant,
    attempts: RoutingAttempts,
}

impl<'a> OwnerSearch<'a> {
    /// After this node found that it is not the owner. `None` for a standalone node.
    pub(super) fn new(
        decider: &'a Decider,
        scope: Scope,
        token: u64,
        deadline: Instant,
    ) -> Option<Self> {
        let Peers { mesh, .. } = decider.shared.peers.as_ref()?;
        let attempts = RoutingAttempts::new(scope, token);
        let mut search = Self { decider, mesh, scope, token, deadline, attempts };
        let topology = decider.shared.node.topology.load();
        search.attempts.not_owned_here(&topology, search.handed_to());
        Some(search)
    }

    /// The next node to ask, which is connected. The result of asking it is to be told, unless it
    /// is that the connection is gone.
    pub(super) async fn next(&mut self) -> Result<Target, NoVerdict> {
        let shared = &self.decider.shared;
        loop {
            let topology = shared.node.topology.load_full();
            let has_leases = || self.decider.has_leases(self.scope, self.token, &topology);
            let target = match self.attempts.next(&topology, has_leases) {
                Next::Try(target) => target,
                Next::Wait(pause) => {
                    self.wait(pause).await?;
                    continue;
                }
                Next::GiveUp => return Err(NoVerdict::Unavailable),
            };
            if self.attempts.count > 1 {
                shared.counters.retried.fetch_add(1, Ordering::Relaxed);
            }
            if target == topology.me {
                return Ok(Target::Here);
            }
            if let Some(peer) = self.connected(&target, &topology).await {
                return Ok(Target::Peer(peer));
            }
        }
    }

    /// The last node does not own the key; it handed the key to `holder` if it ever did.
    pub(super) fn not_owner(&mut self, holder: Option<NodeId>) {
        self.attempts.not_owner(holder);
    }

    /// This node, which was tried last, does not own the key.
    pub(super) fn not_owned_here(&mut self) {
        self.attempts.not_owner(self.handed_to());
    }

    /// The last node is connected but unresponsive or overloaded, so nothing was sent.
    pub(super) fn overloaded(&mut self) {
        self.attempts.overloaded();
    }

    /// Tries all nodes again after `pause`.
    pub(super) async fn begin_again(&mut self, pause: Duration) -> Result<(), NoVerdict> {
        self.wait(pause).await?;
        self.attempts = RoutingAttempts::new(self.scope, self.token);
        Ok(())
    }

    /// Waits for `pause`; fails at once when the deadline passes before.
    pub(super) async fn wait(&self, pause: Duration) -> Result<(), NoVerdict> {
        if Instant::now() + pause >= self.deadline {
            return Err(NoVerdict::Unavailable);
        }
        sleep(pause).await;
        Ok(())
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The connection to the node that `broken` was connected to, which an edge opens anew.
    pub(super) async fn reconnected(&self, broken: &Peer) -> Option<Arc<Peer>> {
        timeout_at(self.deadline, self.mesh.reconnect(broken)).await.ok()?
    }

    /// The connection to `target`, which an edge opens now.
    async fn connected(&self, target: &NodeId, topology: &Topology) -> Option<Arc<Peer>> {
        if self.mesh.role == Role::Core {
            return self.mesh.peer(target);
        }
        let addr = topology.view.get(target)?.addr;
        timeout_at(self.deadline, self.mesh.connect(target, addr)).await.ok()?
    }

    fn handed_to(&self) -> Option<NodeId> {
        self.decider.shared.node.ownership.transferred_to(self.token)
    }
}

impl Decider {
    /// Whether this node has every lease that it needs to decide the key at `token`, or to learn
    /// who does: its own, and that of its region for a global key at home in it.
    pub(super) fn has_leases(&self, scope: Scope, token: u64, topology: &Topology) -> bool {
        let ownership = &self.shared.node.ownership;
        let is_of_region = scope == Scope::Global && topology.homes().is_here(token);
        ownership.has_lease() && (!is_of_region || ownership.has_region_lease())
    }
}
