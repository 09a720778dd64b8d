//! A strict limit is exact, whichever node Envoy sends a request to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_testkit::envoy::Proxy;
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tokio::task::JoinSet;

use super::day;
use crate::TIDEGATE;

const LIMIT: usize = 1_000;
const CLIENTS: usize = 16;
const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000}}
";

/// Exactness is promised while owners answer in time; on a machine that does other things as well
/// they and Envoy are given a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_times_the_limit_exactly_the_limit_passes() {
    day::far_from_its_end().await;
    let sets = &["cluster.deadline=1000ms"];
    let cluster = Cluster::start(
        TIDEGATE,
        ClusterOptions {
            nodes: THREE,
            rules: RULES,
            config: "",
            sets,
            ..ClusterOptions::default()
        },
    )
    .await;
    let proxy = Arc::new(Proxy::start(&cluster).await);
    let (sent, passed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (proxy, sent, passed) = (proxy.clone(), sent.clone(), passed.clone());
        clients.spawn(async move {
            while sent.fetch_add(1, Ordering::Relaxed) < 5 * LIMIT {
                let reply = proxy.get("/", &[("x-user", "alice")]).await;
                assert!(matches!(reply.status, 200 | 429), "{reply:?}");
                passed.fetch_add(usize::from(reply.status == 200), Ordering::Relaxed);
            }
        });
    }
    clients.join_all().await;

    let passed = passed.load(Ordering::Relaxed);
    println!("of {} requests through Envoy {passed} passed; the limit is {LIMIT}", 5 * LIMIT);
    assert_eq!(passed, LIMIT);
    assert_eq!(proxy.upstream.served(), LIMIT as u64);
    assert_eq!(proxy.stat("cluster.service.ratelimit.ok").await, LIMIT as u64);
    assert_eq!(proxy.stat("cluster.service.ratelimit.over_limit").await, 4 * LIMIT as u64);
    // Envoy spread the requests: each node got a third, and those that do not own alice forwarded
    // them.
    assert!(cluster.verdicts("owner").await > 0, "no check was forwarded");
    assert_eq!(cluster.verdicts("policy").await, 0, "an owner was late");
}
