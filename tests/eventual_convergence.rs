//! Eventual keys over several nodes: how much is admitted while they have not heard of each other,
//! how soon they all show the same count, and that no bad link, restart or lost owner changes it.
//!
//! Counts are read from each node's own columns, so that they are exact above the limit too. Where
//! every hit has to become known, the limit is below 30: three nodes hide up to a tenth of a limit,
//! and of such a small one that is nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what is admitted over the limit is for people to read")]

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::relay::{Link, Relay};
use support::{Node, Shape, authority, cluster, cluster_under, eventually, identity};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::Span;
use tidegate_ownership::identity::{is_node, node_actor, region_actor};
use tokio::time::Instant;

const RULES: &str = "
domain: test
descriptors:
  - key: ten
    mode: eventual
    rate_limit: {window: 1h, requests_per_unit: 10, algorithm: sliding_window_counter}
  - key: hundred
    mode: eventual
    rate_limit: {window: 1h, requests_per_unit: 100, algorithm: sliding_window_counter}
  - key: thousand
    mode: eventual
    rate_limit: {window: 1h, requests_per_unit: 1000, algorithm: sliding_window_counter}
  - key: sliced
    mode: eventual
    rate_limit:
      {window: 60s, requests_per_unit: 29, algorithm: sliding_window_counter, sub_windows: 60}
  - key: steady-hundred
    mode: eventual
    rate_limit: {window: 5s, requests_per_unit: 100, algorithm: sliding_window_counter}
  - key: steady-thousand
    mode: eventual
    rate_limit: {window: 5s, requests_per_unit: 1000, algorithm: sliding_window_counter}
";

const NODES: [(&str, &str); 3] = [("a", "eu"), ("b", "eu"), ("c", "us")];
/// The default of `cluster.region_sync_interval`, the slower of the two.
const REGION_INTERVAL: Duration = Duration::from_millis(200);
/// What two shared cores may add to any time that is measured here.
const MACHINE_MARGIN: Duration = Duration::from_millis(400);
/// For conditions that have no stated time.
const PATIENCE: Duration = Duration::from_secs(20);

/// 3 × L asks at once over three nodes in two regions; all show the same count within two intervals
/// of the exchange between regions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_burst_all_nodes_show_the_same_count() {
    let nodes = cluster(&NODES, RULES, |_| {}).await;
    are_connected(&nodes).await;
    for (name, limit) in [("ten", 10), ("hundred", 100), ("thousand", 1_000)] {
        let key = key(&nodes[0], name, "burst", &hourly(limit));
        let mut admitted = 0;
        for turn in 0..3 * limit as usize {
            admitted += u64::from(nodes[turn % 3].ask(name, "burst").await.allowed);
        }
        let within = REGION_INTERVAL * 2 + MACHINE_MARGIN;
        let took = eventually("all show the same count", within, || {
            nodes.iter().all(|node| count(node, key) == admitted)
        })
        .await;
        println!(
            "burst of 3 × L, L = {limit}: admitted/L = {:.2}; equal after {took:?}",
            ratio(admitted, limit)
        );
        for node in &nodes {
            assert!(!node.ask(name, "burst").await.allowed, "nobody admits more");
        }
    }
}

/// Three times the limit, evenly over three nodes in two regions, open loop: once the nodes know of
/// each other they admit at most a tenth over the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steady_overload_admits_little_over_the_limit() {
    const WINDOW: Duration = Duration::from_secs(5);
    const WINDOWS: usize = 5;
    const TICK: Duration = Duration::from_millis(5);
    let nodes = cluster(&NODES, RULES, |_| {}).await;
    are_connected(&nodes).await;
    let keys = [("steady-hundred", 100_u32), ("steady-thousand", 1_000)];
    let mut admitted = [[0_u64; WINDOWS]; 2];
    let mut asked = [0_u64; 2];
    let mut ticks = tokio::time::interval(TICK);
    let start = Instant::now();
    loop {
        ticks.tick().await;
        let elapsed = start.elapsed();
        let window = usize::try_from(elapsed.as_millis() / WINDOW.as_millis()).unwrap();
        if window >= WINDOWS {
            break;
        }
        for (at, (name, limit)) in keys.iter().enumerate() {
            // Open loop: what is due is asked, whatever was answered.
            let due = elapsed.as_micros() * 3 * u128::from(*limit) / WINDOW.as_micros();
            while u128::from(asked[at]) < due {
                let node = usize::try_from(asked[at] % 3).unwrap();
                asked[at] += 1;
                admitted[at][window] += u64::from(nodes[node].ask(name, "load").await.allowed);
            }
        }
    }
    for ((_, limit), windows) in keys.iter().zip(admitted) {
        let ratios = windows.map(|admitted| ratio(admitted, *limit));
        println!("steady 3 × L, L = {limit}: admitted/L by window {ratios:.2?} (the first: burst)");
        for (window, ratio) in ratios.iter().enumerate().skip(1) {
            assert!(*ratio <= 1.10, "L = {limit}: {ratio:.3} in window {window}");
        }
    }
}

