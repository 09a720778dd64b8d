//! A node without its listeners: everything between a request and its verdict, and the connection
//! to peers.
//!
//! Time, randomness and sockets come from an [`Environment`], so that the same core runs in a
//! process, in a test and in the simulator.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_cluster::consensus::{self, Founders, Saved, founding};
use tidegate_cluster::edge::{Publisher, Sources};
use tidegate_cluster::environment::{Clock, Environment};
use tidegate_cluster::global::{self, Global};
use tidegate_cluster::gossip::{self, Gossip};
use tidegate_cluster::incarnation::Incarnation;
use tidegate_cluster::interventions::Interventions;
use tidegate_cluster::membership::{self, Membership};
use tidegate_cluster::mesh::wire::{Group, SharedSettings};
use tidegate_cluster::mesh::{self, Mesh, PING_INTERVAL};
use tidegate_cluster::ownership::{Driver, Ownership, driver};
use tidegate_cluster::pki::{Identity, Role};
use tidegate_cluster::replication::{self, Replicator, SettledMap};
use tidegate_cluster::revocations;
use tidegate_cluster::sync::{self, Synchroniser};
use tidegate_limiter::engine::AHEAD_MAX;
use tidegate_limiter::policy;
use tidegate_limiter::store::{KeyHasher, Store};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::autopilot::{HomeRules, Settings};
use tidegate_ownership::cluster_map::{self, ClusterMap, HomeRegions, MapMember, MapState};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{Member, MemberState, UNKNOWN_RULES, View};
use tidegate_ownership::route::Topology;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::tally::Tallies;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::clock_sync::ClockSync;
use super::durable;
use super::edge::Edge;
use super::error::Failed;
use super::handover::{self, GivenUp, Left, Limits};
use super::join::{
    Joined, until_agreed, until_joined, until_member, until_region_lease, until_settled,
};
use super::own_report::OwnReport;
use super::seen_elsewhere::SeenElsewhere;
use super::service::PeerService;
use super::skew::Skew;
use crate::config::{self, Config, Failover, UserError, VotersFrom};
use crate::decide::{self, BlockedSources, Decider, LocalNode};
use crate::enrolment::Issuer;
use crate::storage::SnapshotTask;
use crate::traces::Traces;

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
    /// To which its requests belong.
    pub traces: Traces,
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
    /// Sources that ask for many times their limits; `None` where they are not watched.
    pub blocked_sources: Option<Arc<BlockedSources>>,
    pub ownership: Ownership,
    /// The clock of decisions.
    pub clock: Arc<dyn Clock>,
    /// The rings in force.
    pub topology: Arc<ArcSwap<Topology>>,
    /// The connection to peers; `None` for a standalone node and for an edge.
    pub joined: Option<Joined>,
    /// The connection to cores, of an edge.
    pub edge: Option<Edge>,
    /// Writes counts of long windows to disk; `None` without `node.data_dir`.
    pub(super) snapshot_task: Option<SnapshotTask>,
    /// Compares the decision clock with those of the peers.
    time: Arc<ClockSync>,
    /// `cluster.handover_timeout`.
    handover_timeout: Duration,
    /// What peers show of this node.
    pub(super) own_report: Arc<OwnReport>,
    /// Signs certificates; `None` without `join.signer_cert`.
    pub issuer: Option<Arc<Issuer>>,
    /// For orders that are to reach all nodes.
    pub(super) seen_elsewhere: SeenElsewhere,
}

/// How long a drained voter waits until others are a majority without it. A member has to be there
/// for five seconds before it votes.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(10);
/// The age of complaints that count: three pings, and half of one.
const COMPLAINT_AGE_MAX: Span = Span::from_millis(350);
const _: () = assert!(PING_INTERVAL.as_millis() == 100);
/// How often this node's own autopilot gets what it observes.
const OBSERVE_INTERVAL: Duration = Duration::from_millis(50);
/// How long a drained node waits until it is removed from the map; otherwise the voters evict it.
/// If it leads them, an election comes first, which takes up to a second on a busy machine.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a draining node goes on without handing a range over or copying a count. After that it
/// stops anyway, and its keys continue with the replicated counts.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(10);
/// How often a node looks whether it has its lease, and how often in a row it has none before it
/// says so: a second.
const LEASE_LOOK_INTERVAL: Duration = Duration::from_millis(100);
const LOOKS_WITHOUT_LEASE: u32 = 10;
/// Interval of background expiry, and the number of intervals in which every shard is visited. All
/// memory of expired counters is returned within ten seconds.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(100);
const EXPIRE_STEPS: usize = 10;
/// Advice when the core cannot start.
const FIX: &str = "check the files of [tls] in cluster.toml and the system's randomness";

