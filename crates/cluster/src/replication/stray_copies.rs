//! Counters that are left behind when their ranges move, and when they are dropped.
//!
//! A node that hands a range over keeps its counters, and so does one that is no replica any more,
//! or has stood in for a replica out of reach. While the cluster changes these are what a takeover
//! goes on from. Afterwards they are of no use, and with windows of a day some rolling restarts
//! would fill every store with copies of all keys (`keys_max`).
//!
//! A node drops them when the cluster has been *at rest* for [`REST`]: one map in force, of which
//! every member has said that it decides what it owns, and every node of the region says that it
//! reaches all others (in its gossip), and has all the time, so that none has a stand-in. By then
//! owners have compared digests with their replicas several times, so each key has as many copies
//! as it is to have. A copy that has just been sent here is one of a stand-in, of which the news
//! has not come: so it has to be unchanged for ten seconds more. All of this is done once after
//! each change.
//!
//! **Example.** Of a, b and c, with one replica, a owns k and b has the copy. a restarts, so b owns
//! k and c becomes its replica; a is back, owns k again, and b is its replica again. When they have
//! been at rest for a while, c drops its copy.
//!
//! They are removed from the disk as well: a node that starts again would load them, and may have
//! no room then for what is handed over to it.
//!
//! **Bound.** [`STRAYS_MAX`] copies at a time. While as many are still on the disk, as when it is
//! full, no further ones are dropped.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_limiter::engine::State;
use tidegate_limiter::store::{Cursor, KeyHash};
use tidegate_ownership::cluster_map::Epoch;
use tokio_util::sync::CancellationToken;

use super::digest::fingerprint;
use super::replicator::Replicator;
use crate::count;

/// How long the cluster is at rest before anything is dropped: some rounds of anti-entropy. With
/// the looks in which copies are unchanged, an orderly rolling restart that waits 40 s from one
/// node to the next leaves nothing behind.
const REST: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
const LOOKS: u64 = REST.as_secs() / LOOK_INTERVAL.as_secs();

/// For how many looks a copy is unchanged before it is dropped. A node that begins to stand in for
/// a replica gets changes before it hears that a node does not reach another one.
const UNCHANGED_LOOKS: u32 = 5;
/// Copies that are dropped together, and most of them that may still be on the disk.
const STRAYS_MAX: usize = 65_536;

/// The map in force, of which every member has said that it decides what it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledMap {
    pub epoch: Epoch,
    /// How often each node has lost another one out of reach, this one at last. All are reached
    /// now.
    pub reach_losses: Vec<u64>,
}

/// How many looks in turn have found the cluster at rest under one map. Not how long ago the first
/// was: a node that was paused has not looked.
#[derive(Debug, Default)]
struct Rest {
    settled: Option<SettledMap>,
    looks: u64,
}

impl Rest {
    /// A look found the cluster at rest, or not. Returns whether it is time to drop copies, once
    /// for each rest.
    fn looked(&mut self, settled: Option<SettledMap>) -> bool {
        let is_same = settled.is_some() && settled == self.settled;
        self.looks = if is_same { self.looks.saturating_add(1) } else { 0 };
        self.settled = settled;
        self.looks == LOOKS
    }
}

impl Replicator {
    /// How often this node has lost another one of the region out of reach; `None` while it does
    /// not reach all. A loss that is over soon is one, too: another node stood in meanwhile.
    pub fn reach_losses(&self) -> Option<u64> {
        let targets = self.targets();
        targets.reach_all().then(|| self.reach_losses.load(Ordering::Relaxed))
    }

    /// Drops stray copies after each rest, until `stop`. `settled` returns the map in force if
    /// every member decides what it owns by it
    /// ([`Driver::settled_epoch`](crate::ownership::Driver::settled_epoch)) and says that it
    /// reaches all others ([`Gossip::reach_losses`](crate::gossip::Gossip::reach_losses)).
    pub async fn run_stray_copies(
        &self,
        settled: impl Fn() -> Option<SettledMap>,
        stop: CancellationToken,
    ) {
        let mut looks = self.mesh.ticks.every(LOOK_INTERVAL);
        let mut rest = Rest::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = looks.tick() => {}
            }
            if rest.looked(self.at_rest(&settled)) {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = self.drop_stray_copies(&settled, LOOK_INTERVAL * UNCHANGED_LOOKS) => {}
                }
            }
        }
    }

    /// Drops the stray copies of strict counters here that do not change within `unchanged`, as
    /// long as the cluster is at rest; returns how many. Reservations end soon by themselves.
    /// Cancel-safe.
    pub async fn drop_stray_copies(
        &self,
        settled: impl Fn() -> Option<SettledMap>,
        unchanged: Duration,
    ) -> u64 {
        let mut dropped = 0;
        let Some(at_first) = self.at_rest(&settled) else { return dropped };
        let mut from = Some(Cursor::default());
        while let Some(cursor) = from {
            let (strays, next) = self.stray_copies(cursor).await;
            from = next;
            if strays.is_empty() {
                continue;
            }
            let looks = unchanged / UNCHANGED_LOOKS;
            for _ in 0..UNCHANGED_LOOKS {
                tokio::time::sleep(looks).await;
                if self.at_rest(&settled).as_ref() != Some(&at_first) {
                    return dropped;
                }
            }
            let mut of_these = 0;
            for (key, found) in strays {
                let is_same = |state: &State, expires| fingerprint(key, state, expires) == found;
                of_these += u64::from(self.store.drop_copy(key, is_same));
            }
            count(&self.counters.dropped, of_these);
            dropped += of_these;
            while self.store.dropped() >= STRAYS_MAX {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        }
        dropped
    }

    /// Some stray copies with their fingerprints, and where to go on.
    async fn stray_copies(&self, from: Cursor) -> (Vec<(KeyHash, u64)>, Option<Cursor>) {
        let targets = self.targets();
        let (mut strays, mut from) = (Vec::new(), Some(from));
        while let Some(cursor) = from.filter(|_| strays.len() < STRAYS_MAX) {
            let now = self.clock.now();
            let mut found = Vec::new();
            from = self.store.visit(cursor, now, KeyHash::is_owned, |key, state, expires| {
                if state.reservation().is_none() {
                    found.push((key, fingerprint(key, state, expires)));
                }
            });
            strays.extend(found.into_iter().filter(|(key, _)| targets.is_stray(*key)));
            tokio::task::yield_now().await;
        }
        (strays, from)
    }

    /// Equal as long as the cluster is at rest; `None` when it is not.
    fn at_rest(&self, settled: impl Fn() -> Option<SettledMap>) -> Option<SettledMap> {
        let mut settled = settled()?;
        settled.reach_losses.push(self.reach_losses()?);
        Some(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_dropped_once_after_a_rest_under_one_map() {
        let mut rest = Rest::default();
        let mut dropped_at = Vec::new();
        // A node that was out of reach between two looks is back at the second.
        let maps = [(14, Some((1, 0))), (5, Some((2, 0))), (1, None), (8, Some((2, 0)))];
        let maps = maps.into_iter().chain([(20, Some((2, 1)))]);
        let settled =
            |(epoch, losses)| SettledMap { epoch: Epoch(epoch), reach_losses: vec![losses] };
        let looks = maps.flat_map(|(looks, of)| vec![of.map(settled); looks]);
        for (look, settled) in looks.enumerate() {
            if rest.looked(settled) {
                dropped_at.push(look);
            }
        }
        assert_eq!(dropped_at, [10, 14 + 5 + 1 + 8 + 10]);
    }
}
