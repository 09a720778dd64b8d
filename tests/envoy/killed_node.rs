//! A node that dies costs no request, although Envoy denies what is not answered within 20 ms.
//!
//! The load is an open loop: one request each 5 ms, whatever becomes of those before. A machine that
//! is too busy for 20 ms shows it before the node is killed; such a run says nothing about the death,
//! and is given again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::day;
use crate::harness::{Cluster, Shape, THREE};
use crate::proxy::{Patience, Proxy};

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}
  - {key: user, value: greedy, rate_limit: {unit: day, requests_per_unit: 20}}
";
/// What the example asks for: a node that waits in vain for the dead one's verdict leaves most of the
/// 20 ms to everything else.
const DEADLINE: &str = "cluster.deadline_ms=5";
const PACE: Duration = Duration::from_millis(5);
/// Two seconds of it, with all nodes up.
const BEFORE: usize = 400;
/// Five seconds of it: the peers, Envoy's health check and the new owners all come to know.
const AFTER: usize = 1_000;
const RUNS: usize = 5;

/// How often each status came.
type Statuses = BTreeMap<u16, usize>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_killed_under_load_costs_no_request() {
    day::far_from_its_end().await;
    for run in 1..=RUNS {
        let shape = Shape { nodes: THREE, rules: RULES, sets: &[DEADLINE], ..Shape::default() };
        let mut cluster = Cluster::start(shape).await;
        let proxy = Arc::new(Proxy::start(&cluster, Patience::Default).await);
        let before = steady(proxy.clone(), 0, BEFORE).await;
        if failures(&before) > 0 {
            println!("run {run}: this machine is too busy for 20 ms before the kill: {before:?}");
            continue;
        }

        let load = tokio::spawn(steady(proxy.clone(), BEFORE, AFTER));
        // Some requests of this load are under way when it dies.
        tokio::time::sleep(PACE * 40).await;
        cluster.nodes[1].kill();
        let after = load.await.unwrap();

        let retries = proxy.stat("cluster.tidegate.upstream_rq_retry").await;
        let errors = proxy.stat("cluster.service.ratelimit.error").await;
        println!(
            "run {run}: {BEFORE} requests before the kill: {before:?}; {AFTER} around it: {after:?}; \
             {retries} asks were repeated at another node, {errors} failed"
        );
        assert!(retries > 0, "the dead node was asked");
        assert_eq!(after.values().sum::<usize>(), AFTER);
        assert!(after.contains_key(&429), "limits went on");
        assert_eq!((failures(&after), errors), (0, 0), "{after:?}");
        return;
    }
    panic!("in {RUNS} runs this machine was too busy to answer within 20 ms with all nodes up");
}

/// What was neither let through nor refused by a limit.
fn failures(statuses: &Statuses) -> usize {
    statuses.iter().filter(|(status, _)| !matches!(status, 200 | 429)).map(|(_, count)| count).sum()
}

async fn steady(proxy: Arc<Proxy>, first: usize, count: usize) -> Statuses {
    let mut turn = tokio::time::interval_at(Instant::now(), PACE);
    turn.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut asking = JoinSet::new();
    for number in first..first + count {
        turn.tick().await;
        let proxy = proxy.clone();
        asking.spawn(async move {
            // Enough of them for each node to own some.
            let user = format!("user-{}", number % 200);
            let user = if number % 10 == 0 { "greedy" } else { &user };
            proxy.get("/", &[("x-user", user)]).await.status
        });
    }
    let mut statuses = Statuses::new();
    for status in asking.join_all().await {
        *statuses.entry(status).or_default() += 1;
    }
    statuses
}
