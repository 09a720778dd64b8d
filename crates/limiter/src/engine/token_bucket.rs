//! The token bucket: tokens are added at the rate, a hit takes one.
//!
//! # Idea
//!
//! A bucket holds at most `burst` tokens and starts full. Every `T = window / limit` one token is
//! added; tokens beyond `burst` are lost. A request of `n` hits takes `n` tokens or, when there are
//! fewer, none.
//!
//! # Formula
//!
//! ```text
//! tokens(now) = min(burst, tokens(then) + (now − then) / T)        fractions of a token count
//! admit n     ⇔ n ≤ tokens
//! remaining   = ⌊tokens⌋
//! retry       = (n − tokens)·T      (to the nanosecond, rounded up; never when n > burst)
//! reset       = (burst − tokens)·T
//! ```
//!
//! The classic state is (tokens, time). Here it is the single instant at which the bucket is full
//! again, `now + (burst − tokens)·T`: the same information, but polling neither loses nor gains a
//! fraction of a token by rounding.
//!
//! # Example
//!
//! 1 a second with burst 5. Five hits at 0 s empty the bucket. At 1.4 s it holds 1.4 tokens: one
//! hit passes, 0.4 remain. A second hit at the same time lacks 0.6 tokens: retry after 600 ms.
//! After an hour the bucket holds 5, not 3600.
//!
//! # Bound
//!
//! In any interval of length `t` at most `burst + t/T` hits pass.
//!
//! Source: Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986;
//! RFC 2697 section 3 for the form with a committed burst size. The evaluation is that of
//! `engine/bucket.rs`.

#[cfg(test)]
mod tests {
    use super::super::{Retry, State, decide};
    use crate::quota::{Algorithm, Quota, QuotaParts};
    use crate::units::{Hits, Span, Timestamp};

    #[test]
    fn the_worked_example_holds() {
        let quota = Quota::new(QuotaParts {
            algorithm: Algorithm::TokenBucket,
            limit: 1,
            window: Span::from_secs(1),
            burst: 5,
            sub_windows: 1,
            queue: None,
        })
        .expect("a valid quota");
        let at = |ms| Timestamp::EPOCH.plus(Span::from_millis(ms));
        let mut state = State::Absent;
        assert_eq!(decide(&mut state, &quota, Hits::new(5), at(0)).remaining, 0);
        let one = decide(&mut state, &quota, Hits::ONE, at(1_400));
        assert_eq!((one.allowed, one.remaining), (true, 0));
        let short = decide(&mut state, &quota, Hits::ONE, at(1_400));
        assert_eq!(short.retry, Retry::After(Span::from_millis(600)));
        assert_eq!(decide(&mut state, &quota, Hits::PEEK, at(3_600_000)).remaining, 5);
    }
}
