//! This node's id and generation.
//!
//! The generation is bumped while the node runs when a peer has seen a higher one: the clock was
//! set back between two starts of the node. A process of the same id that is a member says that it
//! has seen one, too.
//!
//! Of two processes that run under one id, one ends. The cluster map says which: a process that was
//! a member and finds another run of its id in a newer map ([`Incarnation::displaced_by`]). Until
//! it does they bump their generations in turn. A process that is a member goes on; another one
//! that has bumped its own more than [`BUMPS_MAX`] times ends, unless it becomes a member or is
//! left alone meanwhile. Of two that are no members each waits for an odd number of [`ROUND`]s that
//! comes from the instant of its start, so that seven of eight times not both end.
//!
//! *Example*: both have bumped six times. One waits for three rounds and the other for nine. The
//! first ends after 6 s; the other bumps nothing in its fifth round at the latest, and goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_limiter::engine::ActorId;
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::cluster_map::MapMember;
use tidegate_ownership::identity::{Generation, NodeId, node_actor};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Bumps after which a duplicate id is more likely than a clock that was set back. One set-back
/// clock needs a few, because each peer may have seen a different generation.
const BUMPS_MAX: u32 = 5;
/// In which a process that runs beside another one bumps its generation: they do about once a
/// second, when peers are dialed again.
const ROUND: Duration = Duration::from_secs(2);
/// How many numbers of rounds there are, two apart: processes that do not end in the same round or
/// the next notice that they are alone.
const PATIENCES: u64 = 8;

#[derive(Debug)]
pub struct Incarnation {
    node: NodeId,
    generation: watch::Sender<Generation>,
    /// Since the process was last alone under its id.
    bumps: watch::Sender<u32>,
    /// How often a peer named another generation of this node.
    sightings: AtomicU64,
    /// Before it ends.
    rounds: u64,
    is_member: AtomicBool,
    displaced: CancellationToken,
}

impl Incarnation {
    /// An incarnation of `node` that starts at `now`.
    pub fn new(node: NodeId, now: Timestamp) -> Self {
        let (generation, _) = watch::channel(Generation(now.as_nanos() / 1_000_000));
        let (bumps, _) = watch::channel(0);
        let rounds = 1 + 2 * (now.as_nanos() / 1_000 % PATIENCES);
        let (is_member, displaced) = (AtomicBool::new(false), CancellationToken::new());
        let sightings = AtomicU64::new(0);
        Self { node, generation, bumps, sightings, rounds, is_member, displaced }
    }

    pub fn node(&self) -> &NodeId {
        &self.node
    }

    pub fn generation(&self) -> Generation {
        *self.generation.borrow()
    }

    /// The actor of the per-actor counters that this incarnation increments.
    pub fn actor(&self) -> ActorId {
        node_actor(&self.node, self.generation())
    }

    /// Raises the generation above `highest_seen`, which a peer reported, unless it is not lower.
    pub fn bump(&self, highest_seen: Generation) {
        if highest_seen != self.generation() {
            self.sightings.fetch_add(1, Ordering::Relaxed);
        }
        let has_grown = self.generation.send_if_modified(|own| {
            let is_newer = highest_seen > *own && highest_seen.0 < u64::MAX;
            if is_newer {
                *own = Generation(highest_seen.0 + 1);
            }
            is_newer
        });
        if has_grown {
            self.bumps.send_modify(|bumps| *bumps = bumps.saturating_add(1));
        }
    }

    /// Raises the generation by one, so that peers discard what they hold of the current one.
    pub fn renew(&self) {
        self.generation.send_modify(|own| own.0 = own.0.saturating_add(1));
    }

    /// The cluster map has admitted another run of this node.
    pub fn displaced_by(&self, member: &MapMember) {
        tracing::error!(
            node = %self.node, member = member.id.0, addr = %member.addr,
            "another process runs under this node's id and has taken its place in the cluster map"
        );
        self.displaced.cancel();
    }

