//! A node that has no open file left goes on with the connections that it has, and accepts others
//! once it has some.

use std::net::TcpStream;
use std::time::Duration;

use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, ClusterOptions};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const RULES: &str = "
domain: shop
descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]
";
const FAILED: &str = "tidegate_accepts_failed_total{listener=\"http\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_open_files_accepts_again_when_it_has_some() {
    let options = ClusterOptions { nodes: &["n1"], rules: RULES, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let node = &cluster.nodes[0];
    // Opens the connection that shows the metrics from now on.
    assert_eq!(node.metric(FAILED).await, 0);
    node.limit_open_files(Some(0));
    let _waiting = TcpStream::connect(node.http).unwrap();
    until("it has tried more than once", Duration::from_secs(20), async || {
        let times = node.metric(FAILED).await;
        if times < 6 { Err(format!("{times} times")) } else { Ok(()) }
    })
    .await;
    // A client may open a connection to another listener meanwhile: for the metrics.
    let http = format!("listener={}", node.http);
    let log = node.log();
    let failed = log.lines().filter(|line| line.contains("failed to accept a connection"));
    let lines = failed.filter(|line| line.contains(&http)).count();
    assert!((1..=4).contains(&lines), "the first, second, fourth and eighth time: {lines}");

    node.limit_open_files(None);
    let checked = cluster.http.check(node.http, &check_body("shop", "user", "ann")).await;
    assert_eq!(checked.map(|reply| reply.status), Ok(200));
}
