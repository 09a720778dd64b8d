//! What one limit allows: algorithm, limit, window, burst. Plain validated data.
//!
//! A quota travels with every forwarded check, so it is `Copy` and small. Deserializing one goes
//! through [`Quota::new`], so a quota from a peer is validated like one from a rule file.

use serde::{Deserialize, Serialize};

use crate::units::Span;

/// How hits are counted. The module of the same name in [`crate::engine`] documents each algorithm.
///
/// Append only: the order is the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// A counter per epoch-aligned window; denied hits count, as in envoyproxy/ratelimit.
    FixedWindow,
    /// The time of every admitted hit. Exact; memory grows with the limit.
    SlidingWindowLog,
    /// `current + previous × overlap`, over `sub_windows` slices.
    SlidingWindowCounter,
    /// Tokens are added at the rate; `burst` is the bucket's capacity.
    TokenBucket,
    /// A level that drains at the rate; as a meter, or with `queue` as a queue that returns a
    /// delay.
    LeakyBucket,
    /// The generic cell rate algorithm: a single theoretical arrival time.
    Gcra,
    /// A counter per window that begins with the first hit; denied hits are free.
    FirstHitWindow,
}

impl Algorithm {
    /// Every algorithm, in wire order.
    pub const ALL: [Self; 7] = [
        Self::FixedWindow,
        Self::SlidingWindowLog,
        Self::SlidingWindowCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Gcra,
        Self::FirstHitWindow,
    ];

    /// The shortest window.
    pub const fn window_min(self) -> Span {
        if matches!(self, Self::FirstHitWindow) { FIRST_HIT_WINDOW_MIN } else { WINDOW_MIN }
    }

    /// The name in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Gcra => "gcra",
            Self::FirstHitWindow => "first_hit_window",
        }
    }
}

/// One limit, validated. Build it with [`Quota::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "QuotaParts")]
pub struct Quota(QuotaParts);

/// The parts of a quota before validation; also its wire form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QuotaParts {
    pub algorithm: Algorithm,
    /// Hits per window; 0 denies everything.
    pub limit: u32,
    /// Length of the window, 1 s to 400 days; of a first-hit window from 1 ms.
    pub window: Span,
    /// Most hits that may pass at once in the bucket algorithms. For window algorithms it must
    /// equal the limit.
    pub burst: u32,
    /// Slices of a sliding window counter, 1 to 60; must be 1 for every other algorithm.
    pub sub_windows: u8,
    /// Hits that may wait; `Some` makes a leaky bucket a queue.
    pub queue: Option<u32>,
}

/// Shortest window. Window numbers have 32 bits, which lasts until 2106 at one second.
pub const WINDOW_MIN: Span = Span::from_secs(1);
/// Shortest window that begins with a hit: such windows have no numbers.
pub const FIRST_HIT_WINDOW_MIN: Span = Span::from_millis(1);
/// Longest window: a year and some margin.
pub const WINDOW_MAX: Span = Span::from_secs(400 * 86_400);
/// Most slices of a sliding window counter; each costs 4 bytes a key.
pub const SUB_WINDOWS_MAX: u8 = 60;
/// Largest limit of a sliding window log: each admitted hit costs up to 16 bytes.
pub const LOG_LIMIT_MAX: u32 = 10_000;
/// Most hits that may wait in a queue.
pub const QUEUE_MAX: u32 = 1_000_000;

/// Longest time in which a full bucket or queue may drain. A bucket stores the instant at which it
/// is idle again, and timestamps end in 2554.
pub const DRAIN_MAX: Span = Span::from_secs(100 * 365 * 86_400);

/// Why parts do not form a valid quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The window is shorter than [`Algorithm::window_min`] or longer than [`WINDOW_MAX`].
    #[error("window {window} is outside {shortest} to 400d")]
    Window {
        window: Span,
        /// The shortest one of the algorithm.
        shortest: Span,
    },
    /// A burst for an algorithm without one.
    #[error("burst is for token_bucket, leaky_bucket and gcra, not for {}", .0.name())]
    BurstUnused(Algorithm),
    /// A burst of zero with a limit above zero would deny everything.
    #[error("burst 0 would deny every hit; omit it or set at least 1")]
    BurstZero,
    /// Sub-windows for an algorithm without them.
    #[error("sub_windows is for sliding_window_counter, not for {}", .0.name())]
    SubWindowsUnused(Algorithm),
    /// Sub-windows outside 1 to [`SUB_WINDOWS_MAX`], or not dividing the window evenly.
    #[error("sub_windows {0} must be 1 to 60 and divide the window into whole milliseconds")]
    SubWindows(u8),
    /// A queue for an algorithm without one.
    #[error("queue is for leaky_bucket, not for {}", .0.name())]
    QueueUnused(Algorithm),
    /// A queue longer than [`QUEUE_MAX`].
    #[error("queue {0} is larger than {QUEUE_MAX}")]
    QueueTooLong(u32),
    /// A queue with a burst: a queue releases its hits one by one.
    #[error("queue and burst are mutually exclusive: a queue releases hits one by one")]
    QueueWithBurst,
    /// A bucket or queue that would take longer than [`DRAIN_MAX`] to recover.
    #[error(
        "{hits} hits at {limit} per {window} take over 100 years to drain; lower burst or queue"
    )]
    Drain {
        /// The burst, or the length of the queue plus one.
        hits: u32,
        limit: u32,
        window: Span,
    },
    /// The log would take too much memory per key.
    #[error("sliding_window_log stores every hit: limit {0} is larger than {LOG_LIMIT_MAX}")]
    LogTooLong(u32),
}

