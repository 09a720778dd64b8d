//! How many requests a server may have at a time, learnt from how long it takes to respond.
//!
//! While a server has room, one request more does not slow the others down. Beyond that point
//! requests wait for each other inside it: more of them are served later, not faster. So the limit
//! follows the gradient of the time to a response (the round-trip time, RTT): its mean of the last
//! window against its mean of the last hundreds of windows. After each window
//!
//! ```text
//! gradient = 1.5 × long RTT / RTT, within 0.5 ..= 1, × the part that was not dropped, 0.5 at least
//! limit    = 0.8 × limit + 0.2 × (gradient × limit + 4), within min ..= max
//! ```
//!
//! Up to one and a half times the usual RTT is noise: the gradient is 1, and the limit grows by 0.8
//! a window. 4 is the queue that a server may always have: where the limit stands still, gradient ×
//! limit + 4 = limit, so that a limit of 40 means an RTT of 1.5 × 40 / 36 = 1.7 times the usual.
//!
//! ```text
//! limit 100, long RTT 10 ms    RTT      gradient           limit
//! as usual                      10 ms   1                  100.8
//! twice                         20 ms   0.75                95.8
//! ten times                    100 ms   0.5                 90.8
//! as usual, a tenth dropped     10 ms   0.9                 98.8
//! ```
//!
//! - A server with less than half of its limit in use says nothing about the limit, which stays.
//! - Only successes have an RTT: an error is often faster than what it replaces.
//! - The long RTT is the mean of the first 10 windows and then moves by 2/601 of the difference
//!   with each window. While it is more than twice the RTT it also shrinks by a twentieth a window,
//!   so that the time after an overload is short.
//! - An RTT that stays high becomes the usual one. Under an overload that does not end, the limit
//!   grows again, twofold in some 400 windows, up to `max`.
//!
//! Source: `Gradient2Limit` of [Netflix concurrency-limits][netflix] with its constants; the tests
//! hold what it prints. It leaves drops out of account; here a window in which everything was
//! dropped lowers the limit by a tenth, as in its `AIMDLimit`.
//!
//! [netflix]: https://github.com/Netflix/concurrency-limits

use std::time::Duration;

/// How much longer than usual a response may take before it counts as queueing.
const TOLERANCE: f64 = 1.5;
/// No window lowers the limit by more than half, before smoothing.
const GRADIENT_MIN: f64 = 0.5;
/// Requests that may always wait in the server, so by how much the limit may grow.
const QUEUE: f64 = 4.0;
/// The part of the old limit that a window replaces.
const SMOOTHING: f64 = 0.2;
/// Windows of which the long RTT is the plain mean, at first.
const WARM_UP: u32 = 10;
/// The part of the long RTT that a window replaces later: an exponential mean of 600 windows.
const LONG_FACTOR: f64 = 2.0 / 601.0;
/// The long RTT falls faster while it is more than this many times the RTT.
const LONG_EXCESS: f64 = 2.0;
const LONG_DECAY: f64 = 0.95;

/// Fewest responses of which a mean says something.
const SAMPLES_MIN: u32 = 10;

/// The limit of one server.
#[derive(Clone, Debug)]
pub(super) struct Gradient {
    min: f64,
    max: f64,
    limit: f64,
    long_rtt: LongRtt,
}

/// What was seen of a server since the limit was computed last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    rtt_sum: Duration,
    succeeded: u32,
    dropped: u32,
    /// Most requests that one of these found at the server, with itself.
    in_flight_max: u32,
}

/// The usual RTT, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct LongRtt {
    mean: f64,
    /// Windows so far, up to [`WARM_UP`].
    windows: u32,
}

impl Gradient {
    /// Begins at `min`, where the usual RTT is that of a server with room. `min` is at least 1 and
    /// at most `max`.
    pub(super) fn new(min: u32, max: u32) -> Self {
        let (min, max) = (f64::from(min), f64::from(max));
        Self { min, max, limit: min, long_rtt: LongRtt::default() }
    }

    /// Most requests at a time.
    pub(super) fn limit(&self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within min ..= max, which are of this type"
        )]
        let limit = self.limit as u32;
        limit
    }

    /// Computes the limit anew.
    pub(super) fn update(&mut self, window: &Window) {
        let mut gradient = 1.0;
        if let Some(rtt) = window.rtt() {
            let long_rtt = self.long_rtt.add(rtt);
            if long_rtt / rtt > LONG_EXCESS {
                self.long_rtt.mean *= LONG_DECAY;
            }
            gradient = (TOLERANCE * long_rtt / rtt).clamp(GRADIENT_MIN, 1.0);
        }
        if f64::from(window.in_flight_max) < self.limit / 2.0 {
            return;
        }
        let gradient = (gradient * window.passed()).max(GRADIENT_MIN);
        let next = gradient * self.limit + QUEUE;
        let next = (1.0 - SMOOTHING) * self.limit + SMOOTHING * next;
        self.limit = next.clamp(self.min, self.max);
    }
}

