//! The decision clock: system time that never goes back and ignores implausible jumps.
//!
//! Windows are numbered by wall time, so a node has to follow its system clock. But a system clock
//! may be set back, or ten years ahead for a minute, and neither may admit or refuse hits. The
//! decision clock starts at the system's time and advances with the monotonic clock. Once a second
//! it is compared with the system clock:
//!
//! - a small difference: it runs up to 10 % faster or slower until the difference is gone;
//! - behind by one second to one hour in ten comparisons in a row: it steps forward (the machine
//!   was suspended, or the clock was wrong when the node started);
//! - anything else: it continues unchanged, and [`Discipline::error`] shows the difference; a
//!   restart takes the system's time.
//!
//! Example: the system clock is set back by 30 s. The decision clock runs at 90 % speed for 300 s
//! and is correct again; no window began twice.

use tidegate_limiter::units::{Span, Timestamp};

/// The state of the clock between two comparisons; immutable, so that reading it takes no lock.
///
/// Times on the monotonic clock are spans since the node's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Discipline {
    /// Creation of this state.
    base: Span,
    /// The decision clock at `base`.
    time: Timestamp,
    /// Nanoseconds to gain (or lose, below zero) until the next comparison.
    correction: i64,
    /// System clock minus decision clock at the last comparison, nanoseconds.
    error: i64,
    /// Comparisons in a row with the system far ahead.
    far_ahead: u32,
}

pub(super) const COMPARE_INTERVAL: Span = Span::from_secs(1);
/// The most that is gained or lost between two comparisons: a tenth.
const CORRECTION_MAX: i64 = 100_000_000;
/// Above this, slewing would take longer than ten seconds, so a step is considered.
const STEP_MIN: i64 = 1_000_000_000;
/// Above an hour the system clock is more likely wrong than right.
pub(super) const STEP_MAX: i64 = 3_600 * 1_000_000_000;
/// A step requires this many comparisons in a row.
const STEP_COMPARISONS: u32 = 10;

impl Discipline {
    /// A clock with the time `system` at `monotonic`.
    pub(super) fn new(monotonic: Span, system: Timestamp) -> Self {
        Self { base: monotonic, time: system, correction: 0, error: 0, far_ahead: 0 }
    }

    /// The time at `monotonic`.
    pub(super) fn now(&self, monotonic: Span) -> Timestamp {
        let elapsed = monotonic.as_nanos().saturating_sub(self.base.as_nanos());
        let spread = elapsed.min(COMPARE_INTERVAL.as_nanos());
        // |correction × spread| ≤ 10^8 × 10^9 fits.
        let gained = self.correction * i64::try_from(spread).unwrap_or(0) / 1_000_000_000;
        let run = self.time.as_nanos().saturating_add(elapsed);
        Timestamp::from_nanos(run.saturating_add_signed(gained))
    }

    /// The clock after a comparison with the system clock at `monotonic`. Continuous at that
    /// instant, unless it steps forward.
    pub(super) fn compared(&self, monotonic: Span, system: Timestamp) -> Self {
        let time = self.now(monotonic);
        let error = signed_difference(system, time);
        let is_far_ahead = (STEP_MIN..=STEP_MAX).contains(&error);
        let far_ahead = if is_far_ahead { self.far_ahead + 1 } else { 0 };
        if far_ahead >= STEP_COMPARISONS {
            return Self { base: monotonic, time: system, correction: 0, error: 0, far_ahead: 0 };
        }
        let is_plausible = error.unsigned_abs() <= STEP_MAX.unsigned_abs();
        let correction =
            if is_plausible { error.clamp(-CORRECTION_MAX, CORRECTION_MAX) } else { 0 };
        Self { base: monotonic, time, correction, error, far_ahead }
    }

    /// How far the system clock was ahead of this one at the last comparison, nanoseconds.
    pub(super) fn error(&self) -> i64 {
        self.error
    }
}

/// `a − b` in nanoseconds.
pub(super) fn signed_difference(a: Timestamp, b: Timestamp) -> i64 {
    let difference = i128::from(a.as_nanos()) - i128::from(b.as_nanos());
    i64::try_from(difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_000_000);

    /// Compares once a second for `seconds`, the system being `offset` seconds off, and returns the
    /// clock with what it says in the end.
    fn run(mut clock: Discipline, from: u64, seconds: u64, offset: i64) -> (Discipline, Timestamp) {
        let mut last = clock.now(Span::from_secs(from));
        for second in from..from + seconds {
            let monotonic = Span::from_secs(second + 1);
            let system = START.as_nanos() / 1_000_000_000 + second + 1;
            let system = Timestamp::from_secs(system.saturating_add_signed(offset));
            for tenth in 0..10 {
                let now = clock.now(Span::from_millis(second * 1_000 + tenth * 100));
                assert!(now >= last, "the clock went back in second {second}");
                last = now;
            }
            clock = clock.compared(monotonic, system);
        }
        (clock, clock.now(Span::from_secs(from + seconds)))
    }

    fn right_time(seconds: u64) -> Timestamp {
        START.plus(Span::from_secs(seconds))
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed_slowly_and_never_backwards() {
        let start = Discipline::new(Span::ZERO, START);
        let (clock, _) = run(start, 0, 100, -30);
        assert!(clock.error() < -19_000_000_000 && clock.error() > -21_000_000_000);
        let (clock, now) = run(clock, 100, 300, -30);
        assert!(clock.error().abs() < 1_000_000, "{}", clock.error());
        assert!(now.since(right_time(370)).as_nanos() < 1_000_000);
    }

    #[test]
    fn a_machine_that_slept_steps_forward_after_ten_seconds() {
        let start = Discipline::new(Span::ZERO, START);
        let (_, now) = run(start, 0, 9, 600);
        assert!(now < right_time(20), "not yet believed");
        let (clock, now) = run(start, 0, 11, 600);
        assert_eq!((clock.error(), now), (0, right_time(611)));
    }

    #[test]
    fn a_jump_of_ten_years_is_not_believed() {
        let ten_years = 10 * 365 * 86_400;
        for offset in [ten_years, -ten_years.min(900_000)] {
            let (clock, now) = run(Discipline::new(Span::ZERO, START), 0, 60, offset);
            assert_eq!(now, right_time(60));
            assert!(clock.error().abs() > 3_600_000_000_000);
        }
    }

    #[test]
    fn a_clock_that_stands_still_stands_still() {
        let clock = Discipline::new(Span::ZERO, START);
        assert_eq!(clock.now(Span::from_secs(5)), clock.now(Span::from_secs(5)));
        let stuck = clock.compared(Span::from_secs(5), START).compared(Span::from_secs(5), START);
        assert_eq!(stuck.now(Span::from_secs(5)), right_time(5));
    }
}
