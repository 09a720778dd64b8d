//! Planned changes under load: keys move from owner to owner and every limit stays exact.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;

const KEYS: usize = 2_000;
const LIMIT: usize = 10;
const CLIENTS: usize = 16;
/// A client's pause between two requests.
const PACE: Duration = Duration::from_millis(12);
const DRAINED_WITHIN: Duration = Duration::from_secs(20);

/// No check times out, so exactly the limit is admitted, not one more and not one less.
const SHAPE: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: moved
descriptors:
  - {key: user, rate_limit: {window: 7d, requests_per_unit: 10, on_unavailable: deny}}
",
    config: "",
    sets: &["cluster.deadline=1s"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_takes_keys_with_their_counts() {
    let mut cluster = Cluster::start(TIDEGATE, SHAPE).await;
    let load = Load::start(&cluster);
    load.reaches(2).await;
    cluster.join("n4", SHAPE).await;
    load.reaches(load.average() + 1).await;
    load.end(&cluster).await;
    let taken = cluster.nodes[3].verdicts("peer").await;
    assert!(taken > 0, "the fourth node decided nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_drained_hands_its_counts_over() {
    let mut cluster = Cluster::start(TIDEGATE, SHAPE).await;
    let load = Load::start(&cluster);
    load.reaches(2).await;
    drain(&cluster.nodes[2]);
    leave(&mut cluster, &load, 2).await;
    load.reaches(load.average() + 1).await;
    load.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_all_nodes_forgets_nothing() {
    let mut cluster = Cluster::start(TIDEGATE, SHAPE).await;
    let load = Load::start(&cluster);
    load.reaches(1).await;
    for index in 0..cluster.nodes.len() {
        cluster.nodes[index].terminate();
        leave(&mut cluster, &load, index).await;
        cluster.nodes[index].start();
        cluster.one_view().await;
        load.open(index, true);
    }
    load.end(&cluster).await;
}

/// `tidegate drain`.
fn drain(node: &Node) {
    let mut command = Command::new(TIDEGATE);
    let url = format!("http://{}", node.admin);
    let output = command.env_clear().args(["drain", "--no-wait", "--url", &url]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for the end of a node that is leaving. Like a load balancer, the load stops when the node
/// is no longer ready.
async fn leave(cluster: &mut Cluster, load: &Load, index: usize) {
    let (http, node) = (cluster.http.clone(), &mut cluster.nodes[index]);
    let listener = node.http;
    let not_ready = async || match http.get(listener, "/readyz").await?.status {
        503 => Ok(()),
        status => Err(format!("/readyz returns {status}")),
    };
    until("a leaving node is not ready", Duration::from_secs(5), not_ready).await;
    load.open(index, false);
    assert_eq!(node.exit_code(DRAINED_WITHIN).await, Some(0));
}

/// Clients that hit one key after the other, and how many hits of each key were admitted.
struct Load {
    clients: JoinSet<()>,
    stop: CancellationToken,
    shared: Arc<Shared>,
}

struct Shared {
    listeners: Vec<Listener>,
    next: AtomicUsize,
    admitted: Vec<AtomicUsize>,
}

/// One node behind the load balancer.
struct Listener {
    addr: SocketAddr,
    is_open: AtomicBool,
    /// Replaced after a restart, because the connections to the previous process are dead.
    http: Mutex<Http>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let listeners = cluster.nodes.iter().map(|node| Listener {
            addr: node.http,
            is_open: AtomicBool::new(true),
            http: Mutex::new(Http::new()),
        });
        let shared = Arc::new(Shared {
            listeners: listeners.collect(),
            next: AtomicUsize::new(0),
            admitted: (0..KEYS).map(|_| AtomicUsize::new(0)).collect(),
        });
        let (mut clients, stop) = (JoinSet::new(), CancellationToken::new());
        for _ in 0..CLIENTS {
            let (shared, stop) = (shared.clone(), stop.clone());
            clients.spawn(async move {
                while !stop.is_cancelled() {
                    let turn = shared.next.fetch_add(1, Ordering::Relaxed);
                    shared.hit(turn, turn % KEYS).await;
                    tokio::time::sleep(PACE).await;
                }
            });
        }
        Self { clients, stop, shared }
    }

    /// Checks of each key, on average.
    fn average(&self) -> usize {
        self.shared.next.load(Ordering::Relaxed) / KEYS
    }

    async fn reaches(&self, average: usize) {
        let reached = async || match self.average() {
            found if found >= average => Ok(()),
            found => Err(format!("{found}")),
        };
        let what = format!("each key was checked {average} times");
        until(&what, Duration::from_secs(60), reached).await;
    }

    fn open(&self, index: usize, is_open: bool) {
        let listener = &self.shared.listeners[index];
        *listener.http.lock().unwrap() = Http::new();
        listener.is_open.store(is_open, Ordering::SeqCst);
    }

    /// Hits each key until it is refused, and compares its admitted hits with the limit.
    async fn end(self, cluster: &Cluster) {
        self.stop.cancel();
        self.clients.join_all().await;
        let sent = self.shared.next.load(Ordering::Relaxed);
        let mut last = JoinSet::new();
        for client in 0..CLIENTS {
            let shared = self.shared.clone();
            last.spawn(async move {
                for key in (client..KEYS).step_by(CLIENTS) {
                    for turn in 0..2 * LIMIT {
                        if !shared.hit(turn, key).await {
                            break;
                        }
                    }
                }
            });
        }
        last.join_all().await;
        let policy = cluster.verdicts("policy").await;
        let admitted: Vec<usize> =
            self.shared.admitted.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let over = admitted.iter().filter(|count| **count > LIMIT).count();
        let under = admitted.iter().filter(|count| **count < LIMIT).count();
        println!("{sent} hits under load; {over} keys over, {under} under; {policy} by policy");
        assert_eq!((over, under), (0, 0), "of {KEYS} keys not exactly {LIMIT}");
    }
}

impl Shared {
    /// One hit through an open listener; whether it was admitted.
    async fn hit(&self, turn: usize, key: usize) -> bool {
        let is_open = |listener: &&Listener| listener.is_open.load(Ordering::SeqCst);
        let open: Vec<&Listener> = self.listeners.iter().filter(is_open).collect();
        let listener = open[turn % open.len()];
        let http = listener.http.lock().unwrap().clone();
        let body = check_body("moved", "user", &format!("user-{key}"));
        let reply = http.check(listener.addr, &body).await.unwrap();
        assert!([200, 429].contains(&reply.status), "{reply:?}");
        let is_admitted = reply.status == 200;
        self.admitted[key].fetch_add(usize::from(is_admitted), Ordering::Relaxed);
        is_admitted
    }
}
