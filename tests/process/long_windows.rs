//! Power fails everywhere at once: a quota of a week that was used up stays used up.

use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};

use crate::TIDEGATE;

const RULES: &str = "
domain: shop
descriptors:
  - key: week
    rate_limit: {unit: week, requests_per_unit: 20}
";
const STORAGE: &str = "[storage]\ninterval = \"100ms\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_node_that_is_killed_remembers_a_used_up_week() {
    remembers_a_used_up_week(&["n1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_killed_whole_remembers_a_used_up_week() {
    remembers_a_used_up_week(THREE).await;
}

async fn remembers_a_used_up_week(nodes: &[&str]) {
    // A late owner would be a verdict by fallback, which is not the subject.
    let sets = &["cluster.deadline=1s"];
    let options = ClusterOptions {
        nodes,
        rules: RULES,
        config: STORAGE,
        sets,
        has_disks: true,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    for hit in 0..20 {
        let node = &cluster.nodes[hit % nodes.len()];
        assert_eq!(week(&cluster, node, "alice").await, 200, "hit {hit}");
    }
    for node in &cluster.nodes {
        assert_eq!(week(&cluster, node, "alice").await, 429);
        assert_eq!(week(&cluster, node, "bob").await, 200);
    }
    for node in &cluster.nodes {
        node.saves_counts().await;
    }

    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    for node in &mut cluster.nodes {
        node.ready(nodes.len()).await;
    }
    let mut loaded = 0;
    for node in &cluster.nodes {
        assert_eq!(week(&cluster, node, "alice").await, 429, "{}", node.id);
        let storage = node.status().await.unwrap().storage.expect("it has a file");
        assert_eq!((storage.problem, storage.skipped), (None, 0));
        assert_eq!(node.metric("tidegate_storage_ok").await, 1);
        loaded += storage.loaded;
    }
    assert!(loaded >= 2, "alice and bob, wherever their owners are");
    for hit in nodes.len()..20 {
        assert_eq!(week(&cluster, &cluster.nodes[0], "bob").await, 200, "hit {hit}");
    }
    assert_eq!(week(&cluster, &cluster.nodes[0], "bob").await, 429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_file_is_torn_starts_and_reports_it_once() {
    let options = ClusterOptions {
        nodes: &["n1"],
        rules: RULES,
        config: STORAGE,
        has_disks: true,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    assert_eq!(week(&cluster, &cluster.nodes[0], "alice").await, 200);
    cluster.nodes[0].saves_counts().await;
    cluster.nodes[0].kill();
    let folder = cluster.dir.path().join("n1");
    std::fs::write(folder.join("data/counts.redb"), "torn").unwrap();

    cluster.nodes[0].start();
    cluster.nodes[0].ready(1).await;
    let storage = cluster.nodes[0].status().await.unwrap().storage.expect("it has a file");
    assert_eq!((storage.problem, storage.loaded), (None, 0));
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let reported: Vec<_> = log.lines().filter(|line| line.contains("set aside")).collect();
    assert_eq!(reported.len(), 1, "{log}");
    assert!(
        reported[0].contains("the file is damaged") && reported[0].contains(".aside-"),
        "{}",
        reported[0]
    );
}

async fn week(cluster: &Cluster, node: &Node, user: &str) -> u16 {
    let body = check_body("shop", "week", user);
    cluster.http.check(node.http, &body).await.unwrap().status
}