impl Core {
    /// Builds a node and loads its counts from disk. Nothing is sent or accepted until
    /// [`Core::run`], which takes the tasks.
    ///
    /// # Errors
    ///
    /// The mesh could not bind its socket, or the system has no randomness.
    pub async fn build(
        setup: Setup,
        environment: Environment,
    ) -> Result<(Arc<Self>, Option<mesh::Tasks>), UserError> {
        let Setup { config, node, identity, book, http, traces } = setup;
        let clock = environment.clock.clone();
        let incarnation = Arc::new(Incarnation::new(node.clone(), clock.system()));
        let store = Arc::new(config.limits.new_store());
        let secret = match &identity {
            Some(identity) => Ok(identity.secret),
            None => fresh_secret(&environment),
        };
        let durable::Started { snapshot_task, secret, counted_until } =
            durable::start(&config, secret?, identity.is_some(), &store, &clock).await;
        let own = own_member(&incarnation, &config);
        let view = View::new([own.clone()]);
        let alone = Topology::new(node, config.node.region.clone(), view, config.cluster.vnodes);
        let local = LocalNode {
            incarnation: incarnation.clone(),
            hasher: config.limits.new_hasher(secret),
            store: store.clone(),
            topology: Arc::new(ArcSwap::from_pointee(alone)),
            // A standalone node owns everything; a cluster node nothing, until a majority grants a
            // lease.
            ownership: match config.cluster.listen {
                Some(_) => Ownership::new(clock.clone()),
                None => Ownership::standalone(clock.clone()),
            },
            clock: clock.clone(),
            interventions: Arc::new(Interventions::new(clock.clone())),
        };
        let is_edge = identity.as_ref().is_some_and(|identity| identity.role == Role::Edge);
        let (joined, edge, tasks) = match (identity, config.cluster.listen) {
            (Some(identity), Some(listen)) => {
                let saved = saved(&local.incarnation, &environment).await?;
                let options = mesh::Options {
                    cluster: config.cluster.name.clone(),
                    incarnation: incarnation.clone(),
                    birth: saved.birth,
                    region: config.node.region.clone(),
                    listen,
                    advertise: config.cluster.advertise,
                    secret: local.hasher.fingerprint(),
                    names_domains: config.limits.names_domains(),
                    shared: SharedSettings {
                        vnodes: config.cluster.vnodes,
                        lease: config.cluster.lease,
                        global_lease: config.global.lease,
                    },
                };
                let bound = Mesh::bind(options, &identity, &environment).await;
                let (mesh, tasks) = bound.map_err(mesh_error)?;
                if is_edge {
                    let synchroniser = synchroniser(&config, &local);
                    let (birth, environment) = (saved.birth, &environment);
                    let edge = Edge::new(&config, &local, mesh, birth, synchroniser, environment);
                    (None, Some(edge), Some(tasks))
                } else {
                    let global = saved_global(&config, &saved, &environment).await?;
                    let rule_book = book.load().fingerprint();
                    let own = Member { addr: mesh.advertise, rule_book, http, ..own };
                    let records = (saved, global);
                    let joined = connect(&config, &local, mesh, records, &environment, own)?;
                    (Some(joined), None, Some(tasks))
                }
            }
            _ => (None, None, None),
        };
        if joined.is_none() && edge.is_none() {
            fold_alone(&store, &incarnation, clock.now());
        }
        let mesh = joined.as_ref().map(|joined| &joined.mesh);
        let issuer = match mesh.or_else(|| edge.as_ref().map(|edge| &edge.mesh)) {
            Some(mesh) => {
                let entropy = environment.entropy.clone();
                Issuer::of(&config.join, mesh, &environment.clock, entropy)?
            }
            None => None,
        };
        let of_core = joined.as_ref().map(|joined: &Joined| decide::Peers {
            mesh: joined.mesh.clone(),
            synchroniser: joined.synchroniser.clone(),
            replicator: joined.replicator.clone(),
        });
        let of_edge = edge.as_ref().map(|edge| decide::Peers {
            mesh: edge.mesh.clone(),
            synchroniser: edge.synchroniser.clone(),
            // It does not run: an edge has nothing to copy, and nothing is confirmed here.
            replicator: replicator(&config, &local, edge.mesh.clone()),
        });
        let peers = of_core.or(of_edge);
        let throttle_rule = Rule::of_clients(
            config.resp.mode.unwrap_or(config.defaults.mode),
            config.defaults.on_unavailable,
        );
        let carried_rule = |id: &str, mode| {
            let config::Gubernator { on_unavailable, durability, .. } = config.gubernator;
            let on_unavailable = on_unavailable.unwrap_or(config.defaults.on_unavailable);
            let rule = Rule::of_clients(mode, on_unavailable);
            Arc::new(Rule { id: id.into(), durability, ..rule })
        };
        let carried_rules = decide::CarriedRules {
            // No rule of a file has such an id: they begin with a domain and a dot.
            strict: carried_rule("gubernator", policy::Mode::Strict),
            leased: carried_rule("gubernator-global", policy::Mode::Leased),
        };
        let blocked_sources = BlockedSources::of(&config.blocked_sources, &config.auth);
        let blocked_sources = blocked_sources.map(Arc::new);
        let options = decide::Options {
            envoy: config.envoy.clone(),
            on_unavailable: config.defaults.on_unavailable,
            throttle_rule: Arc::new(throttle_rule),
            carried_rules,
            deadline: config.cluster.deadline.to_std(),
            global_deadline: config.cluster.global_deadline.to_std(),
            blocked_sources: blocked_sources.clone(),
            shows_keys: config.admin.show_keys,
            traces,
        };
        let tallies = Arc::<Tallies>::default();
        let rules = decide::Rules { book: book.clone(), tallies: tallies.clone() };
        if joined.is_some() {
            store.keep_owned();
        }
        let config::Cluster { max_skew, forget_after, .. } = config.cluster;
        let time =
            ClockSync::new(clock.clone(), max_skew, forget_after, counted_until, store.clone());
        let core = Self {
            time: Arc::new(time),
            incarnation,
            hasher: local.hasher.clone(),
            store,
            book,
            tallies,
            blocked_sources,
            ownership: local.ownership.clone(),
            topology: local.topology.clone(),
            joined,
            edge,
            snapshot_task,
            clock,
            handover_timeout: config.cluster.handover_timeout.to_std(),
            own_report: Arc::default(),
            seen_elsewhere: SeenElsewhere::new(forget_after),
            issuer: issuer.map(Arc::new),
            decider: Decider::new(options, local, rules, peers),
        };
        Ok((Arc::new(core), tasks))
    }

