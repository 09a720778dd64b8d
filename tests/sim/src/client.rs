//! Clients: what front doors would ask a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::decide::{CheckRequest, Decide};
use tidegate::node::Core;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::units::Hits;
use tokio_util::sync::CancellationToken;

use crate::dice::Dice;
use crate::history::History;
use crate::keys::{CHECKED, DOMAIN, KEYS_PER_KIND, Key, Kind};

/// What clients ask for at the moment; shared by all of them.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Whether there is any.
    pub(crate) on: AtomicBool,
    /// Half of it is for one key.
    pub(crate) hot: AtomicBool,
    /// Half of it is for keys that were never asked before.
    pub(crate) flood: AtomicBool,
}

/// One process of a node, as its clients know it; cheap to clone.
#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) core: Arc<Core>,
    pub(crate) node: usize,
    pub(crate) history: History,
    pub(crate) traffic: Arc<Traffic>,
    /// Ends the clients.
    pub(crate) closed: CancellationToken,
}

/// Clients of each node.
pub(crate) const CLIENTS: usize = 3;
/// The key that is hot when one is.
const HOT: Key = Key { kind: Kind::Strict, number: 0 };
/// The longest pause of a client between two asks.
const PAUSE_MAX_MS: u64 = 40;
/// The same in a flood.
const FLOOD_PAUSE_MAX_MS: u64 = 4;
/// Asks of a burst: more than a lane holds.
const BURST: usize = tidegate_cluster::mesh::IN_FLIGHT_MAX + 200;
const HALF_PPM: u32 = 500_000;

impl Listener {
    /// A client that asks until the door closes.
    pub(crate) async fn visit(self, mut dice: Dice) {
        loop {
            let is_flood = self.traffic.flood.load(Ordering::Relaxed);
            let pause_max_ms = if is_flood { FLOOD_PAUSE_MAX_MS } else { PAUSE_MAX_MS };
            let pause = Duration::from_millis(dice.between(1, pause_max_ms));
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            if self.traffic.on.load(Ordering::Relaxed) {
                let key = self.draw(&mut dice);
                self.ask(key, 1).await;
            }
        }
    }

    /// Asks more at once than a lane holds, for a key that another node is likely to own.
    pub(crate) async fn burst(self) {
        let key = Key { kind: Kind::Bucket, number: KEYS_PER_KIND - 1 };
        let mut asks = tokio::task::JoinSet::new();
        for _ in 0..BURST {
            let listener = self.clone();
            asks.spawn(async move { listener.ask(key, 1).await });
        }
        while asks.join_next().await.is_some() {}
    }

    /// Asks for `hits` of `key`; 0 only looks.
    pub(crate) async fn ask(&self, key: Key, hits: i64) {
        let number = self.history.asked(self.node, key, hits);
        let value = key.number.to_string();
        let entries = vec![Entry { key: key.kind.name(), value: &value }];
        let descriptors = [Descriptor { entries, hits: None, limit: None }];
        let ask = CheckRequest {
            domain: DOMAIN,
            descriptors: &descriptors,
            hits: Hits::new(hits),
            for_envoy: true,
        };
        let answer = self.core.decider.decide(ask).await;
        self.history.answered(number, &answer);
    }

    fn draw(&self, dice: &mut Dice) -> Key {
        if self.traffic.flood.load(Ordering::Relaxed) && dice.chance(HALF_PPM) {
            return Key { kind: Kind::Junk, number: dice.below(u64::MAX) };
        }
        if self.traffic.hot.load(Ordering::Relaxed) && dice.chance(HALF_PPM) {
            return HOT;
        }
        Key { kind: dice.pick(&CHECKED), number: dice.below(KEYS_PER_KIND) }
    }
}