    /// Whether this run is a member of the map in force.
    pub fn is_in_map(&self, is_member: bool) {
        self.is_member.store(is_member, Ordering::Relaxed);
    }

    /// Whether this run is known to be a member of the map in force.
    pub fn is_member(&self) -> bool {
        self.is_member.load(Ordering::Relaxed)
    }

    /// Grows each time a peer names a generation that is not this one's: a process that ran before
    /// under this id, or one that runs beside this.
    pub fn sightings(&self) -> u64 {
        self.sightings.load(Ordering::Relaxed)
    }

    /// Notifies when the generation changes.
    pub fn subscribe(&self) -> watch::Receiver<Generation> {
        self.generation.subscribe()
    }

    /// Completes when another node runs under this id, and goes on in place of this one.
    pub async fn duplicate_id(&self) {
        tokio::select! {
            () = self.displaced.cancelled() => {}
            () = self.gives_way() => {}
        }
    }

    async fn gives_way(&self) {
        let mut bumps = self.bumps.subscribe();
        // Its sender lives as long as this.
        while bumps.wait_for(|bumps| *bumps > BUMPS_MAX).await.is_ok() {
            if self.is_left_alone().await {
                self.bumps.send_replace(0);
            } else if !self.is_member() {
                return;
            }
        }
    }

    /// Whether the generation is not bumped in one of the rounds.
    async fn is_left_alone(&self) -> bool {
        for _ in 0..self.rounds {
            let before = *self.bumps.borrow();
            tokio::time::sleep(ROUND).await;
            if *self.bumps.borrow() == before {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Incarnation {
        Incarnation::new(NodeId::new("n1").expect("valid"), Timestamp::from_secs(1))
    }

    #[test]
    fn a_bump_exceeds_what_a_peer_has_seen() {
        let start = start();
        assert_eq!(start.generation(), Generation(1_000));
        for (seen, generation) in [(999, 1_000), (1_000, 1_000), (5_000, 5_001), (u64::MAX, 5_001)]
        {
            start.bump(Generation(seen));
            assert_eq!(start.generation(), Generation(generation), "a peer has seen {seen}");
        }
    }

    /// Whether each of two ends that bump their generations in turn, once a second.
    async fn end_beside_each_other(processes: [&Incarnation; 2]) -> [bool; 2] {
        let [one, other] = processes;
        let (mut one_ends, mut other_ends) =
            (Box::pin(one.duplicate_id()), Box::pin(other.duplicate_id()));
        let mut ended = [false; 2];
        for turn in 0..120 {
            if ended == [false; 2] {
                let (bumped, by) = if turn % 2 == 0 { (one, other) } else { (other, one) };
                bumped.bump(Generation(by.generation().0 + 1));
            }
            tokio::select! {
                () = &mut one_ends, if !ended[0] => ended[0] = true,
                () = &mut other_ends, if !ended[1] => ended[1] = true,
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
            }
        }
        ended
    }

    fn start_at(micros: u64) -> Incarnation {
        let now = Timestamp::from_nanos(1_000_000_000 + micros * 1_000);
        Incarnation::new(NodeId::new("n1").expect("valid"), now)
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_that_are_no_members_one_ends() {
        for (one, other) in (0..PATIENCES).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let ended = end_beside_each_other([&start_at(one), &start_at(other)]).await;
            assert_eq!(ended, [false, true], "{one} and {other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_goes_on_whichever_waits_longer() {
        for micros in 0..PATIENCES {
            let (member, other) = (start(), start_at(micros));
            member.is_in_map(true);
            assert_eq!(end_beside_each_other([&member, &other]).await, [false, true], "{micros}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_back_ends_nothing() {
        let once = start();
        for seen in 0..10 {
            once.bump(Generation(9_000 + 10 * seen));
        }
        let waits = tokio::time::timeout(Duration::from_secs(3_600), once.duplicate_id()).await;
        assert!(waits.is_err(), "no other process bumps it again");
    }
}
