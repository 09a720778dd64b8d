//! A node whose certificate was revoked, and which runs on.

use std::process::{Command, Output};
use std::time::Duration;

use tidegate_testkit::process::{Cluster, ClusterOptions, Node};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
";
const PATIENCE: Duration = Duration::from_secs(30);

/// Members believe each other, and one that has just started may not know whom not to. The revoked
/// one is the first by name, so the first that is compared with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_revoked_node_orders_reaches_nobody_through_one_that_starts() {
    let options = ClusterOptions {
        nodes: &["n1", "n2", "n3", "n4"],
        rules: RULES,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let [stolen, asked, .., last] = &mut cluster.nodes[..] else { panic!("not four") };
    let revoked = ca(asked, &["revoke", "--node", "n1"]);
    assert_eq!(revoked.status.code(), Some(0), "{revoked:?}");
    let revoked = ca(stolen, &["revoke", "--node", "n2"]);
    assert_eq!(revoked.status.code(), Some(1), "nobody confirms it: {revoked:?}");

    // It has no disk, and does not know that n1 is revoked.
    last.kill();
    last.start();
    last.is_serving().await;
    let knows = async || match lists(last) {
        list if list.starts_with("n1 ") => Ok(()),
        list => Err(list),
    };
    until("it has heard of the revocation", PATIENCE, knows).await;
    last.logged("the certificate of node n1 is revoked", 1).await;
    for node in &cluster.nodes[1..] {
        let list = lists(node);
        assert_eq!(list.lines().count(), 1, "{}: {list}", node.id);
    }
}

/// The revoked nodes that a node knows, one in a line.
fn lists(node: &Node) -> String {
    String::from_utf8(ca(node, &["revoked"]).stdout).unwrap()
}

fn ca(node: &Node, arguments: &[&str]) -> Output {
    let url = format!("http://{}", node.admin);
    let arguments = [&["ca"], arguments, &["--url", &url]].concat();
    Command::new(TIDEGATE).env_clear().args(arguments).output().unwrap()
}