    /// Runs the node until `stop`, then sends the remaining counters to peers and closes the mesh.
    ///
    /// # Errors
    ///
    /// A task ended before `stop`. The caller must stop the node: without that task its answers
    /// would be wrong without notice.
    pub async fn run(
        self: Arc<Self>,
        tasks: Option<mesh::Tasks>,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        let mut running = JoinSet::new();
        let expires = expire(self.store.clone(), self.clock.clone(), stop.clone());
        running.spawn(self.once_in_use(true, stop.clone(), expires));
        if let Some(snapshot_task) = self.snapshot_task.clone() {
            let decider = self.decider.clone();
            let last = async move { decider.take_unconfirmed_back().await };
            let writes = snapshot_task.run(stop.clone(), last);
            // What a node that is no member counts may be of the future: a later start would go on
            // from there.
            running.spawn(self.once_in_use(false, stop.clone(), writes));
        }
        match (&self.joined, &self.edge, tasks) {
            (Some(joined), _, Some(tasks)) => {
                self.spawn_joined(joined.clone(), tasks, &stop, &mut running);
            }
            (None, Some(edge), Some(tasks)) => {
                let parts = (&self.decider, &self.clock, self.issuer.as_ref());
                edge.spawn(parts, &self.time, tasks, &stop, &mut running);
            }
            _ => {}
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

    /// Announces that this node is draining and hands its ranges with their counts to peers, after
    /// other members that drain have done so. From then on they decide its keys, and this node
    /// forwards to them.
    ///
    /// Ends when all is handed over, after `cluster.handover_timeout`, or after ten seconds without
    /// progress. Ranges that could not be handed over stay here; the last node of a region keeps
    /// all.
    ///
    /// # Errors
    ///
    /// Why not everything was handed over.
    pub async fn leave(&self) -> Result<Left, GivenUp> {
        self.leave_with(HANDOVER_PATIENCE).await
    }

    /// Like [`Core::leave`], with another time without progress.
    ///
    /// # Errors
    ///
    /// Why not everything was handed over.
    pub async fn leave_with(&self, patience: Duration) -> Result<Left, GivenUp> {
        self.decider.give_all_back().await;
        let Some(joined) = &self.joined else { return Ok(Left::Majority) };
        let was_member = joined.is_member.is_cancelled();
        let decided = self.ownership.owned_ranges().decides.clone();
        joined.membership.leave(false);
        if let Some(global) = &joined.global {
            global.membership.leave(true);
        }
        let limits = Limits { patience, timeout: self.handover_timeout };
        let driver = &joined.ownership_driver;
        let given_up = || driver.counters.given_up.load(Ordering::Relaxed);
        let given_up_before = given_up();
        // Until it is this node's turn it owns what it owned, for other regions too.
        let announce = || joined.gossip.publish(|own| own.state = MemberState::Draining);
        let handed_over =
            handover::until_complete(driver, &self.store, &decided, limits, announce).await;
        announce();
        let mut left = Left::Majority;
        if handed_over.is_ok() {
            left = until_others_vote(joined).await;
            joined.membership.leave(true);
            let mut maps = joined.membership.maps();
            // The last member of a region stays in its map.
            let removed =
                maps.wait_for(|map| !joined.membership.is_in(map) || map.present().count() == 1);
            let _ = tokio::time::timeout(REMOVAL_TIMEOUT, removed).await;
        }
        let me = joined.membership.identity();
        if was_member && staying(&joined.membership.maps().borrow(), me).next().is_none() {
            tracing::info!(
                "no other node of the region is up to take this one's keys: their counts come back \
                 with it, if it has a disk (node.data_dir)"
            );
        }
        let is_refused = given_up() > given_up_before;
        let handed_over = handed_over.and(if is_refused { Err(GivenUp::Refused) } else { Ok(()) });
        if let Err(given_up) = handed_over {
            tracing::warn!(reason = %given_up, "not all keys were handed over with their counts");
        }
        handed_over.and(if was_member { Ok(left) } else { Err(GivenUp::NoMember) })
    }

    /// The connection to other nodes; `None` for a standalone node.
    pub fn mesh(&self) -> Option<&Arc<Mesh>> {
        let of_core = self.joined.as_ref().map(|joined| &joined.mesh);
        of_core.or_else(|| self.edge.as_ref().map(|edge| &edge.mesh))
    }

    /// How far this node's clock is from the members' median.
    pub fn skew(&self) -> Skew {
        self.time.skew()
    }

    /// Completes when another node is found to use this node's id; otherwise never.
    pub async fn displaced(&self) {
        self.incarnation.duplicate_id().await;
    }

    /// Whether every member whose rules are known has the same ones as this node.
    pub(super) fn rule_books_agree(&self) -> bool {
        let (topology, own) = (self.topology.load(), self.book.load().fingerprint());
        let mut members = topology.view.members().iter();
        members.all(|member| {
            member.id == topology.me || [own, UNKNOWN_RULES].contains(&member.rule_book)
        })
    }

    /// Share of its region's ring that this node decides, parts per million.
    pub(super) fn decided_ppm(&self) -> u32 {
        let owned_ranges = self.ownership.owned_ranges();
        if self.ownership.has_lease() { owned_ranges.decides.share_ppm() } else { 0 }
    }

    /// `task`, begun once the node may decide, or, `if_stranded`, its listeners are open: until
    /// then the clock may be stepped, and counts of the disk that it takes for expired may not be.
    fn once_in_use(
        &self,
        if_stranded: bool,
        stop: CancellationToken,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (joined, time) = (self.joined.clone(), self.time.clone());
        async move {
            if let Some(joined) = joined {
                tokio::select! {
                    biased;
                    () = time.until_in_use() => {}
                    () = joined.is_member.cancelled(), if if_stranded => {}
                    () = stop.cancelled() => return,
                }
            }
            task.await;
        }
    }

    /// Each loop is a task of its own, so that the end of any one is noticed.
    fn spawn_joined(
        &self,
        joined: Joined,
        tasks: mesh::Tasks,
        stop: &CancellationToken,
        running: &mut JoinSet<()>,
    ) {
        let publisher = Arc::<Publisher>::default();
        let sources = Sources {
            maps: joined.membership.maps(),
            global_maps: joined.global.as_ref().map(|global| global.membership.maps()),
            views: joined.gossip.views(),
            ownership: self.ownership.clone(),
            driver: joined.ownership_driver.clone(),
        };
        running.spawn(publisher.clone().run(sources, joined.mesh.clone(), stop.clone()));
        let service = Arc::new(PeerService {
            decider: self.decider.clone(),
            joined: joined.clone(),
            publisher,
            clock: self.clock.clone(),
            clock_sync: self.time.clone(),
            own_report: self.own_report.clone(),
            issuer: self.issuer.clone(),
        });
        running.spawn(self.decider.clone().give_ended_back(stop.clone()));
        let interventions = self.decider.interventions().clone();
        running.spawn(interventions.run(joined.mesh.clone(), stop.clone()));
        running.spawn(revocations::run(joined.mesh.clone(), stop.clone()));
        running.spawn(follow_gossip(joined.clone(), stop.clone()));
        running.spawn(follow_map(joined.clone(), stop.clone()));
        running.spawn(publish_lease(joined.clone(), self.ownership.clone(), stop.clone()));
        running.spawn(joined.membership.clone().run(stop.clone()));
        if let Some(global) = &joined.global {
            running.spawn(global.membership.clone().run(stop.clone()));
            running.spawn(global.clone().run(stop.clone()));
        }
        let ownership = self.ownership.clone();
        running.spawn(join(joined.clone(), self.time.clone(), ownership, stop.clone()));
        let (mesh, membership) = (joined.mesh.clone(), joined.membership.clone());
        let (driver, region) =
            (joined.ownership_driver.clone(), self.topology.load().region.clone());
        running.spawn(self.time.clone().run(mesh, membership, driver, region, stop.clone()));
        let Joined { mesh, gossip, synchroniser, ownership_driver, replicator, .. } = joined;
        let (driver_mesh, driver_stop) = (mesh.clone(), stop.clone());
        let (copies, strays) = (replicator.clone(), replicator.clone());
        let (settled, strays_stop) = (settled(&ownership_driver, &gossip), stop.clone());
        running.spawn(async move { strays.run_stray_copies(settled, strays_stop).await });
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
}

/// How far ahead of this node's clock a peer's may be. Each may be `max_skew` from the median
/// before it is corrected, in opposite directions; the correction takes time, so it is never less
/// than what a snapshot may be ahead.
fn ahead_max(max_skew: Span) -> Span {
    AHEAD_MAX.max(Span::from_nanos(max_skew.as_nanos().saturating_mul(2)))
}

/// The components that are connected to peers through `mesh`.
fn connect(
    config: &Config,
    local: &LocalNode,
    mesh: Arc<Mesh>,
    (saved, saved_global): (Saved, Option<Saved>),
    environment: &Environment,
    own: Member,
) -> Result<Joined, UserError> {
    let LocalNode { incarnation, store, topology, ownership, .. } = local;
    let [start, random] = [random(environment)?, random(environment)?];
    let start = u64::try_from(start >> 64).unwrap_or_default();
    let (region, cluster) = (&config.node.region, &config.cluster);
    let gossip = Gossip::new(
        gossip::Options {
            cluster: cluster.name.clone(),
            seeds: cluster.seeds.clone(),
            interval: cluster.gossip_interval.to_std(),
        },
        incarnation.clone(),
        mesh.clone(),
        environment.net.clone(),
        own,
    );
    let synchroniser = synchroniser(config, local);
    let ownership_driver = Driver::new(
        driver::Options {
            me: saved.identity(),
            start,
            region: region.clone(),
            vnodes: cluster.vnodes,
            lease: cluster.lease,
            quorum: cluster.quorum,
            down_after: cluster.down_after,
            global_lease: saved_global.is_some().then_some(config.global.lease),
            home_regions: cluster.regions.iter().cloned().collect(),
        },
        ownership.clone(),
        topology.clone(),
        store.clone(),
    );
    let membership = Membership::new(
        membership_options(config, environment.disk.is_durable(), start, random),
        saved,
        incarnation.clone(),
        environment.disk.clone(),
        mesh.clone(),
    );
    let replicator = replicator(config, local, mesh.clone());
    let global = saved_global.map(|saved| {
        let membership = Membership::new(
            global_options(config, start, random),
            saved,
            incarnation.clone(),
            environment.disk.beside(),
            mesh.clone(),
        );
        let options = global::Options {
            founders: config.global.founders.clone(),
            lease: config.global.lease,
            down_after: config.global.down_after,
            fails_over: config.global.failover == Failover::Auto,
        };
        let (driver, mesh) = (ownership_driver.clone(), mesh.clone());
        Global::new(options, membership, driver, ownership.clone(), mesh, replicator.clone())
    });
    Ok(Joined {
        mesh,
        gossip,
        membership,
        global,
        synchroniser,
        ownership_driver,
        replicator,
        is_member: CancellationToken::new(),
        is_agreed: CancellationToken::new(),
        malformed: Arc::default(),
    })
}

fn synchroniser(config: &Config, local: &LocalNode) -> Arc<Synchroniser> {
    let LocalNode { incarnation, store, topology, clock, .. } = local;
    let cluster = &config.cluster;
    let options = sync::Options {
        interval: cluster.sync_interval.to_std(),
        region_interval: cluster.region_sync_interval.to_std(),
        ahead_max: ahead_max(cluster.max_skew),
    };
    let (incarnation, clock) = (incarnation.clone(), clock.clone());
    Synchroniser::new(options, store.clone(), topology.clone(), incarnation, clock)
}

fn replicator(config: &Config, local: &LocalNode, mesh: Arc<Mesh>) -> Arc<Replicator> {
    let LocalNode { store, topology, ownership, clock, .. } = local;
    let cluster = &config.cluster;
    let options = replication::Options {
        interval: cluster.replication_interval.to_std(),
        replicas: usize::try_from(cluster.replicas).unwrap_or(usize::MAX),
        ahead_max: ahead_max(cluster.max_skew),
    };
    let (topology, decides) = (topology.clone(), Arc::new(ownership.clone()));
    Replicator::new(options, store.clone(), topology, decides, clock.clone(), mesh)
}

fn membership_options(
    config: &Config,
    is_durable: bool,
    start: u64,
    random: u128,
) -> membership::Options {
    let cluster = &config.cluster;
    let is_pinned = match cluster.voters_from {
        Some(from) => from == VotersFrom::Founders,
        None => !is_durable && !cluster.founders.is_empty(),
    };
    let founders = match cluster.bootstrap_expect {
        0 if cluster.founders.is_empty() => Founders::None,
        0 => Founders::Named(cluster.founders.clone()),
        expected => Founders::Expected(expected),
    };
    membership::Options {
        group: Group::Region,
        start,
        region: config.node.region.clone(),
        zone: config.node.zone.clone(),
        homes: HomeRegions::of(cluster.regions.iter().cloned()),
        founders,
        autopilot: Settings {
            voters: cluster.voters,
            pinned_voters: if is_pinned {
                founding::voters_among(&cluster.founders).cloned().collect()
            } else {
                BTreeSet::new()
            },
            lease: cluster.lease,
            settle_after: cluster.settle_after,
            replace_after: cluster.replace_after,
            forget_after: cluster.forget_after,
            complaint_age: COMPLAINT_AGE_MAX,
            homes: None,
        },
        random,
    }
}

/// Of the global map: its members are nodes that stand for their regions.
fn global_options(config: &Config, start: u64, random: u128) -> membership::Options {
    let config::Global { founders, lease, down_after, failover } = &config.global;
    let regions: Vec<String> = config.cluster.regions.iter().cloned().collect();
    membership::Options {
        group: Group::Global,
        start,
        region: config.node.region.clone(),
        zone: config.node.region.clone(),
        homes: HomeRegions::of(regions.iter().cloned()),
        founders: Founders::Named(founders.clone()),
        autopilot: Settings {
            voters: founding::voters_among(founders).count(),
            pinned_voters: BTreeSet::new(),
            lease: *lease,
            settle_after: *down_after,
            replace_after: *down_after,
            forget_after: config.cluster.forget_after,
            complaint_age: *lease,
            homes: Some(HomeRules {
                regions,
                fails_over: *failover == Failover::Auto,
                absent_max: *down_after,
            }),
        },
        // Not the id of the region's cluster: `tidegate recover --cluster` tells them apart.
        random: !random,
    }
}

/// The global map that this node knew last; `None` without `global.founders`.
async fn saved_global(
    config: &Config,
    own: &Saved,
    environment: &Environment,
) -> Result<Option<Saved>, UserError> {
    if config.global.founders.is_empty() {
        return Ok(None);
    }
    let disk = environment.disk.beside();
    let loaded = Saved::load(&*disk, &own.node).await;
    let found = loaded.map_err(|error| unreadable(&error))?;
    // One voter in both maps: what it promised under another birth it has forgotten.
    let found = found.filter(|saved| saved.birth == own.birth);
    Ok(Some(found.unwrap_or_else(|| Saved::new(own.node.clone(), own.birth))))
}

fn unreadable(error: &consensus::disk::Error) -> UserError {
    let fix =
        "empty the folder: the node is then another voter, and gets its counts from the others";
    UserError::new(format!("node.data_dir: {error}"), fix)
}

/// Who this node is, and the map that it knew last.
async fn saved(incarnation: &Incarnation, environment: &Environment) -> Result<Saved, UserError> {
    let node = incarnation.node();
    let loaded = Saved::load(&*environment.disk, node).await;
    let found = loaded.map_err(|error| unreadable(&error))?;
    if let Some(saved) = found {
        return Ok(saved);
    }
    let birth = u64::try_from(random(environment)? >> 64).unwrap_or_default();
    Ok(Saved::new(node.clone(), birth))
}

fn random(environment: &Environment) -> Result<u128, UserError> {
    let mut bytes = [0; 16];
    let filled = environment.entropy.fill(&mut bytes);
    filled.map_err(|error| UserError::new(format!("failed to read random bytes: {error}"), FIX))?;
    Ok(u128::from_le_bytes(bytes))
}

/// Lets this node own keys once it knows the members and their clocks.
async fn join(joined: Joined, time: Arc<ClockSync>, ownership: Ownership, stop: CancellationToken) {
    let joins = async {
        until_joined(&joined, &time).await;
        until_region_lease(&joined, &ownership).await;
        joined.membership.seek();
        if until_member(&joined).await {
            until_settled(&joined).await;
        }
        joined.is_member.cancel();
        until_agreed(&joined).await;
        joined.is_agreed.cancel();
        stop.cancelled().await;
    };
    tokio::select! {
        () = joins => {}
        // A node that finds no cluster ends as well.
        () = stop.cancelled() => {}
    }
}

/// Waits while the voters that stay are no majority without this one, and while it is being
/// replaced: nodes that drain at once, or two that do not reach each other, would be left unable to
/// decide anything. Where no node stays there is nothing to wait for.
async fn until_others_vote(joined: &Joined) -> Left {
    let me = joined.membership.identity();
    let may_leave = |map: &ClusterMap| {
        let is_staying = |voter: &cluster_map::Identity| {
            staying(map, me).any(|member| member.identity == *voter)
        };
        !map.voters.contains(me)
            || !map.voters.are_joint() && map.voters.is_majority(is_staying)
            || staying(map, me).next().is_none()
    };
    let mut maps = joined.membership.maps();
    if may_leave(&maps.borrow_and_update()) {
        return Left::Majority;
    }
    tracing::info!("drained; waiting until the voters that stay are a majority");
    let waited = maps.wait_for(|map| may_leave(map));
    if tokio::time::timeout(SUCCESSOR_TIMEOUT, waited).await.is_err() {
        tracing::warn!(
            "no other node votes in this one's place: without it the others have no majority, and \
             decide no strict key until enough of their voters are back"
        );
        return Left::NoMajority;
    }
    Left::Majority
}

/// The members that are up without `me`.
fn staying<'a>(
    map: &'a ClusterMap,
    me: &'a cluster_map::Identity,
) -> impl Iterator<Item = &'a MapMember> {
    map.present().filter(move |member| member.state == MapState::Up && member.identity != *me)
}

/// Returns the memory of expired counters.
async fn expire(store: Arc<Store>, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(EXPIRE_INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        store.expire(store.shards().div_ceil(EXPIRE_STEPS), clock.now());
    }
}

/// The map by which every member of the region has what it owns, and all others are in its reach.
fn settled(driver: &Arc<Driver>, gossip: &Arc<Gossip>) -> impl Fn() -> Option<SettledMap> + use<> {
    let (driver, gossip) = (driver.clone(), gossip.clone());
    move || {
        let topology = driver.topology();
        let others = topology.ring()?.nodes().filter(|id| **id != topology.me);
        let reach_losses = gossip.reach_losses(others)?;
        driver.settled_epoch().map(|epoch| SettledMap { epoch, reach_losses })
    }
}

/// Tells other nodes whether this one has a lease, and whether it reaches all of its region. A
/// lease that is lost for a moment is no news.
async fn publish_lease(joined: Joined, ownership: Ownership, stop: CancellationToken) {
    let mut looks = joined.mesh.ticks.every(LEASE_LOOK_INTERVAL);
    let (mut published, mut looks_without) = (true, 0);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        looks_without = if ownership.has_lease() { 0 } else { looks_without + 1 };
        // Starts as true, so that other regions do not leave out a node that has just joined.
        let has_lease = looks_without == 0 || published && looks_without < LOOKS_WITHOUT_LEASE;
        if has_lease != published {
            published = has_lease;
            joined.gossip.publish(|own| own.has_lease = has_lease);
        }
        joined.gossip.publish_reach_losses(joined.replicator.reach_losses());
    }
}

