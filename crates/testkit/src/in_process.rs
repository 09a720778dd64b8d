//! Nodes on tasks of the test, on real sockets of the loopback: everything but the listeners.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::config::Config;
use tidegate::decide::{CheckRequest, CheckResponse, Decide};
use tidegate::node::{self, Core, Edge, Joined, Setup};
use tidegate::traces::Traces;
use tidegate_cluster::consensus::Disk;
use tidegate_cluster::environment::Environment;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::pki::{self, Authority, Bearer, Role};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::units::{Hits, Span};
use tidegate_ownership::cluster_map::{Identity, MapState};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::View;
use tidegate_rules::book::Book;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::certificates::{authority, identity, identity_of};
use crate::rules::book;
use crate::wait::eventually;

/// How long nodes may take to one view, on a machine that does other things as well.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// A node of a cluster. It runs until it is dropped.
pub struct Node {
    pub core: Arc<Core>,
    pub stop: CancellationToken,
    running: Option<JoinHandle<()>>,
}

/// What differs from node to node.
pub struct NodeOptions<'a> {
    pub id: &'a str,
    pub region: &'a str,
    pub seeds: &'a [SocketAddr],
    pub identity: pki::Identity,
    pub rules: &'a str,
    pub change: fn(&mut Config),
}

/// A node outside of any cluster, which starts no task.
pub async fn standalone(
    config: Config,
    book: Arc<ArcSwap<Book>>,
    environment: Environment,
) -> Arc<Core> {
    let node = NodeId::new("alone").expect("a valid id");
    let setup = Setup { config, node, identity: None, book, http: None, traces: Traces::default() };
    let (core, _) = Box::pin(Core::build(setup, environment)).await.expect("the node starts");
    core
}

impl Node {
    pub async fn start(options: NodeOptions<'_>) -> Self {
        let (environment, stop) = system_environment();
        Self::start_in(options, environment, stop).await
    }

    /// Starts a node that listens on `listen` and advertises another address to its peers.
    pub async fn start_behind(
        options: NodeOptions<'_>,
        listen: SocketAddr,
        advertise: SocketAddr,
    ) -> Self {
        let (environment, stop) = system_environment();
        let change = |config: &mut Config| {
            config.cluster.listen = Some(listen);
            config.cluster.advertise = Some(advertise);
        };
        Self::start_changed(options, environment, stop, change).await
    }

    /// Starts a node whose configuration `change` adds something to.
    pub async fn start_with(options: NodeOptions<'_>, change: impl FnOnce(&mut Config)) -> Self {
        let (environment, stop) = system_environment();
        Self::start_changed(options, environment, stop, change).await
    }

    /// Starts a node that keeps its cluster map on `disk`.
    pub async fn start_on(options: NodeOptions<'_>, disk: Arc<dyn Disk>) -> Self {
        let (environment, stop) = system_environment();
        Self::start_in(options, Environment { disk, ..environment }, stop).await
    }

    /// Starts a node with a clock and sources of randomness of the test's own.
    pub async fn start_in(
        options: NodeOptions<'_>,
        environment: Environment,
        stop: CancellationToken,
    ) -> Self {
        Self::start_changed(options, environment, stop, |_| {}).await
    }

    async fn start_changed(
        options: NodeOptions<'_>,
        environment: Environment,
        stop: CancellationToken,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config::default();
        config.node.id = options.id.into();
        config.node.region = options.region.into();
        config.cluster.listen = Some(([127, 0, 0, 1], 0).into());
        config.cluster.seeds = options.seeds.iter().map(ToString::to_string).collect();
        // The first node of each region founds its cluster.
        config.cluster.bootstrap_expect = 1;
        // These tests share two cores with whatever else runs; late answers have tests of their
        // own.
        config.cluster.deadline = Span::from_secs(2);
        config.cluster.gossip_interval = Span::from_millis(50);
        change(&mut config);
        (options.change)(&mut config);
        let setup = Setup {
            config,
            node: NodeId::new(options.id).expect("a valid id"),
            identity: Some(options.identity),
            book: book(options.rules),
            http: None,
            traces: Traces::default(),
        };
        let (core, tasks) =
            Box::pin(Core::build(setup, environment)).await.expect("the node starts");
        let running = core.clone().run(tasks, stop.clone());
        let running = tokio::spawn(async move { running.await.expect("no task fails") });
        Self { core, stop, running: Some(running) }
    }

    /// Starts an edge that follows cores of `seeds`.
    pub async fn start_edge(
        authority: &Authority,
        (id, region): (&str, &str),
        seeds: &[SocketAddr],
        rules: &str,
        change: fn(&mut Config),
    ) -> Self {
        let bearer = Bearer { node: id, region, role: Role::Edge };
        let identity = identity_of(authority, authority, bearer);
        let options = NodeOptions { id, region, seeds, identity, rules, change };
        let (environment, stop) = system_environment();
        let as_edge = |config: &mut Config| {
            config.node.role = Role::Edge;
            config.cluster.bootstrap_expect = 0;
        };
        Self::start_changed(options, environment, stop, as_edge).await
    }

    /// Its connections to other nodes.
    pub fn mesh(&self) -> &Mesh {
        self.core.mesh().expect("in a cluster")
    }

