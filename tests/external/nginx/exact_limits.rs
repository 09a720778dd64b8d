//! A strict limit is exact: three nodes behind nginx, round robin, sixteen clients at once,
//! measured in the access log of nginx.
//!
//! Exactness is promised while owners answer in time; on two cores that also run the clients, ten
//! milliseconds now and then are not enough. `cluster.deadline` is therefore at its maximum here,
//! and each test ends by showing that no verdict came from `on_unavailable`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Method;
use tidegate_testkit::http_client::Http;
use tidegate_testkit::nginx::{Nginx, Request};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tidegate_testkit::random::Random;
use tidegate_testkit::upstream::Upstream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::TIDEGATE;

const CLIENTS: usize = 16;
const LIMIT: usize = 1_000;
const REQUESTS: usize = 20_000;
/// The bucket algorithms give one token of 1,000 an hour back every 3.6 s.
const REFILL_MS: u64 = 3_600;
/// How far nginx's times may be from the nodes' clock: nginx reads the time once a turn of its
/// event loop and logs it in whole milliseconds.
const CLOCK_ERROR_MS: u64 = 50;

const AUTH: &str = r#"
[auth]
domain = "edge"
[[auth.descriptors]]
entries = [{ key = "path", source = "path_prefix", segments = 1 }, { key = "user", header = "x-user" }]
"#;

const RULES: &str = "
domain: edge
descriptors:
  - {key: path, value: /fixed_window, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 1000, algorithm: fixed_window}}]}
  - {key: path, value: /sliding_window_counter, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 1000, algorithm: sliding_window_counter}}]}
  - {key: path, value: /sliding_window_log, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 1000, algorithm: sliding_window_log}}]}
  - {key: path, value: /token_bucket, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 1000, algorithm: token_bucket}}]}
  - {key: path, value: /leaky_bucket, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 1000, algorithm: leaky_bucket}}]}
  - {key: path, value: /gcra, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 1000, algorithm: gcra}}]}
  - {key: path, value: /first_hit_window, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 1000, algorithm: first_hit_window}}]}
  - {key: path, value: /many, descriptors: [{key: user, rate_limit:
      {unit: hour, requests_per_unit: 20}}]}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_20_000_requests_for_one_key_exactly_the_limit_passes_with_every_algorithm() {
    let (cluster, upstream, nginx) = start().await;
    // Windows aligned to the hour come first, right after reading the clock.
    far_from_the_change_of_hour().await;
    let mut served = 0;
    for algorithm in [
        "fixed_window",
        "sliding_window_counter",
        "sliding_window_log",
        "token_bucket",
        "leaky_bucket",
        "gcra",
        "first_hit_window",
    ] {
        let user = format!("only-{algorithm}");
        let requests = vec![(format!("/{algorithm}"), user.clone()); REQUESTS];
        let seen = send_all(nginx.addr, requests).await;
        let log = nginx.requests(REQUESTS, |name| name == user).await;
        let passed: Vec<&Request> = log.iter().filter(|request| request.status == 200).collect();
        let refused = log.iter().filter(|request| request.status == 429).count();
        assert_eq!(passed.len() + refused, REQUESTS, "{algorithm}: {:?}", statuses(&log));
        assert_eq!(statuses(&log), seen, "{algorithm}: responses differ from the log of nginx");
        served += passed.len();
        match algorithm {
            "token_bucket" | "leaky_bucket" | "gcra" => {
                assert_one_more_each_refill(algorithm, &log, &passed);
            }
            _ => {
                println!("{algorithm}: {} passed", passed.len());
                assert_eq!(passed.len(), LIMIT, "{algorithm}");
            }
        }
    }
    assert_eq!(
        upstream.served(),
        served as u64,
        "exactly the admitted requests reach the upstream"
    );
    assert_all_were_decided_by_owners(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_500_keys_each_gets_exactly_its_limit() {
    const KEYS: usize = 500;
    const ASKED: usize = 30;
    const LIMIT: usize = 20;
    let (cluster, _upstream, nginx) = start().await;
    far_from_the_change_of_hour().await;
    let user = |index: usize| format!("user-{}", index % KEYS);
    let mut requests: Vec<_> =
        (0..KEYS * ASKED).map(|index| ("/many".to_owned(), user(index))).collect();
    let seed = u64::from(std::process::id());
    println!("order of seed {seed}");
    Random::new(seed).shuffle(&mut requests);
    send_all(nginx.addr, requests).await;

    let log = nginx.requests(KEYS * ASKED, |name| name.starts_with("user-")).await;
    let mut passed: BTreeMap<&str, usize> = BTreeMap::new();
    for request in &log {
        assert!(matches!(request.status, 200 | 429), "{request:?}");
        *passed.entry(&request.user).or_default() += usize::from(request.status == 200);
    }
    assert_eq!(passed.len(), KEYS);
    let wrong: Vec<_> = passed.iter().filter(|(_, count)| **count != LIMIT).collect();
    assert!(wrong.is_empty(), "not exactly {LIMIT}, seed {seed}: {wrong:?}");
    assert_all_were_decided_by_owners(&cluster).await;
}

async fn start() -> (Cluster, Upstream, Nginx) {
    let sets = &["cluster.deadline=1000ms"];
    let cluster = Cluster::start(
        TIDEGATE,
        ClusterOptions {
            nodes: THREE,
            rules: RULES,
            config: AUTH,
            sets,
            ..ClusterOptions::default()
        },
    )
    .await;
    let upstream = Upstream::start().await;
    let nginx = Nginx::start(&cluster, upstream.addr).await;
    (cluster, upstream, nginx)
}

/// Sends each path and user once, with all clients at once; responses by status.
async fn send_all(nginx: SocketAddr, requests: Vec<(String, String)>) -> BTreeMap<u16, usize> {
    let (requests, next) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (requests, next) = (requests.clone(), next.clone());
        clients.spawn(async move {
            let http = Http::new();
            let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
            while let Some((path, user)) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                let headers = [("x-user", user.as_str())];
                let reply = http.send(Method::GET, nginx, path, &headers, Bytes::new()).await;
                *seen.entry(reply.unwrap().status).or_default() += 1;
            }
            seen
        });
    }
    let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
    for (status, count) in clients.join_all().await.into_iter().flatten() {
        *seen.entry(status).or_default() += count;
    }
    let millis = start.elapsed().as_millis().max(1);
    println!(
        "{} requests through nginx, {}/s",
        requests.len(),
        requests.len() as u128 * 1_000 / millis
    );
    seen
}

