//! Simulated time, and each node's clock derived from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tidegate_cluster::environment::Clock;
use tidegate_limiter::units::{Monotonic, Span, Timestamp};

/// Simulated time since the start, in milliseconds; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time(Arc<AtomicU64>);

/// The clock of one node.
///
/// The system clock starts with a drawn offset and is stepped by faults. The decision clock follows
/// it as the product's does: it slews at up to 10 % and never goes backwards or jumps, except that
/// a stopped virtual machine finds all of its clocks behind. It ignores a difference of more than
/// an hour, until the process starts again. The monotonic clock has a speed of its
/// own.
#[derive(Debug)]
pub(crate) struct NodeClock {
    time: Time,
    /// Offset of the system clock from the true time, in nanoseconds.
    system_offset: AtomicI64,
    /// Offset of the decision clock from the true time.
    decision_offset: AtomicI64,
    /// Requested offset of the decision clock from the system clock.
    correction: AtomicI64,
    /// Time that all clocks of the node stood still, in milliseconds.
    stood_still: AtomicU64,
    /// How much faster than time its monotonic clock runs, in parts per million. The system clock
    /// is corrected all the time.
    drift_ppm: i64,
}

/// True time at the start of the simulation. The day ends some hours later, so windows of a day do
/// not end during a run.
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
/// Largest change of the decision clock's offset per millisecond.
const SLEW_NANOS: i64 = 100_000;
/// A larger difference is not followed.
const PLAUSIBLE_NANOS: i64 = 3_600 * 1_000 * NANOS_PER_MILLI;
const NANOS_PER_MILLI: i64 = 1_000_000;

impl Time {
    pub(crate) fn millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn advance(&self, by_ms: u64) {
        self.0.fetch_add(by_ms, Ordering::Relaxed);
    }

    fn true_time(&self) -> Timestamp {
        START.plus(Span::from_millis(self.millis()))
    }
}

impl NodeClock {
    pub(crate) fn new(time: Time, offset_ms: i64, drift_ppm: i64) -> Self {
        let offset = offset_ms.saturating_mul(NANOS_PER_MILLI);
        let (system_offset, decision_offset) = (AtomicI64::new(offset), AtomicI64::new(offset));
        let (correction, stood_still) = (AtomicI64::new(0), AtomicU64::new(0));
        Self { time, system_offset, decision_offset, correction, stood_still, drift_ppm }
    }

    /// All clocks of the node stood still for so long, and go on.
    pub(crate) fn stand_still(&self, for_ms: u64) {
        self.stood_still.fetch_add(for_ms, Ordering::Relaxed);
        let lost = i64::try_from(for_ms).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_MILLI);
        self.system_offset.fetch_sub(lost, Ordering::Relaxed);
        self.decision_offset.fetch_sub(lost, Ordering::Relaxed);
    }

    /// How far the decision clock is ahead of the true time.
    pub(crate) fn decision_offset_ms(&self) -> i64 {
        self.decision_offset.load(Ordering::Relaxed).div_euclid(NANOS_PER_MILLI)
    }

    /// Steps the system clock.
    pub(crate) fn step(&self, by_ms: i64) {
        self.system_offset.fetch_add(by_ms.saturating_mul(NANOS_PER_MILLI), Ordering::Relaxed);
    }

    /// A process starts, with the time of the system clock.
    pub(crate) fn start(&self) {
        Clock::step(self, 0);
    }

    /// Slews the decision clock over this number of milliseconds.
    pub(crate) fn tick(&self, for_ms: u64) {
        let decision = self.decision_offset.load(Ordering::Relaxed);
        let target =
            self.system_offset.load(Ordering::Relaxed) + self.correction.load(Ordering::Relaxed);
        let behind = target - decision;
        if behind.abs() > PLAUSIBLE_NANOS {
            return;
        }
        let most = SLEW_NANOS.saturating_mul(i64::try_from(for_ms).unwrap_or(i64::MAX));
        let next = decision + behind.clamp(-most, most);
        self.decision_offset.store(next, Ordering::Relaxed);
    }

    fn at_offset(&self, offset: &AtomicI64) -> Timestamp {
        let true_time = self.time.true_time().as_nanos();
        Timestamp::from_nanos(true_time.saturating_add_signed(offset.load(Ordering::Relaxed)))
    }
}

impl Clock for NodeClock {
    fn monotonic(&self) -> Monotonic {
        let ran = self.time.millis().saturating_sub(self.stood_still.load(Ordering::Relaxed));
        let ran = ran.saturating_mul(NANOS_PER_MILLI.unsigned_abs());
        let ahead = i128::from(ran) * i128::from(self.drift_ppm) / 1_000_000;
        let ahead = i64::try_from(ahead).unwrap_or_default();
        Monotonic::from_nanos(ran.saturating_add_signed(ahead))
    }

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
