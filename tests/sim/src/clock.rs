//! Simulated time, and each node's clock derived from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tidegate_cluster::environment::Clock;
use tidegate_limiter::units::{Span, Timestamp};

/// Simulated time since the start, in milliseconds; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time(Arc<AtomicU64>);

/// The clock of one node.
///
/// The system clock starts with a drawn offset and is stepped by faults. The decision clock follows
/// it as the product's does: it slews at up to 10 % and never goes backwards or jumps.
#[derive(Debug)]
pub(crate) struct NodeClock {
    time: Time,
    /// Offset of the system clock from the true time, in nanoseconds.
    system_offset: AtomicI64,
    /// Offset of the decision clock from the true time.
    decision_offset: AtomicI64,
    /// Requested offset of the decision clock from the system clock.
    correction: AtomicI64,
}

/// True time at the start of the simulation. The day ends some hours later, so windows of a day do
/// not end during a run.
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
/// Largest change of the decision clock's offset per millisecond.
const SLEW_NANOS: i64 = 100_000;
const NANOS_PER_MILLI: i64 = 1_000_000;

impl Time {
    pub(crate) fn millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Advances by one millisecond.
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn true_time(&self) -> Timestamp {
        START.plus(Span::from_millis(self.millis()))
    }
}

impl NodeClock {
    pub(crate) fn new(time: Time, offset_ms: i64) -> Self {
        let offset = offset_ms.saturating_mul(NANOS_PER_MILLI);
        let (system_offset, decision_offset) = (AtomicI64::new(offset), AtomicI64::new(offset));
        Self { time, system_offset, decision_offset, correction: AtomicI64::new(0) }
    }

    /// Steps the system clock.
    pub(crate) fn step(&self, by_ms: i64) {
        self.system_offset.fetch_add(by_ms.saturating_mul(NANOS_PER_MILLI), Ordering::Relaxed);
    }

    /// Slews the decision clock for one millisecond.
    pub(crate) fn tick(&self) {
        let decision = self.decision_offset.load(Ordering::Relaxed);
        let target =
            self.system_offset.load(Ordering::Relaxed) + self.correction.load(Ordering::Relaxed);
        let behind = target - decision;
        let next = decision + behind.clamp(-SLEW_NANOS, SLEW_NANOS);
        self.decision_offset.store(next, Ordering::Relaxed);
    }

    fn at_offset(&self, offset: &AtomicI64) -> Timestamp {
        let true_time = self.time.true_time().as_nanos();
        Timestamp::from_nanos(true_time.saturating_add_signed(offset.load(Ordering::Relaxed)))
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        self.at_offset(&self.decision_offset)
    }

    fn system(&self) -> Timestamp {
        self.at_offset(&self.system_offset)
    }

    fn slew(&self, correction_ns: i64) {
        self.correction.store(correction_ns, Ordering::Relaxed);
    }

    fn step(&self, correction_ns: i64) {
        self.slew(correction_ns);
        let system = self.system_offset.load(Ordering::Relaxed);
        self.decision_offset.store(system + correction_ns, Ordering::Relaxed);
    }
}