impl Window {
    /// A response without an error, `rtt` after its request was sent, which had found `in_flight`
    /// requests at the server, with itself.
    pub(super) fn succeeded(&mut self, rtt: Duration, in_flight: u32) {
        self.rtt_sum = self.rtt_sum.saturating_add(rtt);
        self.succeeded = self.succeeded.saturating_add(1);
        self.in_flight_max = self.in_flight_max.max(in_flight);
    }

    /// No response, or one that says that the server has too much to do.
    pub(super) fn dropped(&mut self, in_flight: u32) {
        self.dropped = self.dropped.saturating_add(1);
        self.in_flight_max = self.in_flight_max.max(in_flight);
    }

    /// Whether it has enough for a mean.
    pub(super) fn is_enough(&self) -> bool {
        self.succeeded.saturating_add(self.dropped) >= SAMPLES_MIN
    }

    /// The mean in seconds, above zero, if there is one.
    fn rtt(&self) -> Option<f64> {
        let mean = self.rtt_sum.checked_div(self.succeeded)?;
        Some(mean.max(Duration::from_nanos(1)).as_secs_f64())
    }

    /// The part that was not dropped.
    fn passed(&self) -> f64 {
        let all = f64::from(self.succeeded) + f64::from(self.dropped);
        if all > 0.0 { f64::from(self.succeeded) / all } else { 1.0 }
    }
}

