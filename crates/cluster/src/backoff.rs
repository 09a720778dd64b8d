//! The delay between attempts: doubled each time, up to a bound.

use std::time::Duration;

use backon::ExponentialBuilder;

/// Endless delays of `min`, `2 * min`, ..., `max`, `max`, without jitter. Example, from 100 ms to
/// 1 s: 100, 200, 400, 800, 1,000, 1,000 ms, each to within some nanoseconds.
///
/// `with_jitter` adds up to each delay again, and `with_jitter_seed` makes that reproducible.
pub fn exponential(min: Duration, max: Duration) -> ExponentialBuilder {
    // The seed has no effect without jitter, and saves drawing one.
    let builder = ExponentialBuilder::new().with_jitter_seed(0);
    builder.with_min_delay(min).with_max_delay(max).without_max_times()
}

#[cfg(test)]
mod tests {
    use backon::BackoffBuilder;

    use super::*;

    #[test]
    fn delays_double_up_to_the_bound() {
        let delays = exponential(Duration::from_millis(100), Duration::from_secs(1)).build();
        let delays: Vec<_> = delays.take(6).map(|delay| delay.as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1_000, 1_000]);
    }
}