/// Passes views from gossip to ownership.
async fn follow_gossip(joined: Joined, stop: CancellationToken) {
    let mut views = joined.gossip.views();
    loop {
        let view = views.borrow_and_update().clone();
        joined.ownership_driver.view_changed(&view);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = views.changed() => if changed.is_err() { return },
        }
    }
}

/// Passes cluster maps to ownership, and what this node itself observes to the leader's autopilot,
/// for the case that it leads.
async fn follow_map(joined: Joined, stop: CancellationToken) {
    let mut maps = joined.membership.maps();
    let mut saved = joined.membership.saved();
    let mut ticks = tokio::time::interval(OBSERVE_INTERVAL);
    loop {
        let map = maps.borrow_and_update().clone();
        joined.ownership_driver.map_changed(&map);
        let (cluster, epoch) = *saved.borrow_and_update();
        joined.ownership_driver.map_saved(cluster, epoch);
        joined.mesh.require_version(map.version);
        for member in map.present() {
            joined.mesh.request_dial(member.addr);
        }
        joined.membership.reported(joined.ownership_driver.own_report());
        if let Some((member, mut complaints)) = joined.ownership_driver.own_complaints() {
            complaints.pushed = joined.synchroniser.pushed(map.cluster);
            joined.membership.complained(member, complaints);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = maps.changed() => if changed.is_err() { return },
            changed = saved.changed() => if changed.is_err() { return },
            _ = ticks.tick() => {}
        }
    }
}

