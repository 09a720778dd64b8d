//! Keeps the decision clock at the members' median ([`Skew`]).
//!
//! While a node joins, a clock beyond the bound is stepped at once, also backwards: no decision has
//! used it. That ends when the listeners open, or a second after the first peer was measured. From
//! then on the clock is only slewed and never goes back.

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

/// Interval of comparisons with the peers' clocks: the ping interval, so that joining does not wait
/// for it.
const INTERVAL: Duration = Duration::from_millis(100);
/// Comparisons with measured peers during which a joining node may still step its clock: by then it
/// is connected to the members that its seeds know.
const JOINING_COMPARISONS: u32 = 10;

/// Keeps the decision clock at the members' median.
#[derive(Debug)]
pub(super) struct ClockSync {
    clock: Arc<dyn Clock>,
    max: Span,
    skew: Mutex<Skew>,
    /// Comparisons that included every peer, up to
    /// [`JOINING_COMPARISONS`].
    comparisons: AtomicU32,
    /// A decision may have used this clock.
    in_use: AtomicBool,
}

impl ClockSync {
    pub(super) fn new(clock: Arc<dyn Clock>, max: Span) -> Self {
        let (comparisons, in_use) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { clock, max, skew: Mutex::default(), comparisons, in_use }
    }

    /// The current offset from the other members.
    pub(super) fn skew(&self) -> Skew {
        *self.skew.lock()
    }

    /// Whether the clock was compared with the peers'.
    pub(super) fn has_compared(&self) -> bool {
        self.comparisons.load(Ordering::Acquire) > 0
    }

    /// The listeners open: from now on the clock is only slewed.
    pub(super) fn put_in_use(&self) {
        self.in_use.store(true, Ordering::Release);
    }

    /// Compares until `stop`.
    pub(super) async fn run(self: Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
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

    /// Applies the peers' offsets; `is_all` when no peer's offset is missing.
    fn compare(&self, offsets: &[i64], is_all: bool) {
        let comparisons = self.comparisons.load(Ordering::Acquire);
        let is_joining = comparisons < JOINING_COMPARISONS && !self.in_use.load(Ordering::Acquire);
        let followed = self.skew().correction_ns();
        let skew = Skew::of(offsets, self.max, (!is_joining).then_some(followed));
        if is_joining && is_all && skew.is_beyond {
            self.clock.step(skew.correction_ns());
        } else {
            self.clock.slew(skew.correction_ns());
        }
        let before = std::mem::replace(&mut *self.skew.lock(), skew);
        if (before.is_beyond, before.is_split) != (skew.is_beyond, skew.is_split) {
            log_change(skew, self.max);
        }
        // The node may join after the first comparison, so it counts only now that the clock is
        // right.
        if is_all && !offsets.is_empty() && comparisons < JOINING_COMPARISONS {
            self.comparisons.store(comparisons + 1, Ordering::Release);
        }
    }
}

fn log_change(skew: Skew, max: Span) {
    if skew.is_split {
        tracing::warn!(
            "half of the members' clocks differ from the others by more than cluster.max_skew \
             ({max}), and none is known to be right; correct the clocks of these machines"
        );
    }
    if skew.is_beyond {
        tracing::warn!(
            "this node's clock is {} ms from the members' median, more than cluster.max_skew \
             ({max}); windows follow the median. Correct the clock of this machine",
            -(skew.median_ns / 1_000_000)
        );
    } else if !skew.is_split {
        tracing::info!("this node's clock is within cluster.max_skew of the members' median again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use tidegate_limiter::units::{Monotonic, Timestamp};

    use super::*;

    const S: i64 = 1_000_000_000;

    /// Records the last correction.
    #[derive(Debug, Default)]
    struct Recorder {
        steered: AtomicI64,
        set: AtomicI64,
    }

    impl Clock for Recorder {
        fn monotonic(&self) -> Monotonic {
            Monotonic::START
        }

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

    fn clock_sync() -> (Arc<Recorder>, ClockSync) {
        let told = Arc::new(Recorder::default());
        (told.clone(), ClockSync::new(told, Span::from_millis(500)))
    }

    fn recorded(told: &Recorder) -> (i64, i64) {
        (told.set.load(Ordering::Relaxed), told.steered.load(Ordering::Relaxed))
    }

    #[test]
    fn a_joining_node_sets_its_clock_as_it_meets_more_peers() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.compare(&[], true);
        clock_sync.compare(&[-30 * S], false);
        let outcome = (recorded(&clock), clock_sync.has_compared());
        assert_eq!(outcome, ((0, -30 * S), false), "a step waits for all peers");
        clock_sync.compare(&[-30 * S], true);
        assert_eq!((recorded(&clock), clock_sync.has_compared()), ((-30 * S, -30 * S), true));
        clock_sync.compare(&[-30 * S, -31 * S], true);
        assert_eq!(recorded(&clock).0, -30 * S);
        clock_sync.compare(&[1, 1], true);
        assert_eq!((recorded(&clock).1, clock_sync.skew().is_beyond), (0, false));
    }

    #[test]
    fn a_node_that_was_connected_for_a_second_only_steers() {
        let (clock, clock_sync) = clock_sync();
        for _ in 0..JOINING_COMPARISONS {
            clock_sync.compare(&[1, 1], true);
        }
        clock_sync.compare(&[-31 * S, -31 * S], true);
        assert_eq!(recorded(&clock), (0, -31 * S));
    }

    #[test]
    fn a_clock_in_use_is_never_set() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.put_in_use();
        clock_sync.compare(&[-30 * S, -30 * S], true);
        assert_eq!(recorded(&clock), (0, -30 * S));
    }
}
