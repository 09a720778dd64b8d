//! Ten nodes that are killed one after the other under load and replaced, in clusters of three
//! kinds: no key admits more than its limit, and owners decide again soon.
//!
//! `scripts/check-long replace` runs it, with the release build.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tidegate_testkit::variable;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;
use crate::taken_over::{decided_again, settled};

/// Keys of each node that is killed.
const KEYS: usize = 4;
/// `TIDEGATE_REPLACEMENTS` has another number.
const REPLACEMENTS: u32 = 10;
const APART: Duration = Duration::from_secs(15);
const DECIDED_WITHIN: Duration = Duration::from_secs(2);
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: quota
descriptors:
  - {key: user, rate_limit:
      {window: 365d, requests_per_unit: 300, on_unavailable: deny, durability: replicated}}
",
    config: "",
    sets: &[],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
const USED_LIMIT: u64 = 300;
const USED_KEYS: usize = 24;
const CLIENTS: usize = 6;
const INTERVAL: Duration = Duration::from_millis(100);

/// The name of the node that replaces another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Successor {
    NewName,
    SameName,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_nodes_of_founders_are_replaced_under_load() {
    let sets = &["cluster.deadline=1s", "cluster.voters_from=auto", "cluster.replace_after=1s"];
    replace_under_load(ClusterOptions { sets, ..OPTIONS }, Successor::NewName).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_nodes_of_an_expected_number_are_replaced_under_load() {
    let sets = &[
        "cluster.deadline=1s",
        "cluster.founders=[]",
        "cluster.bootstrap_expect=3",
        "cluster.replace_after=1s",
    ];
    replace_under_load(ClusterOptions { sets, ..OPTIONS }, Successor::NewName).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_pinned_voters_are_born_again_under_load() {
    let sets = &["cluster.deadline=1s", "cluster.voters_from=founders"];
    replace_under_load(ClusterOptions { sets, ..OPTIONS }, Successor::SameName).await;
}

/// Kills one of three nodes every fifteen seconds and starts another one in its place, while
/// clients use all nodes.
async fn replace_under_load(options: ClusterOptions<'_>, successor: Successor) {
    let replacements = variable::number("TIDEGATE_REPLACEMENTS", REPLACEMENTS);
    let mut cluster = Cluster::start_alone(TIDEGATE, options).await;
    settled(&cluster).await;
    let load = Load::start(&cluster);
    let (start, mut slowest) = (Instant::now(), Duration::ZERO);
    for round in 0..replacements {
        let victim = match successor {
            Successor::NewName => round as usize,
            Successor::SameName => round as usize % 3,
        };
        let id = cluster.nodes[victim].id.clone();
        let prefix = format!("round-{round}");
        let keys = cluster.owned("quota", "user", &prefix, &id, KEYS).await;
        let killed = Instant::now();
        cluster.nodes[victim].kill();
        load.use_nodes(&cluster);
        let decided = decided_again(&cluster, "quota", &keys, killed).await;
        slowest = slowest.max(decided);
        match successor {
            Successor::NewName => cluster.join(&format!("n{}", round + 4), options).await,
            Successor::SameName => {
                cluster.nodes[victim].start();
                cluster.one_view().await;
            }
        }
        load.use_nodes(&cluster);
        let rejoined = Instant::now();
        settled(&cluster).await;
        println!(
            "{id} was killed: all nodes decide its keys after {decided:.1?}; three vote again \
             {:.1?} after its successor had joined",
            rejoined.elapsed()
        );
        let next = start + APART * (round + 1);
        if Instant::now() > next {
            println!("the next death is late by {:.1?}", next.elapsed());
        }
        tokio::time::sleep_until(next).await;
    }
    load.end(&cluster).await;
    assert!(slowest <= DECIDED_WITHIN, "{slowest:?}");
}

/// Clients that use up a few keys through all running nodes.
struct Load {
    shared: Arc<LoadState>,
    clients: JoinSet<()>,
    stop: CancellationToken,
}

struct LoadState {
    http: Http,
    listeners: Mutex<Vec<SocketAddr>>,
    counts: Mutex<Vec<KeyCounts>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KeyCounts {
    admitted: u64,
    /// Checks that may have been counted, though no client received an owner's verdict: those that
    /// `on_unavailable` answered, and those of connections that ended.
    unknown: u64,
    denied: u64,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let shared = Arc::new(LoadState {
            http: Http::new(),
            listeners: Mutex::default(),
            counts: Mutex::new(vec![KeyCounts::default(); USED_KEYS]),
        });
        let mut load = Self { shared, clients: JoinSet::new(), stop: CancellationToken::new() };
        load.use_nodes(cluster);
        for client in 0..CLIENTS {
            let (shared, stop) = (load.shared.clone(), load.stop.clone());
            load.clients.spawn(async move {
                let mut ticks = tokio::time::interval(INTERVAL);
                for turn in client.. {
                    if stop.run_until_cancelled(ticks.tick()).await.is_none() {
                        return;
                    }
                    shared.check(turn, turn * 7 % USED_KEYS).await;
                }
            });
        }
        load
    }

    /// From now on it uses the nodes that run.
    fn use_nodes(&self, cluster: &Cluster) {
        let running = cluster.nodes.iter().filter(|node| node.is_running());
        *self.shared.listeners.lock() = running.map(|node| node.http).collect();
    }

    /// Uses up what is left, and compares with the limit.
    async fn end(self, cluster: &Cluster) {
        let Self { shared, clients, stop } = self;
        stop.cancel();
        clients.join_all().await;
        for key in 0..USED_KEYS {
            let turns = usize::try_from(USED_LIMIT).unwrap() + 5;
            for turn in 0..turns {
                let before = shared.counts.lock()[key].denied;
                shared.check(turn, key).await;
                if shared.counts.lock()[key].denied > before {
                    break;
                }
            }
        }
        let counts = shared.counts.lock().clone();
        let admitted: Vec<u64> = counts.iter().map(|of| of.admitted).collect();
        let unknown: u64 = counts.iter().map(|of| of.unknown).sum();
        let denied: u64 = counts.iter().map(|of| of.denied).sum();
        println!(
            "limit {USED_LIMIT}: admitted {admitted:?}, {denied} refused by owners, {unknown} \
             without an owner's answer; {} nodes run",
            cluster.nodes.iter().filter(|node| node.is_running()).count()
        );
        for (key, of) in counts.iter().enumerate() {
            let expected = USED_LIMIT.saturating_sub(of.unknown)..=USED_LIMIT;
            assert!(expected.contains(&of.admitted), "used-{key}: {of:?}");
        }
    }
}

impl LoadState {
    async fn check(&self, turn: usize, key: usize) {
        let listener = {
            let listeners = self.listeners.lock();
            listeners[turn % listeners.len()]
        };
        let body = check_body("quota", "user", &format!("used-{key}"));
        let reply = self.http.check(listener, &body).await;
        let counts = &mut self.counts.lock()[key];
        match reply {
            Ok(reply) if reply.status == 200 => counts.admitted += 1,
            // The fallback names a whole window as the time to wait; that of an owner has begun.
            Ok(reply) if reply.status == 429 => {
                let reset = reply.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap();
                let is_fallback = reset == 365 * 24 * 3_600;
                *(if is_fallback { &mut counts.unknown } else { &mut counts.denied }) += 1;
            }
            Ok(reply) => panic!("{reply:?}"),
            Err(_) => counts.unknown += 1,
        }
    }
}