/// Links that lose a fifth of all datagrams, double some and reorder all change none of the counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossy_link_changes_no_count() {
    let link = |seed| Link::new(seed, 20, 10, Duration::from_millis(15));
    let cluster = Relayed::start([link(1), link(2), link(3)]).await;
    let mut expected = [0; 30];
    for turn in 0..600 {
        // Every node asks for every key: who never asked for one is not told of it.
        let (at, node) = (turn % expected.len(), turn / expected.len() % 3);
        expected[at] += 1;
        assert!(cluster.nodes[node].ask("sliced", &at.to_string()).await.allowed);
        if turn % 20 == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    cluster.counts_become(&expected).await;
    let lost: u64 =
        cluster.relays.iter().map(|relay| relay.link.lost.load(Ordering::Relaxed)).sum();
    assert!(lost > 50, "the links were bad: {lost} datagrams lost");
}

/// A node that nobody reaches for three seconds, longer than a slice of the window, decides alone and
/// is heard in full when the link heals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cut_link_heals_no_hit_is_missing() {
    let link = |seed| Link::new(seed, 0, 0, Duration::ZERO);
    let cluster = Relayed::start([link(1), link(2), link(3)]).await;
    let mut expected = [0; 18];
    for cut in [1, 2] {
        cluster.cut(cut, true);
        // Hits in every slice of the cut, on both sides of it.
        let end = Instant::now() + Duration::from_secs(3);
        let mut turn = 0;
        while Instant::now() < end {
            let (at, node) = (turn % expected.len(), turn / expected.len() % 3);
            expected[at] += 1;
            assert!(cluster.nodes[node].ask("sliced", &at.to_string()).await.allowed);
            turn += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let first = key(&cluster.nodes[0], "sliced", "0", &sliced());
        assert!(count(&cluster.nodes[cut], first) < expected[0], "it was cut off");
        cluster.cut(cut, false);
        for node in &cluster.nodes {
            node.sees("all nodes again", |view| view.owners().count() == 3).await;
        }
        cluster.counts_become(&expected).await;
    }
}

/// A node that comes back under a new generation before anybody missed it: the others keep what it
/// counted before, once, and tell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_forgets_and_doubles_nothing() {
    let authority = authority();
    let shape = [("a", "eu"), ("b", "eu"), ("c", "eu")];
    let mut nodes = cluster_under(&authority, &shape, RULES, |_| {}).await;
    are_connected(&nodes).await;
    let values: Vec<String> = (0..30).map(|n| format!("k{n}")).collect();
    let quota = sliced();
    for value in &values {
        for (node, hits) in nodes.iter().zip([1, 2, 4]) {
            node.ask_hits("sliced", value, hits).await;
        }
    }
    let keys: Vec<KeyHash> =
        values.iter().map(|value| key(&nodes[0], "sliced", value, &quota)).collect();
    all_count(&nodes, &keys, 7).await;

    drop(nodes.pop().unwrap());
    nodes.push(restart(&authority, &nodes[0], "c", "eu").await);
    // What it owns is told to it without anybody asking again.
    let owned: Vec<KeyHash> =
        keys.iter().copied().filter(|key| owner(&nodes[0], *key) == "c").collect();
    assert!(!owned.is_empty());
    all_count(&nodes[2..], &owned, 7).await;
    // The rest it hears with its first ask.
    for value in &values {
        nodes[2].ask_hits("sliced", value, 8).await;
    }
    all_count(&nodes, &keys, 15).await;
}

