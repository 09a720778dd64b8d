//! Links that are cut in one or both directions, lossy or slow.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::relay::{Link, Relay};

use crate::checks::LEASES_END_AFTER;
use crate::cluster::{Cluster, NODES, Setup};
use crate::network::{self, Filter};
use crate::node::MESH_PORT;

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
const LOSS_PERCENT: u8 = 30;
const DELAY_MAX: Duration = Duration::from_millis(20);
const RELAY_PORT: u16 = 7700;

pub(super) async fn partition(cluster: &mut Cluster, direction: Direction) {
    let order = cluster.random.order(NODES);
    let (minority, majority) = order.split_at(MINORITY);
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
    let cut = cluster.load.now() + LEASES_END_AFTER;
    tokio::time::sleep(cluster.duration).await;
    cluster.observations.cut = Some(cut..cluster.load.now());
    for node_index in &order {
        cluster.network.heal(*node_index).unwrap();
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
