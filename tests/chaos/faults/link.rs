//! Links that are cut in one or both directions, lossy or slow.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::relay::{Link, Relay};
use tokio::time::Instant;

use crate::checks::LEASES_END_AFTER;
use crate::cluster::{Cluster, NODES, Setup};
use crate::network::{self, Filter};
use crate::node::{MESH_PORT, Region};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Nothing passes between minority and majority.
    Both,
    /// The minority receives nothing from the majority but can send to it.
    Inbound,
}

/// A slow link; it ends when dropped.
pub(crate) type Slow = Relay;

const MINORITY: usize = 2;
const STOPPED_FOR: Duration = Duration::from_secs(3);
const READY_POLL: Duration = Duration::from_millis(100);
const LOSS_PERCENT: u8 = 30;
const DELAY_MAX: Duration = Duration::from_millis(20);
const RELAY_PORT: u16 = 7700;

pub(super) async fn partition(cluster: &mut Cluster, direction: Direction) {
    let order = cluster.random.order(NODES);
    let (minority, majority) = order.split_at(MINORITY);
    let since = cut_off(cluster, minority, majority, direction);
    tokio::time::sleep(cluster.duration).await;
    heal(cluster, since);
}

/// The node that restarts has a disk, so that it knows of its cluster, and no counts in memory.
pub(super) async fn restart_in_partition(cluster: &mut Cluster) {
    let order = cluster.random.order(NODES);
    let (minority, majority) = order.split_at(MINORITY);
    let since = cut_off(cluster, minority, majority, Direction::Both);
    tokio::time::sleep(cluster.duration / 3).await;
    let victim = minority[0];
    cluster.kill(victim);
    cluster.nodes[victim].start();
    let healed = Instant::now() + cluster.duration * 2 / 3;
    let mut was_ready = false;
    while Instant::now() < healed {
        was_ready |= cluster.nodes[victim].is_ready().await == Ok(true);
        tokio::time::sleep(READY_POLL).await;
    }
    if was_ready {
        let id = &cluster.nodes[victim].id;
        cluster.violations.push(format!("{id} was ready without a majority"));
    }
    heal(cluster, since);
    cluster.await_convergence().await;
    cluster.load.open(victim, true);
}

/// Three of five nodes neither are cut off nor stopped.
pub(super) async fn pause_in_partition(cluster: &mut Cluster) {
    let order = cluster.random.order(NODES);
    let (minority, majority) = order.split_at(1);
    let since = cut_off(cluster, minority, majority, Direction::Both);
    tokio::time::sleep(cluster.duration / 3).await;
    let stopped = majority[0];
    cluster.load.open(stopped, false);
    cluster.nodes[stopped].pause();
    tokio::time::sleep(STOPPED_FOR).await;
    cluster.nodes[stopped].resume();
    cluster.load.open(stopped, true);
    tokio::time::sleep(cluster.duration / 3).await;
    heal(cluster, since);
}

pub(super) fn prepare_regions(setup: &mut Setup) {
    for node in &mut setup.nodes {
        node.region = Some(if node.index < NODES - MINORITY {
            Region { name: "one", nodes: NODES - MINORITY }
        } else {
            Region { name: "two", nodes: MINORITY }
        });
    }
    setup.cluster_options.push_str("regions = [\"one\", \"two\"]\n");
}

/// Neither is a minority: each decides the keys of which it is the home.
pub(super) async fn cut_regions(cluster: &mut Cluster) {
    let nodes: Vec<usize> = (0..NODES).collect();
    let (one, two) = nodes.split_at(NODES - MINORITY);
    for (received, sent) in [(one, two), (two, one)] {
        for node_index in received {
            cluster.network.filter(*node_index, &Filter { from: sent, loss: 100 }).unwrap();
        }
    }
    tokio::time::sleep(cluster.duration).await;
    for node_index in nodes {
        cluster.network.heal(node_index).unwrap();
    }
}

/// Returns when the leases of `minority` have ended.
fn cut_off(
    cluster: &Cluster,
    minority: &[usize],
    majority: &[usize],
    direction: Direction,
) -> Duration {
    let cut = |from, node_index: &usize| {
        cluster.network.filter(*node_index, &Filter { from, loss: 100 }).unwrap();
    };
    for node_index in minority {
        cluster.load.set_majority(*node_index, false);
        cut(majority, node_index);
    }
    if direction == Direction::Both {
        for node_index in majority {
            cut(minority, node_index);
        }
    }
    cluster.load.now() + LEASES_END_AFTER
}

fn heal(cluster: &mut Cluster, since: Duration) {
    cluster.observations.cut = Some(since..cluster.load.now());
    for node_index in 0..NODES {
        cluster.network.heal(node_index).unwrap();
    }
}

pub(super) async fn loss(cluster: &mut Cluster) {
    let victim = cluster.draw();
    let others: Vec<usize> = (0..NODES).filter(|node_index| *node_index != victim).collect();
    cluster.network.filter(victim, &Filter { from: &others, loss: LOSS_PERCENT }).unwrap();
    tokio::time::sleep(cluster.duration).await;
    cluster.network.heal(victim).unwrap();
}

/// Puts a relay in front of the last of the first five nodes. Of two simultaneous dials the lower
/// id's wins, so all connections of this node are dialed by others, through the relay.
pub(super) async fn slow(setup: &mut Setup) -> Slow {
    let last = &mut setup.nodes[NODES - 1];
    let target = SocketAddr::new(network::node_ip(last.index), MESH_PORT);
    let front = SocketAddr::new(network::hub_ip(), RELAY_PORT);
    let seed = 1;
    let relay = Relay::start_at(front, target, Link::new(seed, 0, 0, DELAY_MAX)).await;
    last.advertise = relay.front;
    relay
}
