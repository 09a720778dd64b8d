//! A disk that is full for a while costs the cluster no vote once it has room again.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 20}
    on_unavailable: deny
";
const WITHIN: Duration = Duration::from_secs(20);
/// Less than any file of a node.
const FULL: u64 = 4096;

/// The disk of one of three voters is full while the map changes. When another voter dies, it is
/// needed for a majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_whose_disk_was_full_votes_again_when_there_is_room() {
    let options = ClusterOptions {
        nodes: THREE,
        rules: RULES,
        sets: &["cluster.deadline=1s"],
        has_disks: true,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    cluster.nodes[2].limit_files(Some(FULL));
    cluster.add("n4", "n4", options).start();
    saves_the_map(&cluster.nodes[2], false).await;
    cluster.nodes[2].limit_files(None);
    saves_the_map(&cluster.nodes[2], true).await;
    cluster.one_view().await;

    let users = cluster.owned("shop", "user", "u", "n1", 3).await;
    cluster.nodes[3].kill();
    cluster.nodes[0].kill();
    let asked = &cluster.nodes[2];
    for user in &users {
        until("another node owns the keys of the dead one", WITHIN, async || {
            let owner = asked.owner("shop", "user", user).await;
            if owner == "n1" { Err(format!("{user}: {owner}")) } else { Ok(()) }
        })
        .await;
    }
}

/// It is not confirmed meanwhile, and written by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_that_found_the_disk_full_is_written_when_there_is_room() {
    let options =
        ClusterOptions { nodes: THREE, rules: RULES, has_disks: true, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let [asked, full, _] = &cluster.nodes[..] else { panic!("not three") };
    shows(full, "tidegate_revocations_saved", 1).await;
    full.limit_files(Some(0));
    let url = format!("http://{}", asked.admin);
    let revoke = ["ca", "revoke", "--node", "n9", "--unknown", "--url", &url];
    let revoked = Command::new(TIDEGATE).env_clear().args(revoke).output().unwrap();
    let text = String::from_utf8(revoked.stdout).unwrap();
    assert_eq!(revoked.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("not confirmed by {}", full.id)), "{text}");
    shows(full, "tidegate_revoked_nodes", 1).await;
    shows(full, "tidegate_revocations_saved", 0).await;
    full.limit_files(None);
    shows(full, "tidegate_revocations_saved", 1).await;
    let kept = fs::read_to_string(full.data_dir().join("revoked.json")).unwrap();
    assert!(kept.contains("\"n9\""), "{kept}");
}

async fn saves_the_map(node: &Node, is_saved: bool) {
    shows(node, "tidegate_map_saved", u64::from(is_saved)).await;
}

async fn shows(node: &Node, metric: &str, expected: u64) {
    until(&format!("{metric} is {expected}"), WITHIN, async || {
        let shown = node.metric(metric).await;
        if shown == expected { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
}
