//! Time: the simulation's own, and what each node's clock makes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tidegate_cluster::environment::Clock;
use tidegate_limiter::units::{Span, Timestamp};

/// Simulated time since the start, in milliseconds; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time(Arc<AtomicU64>);

/// The clock of one node: the right time, more or less.
///
/// The system clock is off by what was drawn and jumps when a fault says so. The decision clock
/// follows it as the product's does: at 10 % more or less speed, never backwards, never in a jump.
#[derive(Debug)]
pub(crate) struct NodeClock {
    time: Time,
    /// What the system clock is ahead of the right time, nanoseconds.
    system_ahead: AtomicI64,
    /// What the decision clock is.
    decision_ahead: AtomicI64,
    /// What it is to be ahead of the system clock.
    correction: AtomicI64,
}

/// The right time when the simulation starts: some hours from the end of a day, so that windows of
/// a day do not end in a run.
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
/// How much the decision clock gains or loses in a millisecond to follow the system's.
const SLEW_NANOS: i64 = 100_000;
const NANOS_PER_MILLI: i64 = 1_000_000;

impl Time {
    pub(crate) fn millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One millisecond later.
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn right(&self) -> Timestamp {
        START.plus(Span::from_millis(self.millis()))
    }
}

impl NodeClock {
    pub(crate) fn new(time: Time, ahead_ms: i64) -> Self {
        let ahead = ahead_ms.saturating_mul(NANOS_PER_MILLI);
        let (system_ahead, decision_ahead) = (AtomicI64::new(ahead), AtomicI64::new(ahead));
        Self { time, system_ahead, decision_ahead, correction: AtomicI64::new(0) }
    }

    /// Sets the system clock forward or back.
    pub(crate) fn step(&self, by_ms: i64) {
        self.system_ahead.fetch_add(by_ms.saturating_mul(NANOS_PER_MILLI), Ordering::Relaxed);
    }

    /// Lets the decision clock follow for a millisecond.
    pub(crate) fn follow(&self) {
        let decision = self.decision_ahead.load(Ordering::Relaxed);
        let wanted =
            self.system_ahead.load(Ordering::Relaxed) + self.correction.load(Ordering::Relaxed);
        let behind = wanted - decision;
        let next = decision + behind.clamp(-SLEW_NANOS, SLEW_NANOS);
        self.decision_ahead.store(next, Ordering::Relaxed);
    }

    fn off(&self, ahead: &AtomicI64) -> Timestamp {
        let right = self.time.right().as_nanos();
        Timestamp::from_nanos(right.saturating_add_signed(ahead.load(Ordering::Relaxed)))
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        self.off(&self.decision_ahead)
    }

    fn system(&self) -> Timestamp {
        self.off(&self.system_ahead)
    }

    fn slew(&self, correction_ns: i64) {
        self.correction.store(correction_ns, Ordering::Relaxed);
    }

    fn step(&self, correction_ns: i64) {
        self.slew(correction_ns);
        let system = self.system_ahead.load(Ordering::Relaxed);
        self.decision_ahead.store(system + correction_ns, Ordering::Relaxed);
    }
}
