//! Rules change while nodes run; a node whose rules differ from its peers is reported.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, Node};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

/// What the shipped `cluster.toml` promises.
const APPLIES_WITHIN: Duration = Duration::from_secs(2);

const RULES_OK: &str = "tidegate_rules_ok";

fn rules(limit: u32) -> String {
    format!(
        "domain: shop\ndescriptors:\n  - key: user\n    \
         rate_limit: {{unit: day, requests_per_unit: {limit}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_on_disk_applies_within_two_seconds_and_disagreement_is_reported() {
    let cluster = Cluster::three(TIDEGATE, &rules(10)).await;
    let [first, others @ ..] = &cluster.nodes[..] else { unreachable!("three nodes") };
    for node in &cluster.nodes {
        assert_eq!(limit(&cluster, node).await, "10");
        agrees(node, true).await;
    }

    first.write_rules(&rules(20));
    applies(&cluster, first, "20").await;
    for node in &cluster.nodes {
        agrees(node, false).await;
    }
    assert_eq!(limit(&cluster, &others[0]).await, "10", "the others hold what they held");

    for node in others {
        node.write_rules(&rules(20));
        applies(&cluster, node, "20").await;
    }
    for node in &cluster.nodes {
        agrees(node, true).await;
    }

    // An invalid file changes nothing and is reported.
    first.write_rules("domain: shop\ndescriptorz: []\n");
    let reported = async || match first.status().await?.rule_book.last_error {
        Some(error) => Ok(error),
        None => Err("no error".to_owned()),
    };
    let (error, _) = until("the error is reported", APPLIES_WITHIN, reported).await;
    assert!(error.contains("rules.yaml") && error.contains("descriptorz"), "{error}");
    assert_eq!(limit(&cluster, first).await, "20");
    agrees(first, true).await;
    // It stays so until there are rules that can be used.
    assert_eq!(first.metric(RULES_OK).await, 0);
    assert_eq!(others[0].metric(RULES_OK).await, 1);
    first.write_rules(&rules(20));
    let is_ok = async || match first.metric(RULES_OK).await {
        1 => Ok(()),
        value => Err(format!("{RULES_OK} {value}")),
    };
    until("its rules are right again", APPLIES_WITHIN, is_ok).await;
}

/// A read of a pipe would block until there is a writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_in_place_of_a_file_is_reported_and_holds_up_no_stop() {
    let mut cluster = Cluster::three(TIDEGATE, &rules(10)).await;
    let certificate = cluster.dir.path().join("pki/n1.pem");
    let node = &cluster.nodes[0];
    let rules_path = node.dir.join("rules");
    for path in [&rules_path, &certificate] {
        fs::rename(path, path.with_extension("aside")).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    node.logged("it is neither a file nor a folder", 1).await;
    node.logged("it is no regular file", 1).await;
    for path in [&rules_path, &certificate] {
        fs::remove_file(path).unwrap();
        fs::rename(path.with_extension("aside"), path).unwrap();
    }
    node.logged("the files of [tls] are in use again", 1).await;
    node.write_rules(&rules(20));
    applies(&cluster, node, "20").await;
    node.terminate();
    assert_eq!(cluster.nodes[0].exit_code(Duration::from_secs(30)).await, Some(0));
}

async fn applies(cluster: &Cluster, node: &Node, expected: &str) {
    let what = format!("{} holds the new limit", node.id);
    let condition = async || match limit(cluster, node).await {
        limit if limit == expected => Ok(()),
        limit => Err(format!("the limit is {limit}")),
    };
    let ((), took) = until(&what, APPLIES_WITHIN, condition).await;
    println!("{what} after {took:?}");
}

/// The limit in the response of `node`.
async fn limit(cluster: &Cluster, node: &Node) -> String {
    let reply = cluster.http.check(node.http, &check_body("shop", "user", "a")).await.unwrap();
    reply.header("x-ratelimit-limit").expect("a limit").to_owned()
}

/// Waits until `/status` and the metrics of `node` report whether all nodes have the same rules.
async fn agrees(node: &Node, expected: bool) {
    let what = format!("{} reports agrees: {expected}", node.id);
    let condition = async || {
        let book = node.status().await?.rule_book;
        let metric = node.metric("tidegate_rule_book_agrees").await;
        if book.agrees == expected && metric == u64::from(expected) {
            Ok(())
        } else {
            Err(format!("{book:?}, metric {metric}"))
        }
    };
    until(&what, Duration::from_secs(5), condition).await;
}