impl Quota {
    /// Validates the parts.
    ///
    /// ```
    /// use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
    /// use tidegate_limiter::units::Span;
    ///
    /// let quota = Quota::new(QuotaParts {
    ///     algorithm: Algorithm::Gcra,
    ///     limit: 100,
    ///     window: Span::from_secs(60),
    ///     burst: 20,
    ///     sub_windows: 1,
    ///     queue: None,
    /// })?;
    /// assert_eq!(quota.burst(), 20);
    /// # Ok::<(), tidegate_limiter::quota::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the first rule that the parts break.
    pub fn new(parts: QuotaParts) -> Result<Self, Error> {
        let QuotaParts { algorithm, limit, window, burst, sub_windows, queue } = parts;
        let shortest = algorithm.window_min();
        if window < shortest || window > WINDOW_MAX {
            return Err(Error::Window { window, shortest });
        }
        let is_bucket =
            matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra);
        if !is_bucket && burst != limit {
            return Err(Error::BurstUnused(algorithm));
        }
        if is_bucket && burst == 0 && limit > 0 {
            return Err(Error::BurstZero);
        }
        if algorithm != Algorithm::SlidingWindowCounter && sub_windows != 1 {
            return Err(Error::SubWindowsUnused(algorithm));
        }
        let slice_is_whole =
            |n: u8| window.as_nanos().is_multiple_of(u64::from(n).saturating_mul(1_000_000));
        if sub_windows == 0 || sub_windows > SUB_WINDOWS_MAX || !slice_is_whole(sub_windows) {
            return Err(Error::SubWindows(sub_windows));
        }
        if let Some(waiting) = queue {
            if algorithm != Algorithm::LeakyBucket {
                return Err(Error::QueueUnused(algorithm));
            }
            if waiting > QUEUE_MAX {
                return Err(Error::QueueTooLong(waiting));
            }
            if burst != limit {
                return Err(Error::QueueWithBurst);
            }
        }
        let hits = queue.map_or(burst, |waiting| waiting.saturating_add(1));
        let drain_ticks = u128::from(hits) * u128::from(window.as_nanos());
        if is_bucket && drain_ticks > u128::from(limit.max(1)) * u128::from(DRAIN_MAX.as_nanos()) {
            return Err(Error::Drain { hits, limit, window });
        }
        if algorithm == Algorithm::SlidingWindowLog && limit > LOG_LIMIT_MAX {
            return Err(Error::LogTooLong(limit));
        }
        Ok(Self(parts))
    }

    /// A quota with default optional parts: burst = limit, one sub-window, no queue.
    ///
    /// # Errors
    ///
    /// As [`Quota::new`].
    pub fn simple(algorithm: Algorithm, limit: u32, window: Span) -> Result<Self, Error> {
        Self::new(QuotaParts {
            algorithm,
            limit,
            window,
            burst: limit,
            sub_windows: 1,
            queue: None,
        })
    }

    /// This quota with another limit. Burst and queue scale in proportion, the burst to at least 1
    /// while the limit is above 0. Used for one node's share of a limit.
    #[must_use]
    pub fn with_limit(self, limit: u32) -> Self {
        let mut parts = self.0;
        let old = u64::from(parts.limit.max(1));
        let scale =
            |hits: u32| u32::try_from(u64::from(hits) * u64::from(limit) / old).unwrap_or(u32::MAX);
        // A queue of the old length at a fraction of the rate would delay that many times longer.
        parts.queue = parts.queue.map(|waiting| scale(waiting).min(QUEUE_MAX));
        parts.burst = if parts.burst == parts.limit || parts.limit == 0 {
            limit
        } else {
            scale(parts.burst).max(u32::from(limit > 0))
        };
        parts.limit = limit;
        Self(parts)
    }

    /// Part `rank` of `count` into which limit and burst are divided in whole hits; the first ranks
    /// get the remainder. All parts sum to this quota. `None` if a part would have nothing, and of
    /// a queue.
    ///
    /// Example: the parts of 10 by 3 are 4, 3, 3.
    #[must_use]
    pub fn part(self, rank: u32, count: u32) -> Option<Self> {
        let of = |hits: u32| {
            let even = hits.checked_div(count)?;
            Some(even.saturating_add(u32::from(rank < hits % count))).filter(|hits| *hits > 0)
        };
        let parts = QuotaParts { limit: of(self.0.limit)?, burst: of(self.0.burst)?, ..self.0 };
        // A bucket of few hits may drain for longer than the whole.
        Self::new(parts).ok().filter(|_| rank < count && self.0.queue.is_none())
    }

    pub const fn algorithm(&self) -> Algorithm {
        self.0.algorithm
    }

    /// Hits per window.
    pub const fn limit(&self) -> u32 {
        self.0.limit
    }

    pub const fn window(&self) -> Span {
        self.0.window
    }

    pub const fn burst(&self) -> u32 {
        self.0.burst
    }

    /// Most hits that may be in use at a time: the limit, or what a bucket holds. A queue holds one
    /// more than may wait: the one that passes at once.
    pub const fn capacity(&self) -> u32 {
        match self.0.queue {
            Some(waiting_max) => waiting_max.saturating_add(1),
            None => self.0.burst,
        }
    }

    pub const fn sub_windows(&self) -> u8 {
        self.0.sub_windows
    }

    pub const fn queue(&self) -> Option<u32> {
        self.0.queue
    }

    /// Length of one slice of the window, at least 1 ns.
    #[inline]
    pub(crate) fn slice(&self) -> Span {
        let slices = u64::from(self.0.sub_windows.max(1));
        Span::from_nanos((self.0.window.as_nanos() / slices).max(1))
    }
}

