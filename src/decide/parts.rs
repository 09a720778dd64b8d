//! What a decision is made from, and what is counted of it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::incarnation::Incarnation;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::ownership::Ownership;
use tidegate_cluster::replication::Replicator;
use tidegate_cluster::sync::Synchroniser;
use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{KeyHasher, Store};
use tidegate_ownership::route::Topology;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::tally::Tallies;

use crate::config::Envoy;

/// Everything a decision is made from.
#[derive(Debug)]
pub struct Parts {
    /// Which start of which node decides; names the column of eventual keys.
    pub incarnation: Arc<Incarnation>,
    /// Hashes descriptors under the cluster's secret.
    pub hasher: KeyHasher,
    /// Where the counters are.
    pub store: Arc<Store>,
    /// The rules in force.
    pub book: Arc<ArcSwap<Book>>,
    /// What holds for the limits that clients name themselves.
    pub clients: Arc<Rule>,
    /// The rings in force.
    pub topology: Arc<ArcSwap<Topology>>,
    /// What this node may decide.
    pub ownership: Ownership,
    /// Read once a request.
    pub clock: Arc<dyn Clock>,
    /// What Envoy's rate limit service may be told.
    pub envoy: Envoy,
    /// What was asked and answered, by name; one a process.
    pub tallies: Arc<Tallies>,
    /// The other nodes; `None` for a node that stands alone.
    pub remote: Option<Remote>,
}

/// The way to other nodes.
#[derive(Debug)]
pub struct Remote {
    /// Carries checks to their owners.
    pub mesh: Mesh,
    /// Is told when an eventual key is near its limit.
    pub synchroniser: Synchroniser,
    /// Confirms counts that a crash must not forget.
    pub replicator: Replicator,
    /// How long an owner in this region may take.
    pub deadline: Duration,
    /// How long an owner of a global key may take.
    pub global_deadline: Duration,
}

impl Remote {
    /// How long the owner of a key of this scope may take.
    pub fn deadline(&self, scope: Scope) -> Duration {
        match scope {
            Scope::Region => self.deadline,
            Scope::Global => self.global_deadline,
        }
    }
}

/// How verdicts came about since the start, in descriptors; read by the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Decided here for a client.
    pub local: AtomicU64,
    /// Decided by another owner for a client of this node.
    pub forwarded: AtomicU64,
    /// Refused here, because an owner's refusal still holds.
    pub remembered: AtomicU64,
    /// Decided here for a client of a peer.
    pub served: AtomicU64,
    /// Checks of peers that came a second time and were answered as the first time.
    pub repeated: AtomicU64,
    /// Asks of peers for keys that this node does not own.
    pub not_owner: AtomicU64,
    /// Asks after the first for one verdict: of another node, or of the same one again.
    pub retried: AtomicU64,
    /// Counted, but confirmed by no replica in time.
    pub unconfirmed: AtomicU64,
    /// Answered by `on_unavailable`.
    pub policy: AtomicU64,
}