/// This node as a member, before it has an address.
/// A node without peers has all counters of its earlier starts: those of its file.
fn fold_alone(store: &Store, incarnation: &Incarnation, now: Timestamp) {
    let total = store.fold_all(incarnation.actor(), now);
    // The clock was set back: what is counted now would be taken for an old copy.
    if let Some(total) = total.filter(|total| *total > incarnation.actor()) {
        incarnation.bump(Generation(total.start()));
    }
}

fn own_member(incarnation: &Incarnation, config: &Config) -> Member {
    Member {
        id: incarnation.node().clone(),
        generation: incarnation.generation(),
        addr: SocketAddr::from(([0, 0, 0, 0], 0)),
        region: config.node.region.clone(),
        zone: config.node.zone.clone(),
        state: MemberState::Up,
        rule_book: UNKNOWN_RULES,
        http: None,
        has_lease: true,
    }
}

/// A standalone node shares its secret with no other.
fn fresh_secret(environment: &Environment) -> Result<[u8; 16], UserError> {
    let mut secret = [0; 16];
    let filled = environment.entropy.fill(&mut secret);
    filled.map_err(|error| UserError::new(format!("failed to read random bytes: {error}"), FIX))?;
    Ok(secret)
}

fn mesh_error(error: mesh::Error) -> UserError {
    match error {
        mesh::Error::Bind { addr, source } => {
            UserError::cannot_listen("cluster.listen", addr, &source)
        }
        other => UserError::new(other.to_string(), FIX),
    }
}
