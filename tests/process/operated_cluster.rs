//! What an operator does by hand: found a cluster, look at its members, forget one, and continue
//! from one disk when the majority is gone.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tidegate::admin::MembersReport;
use tidegate::admin::report::{MapMemberState, MapReport, Votes};
use tidegate_testkit::http_client::Http;
use tidegate_testkit::process::{ClusterOptions, Node};
use tidegate_testkit::wait::until;
use tidegate_testkit::{certificates, exclusive};

use crate::TIDEGATE;

const RULES: &str = "
domain: quota
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 20}}
";
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_founded_watched_and_recovered_by_hand() {
    let _exclusive = exclusive::share().await;
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    certificates::write(TIDEGATE, &pki, [("n1", None), ("n2", None)]);
    let client = Http::new();
    let mut n1 = new_node(dir.path(), &client, "n1", "", true);
    n1.start();
    until("it knows no cluster", TIMEOUT, async || {
        let run = ask(&n1, &["members"]);
        let line = "n1 knows no cluster yet: it has no members\n";
        (run == (0, line.to_owned())).then_some(()).ok_or_else(|| format!("{run:?}"))
    })
    .await;

    assert_eq!(ask(&n1, &["bootstrap"]).0, 0);
    n1.ready(1).await;
    let founded = map(&n1).unwrap();
    assert_eq!((founded.leader.as_deref(), founded.voters), (Some("n1"), 1));
    assert_eq!(n1.status().await.unwrap().cluster_id.as_ref(), Some(&founded.cluster));
    let (code, text) = ask(&n1, &["bootstrap"]);
    assert_eq!(code, 2);
    assert!(text.contains("answered 409 Conflict; this node knows cluster "), "{text}");

    let mut n2 = new_node(dir.path(), &client, "n2", &format!("seeds = [\"{}\"]", n1.mesh), false);
    n2.start();
    n2.ready(2).await;
    let heard = |report: &MapReport| -> Vec<bool> {
        report.members.iter().map(|member| member.heard_ms_ago.is_some()).collect()
    };
    assert_eq!(heard(&map(&n1).unwrap()), [false, true]);
    assert_eq!(heard(&map(&n2).unwrap()), [true, false]);
    for (node, status) in [("n9", "404 Not Found"), ("n2", "409 Conflict")] {
        let (code, text) = ask(&n1, &["forget", node]);
        assert!(code == 2 && text.contains(status), "{code} {text}");
    }
    n2.kill();
    until("n2 is evicted", TIMEOUT, async || {
        let members = map(&n1)?.members;
        let n2 = members.iter().find(|member| member.node == "n2");
        let is_down = n2.is_some_and(|n2| n2.state == MapMemberState::Down);
        is_down.then_some(()).ok_or_else(|| format!("{members:?}"))
    })
    .await;
    assert_eq!(ask(&n1, &["forget", "n2"]).0, 0);
    until("n2 is forgotten", TIMEOUT, async || {
        let members = map(&n1)?.members;
        (members.len() == 1).then_some(()).ok_or_else(|| format!("{members:?}"))
    })
    .await;

    let config = dir.path().join("n1/cluster.toml");
    let config = config.to_str().unwrap();
    let recover = ["recover", "--config", config, "--yes", "--cluster", &founded.cluster];
    let (code, text) = run(&recover);
    assert!(code == 2 && text.contains("stop the node if it runs"), "{text}");
    n1.kill();
    let (code, text) = run(&recover);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("n1 is the only voter"), "{text}");
    n1.start();
    n1.ready(1).await;
    let recovered = map(&n1).unwrap();
    assert_eq!(recovered.cluster, founded.cluster);
    assert!(recovered.epoch > 1 << 48, "{recovered:?}");
    assert_eq!(recovered.members[0].votes, Votes::Yes);
}

/// The others would found a second cluster without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_waits_for_others_founds_nothing_by_hand() {
    let _exclusive = exclusive::share().await;
    let dir = tempfile::tempdir().unwrap();
    certificates::write(TIDEGATE, &dir.path().join("pki"), [("n1", None)]);
    let founders = "founders = [\"n1\", \"n2\", \"n3\"]";
    let mut n1 = new_node(dir.path(), &Http::new(), "n1", founders, true);
    n1.start();
    until("the founder is there", TIMEOUT, async || {
        let (code, text) = ask(&n1, &["bootstrap"]);
        let is_refused = code == 2 && text.contains("409 Conflict; cluster.founders or ");
        is_refused.then_some(()).ok_or(text)
    })
    .await;
    let members = ask(&n1, &["members"]);
    assert_eq!(members, (0, "n1 knows no cluster yet: it has no members\n".to_owned()));
}

