//! A node that dies costs no request, although Envoy denies what is not answered in time.
//!
//! The load is an open loop: one request each 5 ms, whatever becomes of those before. A request
//! sent to the process that is being killed waits until the kernel has closed its sockets: some
//! 20 ms, and more than 100 on a busy machine. So Envoy waits for longer here than its
//! default of 20 ms, and the time before the end of the process does not count. A request for a key
//! of the dead owner waits for the deadline. How many requests take longer than they did before the
//! kill is bounded as a share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_testkit::envoy::Proxy;
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::day;
use crate::TIDEGATE;

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}
  - {key: user, value: greedy, rate_limit: {unit: day, requests_per_unit: 20}}
";
/// As in the example: a node that waits in vain for the verdict of a dead owner leaves most of the
/// 20 ms for the rest.
const DEADLINE: &str = "cluster.deadline=5ms";
const PACE: Duration = Duration::from_millis(5);
/// Two seconds of it, with all nodes up.
const BEFORE: usize = 400;
/// Five seconds of it: the peers and Envoy's health check detect the failure, and new owners take
/// over.
const AFTER: usize = 1_000;
/// A request is late when it takes longer than this, Envoy's default, and longer than any before
/// the kill; of one that was sent before the process ended, the time after that counts.
const IN_TIME: Duration = Duration::from_millis(20);
/// Late requests in a hundred. The view takes some 200 requests to change, a third of them for keys
/// of the dead owner; each of these waits for the deadline of 5 ms, which is in time.
const LATE_PERCENT_MAX: usize = 2;

/// One request and its response.
struct Response {
    status: u16,
    sent: Instant,
    took: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_killed_under_load_costs_no_request() {
    day::far_from_its_end().await;
    let options = ClusterOptions {
        nodes: THREE,
        rules: RULES,
        sets: &[DEADLINE],
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start_alone(TIDEGATE, options).await;
    let proxy = Arc::new(Proxy::start(&cluster).await);
    let before = steady(proxy.clone(), 0, BEFORE).await;
    assert_eq!(failures(&before), 0, "with all nodes up: {:?}", statuses(&before));

    let load = tokio::spawn(steady(proxy.clone(), BEFORE, AFTER));
    // Some requests of this load are in flight when the node dies.
    tokio::time::sleep(PACE * 40).await;
    let killed = Instant::now();
    cluster.nodes[1].kill();
    let ended = Instant::now();
    let after = load.await.unwrap();

    let retries = proxy.stat("cluster.tidegate.upstream_rq_retry").await;
    let errors = proxy.stat("cluster.service.ratelimit.error").await;
    let slowest_before = before.iter().map(|response| response.took).max().unwrap();
    let in_time = IN_TIME.max(slowest_before);
    let is_late = |response: &&Response| {
        let answered = response.sent + response.took;
        answered.saturating_duration_since(response.sent.max(ended)) > in_time
    };
    let late = after.iter().filter(is_late).count();
    println!(
        "{BEFORE} requests before the kill: {:?}; {AFTER} around it: {:?}; {retries} requests were \
         retried at another node, {errors} failed, {late} took over {in_time:?}; its process ended \
         {:?} after the signal; {}",
        statuses(&before),
        statuses(&after),
        ended - killed,
        slowest(&after, killed),
    );
    assert!(retries > 0, "requests were sent to the dead node");
    assert_eq!(after.len(), AFTER);
    assert!(after.iter().any(|response| response.status == 429), "limits still apply");
    assert_eq!((failures(&after), errors), (0, 0), "{:?}", statuses(&after));
    assert!(late * 100 <= AFTER * LATE_PERCENT_MAX, "{late} of {AFTER} took over {in_time:?}");
}

/// Responses by status.
fn statuses(responses: &[Response]) -> BTreeMap<u16, usize> {
    let mut statuses = BTreeMap::new();
    for response in responses {
        *statuses.entry(response.status).or_default() += 1;
    }
    statuses
}

/// Responses that are neither admitted nor refused by a limit.
fn failures(responses: &[Response]) -> usize {
    responses.iter().filter(|response| !matches!(response.status, 200 | 429)).count()
}

/// The slowest requests, with when they were sent.
fn slowest(responses: &[Response], killed: Instant) -> String {
    let mut responses: Vec<_> = responses.iter().collect();
    responses.sort_by_key(|response| response.took);
    let describe = |response: &&Response| {
        let sent = response.sent.duration_since(killed).as_secs_f64()
            - killed.duration_since(response.sent).as_secs_f64();
        format!("{} after {:.1?}, sent {:+.1} ms", response.status, response.took, sent * 1e3)
    };
    let slowest: Vec<_> = responses.iter().rev().take(5).map(describe).collect();
    format!("slowest: {} from the kill", slowest.join("; "))
}

async fn steady(proxy: Arc<Proxy>, first: usize, count: usize) -> Vec<Response> {
    let mut turn = tokio::time::interval_at(Instant::now(), PACE);
    turn.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = JoinSet::new();
    for number in first..first + count {
        turn.tick().await;
        let proxy = proxy.clone();
        requests.spawn(async move {
            // Enough users for each node to own some.
            let user = format!("user-{}", number % 200);
            let user = if number % 10 == 0 { "greedy" } else { &user };
            let sent = Instant::now();
            let status = proxy.get("/", &[("x-user", user)]).await.status;
            Response { status, sent, took: sent.elapsed() }
        });
    }
    requests.join_all().await
}