    /// What it has as an edge.
    pub fn edge(&self) -> &Edge {
        self.core.edge.as_ref().expect("an edge")
    }

    /// Where its peers reach it.
    pub fn addr(&self) -> SocketAddr {
        self.joined().mesh.advertise
    }

    /// What it has as a node of a cluster.
    pub fn joined(&self) -> &Joined {
        self.core.joined.as_ref().expect("in a cluster")
    }

    /// Waits until its view of the members satisfies `condition`.
    pub async fn wait_for_view(&self, what: &str, condition: impl Fn(&View) -> bool) {
        let mut views = self.joined().gossip.views();
        let seen = tokio::time::timeout(SETTLES_WITHIN, async {
            views.wait_for(|view| condition(view)).await.map(drop).expect("gossip runs");
            while !condition(&self.core.topology.load().view) {
                tokio::time::sleep(POLL).await;
            }
        });
        if seen.await.is_err() {
            let view = self.core.topology.load();
            panic!("{} has no view with {what}: {:?}", view.me, view.view.members());
        }
    }

    /// Checks one hit of one entry, in the domain `test`.
    pub async fn check(&self, key: &str, value: &str) -> CheckResponse {
        self.check_hits(key, value, 1).await
    }

    pub async fn check_hits(&self, key: &str, value: &str, hits: i64) -> CheckResponse {
        let entries = [Entry { key, value }].into_iter().collect();
        let descriptors = [Descriptor { entries, hits: None, limit: None }];
        let hits = Hits::new(hits);
        let request =
            CheckRequest { domain: "test", descriptors: &descriptors, hits, for_envoy: true };
        self.core.decider.decide(request).await
    }

    /// Stops as on SIGTERM.
    pub async fn stop(self) {
        let _ = self.core.leave().await;
        self.end().await;
    }

    /// Stops as on SIGTERM, and gives up for good what cannot be handed over in this time.
    pub async fn stop_with(self, patience: Duration) {
        let _ = self.core.leave_with(patience).await;
        self.end().await;
    }

    async fn end(mut self) {
        self.stop.cancel();
        if let Some(running) = self.running.take() {
            running.await.expect("the node ended without an error");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// Starts nodes `(id, region)` with each other as seeds, and waits until they have settled.
pub async fn cluster(nodes: &[(&str, &str)], rules: &str, change: fn(&mut Config)) -> Vec<Node> {
    cluster_under(&authority(), nodes, rules, change).await
}

/// Like [`cluster`], with certificates of `authority`.
pub async fn cluster_under(
    authority: &Authority,
    nodes: &[(&str, &str)],
    rules: &str,
    change: fn(&mut Config),
) -> Vec<Node> {
    let mut started: Vec<Node> = Vec::new();
    for (id, region) in nodes {
        let seeds: Vec<SocketAddr> = started.iter().take(1).map(Node::addr).collect();
        let identity = identity(authority, authority, id, region);
        let options = NodeOptions { id, region, seeds: &seeds, identity, rules, change };
        let (environment, stop) = system_environment();
        let founders = nodes.iter().filter(|(_, other)| other == region);
        let founders = founders.map(|(id, _)| NodeId::new(id).expect("a valid id")).collect();
        let regions = nodes.iter().map(|(_, region)| (*region).to_owned()).collect();
        let together = |config: &mut Config| {
            config.cluster.bootstrap_expect = 0;
            config.cluster.founders = founders;
            config.cluster.regions = regions;
        };
        started.push(Node::start_changed(options, environment, stop, together).await);
    }
    for node in &started {
        node.wait_for_view("all nodes", |view| view.owners().count() == nodes.len()).await;
    }
    settled(&started.iter().collect::<Vec<_>>()).await;
    started
}

/// Waits until each node has its lease and owns its ranges, by a map that all nodes of its region
/// have and that changes no further: no founder is missing, no change of the voters is in progress,
/// and counters of earlier starts are collected, which waits for members that are down.
pub async fn settled(nodes: &[&Node]) {
    let map = |node: &Node| node.joined().ownership_driver.map();
    let region = |node: &Node| node.core.topology.load().region.clone();
    let has_settled = |node: &Node| {
        let own = map(node);
        let voters = &own.voters;
        node.joined().is_member.is_cancelled()
            && node.core.ownership.has_lease()
            && node.joined().ownership_driver.is_settled()
            && !voters.are_joint()
            && (own.collection.is_complete
                || own.members.iter().any(|member| member.state == MapState::Down))
            && voters.current.iter().all(|voter| voter.birth != Identity::UNKNOWN_BIRTH)
            && nodes
                .iter()
                .filter(|other| region(other) == region(node))
                .all(|other| map(other) == own && own.get(&other.core.topology.load().me).is_some())
    };
    let all = || nodes.iter().all(|node| has_settled(node));
    eventually("all nodes own their ranges", SETTLES_WITHIN, all).await;
}

/// The environment of a real node, with its clock synchronised until the token is cancelled.
fn system_environment() -> (Environment, CancellationToken) {
    let (environment, clock) = node::system_environment();
    let stop = CancellationToken::new();
    tokio::spawn(clock.run(stop.clone()));
    (environment, stop)
}
