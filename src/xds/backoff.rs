//! How long to wait before connecting again.
//!
//! The wait doubles with every attempt that brought nothing, up to a bound, and each is drawn from
//! the upper half of what it may be, so that nodes that lost one server do not come back as one.
//!
//! Example, from 500 ms to 30 s: waits of 250–500 ms, 0.5–1 s, 1–2 s, ..., 15–30 s, 15–30 s.

use tidegate_limiter::units::Span;

/// The waits of one client.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    initial: Span,
    longest: Span,
    next: Span,
}

impl Backoff {
    /// Waits from `initial` to `longest`.
    pub fn new(initial: Span, longest: Span) -> Self {
        Self { initial, longest, next: initial }
    }

    /// The next wait. `dice` is any number, all alike likely.
    pub fn wait(&mut self, dice: u64) -> Span {
        let most = self.next.as_nanos().min(self.longest.as_nanos());
        self.next = Span::from_nanos(most.saturating_mul(2));
        let half = most / 2;
        Span::from_nanos(most - half + dice % half.saturating_add(1))
    }

    /// The server was there: the next absence is a new one.
    pub fn reset(&mut self) {
        self.next = self.initial;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Span = Span::from_millis;

    #[test]
    fn waits_double_up_to_the_bound() {
        let mut backoff = Backoff::new(MS(500), MS(1_800));
        let longest: Vec<_> = (0..4).map(|_| most(&mut backoff)).collect();
        assert_eq!(longest, [MS(500), MS(1_000), MS(1_800), MS(1_800)]);
        backoff.reset();
        assert_eq!(most(&mut backoff), MS(500));
    }

    #[test]
    fn a_wait_is_in_the_upper_half_whatever_the_dice_say() {
        for dice in [0, 1, 249_999_999, 250_000_000, 250_000_001, u64::MAX] {
            let wait = Backoff::new(MS(500), MS(500)).wait(dice);
            assert!((MS(250)..=MS(500)).contains(&wait), "{dice}: {wait:?}");
        }
    }

    #[test]
    fn the_largest_spans_do_not_overflow() {
        let mut backoff = Backoff::new(Span::MAX, Span::MAX);
        for dice in [0, u64::MAX] {
            assert!(backoff.wait(dice) <= Span::MAX);
        }
    }

    /// The longest of the next wait.
    fn most(backoff: &mut Backoff) -> Span {
        let half = backoff.next.as_nanos().min(backoff.longest.as_nanos()) / 2;
        backoff.wait(half)
    }
}
