//! Rules that change on the nodes' disks are what Envoy's clients get within two seconds.

use std::time::Duration;

use tidegate_testkit::envoy::Proxy;
use tidegate_testkit::process::Cluster;
use tidegate_testkit::wait::until;

use super::day;
use crate::TIDEGATE;

const APPLIES_WITHIN: Duration = Duration::from_secs(2);
/// Envoy sends to the nodes in turn, each of its two workers by itself: this many responses in a
/// row come from all three.
const ANSWERS: usize = 12;

fn rules(limit: u32) -> String {
    format!(
        "domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rules_apply_behind_envoy_within_two_seconds_and_keep_counts() {
    day::far_from_its_end().await;
    let cluster = Cluster::three(TIDEGATE, &rules(1_000_000)).await;
    let proxy = Proxy::start(&cluster).await;
    have_limit(&proxy, "1000000, 1000000;w=86400").await.unwrap();

    for node in &cluster.nodes {
        node.write_rules(&rules(10));
    }
    let lowered = async || have_limit(&proxy, "10, 10;w=86400").await;
    let ((), took) = until("all nodes hold the new limit", APPLIES_WITHIN, lowered).await;
    println!("a lower limit applies behind Envoy after {took:?}");
    // Alice's hits were counted by a rule that let them pass; they still are.
    let reply = proxy.get("/", &[("x-user", "alice")]).await;
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (429, Some("0")));
    assert_eq!(proxy.get("/", &[("x-user", "bob")]).await.status, 200);
}

/// Whether all of some responses in a row have this limit.
async fn have_limit(proxy: &Proxy, limit: &str) -> Result<(), String> {
    for _ in 0..ANSWERS {
        let reply = proxy.get("/", &[("x-user", "alice")]).await;
        match reply.header("x-ratelimit-limit") {
            Some(found) if found == limit => {}
            found => return Err(format!("the limit is {found:?}")),
        }
    }
    Ok(())
}
