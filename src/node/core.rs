//! A node without its listeners: everything between a request and its verdict, and the connection
//! to peers.
//!
//! Time, randomness and sockets come from an [`Environment`], so that the same core runs in a
//! process, in a test and in the simulator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_cluster::environment::{Clock, Environment};
use tidegate_cluster::gossip::{self, Gossip};
use tidegate_cluster::incarnation::Incarnation;
use tidegate_cluster::mesh::{self, Mesh};
use tidegate_cluster::ownership::{Driver, Ownership, driver};
use tidegate_cluster::pki::Identity;
use tidegate_cluster::replication::{self, Replicator};
use tidegate_cluster::sync::{self, Synchroniser};
use tidegate_limiter::store::{KeyHasher, Store};
use tidegate_ownership::VoterSet;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{Member, MemberState, View};
use tidegate_ownership::route::Topology;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::tally::Tallies;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::clock_sync::ClockSync;
use super::durable::{self, Durable, Given};
use super::join::{until_joined, until_settled};
use super::joined::Joined;
use super::service::PeerService;
use super::skew::Skew;
use crate::config::Config;
use crate::decide::{self, Decider, LocalNode};
use crate::storage::SnapshotTask;

/// What a core is built from.
#[derive(Debug)]
pub struct Setup {
    /// The validated configuration.
    pub config: Config,
    /// This node's id.
    pub node: NodeId,
    /// Its certificate and keys; `None` for a standalone node.
    pub identity: Option<Identity>,
    /// The rules; replaced on a reload.
    pub book: Arc<ArcSwap<Book>>,
    /// Address of the HTTP listener, for display.
    pub http: Option<SocketAddr>,
}

/// A node without its listeners.
pub struct Core {
    /// The one path to a verdict.
    pub decider: Decider,
    pub incarnation: Arc<Incarnation>,
    pub hasher: KeyHasher,
    pub store: Arc<Store>,
    /// The rules in force.
    pub book: Arc<ArcSwap<Book>>,
    /// Statistics by rule.
    pub tallies: Arc<Tallies>,
    pub ownership: Ownership,
    /// The clock of decisions.
    pub clock: Arc<dyn Clock>,
    /// The rings in force.
    pub topology: Arc<ArcSwap<Topology>>,
    /// The connection to peers; `None` for a standalone node.
    pub joined: Option<Joined>,
    /// Writes counts of long windows to disk; `None` without `storage.path`.
    pub(super) snapshot_task: Option<SnapshotTask>,
    /// Compares the decision clock with those of the peers.
    pub(super) time: Arc<ClockSync>,
    environment: Environment,
}

/// Consumed by [`Core::run`].
pub struct Tasks(Option<mesh::Tasks>);

/// The core could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Mesh(#[from] mesh::Error),
    #[error("failed to read random bytes: {0}")]
    Entropy(std::io::Error),
}

/// A task ended that must run until shutdown.
#[derive(Debug, thiserror::Error)]
#[error("a task of the node failed, so the node stops: {0}")]
pub struct Failed(String);