/// A bucket admits its burst at once and one more each 3.6 s after the first hit, so how many may
/// pass follows from when the first and the last request were decided. nginx logs an interval for
/// each: from reading the request to sending the response.
fn assert_one_more_each_refill(algorithm: &str, log: &[Request], passed: &[&Request]) {
    let first_earliest = log.iter().map(|request| request.start_ms).min().unwrap();
    let first_latest = passed.iter().map(|request| request.end_ms).min().unwrap();
    let last_earliest = log.iter().map(|request| request.start_ms).max().unwrap();
    let last_latest = log.iter().map(|request| request.end_ms).max().unwrap();
    let refills = |ms: u64| usize::try_from(ms / REFILL_MS).unwrap();
    let least = LIMIT + refills(last_earliest.saturating_sub(first_latest + CLOCK_ERROR_MS));
    let most = LIMIT + refills(last_latest + CLOCK_ERROR_MS - first_earliest);
    println!(
        "{algorithm}: {} passed within {} ms; {least} to {most} may",
        passed.len(),
        last_latest - first_earliest
    );
    assert!((least..=most).contains(&passed.len()), "{algorithm}: {} passed", passed.len());

    // And none passed before its token was there: the log is in the order of the answers.
    for (index, request) in passed.iter().enumerate().skip(LIMIT) {
        let refill = (index + 1 - LIMIT) as u64 * REFILL_MS;
        let earliest = first_earliest + refill - CLOCK_ERROR_MS;
        assert!(request.end_ms >= earliest, "{algorithm}: number {index} passed too early");
    }
}

async fn assert_all_were_decided_by_owners(cluster: &Cluster) {
    assert_eq!(cluster.verdicts("policy").await, 0, "an owner was late");
    let (here, forwarded) = (cluster.verdicts("local").await, cluster.verdicts("owner").await);
    println!("decided by the receiving node: {here}, by another owner: {forwarded}");
    assert_eq!(cluster.verdicts("peer").await, forwarded, "each forwarded check was counted once");
}

fn statuses(log: &[Request]) -> BTreeMap<u16, usize> {
    let mut statuses = BTreeMap::new();
    for request in log {
        *statuses.entry(request.status).or_default() += 1;
    }
    statuses
}

/// A fixed window ends with the hour. Only when that is less than a minute away there is something
/// to wait for.
#[expect(clippy::disallowed_methods, reason = "what matters is the hour that the nodes see")]
async fn far_from_the_change_of_hour() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let left = 3_600 - now.as_secs() % 3_600;
    if left <= 60 {
        println!("the hour ends in {left} s; wait for the next");
        tokio::time::sleep(Duration::from_secs(left + 1)).await;
    }
}
