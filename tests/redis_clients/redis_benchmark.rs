//! `redis-benchmark`, the load tool that drives every server of the protocol.

use crate::harness::{Cluster, Shape};
use crate::{RULES, run};

const REQUESTS: u64 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_answered_to_the_last_request() {
    let shape = Shape { nodes: &["n1"], rules: RULES, ..Shape::default() };
    let cluster = Cluster::start(shape).await;
    let port = &cluster.nodes[0].resp.port().to_string();
    for pipeline in ["1", "16"] {
        let count = REQUESTS.to_string();
        let args = ["-p", port, "-c", "50", "-n", &count, "-r", "1000", "-P", pipeline, "-q"];
        let throttle = ["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"];
        let said = run("redis-benchmark", &[&args[..], &throttle].concat(), b"").await;
        assert!(said.contains("requests per second") && !said.contains("rror"), "{said}");
        assert!(!said.contains("WARNING"), "{said}");
    }
    let count = cluster.nodes[0].metric("tidegate_decision_seconds_count{listener=\"resp\"}").await;
    // It may have sent a few more than it was asked for.
    assert!((2 * REQUESTS..2 * REQUESTS + 2_000).contains(&count), "{count}");
}