impl Failed {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// How long a draining node tries to hand over its ranges. After that it stops anyway, and its keys
/// continue with the replicated counts.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
const LEAVE_POLL: Duration = Duration::from_millis(10);
/// Interval of background expiry, and the number of intervals in which every shard is visited. All
/// memory of expired counters is returned within ten seconds.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(20);
const EXPIRE_STEPS: usize = 50;

impl Core {
    /// Builds a node and loads its counts from disk. Nothing is sent or accepted until
    /// [`Core::run`].
    ///
    /// # Errors
    ///
    /// The mesh could not bind its socket, or the system has no randomness.
    pub async fn build(
        setup: Setup,
        environment: Environment,
    ) -> Result<(Arc<Self>, Tasks), Error> {
        let Setup { config, node, identity, book, http } = setup;
        let incarnation = Arc::new(Incarnation::new(node.clone(), environment.clock.system()));
        let store = Arc::new(Store::new(config.limits.store()));
        let given = match &identity {
            Some(identity) => Given::Shared(identity.secret),
            None => Given::Fresh(fresh_secret(&environment)?),
        };
        let Durable { snapshot_task, secret } =
            durable::start(&config, given, &store, &environment).await;
        let hasher = KeyHasher::new(secret);
        let region = config.node.region.clone();
        let vnodes = config.cluster.vnodes;
        let own = own_member(&incarnation, &config);
        let alone = Topology::new(node, region.clone(), View::new([own.clone()]), vnodes);
        let topology = Arc::new(ArcSwap::from_pointee(alone));
        // A standalone node owns everything; a cluster node nothing, until a majority grants a
        // lease.
        let ownership = match config.cluster.listen {
            Some(_) => Ownership::new(),
            None => Ownership::standalone(),
        };

        let joined = match (identity, config.cluster.listen) {
            (Some(identity), Some(listen)) => {
                let options = mesh::Options {
                    cluster: config.cluster.name.clone(),
                    incarnation: incarnation.clone(),
                    region: region.clone(),
                    listen,
                    advertise: config.cluster.advertise,
                    secret: hasher.fingerprint(),
                };
                let (mesh, tasks) = Mesh::bind(options, &identity, &environment).await?;
                let interval = config.cluster.gossip_interval.to_std();
                let rule_book = book.load().fingerprint();
                let gossip = Gossip::new(
                    gossip::Options {
                        cluster: config.cluster.name.clone(),
                        seeds: config.cluster.seeds.clone(),
                        interval,
                    },
                    incarnation.clone(),
                    mesh.clone(),
                    environment.net.clone(),
                    Member { addr: mesh.advertise, rule_book, http, ..own },
                );
                let synchroniser = Synchroniser::new(
                    sync::Options {
                        interval: config.cluster.sync_interval.to_std(),
                        region_interval: config.cluster.region_sync_interval.to_std(),
                    },
                    store.clone(),
                    topology.clone(),
                    incarnation.clone(),
                    environment.clock.clone(),
                );
                let ownership_driver = Driver::new(
                    driver::Options {
                        region: region.clone(),
                        vnodes,
                        lease: config.cluster.lease,
                        quorum: config.cluster.quorum,
                        forget_after: config.cluster.forget_after,
                    },
                    incarnation.clone(),
                    ownership.clone(),
                    topology.clone(),
                    store.clone(),
                    environment.clock.clone(),
                );
                let cluster = &config.cluster;
                let replicator = Replicator::new(
                    replication::Options {
                        interval: cluster.replication_interval.to_std(),
                        replicas: usize::try_from(cluster.replicas).unwrap_or(usize::MAX),
                    },
                    store.clone(),
                    topology.clone(),
                    environment.clock.clone(),
                    mesh.clone(),
                );
                let refused = Arc::default();
                let own = mesh.advertise.to_string();
                let has_seeds = config.cluster.seeds.iter().any(|seed| *seed != own);
                let joined = Joined {
                    mesh,
                    gossip,
                    synchroniser,
                    ownership_driver,
                    replicator,
                    is_member: CancellationToken::new(),
                    refused,
                    gossip_interval: interval,
                    has_seeds,
                };
                Some((joined, tasks))
            }
            _ => None,
        };
        let (joined, tasks) = joined.unzip();
        let peers = joined.as_ref().map(|joined: &Joined| decide::Peers {
            mesh: joined.mesh.clone(),
            synchroniser: joined.synchroniser.clone(),
            replicator: joined.replicator.clone(),
        });
        let clock = environment.clock.clone();
        let time = Arc::new(ClockSync::new(clock.clone(), config.cluster.max_skew));
        let throttle_rule = Rule::of_clients(
            config.resp.mode.unwrap_or(config.defaults.mode),
            config.defaults.on_unavailable,
        );
        let options = decide::Options {
            envoy: config.envoy.clone(),
            throttle_rule: Arc::new(throttle_rule),
            deadline: config.cluster.deadline.to_std(),
            global_deadline: config.cluster.global_deadline.to_std(),
        };
        let local = LocalNode {
            incarnation: incarnation.clone(),
            hasher: hasher.clone(),
            store: store.clone(),
            topology: topology.clone(),
            ownership: ownership.clone(),
            clock: clock.clone(),
        };
        let tallies = Arc::<Tallies>::default();
        let rules = decide::Rules { book: book.clone(), tallies: tallies.clone() };
        let core = Self {
            decider: Decider::new(options, local, rules, peers),
            incarnation,
            hasher,
            store,
            book,
            tallies,
            ownership,
            clock,
            topology,
            joined,
            snapshot_task,
            time,
            environment,
        };
        Ok((Arc::new(core), Tasks(tasks)))
    }