/// An owner that dies takes no count with it: the next owner hears of everybody's, and of the dead
/// node's own, from those that knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_owner_s_own_hits_stay_known() {
    let nodes_of = [("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "eu")];
    let mut nodes = cluster(&nodes_of, RULES, |_| {}).await;
    are_connected(&nodes).await;
    let values: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let quota = sliced();
    // Only b and d use these keys: a and c hold nothing of them but as owners.
    for value in &values {
        nodes[1].ask_hits("sliced", value, 2).await;
        nodes[3].ask_hits("sliced", value, 8).await;
    }
    let keys: Vec<KeyHash> =
        values.iter().map(|value| key(&nodes[0], "sliced", value, &quota)).collect();
    all_count(&nodes[1..2], &keys, 10).await;
    drop(nodes.pop().unwrap());
    for node in &nodes {
        node.sees("three nodes", |view| view.owners().count() == 3).await;
    }
    for (index, name) in ["a", "b", "c"].iter().enumerate() {
        let owned: Vec<KeyHash> =
            keys.iter().copied().filter(|key| owner(&nodes[0], *key) == *name).collect();
        assert!(!owned.is_empty());
        all_count(&nodes[index..=index], &owned, 10).await;
    }
}

/// A node whose generation grows while it runs counts in another column from then on; its peers hear
/// of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_goes_on_as_a_newer_start_is_still_heard() {
    let nodes = cluster(&NODES, RULES, |_| {}).await;
    are_connected(&nodes).await;
    let values: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let quota = sliced();
    let keys: Vec<KeyHash> =
        values.iter().map(|value| key(&nodes[0], "sliced", value, &quota)).collect();
    // It is heard by an owner as much as as an owner.
    assert!(["a", "b"].iter().all(|id| keys.iter().any(|key| owner(&nodes[0], *key) == *id)));
    ask_all(&nodes, &values, 4).await;
    all_count(&nodes, &keys, 12).await;

    let incarnation = &nodes[1].core.decider.parts().incarnation;
    let old = incarnation.actor();
    incarnation.renew();
    assert_ne!(incarnation.actor(), old);
    // Gossip starts anew under the new generation, too; from then on peers know the new column for
    // b's, and take it from nobody but the start of b that they are connected to.
    for node in [&nodes[0], &nodes[2]] {
        node.sees("the newer start", |view| {
            let actors = view.members().iter();
            actors
                .map(|member| node_actor(&member.id, member.generation))
                .any(|actor| actor != old && actor == incarnation.actor())
        })
        .await;
    }
    ask_all(&nodes, &values, 4).await;
    all_count(&nodes, &keys, 24).await;
}

/// An honest cluster refuses nothing of what its own nodes tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_nodes_reject_nothing_of_each_other() {
    let nodes = cluster(&NODES, RULES, |_| {}).await;
    are_connected(&nodes).await;
    let quota = sliced();
    let mut keys = Vec::new();
    for n in 0..60 {
        // Most keys are used by one node alone.
        let value = n.to_string();
        nodes[n % 3].ask("sliced", &value).await;
        keys.push((n % 3, key(&nodes[0], "sliced", &value, &quota)));
    }
    // Its region's owner and the other region's owner know each.
    for (used_at, key) in keys {
        for region in ["eu", "us"] {
            let owner = owner_in(&nodes[used_at], region, key);
            let at = nodes.iter().position(|node| node.core.topology.load().me.as_str() == owner);
            let what = format!("the owner in {region} knows");
            eventually(&what, PATIENCE, || count(&nodes[at.unwrap()], key) == 1).await;
        }
    }
    for node in &nodes {
        let counters = node.core.joined.as_ref().unwrap().synchroniser.counters();
        assert_eq!(counters.rejected.load(Ordering::Relaxed), 0);
    }
}

// === nodes ===

/// Three nodes whose peers reach them through a relay each.
struct Relayed {
    nodes: Vec<Node>,
    relays: Vec<Relay>,
    /// Where each node listens, and sends from.
    listens: Vec<SocketAddr>,
}

impl Relayed {
    async fn start(links: [Link; 3]) -> Self {
        let authority = authority();
        let (mut nodes, mut relays) = (Vec::new(), Vec::<Relay>::new());
        let mut listens = Vec::new();
        for ((id, region), link) in NODES.into_iter().zip(links) {
            let listen = free_addr();
            let relay = Relay::start(listen, link).await;
            let seeds: Vec<SocketAddr> = relays.iter().take(1).map(|relay| relay.front).collect();
            let identity = identity(&authority, &authority, id);
            let shape = Shape { id, region, seeds: &seeds, identity, rules: RULES, change: |_| {} };
            nodes.push(Node::start_behind(shape, listen, relay.front).await);
            relays.push(relay);
            listens.push(listen);
        }
        for node in &nodes {
            node.sees("all nodes", |view| view.owners().count() == 3).await;
        }
        Self { nodes, relays, listens }
    }

