//! A disk that is full for a while costs the cluster no vote once it has room again.

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

async fn saves_the_map(node: &Node, is_saved: bool) {
    until("it says whether it saves the map", WITHIN, async || {
        let shown = node.metric("tidegate_map_saved").await;
        if shown == u64::from(is_saved) { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
}
