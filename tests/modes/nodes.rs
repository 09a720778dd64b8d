//! The three nodes, and the clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use tidegate::admin::OwnerReport;
use tidegate_testkit::loadgen::grpc::Grpc;
use tidegate_testkit::loadgen::{Clients, End, Keys, Pace, Run, Spread};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tokio::runtime::{self, Runtime};

use crate::metrics::Metrics;
use crate::options::Options;
use crate::rules::{self, DOMAIN};

/// Clients, each with a connection to one node.
pub(crate) const CLIENTS: usize = 16;
/// Times at which an open loop sends what is due.
const SLOTS_PER_SECOND: u64 = 2_000;
/// Requests by which each client has been answered before it is measured.
const WARM_UP_REQUESTS: u64 = 20;
/// What nodes do after the last reply.
const SETTLES_FOR: Duration = Duration::from_millis(60);

/// Running nodes.
pub(crate) struct Nodes {
    pub(crate) cluster: Cluster,
    /// Waits for what is not load. Load is run by the thread of the program.
    pub(crate) runtime: Runtime,
    /// The last key that was used.
    last_key: std::cell::Cell<u64>,
}

impl Nodes {
    pub(crate) fn start(options: &Options) -> Self {
        let program = match &options.program {
            Some(path) => String::leak(path.clone()),
            None => env!("CARGO_BIN_EXE_tidegate"),
        };
        eprintln!("{program}");
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let threads = format!("node.threads={}", options.threads);
        let (rules, sets) = (rules::yaml(), [threads.as_str()]);
        let cluster =
            ClusterOptions { nodes: THREE, rules: &rules, sets: &sets, ..Default::default() };
        let cluster = runtime.block_on(Cluster::start_alone(program, cluster));
        Self { cluster, runtime, last_key: std::cell::Cell::new(0) }
    }

    /// A key that was not used before.
    pub(crate) fn next_key(&self) -> u64 {
        self.last_key.set(self.last_key.get() + 1);
        self.last_key.get()
    }

    /// Connects clients that check descriptors with `key`, and lets each be answered.
    pub(crate) fn clients(&self, key: &str, connections: usize) -> Clients {
        let addrs: Vec<SocketAddr> = self.cluster.nodes.iter().map(|node| node.grpc).collect();
        let protocol = || Box::new(Grpc::new(DOMAIN, key)) as _;
        let mut clients = Clients::connect(&addrs, connections, &protocol).unwrap();
        let requests = WARM_UP_REQUESTS * connections as u64;
        let warm_up = Run {
            keys: Keys::One(0),
            pace: Pace::Closed { depth: 1 },
            end: End::AfterRequests(requests),
            spread: Spread::Even,
        };
        clients.run(&warm_up, |_| {}).unwrap();
        clients
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.runtime.block_on(Metrics::read(&self.cluster))
    }

    /// The same, after what follows the last reply.
    pub(crate) fn settled_metrics(&self) -> Metrics {
        std::thread::sleep(SETTLES_FOR);
        self.metrics()
    }

    /// The index of the node that owns key `number` of the descriptors with `key`.
    pub(crate) fn owner(&self, key: &str, number: u64) -> usize {
        let target = format!("/owner?domain={DOMAIN}&{key}=user%3A{number:012}");
        let admin = self.cluster.nodes[0].admin;
        let reply = self.runtime.block_on(self.cluster.http.get(admin, &target)).unwrap();
        let report: OwnerReport = serde_json::from_str(&reply.body).unwrap();
        let node = &report.owners[0].node;
        self.cluster.nodes.iter().position(|it| it.id == *node).unwrap()
    }
}

/// So many requests a second, in slots.
pub(crate) fn open(per_second: u64) -> Pace {
    Pace::Open { per_second, burst: (per_second / SLOTS_PER_SECOND).max(1) }
}

/// Waits until the present window of this length goes on for at least `span`.
pub(crate) fn wait_for_window(window: Duration, span: Duration) {
    let left = left_of(window);
    if left < span {
        std::thread::sleep(left);
    }
}

/// Waits for the begin of the next window; returns when that was.
pub(crate) fn next_window(window: Duration) -> Instant {
    let begin = Instant::now() + left_of(window);
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    begin
}

fn left_of(window: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let into = now.as_nanos() % window.as_nanos();
    window.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap()))
}
