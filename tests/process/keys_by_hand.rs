//! `tidegate key`: what an operator does to one key holds at all nodes, edges too.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: d
descriptors:
  - {key: strict, rate_limit: {unit: year, requests_per_unit: 10, on_unavailable: deny, durability: replicated}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 10, on_unavailable: deny, mode: leased}}
  - {key: eventual, rate_limit: {unit: year, requests_per_unit: 10, mode: eventual}}
  - {key: shared, value: a*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 10, on_unavailable: deny, algorithm: gcra}}
",
    config: "",
    sets: &["cluster.deadline=1s"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};

const MODES: [&str; 4] = ["strict", "leased", "eventual", "bucket"];
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_begun_anew_at_all_nodes_and_survives_the_death_of_its_owner() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let mut edge = cluster.edge("e1", OPTIONS);
    edge.start();
    edge.is_serving().await;
    let client = Http::new();
    for mode in MODES {
        assert_eq!(admitted(&client, &[&cluster.nodes[0]], mode, 15).await, 10, "{mode}");
    }
    for mode in MODES {
        let reset = ordered(&cluster.nodes[1], &["reset", "d", &format!("{mode}=ann")]);
        let confirmed = reset["confirmed"].as_array().unwrap().len();
        assert_eq!((confirmed, reset["missed"].as_array().unwrap().len()), (3, 0), "{reset}");
        let everywhere = [&edge, &cluster.nodes[2], &cluster.nodes[0]];
        assert_eq!(admitted(&client, &everywhere, mode, 2).await, 6, "{mode}");
    }

    let owner = cluster.nodes[0].owner("d", "strict", "ann").await;
    let at = cluster.nodes.iter().position(|node| node.id == owner).unwrap();
    cluster.nodes[at].kill();
    cluster.nodes[at].start();
    cluster.one_view().await;
    let all: Vec<&Node> = cluster.nodes.iter().collect();
    assert_eq!(admitted(&client, &all, "strict", 10).await, 4, "neither forgotten nor as before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_blocked_at_all_nodes_and_at_those_that_start_later() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Http::new();
    for mode in MODES {
        ordered(&cluster.nodes[0], &["block", "d", &format!("{mode}=ann")]);
    }
    cluster.nodes[2].kill();
    cluster.nodes[2].start();
    cluster.one_view().await;
    for mode in MODES {
        let all: Vec<&Node> = cluster.nodes.iter().collect();
        assert_eq!(admitted(&client, &all, mode, 2).await, 0, "{mode}");
        let other = check_body("d", mode, "ben");
        let reply = client.check(cluster.nodes[2].http, &other).await.unwrap();
        assert_eq!(reply.status, 200, "{mode}");
    }
    let shown = ordered(&cluster.nodes[2], &["show", "d", "strict=ann"]);
    assert_eq!(shown["blocked_for_ms"], 0);

    ordered(&cluster.nodes[2], &["unblock", "d", "strict=ann"]);
    ordered(&cluster.nodes[1], &["block", "d", "bucket=ann", "--for", "1s"]);
    let all: Vec<&Node> = cluster.nodes.iter().collect();
    assert_eq!(admitted(&client, &all, "strict", 10).await, 10);
    let ended = async || match admitted(&client, &all, "bucket", 1).await {
        0 => Err("it is blocked".to_owned()),
        _ => Ok(()),
    };
    until("the block has ended", PATIENCE, ended).await;
}

