//! Voters that are pinned by name: a node that starts without a majority of them decides nothing,
//! however long it waits.

use std::time::Duration;

use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const RULES: &str = "
domain: quota
descriptors:
  - {key: user, rate_limit: {window: 365d, requests_per_unit: 20, on_unavailable: deny}}
";
const LIMIT: usize = 20;
const PINNED: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: "",
    sets: &["cluster.voter_names=n1,n2,n3"],
};

/// A key that `n1` owns: the death of another node loses none of its hits.
async fn key_of_n1(cluster: &Cluster) -> String {
    for number in 0..1_000 {
        let key = format!("user-{number}");
        if cluster.nodes[0].owner("quota", "user", &key).await == "n1" {
            return key;
        }
    }
    panic!("n1 owns none of 1000 keys");
}

/// The checks of 25 that `node` admits.
async fn admitted(cluster: &Cluster, node: &Node, key: &str) -> usize {
    let mut admitted = 0;
    for _ in 0..LIMIT + 5 {
        let reply = cluster.http.check(node.http, &check_body("quota", "user", key)).await.unwrap();
        admitted += usize::from(reply.status == 200);
    }
    admitted
}

/// Waits until `/readyz` of the node names the missing majority: it has waited for peers in vain.
async fn opens_without_a_majority(cluster: &Cluster, node: &Node) {
    until("it opens without a majority", Duration::from_secs(30), async || {
        let reply = cluster.http.get(node.http, "/readyz").await?;
        match reply.status {
            503 if reply.body.contains("quorum") => Ok(()),
            status => Err(format!("{status}: {}", reply.body)),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_boots_before_the_others_decides_nothing() {
    let mut cluster = Cluster::start(TIDEGATE, PINNED).await;
    let key = key_of_n1(&cluster).await;
    assert_eq!(admitted(&cluster, &cluster.nodes[0], &key).await, LIMIT);
    for node in &mut cluster.nodes {
        node.kill();
    }
    cluster.nodes[0].start();
    opens_without_a_majority(&cluster, &cluster.nodes[0]).await;
    assert_eq!(admitted(&cluster, &cluster.nodes[0], &key).await, 0);

    // Two of three are a majority, after a blackout too.
    cluster.nodes[1].start();
    cluster.one_view().await;
    assert_eq!(cluster.nodes[0].status().await.unwrap().members.len(), 2);
    assert_eq!(admitted(&cluster, &cluster.nodes[1], &key).await, LIMIT, "nothing is on disk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_all_peers_refuse_decides_nothing() {
    let mut cluster = Cluster::start(TIDEGATE, PINNED).await;
    let key = key_of_n1(&cluster).await;
    assert_eq!(admitted(&cluster, &cluster.nodes[0], &key).await, LIMIT);
    let refused = &mut cluster.nodes[2];
    refused.kill();
    refused.set("cluster.name=other");
    refused.start();
    opens_without_a_majority(&cluster, &cluster.nodes[2]).await;
    assert_eq!(admitted(&cluster, &cluster.nodes[2], &key).await, 0);
    assert_eq!(admitted(&cluster, &cluster.nodes[0], &key).await, 0, "counted by the others");
}
