//! A quota, and when the next of its requests may leave.
//!
//! With `remaining` requests until `reset`, they leave `(reset − now) / remaining` apart, and each
//! takes one. While a tenth of a known quota remains they are no further apart than
//! `window / quota`, because a sliding window or a bucket gives back before `reset`. At `reset` the
//! next window follows with the whole quota, its first request at a random point of its first
//! interval; as long as quota or window are not known, each window is one request a second.

use std::time::Duration;

use crate::fields::Limit;

/// The shortest wait at an empty quota, and the time between requests while nothing is known.
pub(crate) const FLOOR: Duration = Duration::from_secs(1);

/// When no more than a quota divided by this remains, requests are spread over the rest of the
/// window, however fast the quota refills.
const RESERVE: u32 = 10;

#[derive(Debug)]
pub(crate) struct Policy {
    quota: Option<u32>,
    window: Option<Duration>,
    remaining: u32,
    reset: Duration,
    /// When the next request may leave.
    next: Duration,
    /// The random number of the latest response.
    phase: f64,
    /// How many requests took from it.
    granted: u64,
    /// The newest request of which the response is known, by its number among them.
    newest: u64,
}

impl Policy {
    /// One of which nothing is known.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            quota: None,
            window: None,
            remaining: 0,
            reset: now,
            next: Duration::MAX,
            phase: 0.0,
            granted: 0,
            newest: 0,
        }
    }

    /// How long until a request may leave.
    pub(crate) fn wait(&mut self, now: Duration) -> Duration {
        if now >= self.reset {
            self.roll(now);
        }
        let until = if self.remaining == 0 { self.reset } else { self.next };
        until.saturating_sub(now)
    }

    /// Lets a request leave, and returns its number among those that took from this policy.
    pub(crate) fn take(&mut self, now: Duration) -> u64 {
        self.next = now + self.interval(now);
        self.remaining = self.remaining.saturating_sub(1);
        self.granted += 1;
        self.granted
    }

    /// Learns from the response to the request with this number; `None` if it took nothing here.
    /// `instead` takes precedence over the reset of a limit that is used up.
    pub(crate) fn observe(
        &mut self,
        limit: &Limit,
        number: Option<u64>,
        instead: Option<Duration>,
        now: Duration,
        random: f64,
    ) {
        self.quota = limit.quota.or(self.quota);
        self.window = limit.window.or(self.window);
        self.phase = random;
        let mut remaining = limit.remaining;
        if let Some(number) = number {
            if number <= self.newest {
                return;
            }
            self.newest = number;
            let later = self.granted.saturating_sub(number);
            remaining = remaining.saturating_sub(u32::try_from(later).unwrap_or(u32::MAX));
        } else if self.granted > 0 && now < self.reset {
            // Found by another route: what left since then is not known.
            remaining = remaining.min(self.remaining);
        }

        let is_empty = limit.remaining == 0;
        let left = limit.reset.or(self.window).unwrap_or_default();
        let left = if is_empty { instead.unwrap_or(left) } else { left };
        let mut end = now + left.max(FLOOR);
        if is_empty && left.is_zero() {
            end += FLOOR.mul_f64(random);
        }
        // The time is rounded up, so that each response is an upper bound of the end.
        if !is_empty && now < self.reset && end <= self.reset + FLOOR {
            end = end.min(self.reset);
        }
        self.reset = end;
        self.remaining = remaining;
        self.next = self.next.min(now + self.interval(now));
    }

    /// The time between requests.
    fn interval(&self, now: Duration) -> Duration {
        let spread = self.reset.saturating_sub(now) / self.remaining.max(1);
        match self.whole() {
            Some((quota, window)) if self.remaining >= quota.div_ceil(RESERVE) => {
                spread.min(window / quota)
            }
            _ => spread,
        }
    }

    /// Begins the window that `now` is in.
    fn roll(&mut self, now: Duration) {
        let Some((quota, window)) = self.whole() else {
            (self.remaining, self.next, self.reset) = (1, now, now + FLOOR);
            return;
        };
        let missed = now.saturating_sub(self.reset).as_nanos() / window.as_nanos();
        let missed = u32::try_from(missed).unwrap_or(u32::MAX);
        let start = self.reset + window.saturating_mul(missed);
        (self.remaining, self.reset) = (quota, start + window);
        self.next = start + (window / quota).mul_f64(self.phase);
        // Responses to earlier requests are about the last window.
        self.newest = self.granted;
    }

    /// The quota and its window, if requests can be spread over it.
    fn whole(&self) -> Option<(u32, Duration)> {
        self.quota.filter(|quota| *quota > 0).zip(self.window)
    }
}
