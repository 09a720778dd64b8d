//! Nodes in this process, on real sockets of the loopback: everything but the doors.

#![allow(unreachable_pub, reason = "each test is a crate of its own")]
#![allow(dead_code, reason = "each test uses its part of the support")]

pub mod relay;
pub mod stranger;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate::config::Config;
use tidegate::decide::{Answer, CheckRequest, Decide};
use tidegate::node::{self, Core, Setup};
use tidegate_cluster::environment::Environment;
use tidegate_cluster::pki::{Authority, Identity, Validity};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::View;
use tidegate_rules::book::Book;
use tidegate_rules::load;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An authority that is valid now.
pub fn authority() -> Authority {
    Authority::generate(validity()).expect("make an authority")
}

/// From yesterday until tomorrow.
pub fn validity() -> Validity {
    let (environment, _) = node::outside();
    let now = environment.clock.system();
    let day = Span::from_secs(86_400);
    Validity { not_before: now.minus(day), not_after: now.plus(day) }
}

/// What `authority` makes for `node`, trusting `trusted`.
pub fn identity(authority: &Authority, trusted: &Authority, node: &str) -> Identity {
    let issued = authority.issue(node, validity()).expect("issue a certificate");
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(trusted.cert_pem().as_bytes()).expect("a certificate");
    roots.add(ca).expect("an authority");
    Identity {
        node: node.to_owned(),
        roots: Arc::new(roots),
        chain: vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).expect("pem")],
        key: PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).expect("pem"),
        secret: [7; 16],
        expires: Timestamp::NEVER,
    }
}

/// A book of one file.
pub fn book(yaml: &str) -> Arc<ArcSwap<Book>> {
    let source = load::Source { name: "test.yaml".into(), bytes: yaml.as_bytes().into() };
    let book = load::parse(&[source], &load::Options::default()).expect("valid rules");
    Arc::new(ArcSwap::from_pointee(book))
}

/// A node that runs until it is dropped.
pub struct Node {
    pub core: Arc<Core>,
    pub stop: CancellationToken,
    running: Option<JoinHandle<()>>,
}

/// How one node differs from the default.
pub struct Shape<'a> {
    pub id: &'a str,
    pub region: &'a str,
    pub seeds: &'a [SocketAddr],
    pub identity: Identity,
    pub rules: &'a str,
    pub change: fn(&mut Config),
}

impl Node {
    pub async fn start(shape: Shape<'_>) -> Self {
        let (environment, clock) = node::outside();
        let stop = CancellationToken::new();
        tokio::spawn(clock.keep_right(stop.clone()));
        Self::start_in(shape, environment, stop).await
    }

    /// Starts a node that listens at `listen` and tells its peers to reach it at `advertise`.
    pub async fn start_behind(shape: Shape<'_>, listen: SocketAddr, advertise: SocketAddr) -> Self {
        let (environment, clock) = node::outside();
        let stop = CancellationToken::new();
        tokio::spawn(clock.keep_right(stop.clone()));
        Self::start_with(shape, environment, stop, |config| {
            config.cluster.listen = Some(listen);
            config.cluster.advertise = Some(advertise);
        })
        .await
    }

    pub async fn start_in(
        shape: Shape<'_>,
        environment: Environment,
        stop: CancellationToken,
    ) -> Self {
        Self::start_with(shape, environment, stop, |_| {}).await
    }

    async fn start_with(
        shape: Shape<'_>,
        environment: Environment,
        stop: CancellationToken,
        token: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config::default();
        config.node.id = shape.id.into();
        config.node.region = shape.region.into();
        config.cluster.listen = Some(([127, 0, 0, 1], 0).into());
        config.cluster.seeds = shape.seeds.iter().map(ToString::to_string).collect();
        // These tests share two cores with whatever else runs: a late answer is not their subject.
        config.cluster.deadline = Span::from_secs(2);
        config.cluster.gossip_interval = Span::from_millis(50);
        (shape.change)(&mut config);
        token(&mut config);
        let setup = Setup {
            config,
            node: NodeId::new(shape.id).expect("a valid id"),
            identity: Some(shape.identity),
            book: book(shape.rules),
            http: None,
        };
        let (core, tasks) = Core::build(setup, environment).await.expect("the node starts");
        let running = core.clone().run(tasks, stop.clone());
        let running = tokio::spawn(async move { running.await.expect("no task fails") });
        Self { core, stop, running: Some(running) }
    }

    pub fn addr(&self) -> SocketAddr {
        self.core.joined.as_ref().expect("in a cluster").mesh.advertise()
    }

    /// Waits until the view is as `wanted`, or fails.
    pub async fn sees(&self, what: &str, wanted: impl Fn(&View) -> bool) {
        let mut views = self.core.joined.as_ref().expect("in a cluster").gossip.views();
        let seen = tokio::time::timeout(Duration::from_secs(20), async {
            views.wait_for(|view| wanted(view)).await.map(drop).expect("gossip runs");
            let epoch = views.borrow().epoch();
            while self.core.topology.load().view.epoch() != epoch {
                tokio::task::yield_now().await;
            }
        });
        if seen.await.is_err() {
            let view = self.core.topology.load();
            panic!("{} never saw {what}: {:?}", view.me, view.view.members());
        }
    }

    /// Decides one hit of `domain` for one entry.
    pub async fn ask(&self, key: &str, value: &str) -> Answer {
        self.ask_hits(key, value, 1).await
    }

    pub async fn ask_hits(&self, key: &str, value: &str, hits: i64) -> Answer {
        let entries = [Entry { key, value }].into_iter().collect();
        let descriptors = [Descriptor { entries, hits: None, limit: None }];
        let hits = Hits::new(hits);
        let ask = CheckRequest { domain: "test", descriptors: &descriptors, hits, for_envoy: true };
        self.core.decider.decide(ask).await
    }

    /// Stops as on SIGTERM, without the doors.
    pub async fn stop(mut self) {
        self.core.leave().await;
        self.stop.cancel();
        if let Some(running) = self.running.take() {
            running.await.expect("the node ended well");
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

/// Starts nodes `(id, region)` that know each other, and waits until all see all.
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
        let identity = identity(authority, authority, id);
        let shape = Shape { id, region, seeds: &seeds, identity, rules, change };
        started.push(Node::start(shape).await);
    }
    for node in &started {
        node.sees("all nodes", |view| view.owners().count() == nodes.len()).await;
    }
    settled(&started.iter().collect::<Vec<_>>()).await;
    started
}

/// Waits until each node holds what is its own, all under one epoch.
pub async fn settled(nodes: &[&Node]) {
    let has_settled = |node: &&Node| {
        let joined = node.core.joined.as_ref().expect("in a cluster");
        joined.is_member.is_cancelled() && joined.ownership_driver.has_settled()
    };
    let timeouts = Duration::from_secs(20);
    eventually("all hold what is theirs", timeouts, || nodes.iter().all(has_settled)).await;
}

/// Polls `holds` until it is true; fails with `what` after `timeouts`. Returns how long it took.
pub async fn eventually(
    what: &str,
    timeouts: Duration,
    mut holds: impl FnMut() -> bool,
) -> Duration {
    let start = tokio::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < timeouts, "not within {timeouts:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    start.elapsed()
}
