//! A node without its doors: everything between a request and its verdict, and the way to peers.
//!
//! It takes the outside through a [`Environment`], so that the same core runs in a process, in a test, and
//! in a simulator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_cluster::environment::Environment;
use tidegate_cluster::gossip::{self, Gossip, NodeMetadata};
use tidegate_cluster::incarnation::Incarnation;
use tidegate_cluster::mesh::{self, Mesh};
use tidegate_cluster::ownership::{Driver, Ownership, driver};
use tidegate_cluster::pki::Identity;
use tidegate_cluster::replicate::{self, Replicator};
use tidegate_cluster::sync::{self, Synchroniser};
use tidegate_limiter::store::{KeyHasher, Store};
use tidegate_ownership::VoterSet;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{Member, MemberState, View};
use tidegate_ownership::route::Topology;
use tidegate_rules::book::{Book, Rule};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::clock_sync::ClockSync;
use super::durable::{self, Durable, Given};
use super::join::{until_joined, until_settled};
use super::service::{PeerCounters, PeerService};
use super::skew::Skew;
use crate::config::Config;
use crate::decide::{Decider, Parts, Remote};
use crate::storage::SnapshotTask;

/// What a core is made from.
#[derive(Debug)]
pub struct Setup {
    /// The validated configuration.
    pub config: Config,
    /// This node's id.
    pub node: NodeId,
    /// What it proves itself with; `None` for a node that stands alone.
    pub identity: Option<Identity>,
    /// The rules, swapped by whoever loads them.
    pub book: Arc<ArcSwap<Book>>,
    /// Where its HTTP door listens, for people.
    pub http: Option<SocketAddr>,
}

/// A node without its doors.
pub struct Core {
    /// The one path to a verdict.
    pub decider: Decider,
    /// The rings in force.
    pub topology: Arc<ArcSwap<Topology>>,
    /// The way to peers; `None` for a node that stands alone.
    pub joined: Option<Joined>,
    /// Writes counts of long windows to disk; `None` without `storage.path`.
    pub(super) snapshot_task: Option<SnapshotTask>,
    /// Holds the decision clock against the peers'.
    pub(super) time: Arc<ClockSync>,
    environment: Environment,
}

/// What [`Core::run`] takes, once.
pub struct Tasks(Option<mesh::Tasks>);

/// The way to peers.
#[derive(Clone)]
pub struct Joined {
    /// Carries calls.
    pub mesh: Mesh,
    /// Knows the members.
    pub gossip: Gossip,
    /// Synchronises eventual keys.
    pub synchroniser: Synchroniser,
    /// Keeps what this node owns.
    pub ownership_driver: Driver,
    /// Keeps copies of strict keys.
    pub replicator: Replicator,
    /// Cancelled when this node knows its fellow members and begins to own keys.
    pub is_member: CancellationToken,
    /// What peers sent that was not taken.
    pub(super) refused: Arc<PeerCounters>,
    /// How often this node gossips.
    pub(super) gossip_interval: Duration,
    /// Whether there is somebody to join; otherwise this is the first node of its cluster.
    pub(super) has_seeds: bool,
}

/// The core could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mesh could not start.
    #[error(transparent)]
    Mesh(#[from] mesh::Error),
    /// The system has no randomness to give.
    #[error("read random bytes: {0}")]
    Entropy(std::io::Error),
}

/// A task of the node ended that must not.
#[derive(Debug, thiserror::Error)]
#[error("a task of the node failed, so the node ends: {0}")]
pub struct Failed(String);

impl Failed {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// How long a leaving node tries to hand over what it owns. Then it goes all the same, and its keys
/// go on with what was replicated.
const LEAVE_PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks whether it has.
const LEAVE_POLL: Duration = Duration::from_millis(10);
/// How often some shards are swept in the background, and in how many steps all are. With the slots
/// that a step looks at, all memory of counters that nobody asks is back within ten seconds.
const TEND_INTERVAL: Duration = Duration::from_millis(20);
const TEND_STEPS: usize = 50;

impl Core {
    /// Builds a node, with the counts that it has on disk. Nothing is sent or accepted until
    /// [`Core::run`].
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
        let own = own_view(&incarnation, &config);
        let alone = Topology::new(node, region.clone(), own, vnodes);
        let topology = Arc::new(ArcSwap::from_pointee(alone));
        // Alone, all is its own; in a cluster nothing is, until the others have said so.
        let ownership = match config.cluster.listen {
            Some(_) => Ownership::new(),
            None => Ownership::alone(),
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
                let gossip = Gossip::new(
                    gossip::Options {
                        cluster: config.cluster.name.clone(),
                        seeds: config.cluster.seeds.clone(),
                        interval,
                    },
                    incarnation.clone(),
                    mesh.clone(),
                    environment.net.clone(),
                    NodeMetadata {
                        region: region.clone(),
                        zone: config.node.zone.clone(),
                        state: MemberState::Up,
                        rule_book: book.load().fingerprint(),
                        http,
                        voter_set: VoterSet::default(),
                    },
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
                    replicate::Options {
                        interval: cluster.replication_interval.to_std(),
                        replicas: usize::try_from(cluster.replicas).unwrap_or(usize::MAX),
                    },
                    store.clone(),
                    topology.clone(),
                    environment.clock.clone(),
                    mesh.clone(),
                );
                let refused = Arc::default();
                let own = mesh.advertise().to_string();
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
        let remote = joined.as_ref().map(|joined: &Joined| Remote {
            mesh: joined.mesh.clone(),
            synchroniser: joined.synchroniser.clone(),
            replicator: joined.replicator.clone(),
            deadline: config.cluster.deadline.to_std(),
            global_deadline: config.cluster.global_deadline.to_std(),
        });
        let clock = environment.clock.clone();
        let time = Arc::new(ClockSync::new(clock.clone(), config.cluster.max_skew));
        let parts = Parts {
            incarnation,
            hasher,
            store,
            book,
            clients: Arc::new(Rule::of_clients(
                config.resp.mode.unwrap_or(config.defaults.mode),
                config.defaults.on_unavailable,
            )),
            topology: topology.clone(),
            ownership,
            clock,
            envoy: config.envoy.clone(),
            tallies: Arc::default(),
            remote,
        };
        let core = Self {
            decider: Decider::new(parts),
            topology,
            joined,
            snapshot_task,
            time,
            environment,
        };
        Ok((Arc::new(core), Tasks(tasks)))
    }

