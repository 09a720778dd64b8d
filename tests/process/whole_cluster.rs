//! All nodes die at once: what a long window has counted is still counted when they are back.

use std::time::Duration;

use crate::harness::{Cluster, Shape, THREE, check_body};

const RULES: &str = "
domain: quota
descriptors:
  - {key: account, rate_limit: {unit: week, requests_per_unit: 20, on_unavailable: deny}}
";
const STORAGE: &str = "
[storage]
path = \"counts\"
interval = \"200ms\"
";
const LIMIT: usize = 20;
const ACCOUNTS: usize = 50;
/// Several times `storage.interval`: by then what was counted stands on the disks.
const WRITTEN_AFTER: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_weekly_quota_that_is_used_up_stays_used_up() {
    let sets = &["cluster.deadline_ms=1000"];
    let shape = Shape { nodes: THREE, rules: RULES, config: STORAGE, sets };
    let mut cluster = Cluster::start(shape).await;
    for account in 0..ACCOUNTS {
        let used = admitted(&cluster, account).await;
        assert_eq!(used, LIMIT, "account {account}");
    }
    tokio::time::sleep(WRITTEN_AFTER).await;

    cluster.nodes.iter_mut().for_each(crate::harness::Node::kill);
    cluster.nodes.iter_mut().for_each(crate::harness::Node::start);
    cluster.one_view().await;
    for account in 0..ACCOUNTS {
        assert_eq!(admitted(&cluster, account).await, 0, "account {account} got its quota again");
    }
    assert_eq!(cluster.verdicts("policy").await, 0, "owners refused them, not the policy");
}

/// Asks, each node in turn, until one refuses; how many hits were admitted.
async fn admitted(cluster: &Cluster, account: usize) -> usize {
    let body = check_body("quota", "account", &format!("account-{account}"));
    for turn in 0..2 * LIMIT {
        let door = cluster.nodes[turn % cluster.nodes.len()].http;
        match cluster.http.check(door, &body).await.unwrap().status {
            200 => {}
            429 => return turn,
            status => panic!("account {account}: {status}"),
        }
    }
    2 * LIMIT
}
