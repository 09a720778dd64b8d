//! Keeps the decision clock with the members' median ([`Skew`]).
//!
//! While a node joins, a clock beyond the bound is set at once, backwards too: nothing was decided
//! by it. That ends when the doors open, and a second after the first peer was measured, so that it
//! ends for a node without doors too. From then on the clock is only steered, and goes where it is
//! steered to as it follows any system clock, without ever going back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::mesh::Mesh;
use tidegate_limiter::units::Span;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::skew::Skew;

/// Between two looks at the peers' clocks: as often as they are pinged, so that a node that joins
/// need not wait for this.
const INTERVAL: Duration = Duration::from_millis(100);
/// Looks at measured peers in which a joining node may still set its clock: by then it is connected
/// to the members that its seeds know.
const JOINING_LOOKS: u32 = 10;

/// Keeps the decision clock with the members' median.
#[derive(Debug)]
pub(super) struct ClockSync {
    clock: Arc<dyn Clock>,
    max: Span,
    skew: Mutex<Skew>,
    /// How often the clocks of all peers that there were have been compared, up to
    /// [`JOINING_LOOKS`].
    looks: AtomicU32,
    /// Something may have been decided by this clock.
    in_use: AtomicBool,
}

impl ClockSync {
    pub(super) fn new(clock: Arc<dyn Clock>, max: Span) -> Self {
        let (looks, in_use) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { clock, max, skew: Mutex::default(), looks, in_use }
    }

    /// How far this node is from the others.
    pub(super) fn skew(&self) -> Skew {
        *self.skew.lock()
    }

    /// Whether the clock was held against the peers'.
    pub(super) fn has_compared(&self) -> bool {
        self.looks.load(Ordering::Acquire) > 0
    }

    /// The doors open: from now on the clock is not set any more.
    pub(super) fn put_in_use(&self) {
        self.in_use.store(true, Ordering::Release);
    }

    /// Compares until `stop`.
    pub(super) async fn run(self: Arc<Self>, mesh: Mesh, stop: CancellationToken) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let peers = mesh.peers();
            let heard: Vec<_> = peers.iter().filter(|peer| !peer.is_unreachable()).collect();
            let measured = heard.iter().filter(|peer| peer.rtt_ns() > 0);
            let offsets: Vec<i64> = measured.map(|peer| peer.offset_ns()).collect();
            self.compare(&offsets, offsets.len() == heard.len());
        }
    }

    /// Takes note of the peers' offsets; `is_all` when that of no peer is missing.
    fn compare(&self, offsets: &[i64], is_all: bool) {
        let skew = Skew::of(offsets, self.max);
        let looks = self.looks.load(Ordering::Acquire);
        let is_joining = looks < JOINING_LOOKS && !self.in_use.load(Ordering::Acquire);
        if is_joining && is_all && skew.is_beyond {
            self.clock.step(skew.correction_ns());
        } else {
            self.clock.slew(skew.correction_ns());
        }
        let before = std::mem::replace(&mut *self.skew.lock(), skew);
        if before.is_beyond != skew.is_beyond {
            tell(skew, self.max);
        }
        // Behind the first look the node may join, so it comes when the clock is right.
        if is_all && !offsets.is_empty() && looks < JOINING_LOOKS {
            self.looks.store(looks + 1, Ordering::Release);
        }
    }
}

fn tell(skew: Skew, max: Span) {
    if skew.is_beyond {
        tracing::warn!(
            "this node's clock is {} ms from the members' median, more than cluster.max_skew \
             ({max}); the median gives the time of windows. Set the clock right",
            -(skew.median_ns / 1_000_000)
        );
    } else {
        tracing::info!("this node's clock is within cluster.max_skew of the members' median again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use tidegate_limiter::units::Timestamp;

    use super::*;

    const S: i64 = 1_000_000_000;

    /// Remembers what it was told last.
    #[derive(Debug, Default)]
    struct Told {
        steered: AtomicI64,
        set: AtomicI64,
    }

    impl Clock for Told {
        fn now(&self) -> Timestamp {
            Timestamp::EPOCH
        }

        fn system(&self) -> Timestamp {
            Timestamp::EPOCH
        }

        fn slew(&self, correction_ns: i64) {
            self.steered.store(correction_ns, Ordering::Relaxed);
        }

        fn step(&self, correction_ns: i64) {
            self.set.store(correction_ns, Ordering::Relaxed);
        }
    }

    fn snapshot_task() -> (Arc<Told>, ClockSync) {
        let told = Arc::new(Told::default());
        (told.clone(), ClockSync::new(told, Span::from_millis(500)))
    }

    fn told(told: &Told) -> (i64, i64) {
        (told.set.load(Ordering::Relaxed), told.steered.load(Ordering::Relaxed))
    }

    #[test]
    fn a_joining_node_sets_its_clock_as_it_meets_more_peers() {
        let (clock, snapshot_task) = snapshot_task();
        snapshot_task.compare(&[], true);
        snapshot_task.compare(&[-30 * S], false);
        assert_eq!((told(&clock), snapshot_task.has_compared()), ((0, 0), false));
        snapshot_task.compare(&[-30 * S], true);
        assert_eq!((told(&clock), snapshot_task.has_compared()), ((0, 0), true), "a pair");
        snapshot_task.compare(&[-30 * S, -31 * S], true);
        assert_eq!(told(&clock).0, -30 * S);
        snapshot_task.compare(&[1, 1], true);
        assert_eq!((told(&clock).1, snapshot_task.skew().is_beyond), (0, false));
    }

    #[test]
    fn a_node_that_was_connected_for_a_second_only_steers() {
        let (clock, snapshot_task) = snapshot_task();
        for _ in 0..JOINING_LOOKS {
            snapshot_task.compare(&[1, 1], true);
        }
        snapshot_task.compare(&[-31 * S, -31 * S], true);
        assert_eq!(told(&clock), (0, -31 * S));
    }

    #[test]
    fn a_clock_in_use_is_never_set() {
        let (clock, snapshot_task) = snapshot_task();
        snapshot_task.put_in_use();
        snapshot_task.compare(&[-30 * S, -30 * S], true);
        assert_eq!(told(&clock), (0, -30 * S));
    }
}
