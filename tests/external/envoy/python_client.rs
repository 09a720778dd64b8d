//! A third-party client: the Python library of gRPC with Envoy's published protos gets from a
//! node what envoyproxy/ratelimit answered to the same requests.

use std::path::Path;
use std::process::Command;

use tidegate_testkit::process::{Cluster, ClusterOptions};
use tidegate_testkit::tools;

use super::day;
use crate::TIDEGATE;

/// Cases of `tests/golden/sequence_cases.json`: those of one instant that need no process setting.
const SCENARIOS: &[&str] = &[
    "S02", "S03", "S04", "S05", "S07", "S11", "S12", "S13", "S16", "S17", "S18", "S19", "S21",
    "S24", "S25", "S26", "S29", "S32", "S40", "S41", "S44", "S50", "S53", "S54", "S55", "S60",
    "S61", "S71", "S74", "S102",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_client_gets_the_responses_of_envoy_ratelimit() {
    day::far_from_its_end().await;
    // Each scenario has a domain of its own, so that one node answers all of them.
    let rules = tempfile::tempdir().unwrap();
    python("rules", rules.path().to_str().unwrap());
    let set = format!("rules.path={}", rules.path().display());
    let options = ClusterOptions { nodes: &["n1"], sets: &[&set], ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    print!("{}", python("ask", &cluster.nodes[0].grpc.to_string()));
}

/// Runs the client and returns its output.
fn python(verb: &str, token: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(tools::program("python"));
    // What is set around the tests must not matter.
    command.env_clear().arg(root.join("tests/python/check_client.py")).args([verb, token]);
    command.arg(root.join("tests/golden/sequence_cases.json")).args(SCENARIOS);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
