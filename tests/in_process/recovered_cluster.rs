//! A cluster that lost a majority of its voters for good, and continues from the disk of one node.

use std::sync::Arc;
use std::time::Duration;

use tidegate::config::{Config, VotersFrom};
use tidegate_cluster::consensus::engine::Engine;
use tidegate_cluster::consensus::founding::first_map;
use tidegate_cluster::consensus::{MemoryDisk, Saved};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::units::Span;
use tidegate_ownership::ClusterMap;
use tidegate_ownership::cluster_map::{ClusterId, HomeRegions, Identity};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions};
use tidegate_testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(30);
const RULES: &str = "
domain: test
descriptors:
  - key: user
    on_unavailable: deny
    rate_limit: { unit: day, requests_per_unit: 20 }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovered_node_leads_alone_and_owns_everything() {
    let authority = authority();
    let names = ["a", "b", "c"];
    let (nodes, disks) = cluster(&authority, &names, three).await;
    let before = map(&nodes[0]);
    drop(nodes);

    recover(&disks[0], "a", &before).await;
    let alone = start(&authority, "a", &[], &disks[0], three).await;
    eventually("it owns everything", TIMEOUT, || decides(&alone) == Ranges::all()).await;
    assert!(alone.joined().membership.is_leader() && alone.joined().membership.is_member());
    let after = map(&alone);
    assert_eq!(after.cluster, before.cluster);
    assert!(after.epoch > before.epoch, "{} {}", after.epoch, before.epoch);
    assert_eq!(after.present().count(), 1);
    let newest = |map: &ClusterMap| map.members.iter().map(|member| member.id).max();
    assert!(newest(&after) > newest(&before), "ids are never given twice");
    assert!(alone.check("user", "u").await.allowed);
}

/// The survivor keeps running with the map, and with the log, that the lost voters agreed on. It
/// knows no leader, and is the first that a new node asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survivors_and_new_nodes_join_a_recovered_cluster_and_vote() {
    let authority = authority();
    let names = ["a", "b", "c", "d", "e"];
    let (mut nodes, disks) = cluster(&authority, &names, five).await;
    eventually("all five vote", TIMEOUT, || {
        let voters = map(&nodes[0]).voters;
        voters.current.len() == 5 && !voters.are_joint()
    })
    .await;
    let before = map(&nodes[0]);
    nodes.truncate(1);
    let survivor = nodes.remove(0);
    eventually("its lease is lost", TIMEOUT, || decides(&survivor).is_empty()).await;

    recover(&disks[1], "b", &before).await;
    let recovered = start(&authority, "b", &[&survivor], &disks[1], five).await;
    let new = start(&authority, "f", &[&survivor], &MemoryDisk::default(), five).await;
    let nodes = [&survivor, &recovered, &new];
    eventually("three nodes own everything", TIMEOUT, || is_settled(&nodes)).await;
    eventually("all three vote", TIMEOUT, || {
        nodes.iter().all(|node| {
            let voters = &map(node).voters;
            let names: Vec<_> = voters.current.iter().map(|voter| voter.node.as_str()).collect();
            names == ["a", "b", "f"] && !voters.are_joint()
        })
    })
    .await;
    eventually("and go on", TIMEOUT, || is_settled(&nodes)).await;
    drop(recovered);
    eventually("without the node that recovered", TIMEOUT, || is_settled(&[&survivor, &new])).await;
}

/// A survivor repeats what it knows of the old log, until it meets the recovered map. If that
/// counted as an answer, it would count for entries that the survivor does not have.
#[test]
fn engines_of_before_a_recovery_are_not_heard() {
    let [a, b] = ["a", "b"].map(|name| Identity { node: node_id(name), birth: 1 });
    let map = first_map(ClusterId(5), [a.clone(), b.clone()].into(), HomeRegions::default());
    let mut saved = Saved { map: Some(map.clone()), ..Saved::new(a.node.clone(), a.birth) };
    let mut survivor = Engine::found(&b, &map, 1);
    saved.recover(&map.cluster.to_string()).expect("of this cluster");
    let mut recovered = Engine::restart(&a, &saved.engine.expect("an engine"), 1);
    recovered.take_output();

    let mut messages = 0;
    for _ in 0..100 {
        survivor.tick();
        for (_, message) in survivor.take_output().messages {
            messages += 1;
            recovered.step(&a, message);
            assert!(recovered.take_output().messages.is_empty(), "it answers");
        }
    }
    assert!(messages > 0, "the survivor asks for votes");
    for _ in 0..100 {
        recovered.tick();
        recovered.take_output();
    }
    assert!(recovered.is_leader(), "its own vote suffices");
}

fn three(config: &mut Config) {
    founded_by(config, &["a", "b", "c"]);
}

fn five(config: &mut Config) {
    founded_by(config, &["a", "b", "c", "d", "e"]);
    config.cluster.replace_after = Span::from_secs(2);
}

fn founded_by(config: &mut Config, names: &[&str]) {
    config.cluster.bootstrap_expect = 0;
    config.cluster.founders = names.iter().map(|name| node_id(name)).collect();
    config.cluster.voters_from = Some(VotersFrom::Auto);
}

fn node_id(name: &str) -> NodeId {
    NodeId::new(name).expect("a valid id")
}

async fn cluster(
    authority: &Authority,
    names: &[&str],
    change: fn(&mut Config),
) -> (Vec<Node>, Vec<MemoryDisk>) {
    let disks: Vec<MemoryDisk> = names.iter().map(|_| MemoryDisk::default()).collect();
    let mut nodes: Vec<Node> = Vec::new();
    for (name, disk) in names.iter().zip(&disks) {
        let seeds: Vec<&Node> = nodes.iter().take(1).collect();
        let node = start(authority, name, &seeds, disk, change).await;
        nodes.push(node);
    }
    eventually("all nodes own everything", TIMEOUT, || {
        is_settled(&nodes.iter().collect::<Vec<_>>())
    })
    .await;
    (nodes, disks)
}

async fn start(
    authority: &Authority,
    id: &str,
    seeds: &[&Node],
    disk: &MemoryDisk,
    change: fn(&mut Config),
) -> Node {
    let seeds: Vec<_> = seeds.iter().map(|node| node.addr()).collect();
    let identity = identity(authority, authority, id, "eu");
    let options = NodeOptions { id, region: "eu", seeds: &seeds, identity, rules: RULES, change };
    Node::start_on(options, Arc::new(disk.clone())).await
}

async fn recover(disk: &MemoryDisk, node: &str, before: &ClusterMap) {
    let loaded = Saved::load(disk, &node_id(node)).await.expect("readable");
    let mut saved = loaded.expect("it was saved");
    saved.recover(&before.cluster.to_string()).expect("of this cluster");
    saved.save(disk).await.expect("writable");
}

fn map(node: &Node) -> ClusterMap {
    ClusterMap::clone(&node.joined().ownership_driver.map())
}

/// The ranges that a node decides; none without a lease.
fn decides(node: &Node) -> Ranges {
    let ownership = &node.core.ownership;
    if ownership.has_lease() { ownership.owned_ranges().decides.clone() } else { Ranges::EMPTY }
}

/// Whether every node decides a share, and every token is decided by exactly one of them.
fn is_settled(nodes: &[&Node]) -> bool {
    let all = nodes.iter().fold(Ranges::EMPTY, |all, node| all.with(&decides(node)));
    let shares: u32 = nodes.iter().map(|node| decides(node).share_ppm()).sum();
    let is_idle = nodes.iter().any(|node| decides(node).is_empty());
    !is_idle && all == Ranges::all() && shares.abs_diff(1_000_000) < 100
}
