//! Ten million keys in one domain: what is decided in another domain is what would be decided
//! without them.
//!
//! The other domain is calm: its clients ask one after the other, so that each answer follows from
//! the number of checks before it. They ask before, during and after the flood, at every node.
//!
//! `scripts/check-long flood` runs it.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::KeyHasher;
use tidegate_limiter::units::Span;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::variable;
use tidegate_testkit::wait::until;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;

/// The junk lives as long as what it is to push out.
const FLOOD: &str = "
domain: flood
descriptors:
  - {key: junk, rate_limit: {window: 365d, requests_per_unit: 100}}
";
const LIMIT: u64 = 3;
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: FLOOD,
    config: "",
    // The longest deadline: what an owner answers late on a busy machine is not the subject.
    sets: &["limits.keys_max=1000000", "limits.domain_keys_max=500000", "cluster.deadline=1s"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
/// `TIDEGATE_FLOOD_KEYS` has another number.
const JUNK: u32 = 10_000_000;
const KEYS_MAX: u64 = 1_000_000;
const DOMAIN_KEYS_MAX: u64 = 500_000;
/// Users of the calm domain, for each of its rules.
const USERS: u64 = 2_000;
/// Users that ask for the first time during the flood.
const NEW_USERS: u64 = 1_000_000;
/// As many as a request may carry.
const DESCRIPTORS: u64 = 32;
const FLOODERS: usize = 6;
/// The counters of the domain at twice what one costs, and what is on its way.
const GROWTH_MAX: u64 = DOMAIN_KEYS_MAX * 100 + 96 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_million_keys_in_one_domain_change_no_decision_in_another() {
    let junk = u64::from(variable::number("TIDEGATE_FLOOD_KEYS", JUNK));
    let cluster = Cluster::start_alone(TIDEGATE, OPTIONS).await;
    let domain = calm_domain(&cluster).await;
    let listeners: Vec<_> = cluster.nodes.iter().map(|node| node.http).collect();
    let calm = Calm { http: Http::new(), domain, listeners: listeners.clone() };
    for turn in 0..2 {
        for user in 0..USERS {
            calm.check(user, turn).await;
        }
    }
    let before: Vec<u64> = cluster.nodes.iter().map(Node::resident_bytes).collect();

    let (start, ended) = (Instant::now(), CancellationToken::new());
    let asking = tokio::spawn(ask_during(calm.clone(), ended.clone()));
    flood(&listeners, junk).await;
    let took = start.elapsed();
    ended.cancel();
    let during = asking.await.unwrap();

    // Users of before the flood, and of during it: each has what is left of its limit.
    for turn in 2..=LIMIT {
        for user in 0..USERS {
            calm.check(user, turn).await;
        }
    }
    for user in 0..during {
        for turn in 1..=LIMIT {
            calm.check(NEW_USERS + user, turn).await;
        }
    }
    let rate = junk as f64 / took.as_secs_f64();
    println!(
        "{junk} keys in {took:.0?}, {rate:.0} a second; {} decisions of another domain were what \
         they had to be, {during} of them at first sight during the flood",
        (USERS + during) * 2 * (LIMIT + 1),
    );
    for (node, before) in cluster.nodes.iter().zip(before) {
        let store = node.status().await.unwrap().store;
        let now = node.resident_bytes();
        let grown = now.saturating_sub(before);
        println!(
            "{}: {} keys, {} MiB resident, {} MiB more than before",
            node.id,
            store.keys,
            now >> 20,
            grown >> 20,
        );
        assert!(store.keys < KEYS_MAX * 3 / 4, "{store:?}");
        assert!(store.in_full_domains > 0, "the flood was larger than its share: {store:?}");
        assert!(grown <= GROWTH_MAX, "{} grew by {grown} bytes", node.id);
    }
}

/// Gives the nodes the rules of a domain that does not happen to share its bound with that of the
/// flood, as one in 256 does.
async fn calm_domain(cluster: &Cluster) -> String {
    let secret = fs::read_to_string(cluster.dir.path().join("pki/cluster.secret")).unwrap();
    let secret = u128::from_str_radix(secret.trim(), 16).unwrap().to_be_bytes();
    let hasher = KeyHasher::new(secret).with_domains(true);
    let quota = Quota::simple(Algorithm::FixedWindow, 1, Span::from_secs(1)).unwrap();
    let bound = |domain: &str| {
        let hash = hasher.descriptor(domain, &[Entry { key: "k", value: "v" }]);
        // The bits of the tag that name the domain.
        hash.counter(&quota, Mode::Strict, Scope::Region).tag & 0xff0
    };
    let mut names = (0..).map(|number| format!("calm-{number}"));
    let domain = names.find(|name| bound(name) != bound("flood")).unwrap();
    // An eventual key is decided at the node that is asked: each user asks one.
    let limit = format!("rate_limit: {{window: 365d, requests_per_unit: {LIMIT}}}");
    let rules = format!(
        "domain: {domain}\ndescriptors:\n  - {{key: strict, {limit}}}\n  \
         - {{key: eventual, mode: eventual, {limit}}}\n"
    );
    for node in &cluster.nodes {
        let folder = cluster.dir.path().join(&node.id).join("rules");
        fs::write(folder.join("calm.yaml"), &rules).unwrap();
        let target = format!("/owner?domain={domain}&eventual=any");
        let known = async || {
            let reply = cluster.http.get(node.admin, &target).await?;
            let is_known = reply.body.contains("\"mode\":\"eventual\"");
            if is_known { Ok(()) } else { Err(reply.body) }
        };
        until("the node has the rules", Duration::from_secs(30), known).await;
    }
    domain
}

/// The clients of the calm domain.
#[derive(Clone)]
struct Calm {
    http: Http,
    domain: String,
    listeners: Vec<SocketAddr>,
}

impl Calm {
    /// Checks `user` of both rules, which were checked `turn` times before.
    async fn check(&self, user: u64, turn: u64) {
        let (status, remaining) = match LIMIT.checked_sub(turn + 1) {
            Some(remaining) => (200, remaining),
            None => (429, 0),
        };
        for (key, listener) in [("strict", user + turn), ("eventual", user)] {
            let body = check_body(&self.domain, key, &user.to_string());
            let listener = self.listeners[(listener % self.listeners.len() as u64) as usize];
            let reply = self.http.check(listener, &body).await.unwrap();
            let answered: Value = serde_json::from_str(&reply.body).unwrap();
            let left = answered["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0);
            let what = format!("{key} {user}, check {turn}: {reply:?}");
            assert_eq!((reply.status, left), (status, remaining), "{what}");
        }
    }
}

/// One new user after the other; returns how many.
async fn ask_during(calm: Calm, ended: CancellationToken) -> u64 {
    let mut users = 0;
    while !ended.is_cancelled() {
        calm.check(NEW_USERS + users, 0).await;
        users += 1;
    }
    users
}

/// Checks `junk` keys of the flooded domain once, as fast as the nodes answer.
async fn flood(listeners: &[SocketAddr], junk: u64) {
    let next = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for client in 0..FLOODERS {
        let (next, listener) = (next.clone(), listeners[client % listeners.len()]);
        let http = Http::new();
        clients.spawn(async move {
            loop {
                let first = next.fetch_add(DESCRIPTORS, Ordering::Relaxed);
                if first >= junk {
                    break;
                }
                let key = |number: u64| {
                    let value = number.to_string();
                    json!({"entries": [{"key": "junk", "value": value}]})
                };
                let keys: Vec<_> = (first..first + DESCRIPTORS).map(key).collect();
                let body = json!({"domain": "flood", "descriptors": keys});
                let reply = http.check(listener, &body).await.unwrap();
                assert!([200, 429].contains(&reply.status), "{reply:?}");
            }
        });
    }
    clients.join_all().await;
}
