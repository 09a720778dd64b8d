//! Members and voters are agreed on: a node that starts without a majority of the voters decides
//! nothing, however long it waits and whatever it remembers.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_testkit::http_client::{Http, check_body, hits_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

/// Nodes are killed right after hits, so that hits without a copy would be lost. A check that was
/// late would be refused by `on_unavailable`. Neither is the subject.
pub(crate) const QUOTA: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: quota
descriptors:
  - {key: user, rate_limit:
      {window: 365d, requests_per_unit: 20, on_unavailable: deny, durability: replicated}}
",
    config: "",
    sets: &["cluster.deadline=1s"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
const WITH_DISKS: ClusterOptions<'_> = ClusterOptions { has_disks: true, ..QUOTA };
pub(crate) const LIMIT: usize = 20;
/// Checks of a key: more than its limit.
const CHECKS: usize = LIMIT + 5;
/// What a node logs every ten seconds that knows no cluster.
pub(crate) const WAITS_FOR_FOUNDERS: &str = "no cluster found";

/// Two keys of each node.
pub(crate) async fn keys(cluster: &Cluster) -> Vec<String> {
    let mut keys = Vec::new();
    for node in THREE {
        keys.extend(cluster.owned("quota", "user", "user", node, 2).await);
    }
    keys
}

/// What the nodes at `indexes` admit of all `keys`, by key.
pub(crate) async fn admitted(cluster: &Cluster, indexes: &[usize], keys: &[String]) -> Vec<usize> {
    let mut admitted = Vec::new();
    for key in keys {
        admitted.push(cluster.admitted(indexes, "quota", "user", key, CHECKS).await);
    }
    let names: Vec<&str> = indexes.iter().map(|index| &*cluster.nodes[*index].id).collect();
    println!("{} admitted {admitted:?}", names.join(" and "));
    admitted
}

/// Waits until `node` listens and `/readyz` names the missing majority: it waited for it in vain.
pub(crate) async fn opens_without_a_majority(cluster: &Cluster, node: &Node) {
    let what = format!("{} opens without a majority", node.id);
    let ((), took) = until(&what, Duration::from_secs(30), async || {
        let reply = cluster.http.get(node.http, "/readyz").await?;
        match reply.status {
            503 if reply.body.contains("quorum") => Ok(()),
            status => panic!("{status}: {}", reply.body),
        }
    })
    .await;
    println!("{what} after {took:?}");
}

pub(crate) fn new_keys(prefix: &str) -> Vec<String> {
    (0..6).map(|number| format!("{prefix}-{number}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_boots_before_the_others_decides_nothing() {
    let storage = "[storage]\ninterval = \"100ms\"\n";
    let options = ClusterOptions { config: storage, ..WITH_DISKS };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let (used, fresh) = (keys(&cluster).await, new_keys("fresh"));
    let founded = cluster.nodes[0].map().await.unwrap().cluster;
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
    for node in &cluster.nodes {
        node.saves_counts().await;
    }
    for node in &mut cluster.nodes {
        node.kill();
    }

    cluster.nodes[0].start();
    opens_without_a_majority(&cluster, &cluster.nodes[0]).await;
    assert_eq!(admitted(&cluster, &[0], &used).await, [0; 6]);
    assert_eq!(admitted(&cluster, &[0], &fresh).await, [0; 6]);

    // Two of three are a majority. Each key has a copy in one of their files.
    cluster.nodes[1].start();
    cluster.one_view().await;
    assert_eq!(admitted(&cluster, &[0, 1], &used).await, [0; 6]);
    cluster.nodes[2].start();
    cluster.one_view().await;
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [0; 6]);
    assert_eq!(admitted(&cluster, &[0, 1, 2], &fresh).await, [LIMIT; 6]);
    for node in &cluster.nodes {
        assert_eq!(node.map().await.unwrap().cluster, founded, "{} is in another cluster", node.id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_disk_that_boots_before_the_others_stays_closed() {
    let mut cluster = Cluster::start(TIDEGATE, QUOTA).await;
    let used = keys(&cluster).await;
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
    for node in &mut cluster.nodes {
        node.kill();
    }

    cluster.nodes[0].start();
    cluster.nodes[0].logged(WAITS_FOR_FOUNDERS, 1).await;
    cluster.nodes[0].is_ready().await.expect_err("it listens");
    assert_eq!(admitted(&cluster, &[0], &used).await, [0; 6]);

    cluster.nodes[1].start();
    cluster.nodes[2].start();
    cluster.one_view().await;
    // Nothing is on any disk, so windows start anew, once: of three nodes only one cluster arises.
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_all_peers_refuse_decides_nothing() {
    let mut cluster = Cluster::start(TIDEGATE, WITH_DISKS).await;
    let used = keys(&cluster).await;
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
    let refused = &mut cluster.nodes[2];
    refused.kill();
    refused.set("cluster.name=other");
    refused.start();
    opens_without_a_majority(&cluster, &cluster.nodes[2]).await;
    let fresh = new_keys("fresh");
    assert_eq!(admitted(&cluster, &[2], &used).await, [0; 6]);
    assert_eq!(admitted(&cluster, &[2], &fresh).await, [0; 6]);
    assert_eq!(admitted(&cluster, &[0, 1], &used).await, [0; 6], "counted by the others");
    assert_eq!(admitted(&cluster, &[0, 1], &fresh).await, [LIMIT; 6]);

    let refused = &mut cluster.nodes[2];
    refused.kill();
    refused.wipe_disk();
    refused.start();
    refused.logged(WAITS_FOR_FOUNDERS, 1).await;
    refused.is_ready().await.expect_err("it listens");

    refused.kill();
    refused.set("cluster.name=tidegate");
    refused.start();
    cluster.one_view().await;
    assert_eq!(admitted(&cluster, &[2], &used).await, [0; 6]);
    assert_eq!(admitted(&cluster, &[2], &fresh).await, [0; 6]);
}

/// A founder dies between the proposal and the election, and returns without its memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founders_begin_again_when_one_dies_before_the_cluster_exists() {
    let mut cluster = Cluster::start(TIDEGATE, QUOTA).await;
    for node in &mut cluster.nodes {
        node.kill();
    }
    cluster.nodes[0].start();
    cluster.nodes[1].start();
    cluster.nodes[0].logged("founding a cluster", 1).await;
    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    cluster.nodes[2].start();
    cluster.one_view().await;
    let used = keys(&cluster).await;
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_finds_no_cluster_ends_on_sigterm() {
    let mut cluster = Cluster::start(TIDEGATE, QUOTA).await;
    for node in &mut cluster.nodes {
        node.kill();
    }
    let alone = &mut cluster.nodes[0];
    alone.start();
    alone.logged(WAITS_FOR_FOUNDERS, 1).await;
    alone.terminate();
    assert_eq!(alone.exit_code(Duration::from_secs(20)).await, Some(0));
}

/// The node that stays has founded before. If both clusters had one id, the maps of the first would
/// be taken for newer ones of the second. A limit is handed out once more at most, for counts that
/// only the nodes had that were killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_founders_without_disks_found_anew_is_another_cluster() {
    let mut cluster = Cluster::start(TIDEGATE, QUOTA).await;
    let first = cluster.nodes[0].map().await.unwrap().cluster;
    let used = keys(&cluster).await;
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
    for node in &mut cluster.nodes[1..] {
        node.kill();
    }
    for node in &mut cluster.nodes[1..] {
        node.start();
    }
    cluster.nodes[0].logged("leaving that cluster", 1).await;
    cluster.one_view().await;
    for node in &cluster.nodes {
        assert_ne!(node.map().await.unwrap().cluster, first, "{}", node.id);
    }
    let again = admitted(&cluster, &[0, 1, 2], &used).await;
    assert!(again.iter().all(|admitted| *admitted <= LIMIT), "{again:?}");
}

/// It has copies of all counts, and the other one decides nothing without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_that_is_founded_anew_has_the_counts_of_the_node_that_stayed() {
    let options = ClusterOptions { nodes: &["n1", "n2"], ..QUOTA };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let used = use_up(&cluster).await;
    let voter = &mut cluster.nodes[0];
    voter.kill();
    voter.start();
    cluster.nodes[1].logged("leaving that cluster", 1).await;
    assert_eq!(admitted_until_one_view(&mut cluster, &used).await, 0);
}

/// Alone it is a majority of the founders, but its peer has seen that another process has its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_of_the_voter_of_a_pair_founds_nothing_and_ends() {
    let options = ClusterOptions { nodes: &["n1", "n2"], ..QUOTA };
    a_second_process_ends_beside(Cluster::start(TIDEGATE, options).await, options).await;
}

/// No other node sees both: the member itself says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_of_the_last_node_of_a_pair_founds_nothing_and_ends() {
    let options = ClusterOptions { nodes: &["n1", "n2"], ..QUOTA };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    cluster.nodes[1].kill();
    cluster.nodes.truncate(1);
    a_second_process_ends_beside(cluster, options).await;
}

/// A second process of the name of the first node, without a disk, that knows the last of `cluster`.
async fn a_second_process_ends_beside(mut cluster: Cluster, options: ClusterOptions<'_>) {
    let (members, keys) = (cluster.nodes.len(), ["k1", "k2", "k3"].map(str::to_owned));
    let listeners: Vec<usize> = (0..members).collect();
    let id = cluster.nodes[0].map().await.unwrap().cluster;
    let seed = cluster.nodes[members - 1].mesh;
    let second = cluster.add("n1", "n1-again", options);
    second.set(&format!("cluster.seeds={seed}"));
    second.start();
    until("the second process ends", Duration::from_secs(90), async || {
        assert_eq!(cluster.nodes[0].has_ended(), None, "the member goes on");
        cluster.nodes[members].has_ended().map(|_| ()).ok_or_else(|| "both run".to_owned())
    })
    .await;
    assert!(!cluster.nodes[members].log().contains("founding a cluster"));
    cluster.nodes.truncate(members);
    cluster.one_view().await;
    assert_eq!(cluster.nodes[0].map().await.unwrap().cluster, id);
    assert_eq!(admitted(&cluster, &listeners, &keys).await, [LIMIT; 3]);
}

/// The third node has copies of all counts and runs on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_recovered_has_the_counts_of_the_nodes_that_ran_on() {
    let sets = &["cluster.deadline=1s", "cluster.voters=1", "cluster.replicas=2"];
    let mut cluster = Cluster::start(TIDEGATE, ClusterOptions { sets, ..WITH_DISKS }).await;
    let used = use_up(&cluster).await;
    let id = cluster.nodes[0].map().await.unwrap().cluster;
    for node in &mut cluster.nodes[..2] {
        node.kill();
    }
    let config = cluster.dir.path().join("n2/cluster.toml");
    let mut recover = Command::new(TIDEGATE);
    recover.env_clear().args(["recover", "--yes", "--cluster", &id, "--config"]).arg(config);
    let recovered = recover.output().unwrap();
    assert!(recovered.status.success(), "{recovered:?}");
    cluster.nodes[1].start();
    assert_eq!(admitted_until_one_view(&mut cluster, &used).await, 0);
}

/// Keys whose limits are used up, of which all nodes have counts.
async fn use_up(cluster: &Cluster) -> Vec<String> {
    let keys: Vec<String> = (0..50).map(|number| format!("used-{number}")).collect();
    for key in &keys {
        let body = hits_body("quota", "user", key, LIMIT as u64);
        let reply = cluster.http.check(cluster.nodes[0].http, &body).await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    for node in &cluster.nodes {
        until("it has all counts", Duration::from_secs(30), async || {
            match node.metric("tidegate_store_keys").await {
                50 => Ok(()),
                known => Err(format!("{} has {known}", node.id)),
            }
        })
        .await;
    }
    keys
}

/// What is admitted of `keys` until all nodes have one view, and after that. Checks are sent all the
/// time: copies that came later would count no hits that were admitted until then.
async fn admitted_until_one_view(cluster: &mut Cluster, keys: &[String]) -> usize {
    let listeners: Vec<_> = cluster.nodes.iter().map(|node| node.http).collect();
    let (http, admitted) = (Http::new(), AtomicUsize::new(0));
    let check_all = async || {
        for (key, listener) in keys.iter().flat_map(|key| listeners.iter().map(move |it| (key, it)))
        {
            // One that starts does not listen yet.
            let reply = http.check(*listener, &check_body("quota", "user", key)).await;
            let is_admitted = reply.is_ok_and(|reply| reply.status == 200);
            admitted.fetch_add(usize::from(is_admitted), Ordering::Relaxed);
        }
    };
    tokio::select! {
        () = cluster.one_view() => {}
        () = async { loop { check_all().await } } => {}
    }
    check_all().await;
    admitted.into_inner()
}

/// The new node votes after five seconds. If both left before, one of three voters would be left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_voters_that_drain_at_once_leave_a_majority_behind() {
    let sets = &["cluster.deadline=1s", "cluster.voters_from=auto"];
    let options = ClusterOptions { sets, ..QUOTA };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    cluster.join("n4", options).await;
    for node in &cluster.nodes[..2] {
        node.terminate();
    }
    for node in &mut cluster.nodes[..2] {
        assert_eq!(node.exit_code(Duration::from_secs(30)).await, Some(0));
    }
    cluster.one_view().await;
    assert_eq!(admitted(&cluster, &[2, 3], &new_keys("fresh")).await, [LIMIT; 6]);
}