    /// Cuts `node` off, or heals the cut: a connection passes the relay of whoever was dialed, so
    /// datagrams between `node` and the others are cut at every relay.
    fn cut(&self, node: usize, is_cut: bool) {
        let own = self.nodes[node].core.joined.as_ref().unwrap().mesh.advertise();
        for relay in &self.relays {
            if relay.front == own {
                relay.link.cut(is_cut);
            } else {
                relay.link.cut_one(self.listens[node], is_cut);
            }
        }
    }

    /// Waits until all nodes count `expected` hits of the keys `0..`.
    async fn counts_become(&self, expected: &[u64]) {
        for (at, expected) in expected.iter().enumerate() {
            let key = key(&self.nodes[0], "sliced", &at.to_string(), &sliced());
            all_count(&self.nodes, &[key], *expected).await;
        }
    }
}

/// An address that nobody listened at a moment ago.
fn free_addr() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn restart(authority: &Authority, seed: &Node, id: &str, region: &str) -> Node {
    let seeds = [seed.addr()];
    let identity = identity(authority, authority, id);
    let shape = Shape { id, region, seeds: &seeds, identity, rules: RULES, change: |_| {} };
    let node = Node::start(shape).await;
    node.sees("the others", |view| view.owners().count() == 3).await;
    node
}

async fn are_connected(nodes: &[Node]) {
    for node in nodes {
        let mesh = &node.core.joined.as_ref().unwrap().mesh;
        let all = || mesh.peers().len() == nodes.len() - 1;
        eventually("all are connected", PATIENCE, all).await;
    }
}

/// Every node counts `hits` hits of every value.
async fn ask_all(nodes: &[Node], values: &[String], hits: i64) {
    for value in values {
        for node in nodes {
            node.ask_hits("sliced", value, hits).await;
        }
    }
}

async fn all_count(nodes: &[Node], keys: &[KeyHash], expected: u64) {
    let counts = || -> Vec<Vec<u64>> {
        nodes.iter().map(|node| keys.iter().map(|key| count(node, *key)).collect()).collect()
    };
    let start = Instant::now();
    while counts().iter().flatten().any(|count| *count != expected) {
        assert!(start.elapsed() < PATIENCE, "not all count {expected}: {:?}", counts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// All hits of `key` that `node` knows of.
///
/// Its own region's nodes and the other regions count; its own region's column is an echo of its
/// nodes and is not there.
fn count(node: &Node, key: KeyHash) -> u64 {
    let Some(actor_counters) = node.core.decider.parts().store.actor_counters(key) else {
        return 0;
    };
    let region = region_actor(&node.core.topology.load().region);
    let buckets = actor_counters.wire().buckets;
    let actor_counters = buckets.iter().flat_map(|bucket| &bucket.used.dots);
    actor_counters
        .inspect(|(actor, _)| assert!(is_node(**actor) || **actor != region, "its own echo"))
        .map(|(_, hits)| hits)
        .sum()
}

fn key(node: &Node, name: &str, value: &str, quota: &Quota) -> KeyHash {
    let entries = [Entry { key: name, value }];
    node.core.decider.parts().hasher.descriptor("test", &entries).counter(
        quota,
        Mode::Eventual,
        Scope::Region,
    )
}

fn owner(node: &Node, key: KeyHash) -> String {
    owner_in(node, "eu", key)
}

fn owner_in(node: &Node, region: &str, key: KeyHash) -> String {
    node.core.topology.load().region_owner(region, key.token).unwrap().to_string()
}

fn hourly(limit: u32) -> Quota {
    Quota::simple(Algorithm::SlidingWindowCounter, limit, Span::from_secs(3_600)).unwrap()
}

fn sliced() -> Quota {
    Quota::new(QuotaParts {
        algorithm: Algorithm::SlidingWindowCounter,
        limit: 29,
        window: Span::from_secs(60),
        burst: 29,
        sub_windows: 60,
        queue: None,
    })
    .unwrap()
}

#[allow(clippy::cast_precision_loss, reason = "small numbers, to be read by people")]
fn ratio(admitted: u64, limit: u32) -> f64 {
    admitted as f64 / f64::from(limit)
}