/// The rule has one counter for all its values, a limit in a request one for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_about_values_that_share_a_limit_reach_limits_in_requests() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let (client, node) = (Http::new(), &cluster.nodes[1]);
    let limit = serde_json::json!({"requestsPerUnit": 2, "unit": "YEAR"});
    let entries = serde_json::json!([{"key": "shared", "value": "ann"}]);
    let request = serde_json::json!({
        "domain": "d", "descriptors": [{"entries": entries, "limit": limit}],
    });
    let status = async || client.post(node.http, "/json", &request).await.unwrap().status;
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    ordered(&cluster.nodes[0], &["reset", "d", "shared=ann"]);
    assert_eq!(status().await, 200);
    ordered(&cluster.nodes[0], &["block", "d", "shared=ann"]);
    assert_eq!(status().await, 429);
    ordered(&cluster.nodes[0], &["unblock", "d", "shared=ann"]);
    assert_eq!([status().await, status().await], [200, 429]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_are_counted_and_given_back_by_hand() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let left = |node: &Node| {
        let shown = ordered(node, &["show", "d", "strict=ann"]);
        shown["limits"][0]["remaining"].as_u64().unwrap()
    };
    ordered(&cluster.nodes[0], &["adjust", "d", "strict=ann", "--hits", "7"]);
    assert_eq!(left(&cluster.nodes[1]), 3);
    ordered(&cluster.nodes[1], &["adjust", "d", "strict=ann", "--hits", "-2"]);
    assert_eq!(left(&cluster.nodes[2]), 5);
    ordered(&cluster.nodes[2], &["adjust", "d", "strict=ann", "--hits", "100"]);
    assert_eq!(left(&cluster.nodes[0]), 0);

    // Fewer than ordered, and none. Of a leased one it is not seen while hits are granted.
    for mode in ["strict", "bucket"] {
        let descriptor = &*format!("{mode}=ben");
        ordered(&cluster.nodes[0], &["adjust", "d", descriptor, "--hits", "3"]);
        let given = key(&cluster.nodes[1], &["adjust", "d", descriptor, "--hits", "-5"]);
        let text = String::from_utf8_lossy(&given.stdout).into_owned();
        assert_eq!(given.status.code(), Some(1), "{mode}: {text}");
        assert!(text.contains("gave back 3 hits, and knew of no more"), "{text}");
        let none = key(&cluster.nodes[2], &["adjust", "d", descriptor, "--hits", "-1"]);
        let text = String::from_utf8_lossy(&none.stderr).into_owned();
        assert_eq!(none.status.code(), Some(2), "{mode}: {text}");
        assert!(text.contains("no hits of the key are known"), "{text}");
    }

    let forged = "strict=ann\n2026-01-01T00:00:00Z  INFO audit: forged";
    ordered(&cluster.nodes[0], &["reset", "d", forged]);
    cluster.nodes[0].logged(r"strict=ann\n2026-01-01T00:00:00Z  INFO audit: forged", 1).await;

    let unknown = key(&cluster.nodes[0], &["reset", "d", "nothing=ann"]);
    assert_eq!(unknown.status.code(), Some(2));
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(text.contains("no rule limits it"), "{text}");
    let log = cluster.nodes[0].log();
    assert!(log.contains("audit") && log.contains("strict=ann"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_of_a_blocked_key_are_counted_and_given_back_by_hand() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    for mode in ["strict", "leased", "bucket"] {
        let descriptor = &*format!("{mode}=ann");
        let adjust = |at: usize, hits| {
            ordered(&cluster.nodes[at], &["adjust", "d", descriptor, "--hits", hits]);
        };
        adjust(0, "7");
        ordered(&cluster.nodes[0], &["block", "d", descriptor]);
        adjust(1, "-2");
        adjust(2, "1");
        // Hits that are granted and not spent delay what is given back.
        let left = async || {
            let shown = ordered(&cluster.nodes[1], &["show", "d", descriptor]);
            assert_eq!(shown["blocked_for_ms"], 0, "{shown}");
            match shown["limits"][0]["remaining"].as_u64() {
                Some(4) => Ok(()),
                left => Err(format!("{left:?} are left")),
            }
        };
        until(&format!("4 of {mode} are left"), PATIENCE, left).await;
    }
}

/// Of an eventual key a node knows what was sent to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_about_an_eventual_key_says_what_the_node_knows() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Http::new();
    let (counts, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    assert_eq!(admitted(&client, &[counts], "eventual", 1).await, 1);
    let shown = ordered(counts, &["show", "d", "eventual=ann"]);
    assert_eq!((&shown["known_by"], &shown["limits"][0]["remaining"]), (&"n1".into(), &9.into()));
    let strict = ordered(counts, &["show", "d", "strict=ann"]);
    assert_eq!(strict["known_by"], Value::Null);

    let adjust = |node: &Node, hits| {
        let run = key(node, &["adjust", "d", "eventual=ann", "--hits", hits]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (run.status.code().unwrap(), text(&run.stdout) + &text(&run.stderr))
    };
    // Hits that it counted itself, and no more of them than there are.
    let (code, text) = adjust(counts, "-3");
    assert!(code == 1 && text.contains("gave back 1 hits"), "{code} {text}");
    let (code, text) = adjust(counts, "-3");
    assert!(code == 2 && text.contains("nothing was given back"), "{code} {text}");
    let (code, text) = adjust(other, "4");
    assert_eq!(code, 0, "{text}");
    // A node that has used the key gets the counts of others.
    let all: Vec<&Node> = cluster.nodes.iter().collect();
    assert_eq!(admitted(&client, &all, "eventual", 1).await, 3);
    let known = async || {
        let shown = ordered(other, &["show", "d", "eventual=ann"]);
        match shown["limits"][0]["remaining"].as_u64() {
            Some(3) => Ok(()),
            left => Err(format!("{left:?} are left")),
        }
    };
    until("the node knows all hits", PATIENCE, known).await;
    let (code, text) = adjust(other, "-2");
    assert_eq!(code, 0, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_an_order_does_not_reach_are_named() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let confirmed = key(&cluster.nodes[0], &["block", "d", "strict=ann"]);
    assert_eq!(confirmed.status.code(), Some(0), "{confirmed:?}");
    cluster.nodes[2].kill();
    let (mut missed, mut down) = (false, false);
    // First it is a member that does not answer, then an evicted one.
    for _ in 0..60 {
        let run = key(&cluster.nodes[0], &["block", "d", "strict=ann"]);
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        assert_eq!(run.status.code(), Some(1), "{run:?}");
        assert!(text.contains("confirmed by n2\n"), "{text}");
        missed |= text.contains("not confirmed by n3:");
        down |= text.contains("not confirmed by n3 (down):");
        assert!(missed || down, "{text}");
        if down {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(missed && down, "{missed} {down}");
    let ordered = key(&cluster.nodes[0], &["unblock", "d", "strict=ann", "--json"]);
    assert_eq!(ordered.status.code(), Some(1), "{ordered:?}");
    let ordered: Value = serde_json::from_slice(&ordered.stdout).unwrap();
    assert_eq!((&ordered["confirmed"][0], &ordered["down"][0]), (&"n2".into(), &"n3".into()));
}

/// How many of so many checks at each node are admitted, in all.
async fn admitted(client: &Http, nodes: &[&Node], key: &str, each: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..each {
        for node in nodes {
            let body = check_body("d", key, "ann");
            let reply = client.check(node.http, &body).await.unwrap();
            admitted += usize::from(reply.status == 200);
        }
    }
    admitted
}

/// The JSON that `tidegate key` prints.
fn ordered(node: &Node, arguments: &[&str]) -> Value {
    let output = key(node, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn key(node: &Node, arguments: &[&str]) -> std::process::Output {
    let url = format!("http://{}", node.admin);
    let command = [&["key"], arguments, &["--url", &url]].concat();
    Command::new(TIDEGATE).env_clear().args(command).output().unwrap()
}
