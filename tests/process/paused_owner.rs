//! An owner that is paused: checks that timed out meanwhile count at most once.

use std::time::Duration;

use tidegate_testkit::http_client::hits_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;
use tokio::task::JoinSet;

use crate::TIDEGATE;

const RULES: &str = "
domain: quota
descriptors:
  - {key: user, rate_limit: {window: 7d, requests_per_unit: 1000, on_unavailable: deny}}
";
const LIMIT: u64 = 1_000;
const CALLERS: u64 = 20;
const PAUSE: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_that_were_given_up_while_the_owner_was_paused_count_once_at_most() {
    // Callers wait for 100 ms, a third of the pause.
    let options = ClusterOptions {
        nodes: THREE,
        rules: RULES,
        config: "",
        sets: &["cluster.deadline=100ms"],
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let key = owned_by(&cluster.nodes[2], "n3").await;
    // The first hit, so that every connection is there.
    hit(&cluster, &key).await;
    let before = counted(&cluster.nodes[0], &cluster, &key).await;

    cluster.nodes[2].pause();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (http, key) = (cluster.http.clone(), key.clone());
        let listener = cluster.nodes[usize::try_from(caller % 2).unwrap()].http;
        callers.spawn(async move {
            http.check(listener, &hits_body("quota", "user", &key, 1)).await.unwrap().status
        });
    }
    let resume = async {
        tokio::time::sleep(PAUSE).await;
        cluster.nodes[2].resume();
    };
    let (statuses, ()) = tokio::join!(callers.join_all(), resume);
    assert!(statuses.iter().all(|status| *status == 429), "no owner could admit: {statuses:?}");

    cluster.one_view().await;
    let after = counted(&cluster.nodes[0], &cluster, &key).await;
    println!("{CALLERS} hits, counted as {}", after - before);
    assert!(after - before <= CALLERS, "{CALLERS} hits are counted as {}", after - before);

    // None of them arrives later: from here on only the hits from here on are counted.
    for _ in 0..5 {
        hit(&cluster, &key).await;
    }
    assert_eq!(counted(&cluster.nodes[1], &cluster, &key).await, after + 5);
}

/// A key whose owner is `id`.
async fn owned_by(node: &Node, id: &str) -> String {
    for number in 0..1_000 {
        let key = format!("user-{number}");
        if node.owner("quota", "user", &key).await == id {
            return key;
        }
    }
    panic!("{id} owns none of 1000 keys");
}

/// One hit that its owner admits.
async fn hit(cluster: &Cluster, key: &str) {
    let body = hits_body("quota", "user", key, 1);
    let reply = cluster.http.check(cluster.nodes[2].http, &body).await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// The count of the owner, read through `node` without a hit.
async fn counted(node: &Node, cluster: &Cluster, key: &str) -> u64 {
    let body = hits_body("quota", "user", key, 0);
    let looked = async || {
        let reply = cluster.http.check(node.http, &body).await?;
        match reply.header("x-ratelimit-remaining") {
            Some(left) if reply.status == 200 => Ok(LIMIT - left.parse::<u64>().unwrap()),
            _ => Err(format!("{reply:?}")),
        }
    };
    until("the owner answers", Duration::from_secs(10), looked).await.0
}
