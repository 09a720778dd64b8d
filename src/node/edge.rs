//! A node of the role `edge`: what it runs, and what it answers cores.
//!
//! It runs no gossip, no consensus, no lease of the voters, no replication and no transfers. It
//! follows some cores ([`Follower`]), takes their time, counts eventual keys and sends its counts
//! to their owners. Its listeners open when a core has said where keys are decided and its clock is
//! compared; after [`STRANDED_TIMEOUT`] in any case, because the service beside it must not wait
//! for cores: then it answers by each rule's `on_unavailable`.

use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::edge::{self, FOLLOW_INTERVAL, Follower};
use tidegate_cluster::environment::{Clock, Environment};
use tidegate_cluster::mesh::wire::{Call, EdgeCall, PingStatus, PongStatus, Reply, SyncRole};
use tidegate_cluster::mesh::{self, Mesh, Peer, Service, ServiceReply, running};
use tidegate_cluster::revocations;
use tidegate_cluster::sync::Synchroniser;
use tidegate_limiter::units::Monotonic;
use tidegate_ownership::Identity;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::standstill::ClockReading;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::clock_sync::ClockSync;
use super::malformed::Malformed;
use crate::config::Config;
use crate::decide::{Decider, LocalNode};
use crate::enrolment::Issuer;

/// The components of an edge that are connected to cores. Cheap to clone.
#[derive(Clone)]
pub struct Edge {
    pub mesh: Arc<Mesh>,
    pub follower: Arc<Follower>,
    pub synchroniser: Arc<Synchroniser>,
    /// Cancelled when the listeners may open.
    pub is_open: CancellationToken,
    /// Malformed frames of peers, and calls that an edge does not take.
    pub(super) malformed: Arc<Malformed>,
}

/// How long an edge waits for a core before it opens its listeners without.
const STRANDED_TIMEOUT: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(20);
/// How often an edge pings the cores that it follows until it knows the time by which they decide.
const TIMELESS_INTERVAL: Duration = Duration::from_millis(500);

impl Edge {
    /// Whether no core that it follows answers: `on_unavailable` answers for owners.
    pub(super) fn is_cut_off(&self) -> bool {
        let answers = |core: &NodeId| self.mesh.peer(core).is_some_and(|it| !it.is_unreachable());
        !self.follower.homes().iter().any(answers)
    }

    pub(super) fn new(
        config: &Config,
        local: &LocalNode,
        mesh: Arc<Mesh>,
        birth: u64,
        synchroniser: Arc<Synchroniser>,
        environment: &Environment,
    ) -> Self {
        let options = edge::Options {
            me: Identity { node: local.incarnation.node().clone(), birth },
            region: config.node.region.clone(),
            seeds: config.cluster.seeds.clone(),
            vnodes: config.cluster.vnodes,
            global_lease: (!config.global.founders.is_empty()).then_some(config.global.lease),
            home_regions: config.cluster.regions.iter().cloned().collect(),
        };
        let (ownership, topology) = (local.ownership.clone(), local.topology.clone());
        let net = environment.net.clone();
        let follower = Follower::new(options, mesh.clone(), net, ownership, topology);
        let (is_open, malformed) = (CancellationToken::new(), Arc::default());
        Self { mesh, follower, synchroniser, is_open, malformed }
    }

