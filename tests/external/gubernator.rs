//! Third-party clients of Gubernator's API: the Python library of gRPC with generated stubs, and
//! curl, at three nodes.

use std::path::Path;
use std::process::Command;

use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::tools;

use crate::TIDEGATE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_client_and_curl_get_the_responses_of_gubernator() {
    let options = ClusterOptions {
        nodes: THREE,
        rules: "domain: unused\n",
        config: "[gubernator]\n",
        sets: &["cluster.deadline=1s", "rules.may_be_empty=true"],
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let list =
        |addr: fn(&Node) -> String| cluster.nodes.iter().map(addr).collect::<Vec<_>>().join(",");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(tools::program("python"));
    // What is set around the tests must not matter.
    command.env_clear().env("PATH", "/usr/bin:/bin");
    command.arg(root.join("tests/python/gubernator_client.py"));
    command.arg(root.join("crates/proto/proto/gubernator/v1.proto"));
    command.arg(root.join("tests/golden/gubernator.json"));
    command.arg(list(|node| node.gubernator.0.to_string()));
    command.arg(list(|node| node.gubernator.1.to_string()));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    print!("{text}");
}