impl LongRtt {
    fn add(&mut self, rtt: f64) -> f64 {
        let factor = if self.windows < WARM_UP {
            self.windows += 1;
            1.0 / f64::from(self.windows)
        } else {
            LONG_FACTOR
        };
        self.mean += (rtt - self.mean) * factor;
        self.mean
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A window of ten responses that took `ms` each.
    fn window(ms: u64, in_flight: u32) -> Window {
        let mut window = Window::default();
        for _ in 0..10 {
            window.succeeded(Duration::from_millis(ms), in_flight);
        }
        window
    }

    /// The limits after windows of `(how many, RTT in ms, in flight)`; without a number, all of the
    /// limit is in use.
    fn limits(gradient: &mut Gradient, phases: &[(usize, u64, Option<u32>)]) -> Vec<u32> {
        let windows = phases.iter().flat_map(|phase| std::iter::repeat_n(*phase, phase.0));
        windows
            .map(|(_, ms, in_flight)| {
                gradient.update(&window(ms, in_flight.unwrap_or_else(|| gradient.limit())));
                gradient.limit()
            })
            .collect()
    }

    fn at(limit: u32, min: u32, max: u32) -> Gradient {
        Gradient { limit: limit.into(), ..Gradient::new(min, max) }
    }

    /// Printed by `Gradient2Limit` of version 0.5.4 (revision 78a74b98) with these arguments.
    #[test]
    fn limits_are_those_of_the_published_code() {
        let constant = [20, 21, 22, 23, 24, 24, 25, 26, 27, 28];
        assert_eq!(limits(&mut at(20, 20, 200), &[(10, 10, None)]), constant);

        let doubled = [42, 41, 40, 39, 37, 36, 36, 35, 34, 33, 32, 32];
        let mut gradient = at(20, 20, 200);
        assert_eq!(limits(&mut gradient, &[(30, 10, None)]).last(), Some(&44));
        assert_eq!(limits(&mut gradient, &[(12, 20, None)]), doubled);

        let spike = [
            100, 101, 102, 103, 104, 104, 105, 106, 107, 108, 108, 109, 99, 90, 82, 74, 67, 61, 56,
            51, 52, 53, 54, 54, 55, 56, 57, 58, 58, 59,
        ];
        let phases = [(12, 10, None), (8, 100, None), (10, 10, None)];
        assert_eq!(limits(&mut at(100, 20, 200), &phases), spike);

        let falls = [54, 50, 45, 42, 38];
        let mut gradient = at(50, 20, 60);
        assert_eq!(limits(&mut gradient, &[(10, 90, None), (20, 10, None)]).last(), Some(&60));
        assert_eq!(limits(&mut gradient, &[(5, 100, None)]), falls);
    }

    #[test]
    fn a_server_that_is_hardly_used_says_nothing_about_its_limit() {
        let mut gradient = at(100, 20, 200);
        let phases = [(3, 10, Some(49)), (3, 1_000, Some(49)), (50, 10, Some(1))];
        assert!(limits(&mut gradient, &phases).iter().all(|limit| *limit == 100));
        // In use it grows to its end, and no further.
        assert_eq!(limits(&mut gradient, &[(500, 10, None)]).last(), Some(&200));
    }

    #[test]
    fn drops_lower_the_limit_by_their_part() {
        let after = |succeeded: u32, dropped: u32| {
            let (mut gradient, mut window) = (at(100, 1, 200), Window::default());
            for _ in 0..succeeded {
                window.succeeded(Duration::from_millis(10), 100);
            }
            for _ in 0..dropped {
                window.dropped(100);
            }
            gradient.update(&window);
            gradient.limit
        };
        for (succeeded, dropped, limit) in
            [(100, 0, 100.8), (90, 10, 98.8), (50, 50, 90.8), (1, 99, 90.8), (0, 10, 90.8)]
        {
            let found = after(succeeded, dropped);
            assert!((found - limit).abs() < 1e-9, "{succeeded} and {dropped}: {found}");
        }
    }

    #[test]
    fn an_overload_that_does_not_end_becomes_the_usual_state() {
        // A server that works on 20 at a time, with more demand than any limit.
        let mut gradient = at(20, 20, 1_000);
        let mut reached = Vec::new();
        for round in 1..=2_000 {
            let limit = gradient.limit();
            let micros = 10_000 * u64::from(limit.max(20)) / 20;
            let mut window = Window::default();
            window.succeeded(Duration::from_micros(micros), limit);
            gradient.update(&window);
            if [60, 300, 2_000].contains(&round) {
                reached.push(gradient.limit());
            }
        }
        assert_eq!(reached, [42, 66, 913]);
    }

    #[derive(Clone, Copy, Debug)]
    struct Seen {
        rtt_us: u64,
        succeeded: u32,
        dropped: u32,
        in_flight: u32,
    }

    fn seen() -> impl Strategy<Value = Seen> {
        (0_u64..10_000_000, 0_u32..50, 0_u32..50, 0_u32..2_000).prop_map(
            |(rtt_us, succeeded, dropped, in_flight)| Seen {
                rtt_us,
                succeeded,
                dropped,
                in_flight,
            },
        )
    }

    fn apply(gradient: &mut Gradient, seen: Seen) {
        let mut window = Window::default();
        for _ in 0..seen.succeeded {
            window.succeeded(Duration::from_micros(seen.rtt_us), seen.in_flight);
        }
        for _ in 0..seen.dropped {
            window.dropped(seen.in_flight);
        }
        gradient.update(&window);
    }

    proptest! {
        #[test]
        fn the_limit_stays_within_its_bounds(
            min in 1_u32..100, more in 0_u32..1_000, all in prop::collection::vec(seen(), 0..200),
        ) {
            let mut gradient = Gradient::new(min, min + more);
            for one in all {
                apply(&mut gradient, one);
                prop_assert!((min..=min + more).contains(&gradient.limit()), "{gradient:?}");
            }
        }

        #[test]
        fn a_constant_time_lets_a_limit_grow_only_while_it_is_used(
            ms in 1_u64..5_000, windows in 1_usize..300, in_flight in 0_u32..500,
        ) {
            let mut gradient = Gradient::new(10, 400);
            let seen = limits(&mut gradient, &[(windows, ms, Some(in_flight))]);
            prop_assert!(seen.is_sorted());
            // Twice what is in flight, and one step more.
            prop_assert!(gradient.limit <= (2.0 * f64::from(in_flight) + 0.8).max(10.0));
            let grown = limits(&mut gradient, &[(500, ms, None)]);
            prop_assert_eq!(grown.last(), Some(&400));
        }

        #[test]
        fn a_doubled_time_shrinks_the_limit_and_the_usual_one_restores_it(ms in 1_u64..5_000) {
            let mut gradient = at(100, 10, 200);
            limits(&mut gradient, &[(20, ms, None)]);
            let before = gradient.limit();
            let shrunk = limits(&mut gradient, &[(20, 2 * ms, None)]);
            prop_assert!(shrunk.iter().rev().is_sorted() && gradient.limit() < before / 2);
            limits(&mut gradient, &[(100, ms, None)]);
            prop_assert!(gradient.limit() >= before);
        }

        #[test]
        fn drops_have_no_time(ms in 1_u64..5_000, dropped in 1_u32..50) {
            // The same limit as without them, apart from their part, and the same usual time.
            let (mut with, mut without) = (at(50, 10, 200), at(50, 10, 200));
            let mut window = window(ms, 50);
            without.update(&window);
            for _ in 0..dropped {
                window.dropped(50);
            }
            with.update(&window);
            prop_assert_eq!(with.long_rtt.mean.to_bits(), without.long_rtt.mean.to_bits());
            prop_assert!(with.limit < without.limit);
        }
    }
}