    /// Runs the node until `stop`, then tells peers what they do not know yet and closes the mesh.
    ///
    /// None of its tasks ends before `stop`; one that does has failed, and a node that goes on
    /// without it would be wrong in silence: the error is the caller's to end the node with.
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
                Ok(()) => return Err(Failed::new("it ended")),
                Err(error) => return Err(Failed::new(error.to_string())),
            }
        }
        Ok(())
    }

    /// Tells peers that this node leaves and hands over to them what it owns, counts and all: from
    /// then on they decide its keys, and it asks them.
    ///
    /// What it could not hand over it goes on to decide; the last node of a region keeps all.
    pub async fn leave(&self) {
        let Some(joined) = &self.joined else { return };
        joined.gossip.tell(|node_metadata| node_metadata.state = MemberState::Draining);
        // What the others do not know they cannot take: first the view, then the handover.
        joined.ownership_driver.hear(&joined.gossip.views().borrow());
        let handed_over = async {
            while !joined.ownership_driver.has_given_all() {
                tokio::time::sleep(LEAVE_POLL).await;
            }
        };
        if tokio::time::timeout(LEAVE_PATIENCE, handed_over).await.is_err() {
            tracing::warn!("not everything was handed over in time");
        }
    }

    /// How far this node's clock is from the members' median.
    pub fn skew(&self) -> Skew {
        self.time.skew()
    }

    /// Ends when another node turns out to run under this node's id; never otherwise.
    pub async fn displaced(&self) {
        self.decider.parts().incarnation.displaced().await;
    }

    /// Each loop is a task of its own, so that the end of any is noticed.
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
        let (tenure_mesh, tenure_stop) = (mesh.clone(), stop.clone());
        let copies = replicator.clone();
        running.spawn(async move { ownership_driver.run(tenure_mesh, copies, tenure_stop).await });
        // The last rounds of columns and states need the mesh, so the mesh stops after them.
        let told = CancellationToken::new();
        let (counts_mesh, stop, counts_told) = (mesh.clone(), stop.clone(), told.clone());
        running.spawn(async move {
            let actor_counters = synchroniser.run(counts_mesh, stop.clone());
            tokio::join!(actor_counters, replicator.run(stop));
            counts_told.cancel();
        });
        let gossip_told = told.clone();
        running.spawn(async move { gossip.run(gossip_told).await });
        running.spawn(async move { mesh.run(tasks, service, told).await });
    }

    /// Owns keys from the moment on that this node knows its fellow members and their time.
    async fn join(self: Arc<Self>, joined: Joined, stop: CancellationToken) {
        tokio::select! {
            () = until_joined(&joined, &self.time) => {
                // Before the first decision, not behind it.
                self.time.put_in_use();
                joined.ownership_driver.open();
                until_settled(&joined).await;
                joined.is_member.cancel();
            }
            () = stop.cancelled() => return,
        }
        stop.cancelled().await;
    }

    /// Returns the memory of counters that nobody asks any more.
    async fn expire(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(TEND_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let store = &self.decider.parts().store;
            store.expire(store.shards().div_ceil(TEND_STEPS), self.environment.clock.now());
        }
    }
}

/// Lets ownership follow gossip, and gossip tell who counts.
async fn follow_gossip(joined: Joined, stop: CancellationToken) {
    let mut views = joined.gossip.views();
    let mut voter_set = joined.ownership_driver.voter_set();
    loop {
        let view = views.borrow_and_update().clone();
        joined.ownership_driver.hear(&view);
        let told = voter_set.borrow_and_update().clone();
        joined.gossip.tell(|node_metadata| node_metadata.voter_set = told);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = views.changed() => if changed.is_err() { return },
            changed = voter_set.changed() => if changed.is_err() { return },
        }
    }
}

/// The view of a node that has not heard of others yet: itself.
fn own_view(incarnation: &Incarnation, config: &Config) -> View {
    View::new([Member {
        id: incarnation.node().clone(),
        generation: incarnation.generation(),
        addr: SocketAddr::from(([0, 0, 0, 0], 0)),
        region: config.node.region.clone(),
        zone: config.node.zone.clone(),
        state: MemberState::Up,
        rule_book: 0,
        http: None,
        voter_set: VoterSet::default(),
    }])
}

/// Nobody shares the secret of a node that stands alone.
fn fresh_secret(environment: &Environment) -> Result<[u8; 16], Error> {
    let mut secret = [0; 16];
    environment.entropy.fill(&mut secret).map_err(Error::Entropy)?;
    Ok(secret)
}
