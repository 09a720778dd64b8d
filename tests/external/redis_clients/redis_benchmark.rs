//! `redis-benchmark`, the load tool that drives every server of the protocol.

use tidegate_testkit::process::{Cluster, ClusterOptions};

use super::{RULES, run};
use crate::TIDEGATE;

const REQUESTS: u64 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_answered_to_the_last_request() {
    let options = ClusterOptions { nodes: &["n1"], rules: RULES, ..ClusterOptions::default() };
    let cluster = Cluster::start_alone(TIDEGATE, options).await;
    let port = &cluster.nodes[0].resp.port().to_string();
    for pipeline in ["1", "16"] {
        let count = REQUESTS.to_string();
        let args = ["-p", port, "-c", "50", "-n", &count, "-r", "1000", "-P", pipeline, "-q"];
        let throttle = ["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"];
        let output = run("redis-benchmark", &[&args[..], &throttle].concat(), b"").await;
        assert!(output.contains("requests per second") && !output.contains("rror"), "{output}");
        assert!(!output.contains("WARNING"), "{output}");
    }
    let count = cluster.nodes[0].metric("tidegate_decision_seconds_count{listener=\"resp\"}").await;
    // It may send a few more than requested.
    assert!((2 * REQUESTS..2 * REQUESTS + 2_000).contains(&count), "{count}");
}