    /// Each loop is a task of its own, so that the end of any one is noticed.
    pub(super) fn spawn(
        &self,
        (decider, clock, issuer): (&Decider, &Arc<dyn Clock>, Option<&Arc<Issuer>>),
        time: &Arc<ClockSync>,
        tasks: mesh::Tasks,
        stop: &CancellationToken,
        running: &mut JoinSet<()>,
    ) {
        let Self { mesh, follower, synchroniser, .. } = self.clone();
        let service = Arc::new(EdgeService {
            decider: decider.clone(),
            edge: self.clone(),
            clock: clock.clone(),
            clock_sync: time.clone(),
            issuer: issuer.cloned(),
        });
        running.spawn(decider.clone().give_ended_back(stop.clone()));
        running.spawn(follower.run(stop.clone()));
        let interventions = decider.interventions().clone();
        running.spawn(interventions.run(mesh.clone(), stop.clone()));
        running.spawn(revocations::run(mesh.clone(), stop.clone()));
        let region = mesh.region().to_owned();
        running.spawn(time.clone().run_at_edge(mesh.clone(), region, stop.clone()));
        running.spawn(self.clone().open(time.clone(), stop.clone()));
        // The last round of synchronisation needs the mesh, so the mesh stops after it.
        let sent = CancellationToken::new();
        let (counts_mesh, stop, counts_sent) = (mesh.clone(), stop.clone(), sent.clone());
        running.spawn(async move {
            synchroniser.run(counts_mesh, stop).await;
            counts_sent.cancel();
        });
        running.spawn(async move { mesh.run(tasks, service, sent).await });
    }

    async fn open(self, time: Arc<ClockSync>, stop: CancellationToken) {
        let knows_owners = async {
            let mut ticks = tokio::time::interval(INTERVAL);
            while !self.follower.has_map() || time.decision_clock().is_none() {
                ticks.tick().await;
            }
        };
        let waited = tokio::time::timeout(STRANDED_TIMEOUT, knows_owners);
        match stop.run_until_cancelled(waited).await {
            None => return,
            Some(Ok(())) => {}
            Some(Err(_)) => tracing::warn!(
                "no core of this region has said where keys are decided, and by what time; \
                 answering by each rule's on_unavailable until one does (cluster.seeds)"
            ),
        }
        self.is_open.cancel();
        stop.cancelled().await;
    }
}

/// Answers the calls of cores without blocking.
struct EdgeService {
    decider: Decider,
    edge: Edge,
    clock: Arc<dyn Clock>,
    clock_sync: Arc<ClockSync>,
    /// Of an edge that signs certificates.
    issuer: Option<Arc<Issuer>>,
}

impl Service for EdgeService {
    fn handle_call(&self, from: &Peer, call: Call) -> ServiceReply {
        let reply = match call {
            Call::Ping { .. } => self.pong(),
            Call::Sync(sync) if sync.role == SyncRole::Owner => {
                self.edge.synchroniser.receive(from, sync)
            }
            Call::Recall(key) => {
                self.decider.recalled(key);
                Reply::Done
            }
            Call::Interventions(call) => self.decider.interventions().call_received(from, call),
            Call::Revocations(call) => {
                return revocations::call_received(&self.edge.mesh, from, call);
            }
            Call::Certificate(request) => {
                let issuer = self.issuer.as_ref();
                return ServiceReply::Deferred(Issuer::reply_to(issuer, from, request));
            }
            Call::Edge(EdgeCall::Cluster(view)) => {
                self.edge.follower.view_received(from, *view);
                Reply::Done
            }
            _ => Reply::Malformed,
        };
        if reply == Reply::Malformed {
            self.malformed(&from.id);
        }
        ServiceReply::Ready(reply)
    }

    fn ping_interval(&self, _: &Peer) -> Duration {
        // It opens its listeners once a core has told it the time.
        let is_timeless = self.clock_sync.decision_clock().is_none();
        if is_timeless { TIMELESS_INTERVAL } else { FOLLOW_INTERVAL }
    }

    fn ping_status(&self, _: &Peer) -> PingStatus {
        self.edge.follower.ping_status()
    }

    fn pong_received(&self, from: &Peer, reading: ClockReading, _: PongStatus) {
        self.edge.follower.pong_received(from, reading);
    }

    fn malformed(&self, from: &NodeId) {
        self.edge.malformed.count(from);
    }
}

impl EdgeService {
    fn pong(&self) -> Reply {
        let now: Monotonic = self.clock.monotonic();
        let PingStatus { cluster, epoch, .. } = self.edge.follower.ping_status();
        let running = running(now);
        let status = PongStatus { cluster, epoch, running, ..PongStatus::default() };
        let decision_clock = self.clock_sync.decision_clock();
        Reply::Pong { clock: self.clock.system(), decision_clock, status }
    }
}
