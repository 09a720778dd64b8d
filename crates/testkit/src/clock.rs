//! A wall clock that moves only when the test moves it.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_cluster::environment::Clock;
use tidegate_limiter::units::{Monotonic, Timestamp};

/// Ignores corrections.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.as_nanos()))
    }

    pub fn set_to(&self, now: Timestamp) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub fn advance(&self, nanos: u64) {
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn system(&self) -> Timestamp {
        self.now()
    }

    fn slew(&self, _correction_ns: i64) {}

    fn step(&self, _correction_ns: i64) {}
}
