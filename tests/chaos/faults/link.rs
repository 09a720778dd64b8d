//! Links that are cut, in both directions or in one, that lose, or that take their time.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::relay::{Link, Relay};

use crate::arena::{Arena, NODES, Setup};
use crate::checks::LEASES_END_AFTER;
use crate::network::{self, Filter};
use crate::node::MESH_PORT;

/// Which directions are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    /// The minority cannot send either.
    Two,
    /// The minority receives nothing and can send.
    One,
}

/// A slow link, while it is held.
pub(crate) type Slow = Relay;

const MINORITY: usize = 2;
const LOSS_PERCENT: u8 = 30;
const DELAY_MAX: Duration = Duration::from_millis(20);
const RELAY_PORT: u16 = 7700;

pub(super) async fn partition(arena: &mut Arena, ways: Ways) {
    let order = arena.random.order(NODES);
    let (minority, majority) = order.split_at(MINORITY);
    let cut = |from, token: &usize| {
        arena.network.filter(*token, &Filter { from, loss: 100 }).unwrap();
    };
    for token in minority {
        arena.load.set_majority(*token, false);
        cut(majority, token);
    }
    if ways == Ways::Two {
        for token in majority {
            cut(minority, token);
        }
    }
    let cut = arena.load.now() + LEASES_END_AFTER;
    tokio::time::sleep(arena.hold).await;
    arena.node_metadata.cut = Some(cut..arena.load.now());
    for token in &order {
        arena.network.heal(*token).unwrap();
    }
}

pub(super) async fn loss(arena: &mut Arena) {
    let victim = arena.draw();
    let others: Vec<usize> = (0..NODES).filter(|token| *token != victim).collect();
    arena.network.filter(victim, &Filter { from: &others, loss: LOSS_PERCENT }).unwrap();
    tokio::time::sleep(arena.hold).await;
    arena.network.heal(victim).unwrap();
}

/// Puts a relay in front of the last of the first five nodes: of two dials at once the lower id's
/// wins, so all its connections are dialed by others, through the relay.
pub(super) async fn slow(setup: &mut Setup) -> Slow {
    let last = &mut setup.nodes[NODES - 1];
    let target = SocketAddr::new(network::node_ip(last.token), MESH_PORT);
    let front = SocketAddr::new(network::hub_ip(), RELAY_PORT);
    let seed = 1;
    let relay = Relay::start_at(front, target, Link::new(seed, 0, 0, DELAY_MAX)).await;
    last.advertise = relay.front;
    relay
}
