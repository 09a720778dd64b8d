//! Whether the clock of this node stood still.
//!
//! A stopped virtual machine finds, when it goes on, every clock of its own where it was; others
//! may have waited for the end of its lease meanwhile. Only clocks elsewhere can show it. Each pong
//! has the monotonic clock of the peer, which is never set, so between two of them
//!
//! ```text
//! lost >= (answered' - answered) - (received' - sent) * 11 / 9
//! ```
//!
//! is missing here: what passed for the peer between its two answers, without the most that can
//! have passed there by the clock here. A peer's clock may run at 1.1 and this one at 0.9 of the
//! speed of time. Without that part a peer that is pinged seldom, or was cut off for long, would
//! take the lease away from a node whose clock never stopped.
//!
//! Example: pings are sent at 0 ms and 100 ms, and answered after 2 ms. If the peer's clock
//! advanced by 600 ms between its answers, the clock here stood still for at least
//! 600 - (102 - 0) * 11 / 9 = 475 ms.

use tidegate_limiter::units::{Monotonic, Span};

/// A ping that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// By the clock of this node.
    pub sent: Monotonic,
    /// By the clock of this node.
    pub received: Monotonic,
    /// How long the peer had run, by its clock.
    pub answered: Span,
}

/// The fastest clock against the slowest, in ninths.
const FASTEST_NINTHS: u64 = 11;

impl ClockReading {
    /// The least that the clock of this node lost against the peer's until `next`, a later reading
    /// of the same run of the peer; zero when it need not have lost anything.
    pub fn lost_until(self, next: Self) -> Span {
        let theirs = next.answered.as_nanos().saturating_sub(self.answered.as_nanos());
        let ours = next.received.since(self.sent).as_nanos();
        let ours_at_most = (ours / 9).saturating_mul(FASTEST_NINTHS);
        Span::from_nanos(theirs.saturating_sub(ours_at_most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(sent_ms: u64, answered_ms: u64, received_ms: u64) -> ClockReading {
        let at = |ms: u64| Monotonic::from_nanos(ms * 1_000_000);
        ClockReading {
            sent: at(sent_ms),
            received: at(received_ms),
            answered: Span::from_millis(answered_ms),
        }
    }

    #[test]
    fn only_what_a_round_trip_cannot_explain_is_lost() {
        let first = reading(0, 5_001, 2);
        let cases = [
            (reading(100, 5_101, 102), 0, "both went on"),
            (reading(100, 5_190, 192), 0, "the answer was late"),
            (reading(100, 5_619, 108), 486, "the machine was stopped between the pings"),
            (reading(100, 5_601, 306), 226, "and it may have been the answer that was late"),
            (reading(100, 5_001, 102), 0, "the peer's machine was stopped"),
        ];
        for (next, lost_ms, why) in cases {
            assert_eq!(first.lost_until(next), Span::from_millis(lost_ms), "{why}");
        }
    }

    /// Pings between regions are a second apart, and none is answered while a link is cut.
    #[test]
    fn clocks_of_different_speeds_lose_nothing_however_long_no_ping_is_answered() {
        let first = reading(0, 5_001, 2);
        for real_ms in [100, 1_000, 60_000, 86_400_000] {
            let next = reading(real_ms * 9 / 10, 5_001 + real_ms * 11 / 10, real_ms * 9 / 10 + 9);
            assert_eq!(first.lost_until(next), Span::ZERO, "{real_ms} ms");
        }
    }
}