    /// Runs the node until `stop`, then sends the remaining counters to peers and closes the mesh.
    ///
    /// # Errors
    ///
    /// A task ended before `stop`. The caller must stop the node: without that task its answers
    /// would be wrong without notice.
    pub async fn run(self: Arc<Self>, tasks: Tasks, stop: CancellationToken) -> Result<(), Failed> {
        let mut running = JoinSet::new();
        running.spawn(self.clone().expire(stop.clone()));
        if let Some(snapshot_task) = self.snapshot_task.clone() {
            running.spawn(snapshot_task.run(stop.clone()));
        }
        if let (Some(joined), Tasks(Some(tasks))) = (self.joined.clone(), tasks) {
            running.spawn(follow_gossip(joined.clone(), stop.clone()));
            running.spawn(self.clone().join(joined.clone(), stop.clone()));
            running.spawn(self.time.clone().run(joined.mesh.clone(), stop.clone()));
            self.clone().spawn_joined(joined, tasks, &stop, &mut running);
        }
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(()) if stop.is_cancelled() => {}
                Ok(()) => return Err(Failed::new("a task ended unexpectedly")),
                Err(error) => return Err(Failed::new(error.to_string())),
            }
        }
        Ok(())
    }

    /// Announces that this node is draining and hands its ranges with their counts to peers. From
    /// then on they decide its keys, and this node forwards to them.
    ///
    /// Ranges that could not be handed over stay here; the last node of a region keeps all.
    pub async fn leave(&self) {
        let Some(joined) = &self.joined else { return };
        joined.gossip.publish(|own| own.state = MemberState::Draining);
        // Peers only accept ranges of a node that they know to be draining: first the view, then
        // the handoff.
        joined.ownership_driver.view_changed(&joined.gossip.views().borrow());
        let handed_over = async {
            while !joined.ownership_driver.has_transferred_all() {
                tokio::time::sleep(LEAVE_POLL).await;
            }
        };
        if tokio::time::timeout(LEAVE_TIMEOUT, handed_over).await.is_err() {
            tracing::warn!(
                "not all ranges were handed over before the timeout; replicas take them over"
            );
        }
    }

    /// How far this node's clock is from the members' median.
    pub fn skew(&self) -> Skew {
        self.time.skew()
    }

    /// Completes when another node is found to use this node's id; otherwise never.
    pub async fn displaced(&self) {
        self.incarnation.duplicate_id().await;
    }

    /// Each loop is a task of its own, so that the end of any one is noticed.
    fn spawn_joined(
        self: Arc<Self>,
        joined: Joined,
        tasks: mesh::Tasks,
        stop: &CancellationToken,
        running: &mut JoinSet<()>,
    ) {
        let Joined { mesh, gossip, synchroniser, ownership_driver, replicator, refused, .. } =
            joined;
        let service = Arc::new(PeerService {
            decider: self.decider.clone(),
            synchroniser: synchroniser.clone(),
            replicator: replicator.clone(),
            gossip: gossip.clone(),
            ownership_driver: ownership_driver.clone(),
            clock: self.environment.clock.clone(),
            counters: refused,
        });
        let (driver_mesh, driver_stop) = (mesh.clone(), stop.clone());
        let copies = replicator.clone();
        running.spawn(async move { ownership_driver.run(driver_mesh, copies, driver_stop).await });
        // The last rounds of synchronisation and replication need the mesh, so the mesh stops after
        // them.
        let sent = CancellationToken::new();
        let (counts_mesh, stop, counts_sent) = (mesh.clone(), stop.clone(), sent.clone());
        running.spawn(async move {
            let actor_counters = synchroniser.run(counts_mesh, stop.clone());
            tokio::join!(actor_counters, replicator.run(stop));
            counts_sent.cancel();
        });
        let gossip_stop = sent.clone();
        running.spawn(async move { gossip.run(gossip_stop).await });
        running.spawn(async move { mesh.run(tasks, service, sent).await });
    }

    /// Lets this node own keys once it knows the members and their clocks.
    async fn join(self: Arc<Self>, joined: Joined, stop: CancellationToken) {
        tokio::select! {
            () = until_joined(&joined, &self.time) => {
                // Must precede the first decision.
                self.time.put_in_use();
                joined.ownership_driver.activate();
                until_settled(&joined).await;
                joined.is_member.cancel();
            }
            () = stop.cancelled() => return,
        }
        stop.cancelled().await;
    }

    /// Returns the memory of expired counters.
    async fn expire(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EXPIRE_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let store = &self.store;
            store.expire(store.shards().div_ceil(EXPIRE_STEPS), self.environment.clock.now());
        }
    }
}

/// Passes views from gossip to ownership, and the voter set from ownership to gossip.
async fn follow_gossip(joined: Joined, stop: CancellationToken) {
    let mut views = joined.gossip.views();
    let mut voter_set = joined.ownership_driver.voter_set();
    loop {
        let view = views.borrow_and_update().clone();
        joined.ownership_driver.view_changed(&view);
        let current = voter_set.borrow_and_update().clone();
        joined.gossip.publish(|own| own.voter_set = current);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = views.changed() => if changed.is_err() { return },
            changed = voter_set.changed() => if changed.is_err() { return },
        }
    }
}

/// This node as a member, before it has an address.
fn own_member(incarnation: &Incarnation, config: &Config) -> Member {
    Member {
        id: incarnation.node().clone(),
        generation: incarnation.generation(),
        addr: SocketAddr::from(([0, 0, 0, 0], 0)),
        region: config.node.region.clone(),
        zone: config.node.zone.clone(),
        state: MemberState::Up,
        rule_book: 0,
        http: None,
        voter_set: VoterSet::default(),
    }
}

/// A standalone node shares its secret with no other.
fn fresh_secret(environment: &Environment) -> Result<[u8; 16], Error> {
    let mut secret = [0; 16];
    environment.entropy.fill(&mut secret).map_err(Error::Entropy)?;
    Ok(secret)
}