impl TryFrom<QuotaParts> for Quota {
    type Error = Error;

    fn try_from(parts: QuotaParts) -> Result<Self, Error> {
        Self::new(parts)
    }
}

impl From<Quota> for QuotaParts {
    fn from(quota: Quota) -> Self {
        quota.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(algorithm: Algorithm) -> QuotaParts {
        let window = Span::from_secs(1);
        QuotaParts { algorithm, limit: 10, window, burst: 10, sub_windows: 1, queue: None }
    }

    #[test]
    fn a_bucket_that_drains_for_over_a_century_is_rejected() {
        let window = WINDOW_MAX;
        for (burst, queue) in [(1_000, None), (1, Some(1_000))] {
            let parts =
                QuotaParts { limit: 1, window, burst, queue, ..parts(Algorithm::LeakyBucket) };
            assert!(matches!(Quota::new(parts), Err(Error::Drain { .. })), "{parts:?}");
        }
        let fits = QuotaParts { limit: 1, window, burst: 90, ..parts(Algorithm::Gcra) };
        assert!(Quota::new(fits).is_ok());
    }

    #[test]
    fn parts_sum_to_the_whole() {
        let window = Span::from_secs(1);
        for (limit, burst) in [(10, 10), (3, 7), (7, 3), (2, 9), (1_000, 1), (u32::MAX, 100)] {
            let whole = Quota::new(QuotaParts { limit, burst, ..parts(Algorithm::Gcra) });
            let whole = whole.expect("a valid quota");
            for count in 1..12 {
                let all: Option<Vec<Quota>> =
                    (0..count).map(|rank| whole.part(rank, count)).collect();
                let Some(all) = all else {
                    assert!(limit.min(burst) < count, "{limit}, {burst} by {count}");
                    continue;
                };
                let sum = |of: fn(&Quota) -> u32| all.iter().map(of).sum::<u32>();
                assert_eq!((sum(Quota::limit), sum(Quota::burst)), (limit, burst));
                assert!(all.iter().all(|part| part.window() == window));
                assert!(all.is_sorted_by_key(|part| std::cmp::Reverse(part.limit())));
            }
        }
        let queue = Quota::new(QuotaParts { queue: Some(30), ..parts(Algorithm::LeakyBucket) });
        assert_eq!(queue.expect("a valid quota").part(0, 1), None);
    }

    #[test]
    fn a_share_of_a_queue_delays_as_long_as_the_whole() {
        let whole = Quota::new(QuotaParts { queue: Some(30), ..parts(Algorithm::LeakyBucket) });
        let share = whole.expect("a valid quota").with_limit(5);
        assert_eq!((share.limit(), share.queue()), (5, Some(15)));
    }
}