/// An operator's script runs it on all hosts: each would found a cluster of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_to_found_at_the_same_time_found_one_cluster() {
    let _exclusive = exclusive::share().await;
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three_without_founders(dir.path(), true).await;

    let orders: Vec<_> = thread::scope(|scope| {
        let order = |node| scope.spawn(move || ask(node, &["bootstrap"]));
        let running: Vec<_> = nodes.iter().map(order).collect();
        running.into_iter().map(|order| order.join().unwrap()).collect()
    });
    assert!(orders.iter().any(|(code, _)| *code == 0), "{orders:?}");
    are_one_cluster(&mut nodes).await;
}

/// It knows of no other one when it goes on, and would admit itself to a cluster of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_stood_still_joins_the_cluster_of_another_one() {
    let _exclusive = exclusive::share().await;
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three_without_founders(dir.path(), true).await;
    assert_eq!(ask(&nodes[1], &["bootstrap"]).0, 0);
    nodes[1].logged("founding a cluster", 1).await;
    nodes[1].pause();
    until("the first founds as well", TIMEOUT, async || {
        let (code, text) = ask(&nodes[0], &["bootstrap"]);
        (code == 0).then_some(()).ok_or(text)
    })
    .await;
    nodes[0].logged("founding a cluster", 1).await;
    nodes[1].resume();
    are_one_cluster(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_founded_once_by_hand_founds_no_other_cluster() {
    let _exclusive = exclusive::share().await;
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = three_without_founders(dir.path(), false).await;
    assert_eq!(ask(&nodes[0], &["bootstrap"]).0, 0);
    are_one_cluster(&mut nodes).await;
    until("all three vote", TIMEOUT, async || {
        let founded = map(&nodes[0])?;
        (founded.voters == 3).then_some(()).ok_or_else(|| format!("{founded:?}"))
    })
    .await;

    for node in &mut nodes[1..] {
        node.kill();
        node.start();
    }
    nodes[0].logged("has restarted without its memory; leaving that cluster", 1).await;
    // They would join one that the first has founded.
    for node in &nodes[1..] {
        node.logged("no cluster found; waiting", 1).await;
    }
    assert_eq!(ask(&nodes[2], &["bootstrap"]).0, 0);
    are_one_cluster(&mut nodes).await;
    assert_eq!(nodes[0].log().matches("founding a cluster").count(), 1);
}

/// Three nodes that reach each other, and do not know who founds.
async fn three_without_founders(dir: &Path, has_disks: bool) -> Vec<Node> {
    let names = ["n1", "n2", "n3"];
    certificates::write(TIDEGATE, &dir.join("pki"), names.map(|name| (name, None)));
    let client = Http::new();
    let mut nodes: Vec<Node> = Vec::new();
    for name in names {
        let seeds: Vec<_> = nodes.iter().map(|node| node.mesh.to_string()).collect();
        let keys = format!("seeds = {seeds:?}");
        nodes.push(new_node(dir, &client, name, &keys, has_disks));
    }
    nodes.iter_mut().for_each(Node::start);
    for node in &nodes {
        until("it reaches the others", TIMEOUT, async || {
            node.status().await?;
            let peers = node.metric("tidegate_mesh_peers_up").await;
            (peers == 2).then_some(()).ok_or_else(|| peers.to_string())
        })
        .await;
    }
    nodes
}

/// Waits until all are ready, with each other, and asserts that it is one cluster.
async fn are_one_cluster(nodes: &mut [Node]) {
    for node in &mut *nodes {
        node.ready(3).await;
    }
    let clusters: BTreeSet<_> = nodes.iter().map(|node| map(node).unwrap().cluster).collect();
    assert_eq!(clusters.len(), 1, "{clusters:?}");
}

/// A node with these keys in its section `cluster`. It does not run yet.
fn new_node(dir: &Path, client: &Http, id: &str, keys: &str, has_disks: bool) -> Node {
    let options = ClusterOptions { rules: RULES, has_disks, ..ClusterOptions::default() };
    let node = Node::new(TIDEGATE, dir.join(id), id, &options, client);
    node.write_config(&format!(
        "[cluster]\nlisten = \"{}\"\n{keys}\n[tls]\nca = \"../pki/ca.pem\"\n\
         cert = \"../pki/{id}.pem\"\nkey = \"../pki/{id}.key\"\n\
         secret = \"../pki/cluster.secret\"\n",
        node.mesh
    ));
    node
}

fn map(node: &Node) -> Result<MapReport, String> {
    let (_, json) = ask(node, &["members", "--json"]);
    let report: MembersReport = serde_json::from_str(&json).map_err(|_| json.clone())?;
    report.map.ok_or(json)
}

/// Exit code and output of a command to `node`.
fn ask(node: &Node, args: &[&str]) -> (i32, String) {
    let url = format!("http://{}", node.admin);
    run(&[args, &["--url", &url]].concat())
}

fn run(args: &[&str]) -> (i32, String) {
    let mut command = Command::new(TIDEGATE);
    let output = command.args(args).env_clear().stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}
