//! The generic cell rate algorithm: its state is one theoretical arrival time.
//!
//! # Idea
//!
//! Hits that keep to the rate arrive `T = window / limit` apart. The state is the time at which the
//! next hit would arrive if all came exactly at that pace (TAT). A hit may arrive earlier than that
//! by the tolerance `τ = (burst − 1)·T`, and every hit moves the TAT by `T`.
//!
//! # Formula
//!
//! ```text
//! admit n   ⇔  max(TAT, now) + n·T ≤ now + burst·T
//! then         TAT = max(TAT, now) + n·T
//! remaining =  ⌊(burst·T − (TAT − now)) / T⌋
//! retry     =  TAT + n·T − burst·T − now   (to the nanosecond, rounded up; never when n > burst)
//! reset     =  TAT − now
//! ```
//!
//! # Example
//!
//! 10 a second with burst 3, so `T` = 100 ms. Three hits at 0 ms pass and leave TAT = 300 ms. A
//! fourth at 50 ms would need 300 + 100 ≤ 50 + 300: denied, retry after 50 ms. At 100 ms it passes.
//!
//! # Bound
//!
//! In any interval of length `t` at most `burst + t/T` hits pass. A denied request does not change
//! the TAT.
//!
//! Source: ITU-T I.371 (2004) annex A.1.1, "virtual scheduling". The exact `T` is that of
//! [`super::tat`], the evaluation that of `engine/bucket.rs`.

#[cfg(test)]
mod tests {
    use super::super::{Retry, State, decide};
    use crate::quota::{Algorithm, Quota, QuotaParts};
    use crate::units::{Hits, Span, Timestamp};

    #[test]
    fn the_worked_example_holds() {
        let quota = Quota::new(QuotaParts {
            algorithm: Algorithm::Gcra,
            limit: 10,
            window: Span::from_secs(1),
            burst: 3,
            sub_windows: 1,
            queue: None,
        })
        .expect("a valid quota");
        let at = |ms| Timestamp::EPOCH.plus(Span::from_millis(ms));
        let mut state = State::Absent;
        for left in [2, 1, 0] {
            let verdict = decide(&mut state, &quota, Hits::ONE, at(0));
            assert_eq!((verdict.allowed, verdict.remaining), (true, left));
        }
        let denied = decide(&mut state, &quota, Hits::ONE, at(50));
        assert_eq!(denied.retry, Retry::After(Span::from_millis(50)));
        assert_eq!(denied.reset, Span::from_millis(250));
        assert!(decide(&mut state, &quota, Hits::ONE, at(100)).allowed);
    }
}
