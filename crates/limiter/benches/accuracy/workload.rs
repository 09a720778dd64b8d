//! The requests of many sources.
//!
//! A source has a limit between 10 and 1,000 a minute and draws the times of its requests from a
//! generator of its own, so a run depends on its seed alone. Requests come in short bursts: of four
//! on average, some 50 ms apart, or closer at a high rate.
//!
//! | kind | sources | requests |
//! |---|---|---|
//! | quiet | the others | 0.1 to 3 % of the limit per minute, 0.9 % on average, always |
//! | busy | 0.12 % | 30 to 75 % of the limit, always |
//! | spiky | 0.035 % | quiet for some half an hour, then 1.2 to 4 times the limit within a minute |
//! | over | 0.001 % | 1.1 to 3 times a limit of 10 to 50, always |
//!
//! How many sources of each kind there are, and with which limits, does not depend on the seed: a
//! handful of sources that are always over a limit of some hundred would make more wrong decisions
//! than all others.

use tidegate_limiter::units::Span;

pub(crate) const WINDOW: Span = Span::from_secs(60);
pub(crate) const SOURCES: u64 = 270_000;
/// Requests for which there are so many sources; fewer requests have fewer.
const REQUESTS: u64 = 100_000_000;
/// Which sources are of each kind but quiet.
const BUSY: Part = Part { of_all: 0.001_2, phase: 0.6 };
const SPIKY: Part = Part { of_all: 0.000_35, phase: 0.3 };
const OVER: Part = Part { of_all: 0.000_012, phase: 0.0 };

const SECOND: u64 = 1_000_000_000;
/// In the year 2026, within a window.
const START: u64 = 1_790_000_017 * SECOND;
const LIMITS: [u32; 8] = [10, 20, 50, 100, 100, 200, 500, 1_000];
/// How many of the limits a source that is always over may have.
const LIMITS_OVER: usize = 3;
const BURST: f64 = 4.0;
/// Mean seconds between two requests of a burst, and the most in relation to the mean between all.
const WITHIN_BURST: f64 = 0.05;
const WITHIN_BURST_PART: f64 = 0.25;
const MEAN_QUIET: f64 = 1_800.0;

/// One request for one hit.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) at: u64,
    pub(crate) source: u32,
    pub(crate) limit: u32,
    /// Which of three nodes it arrives at.
    pub(crate) node: u8,
}

pub(crate) struct Workload {
    sources: Vec<Source>,
    second: u64,
}

struct Source {
    rng: Rng,
    limit: u32,
    kind: Kind,
    /// Part of the limit per window.
    usual: f64,
    next: u64,
    left_of_burst: u64,
    /// Requests per second until `changes`.
    rate: f64,
    changes: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Steady,
    Spiky { in_spike: bool },
}

// === impl Workload ===

impl Workload {
    pub(crate) fn new(seed: u64, requests: u64) -> Self {
        let sources = (SOURCES * requests / REQUESTS).clamp(1, SOURCES);
        let rng = |n| Rng(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ (n << 20));
        Self { sources: (0..sources).map(|n| Source::new(n, rng(n))).collect(), second: 0 }
    }

    pub(crate) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Those that have passed.
    pub(crate) fn windows(&self) -> u64 {
        self.second / WINDOW.as_secs_ceil()
    }

    /// The requests of the next second, in their order.
    pub(crate) fn next_second(&mut self, requests: &mut Vec<Request>) {
        self.second += 1;
        let end = START + self.second * SECOND;
        requests.clear();
        for (source, number) in self.sources.iter_mut().zip(0..) {
            while source.next < end {
                let node = (source.rng.next() % 3) as u8;
                requests.push(Request {
                    at: source.next,
                    source: number,
                    limit: source.limit,
                    node,
                });
                source.advance();
            }
        }
        requests.sort_unstable_by_key(|request| (request.at, request.source));
    }
}

// === impl Source ===

impl Source {
    fn new(n: u64, mut rng: Rng) -> Self {
        rng.next();
        let (kind, usual, limit) = if let Some(rank) = OVER.rank(n) {
            (Kind::Steady, rng.between(1.1, 3.0), LIMITS[rank % LIMITS_OVER])
        } else if let Some(rank) = SPIKY.rank(n) {
            let kind = Kind::Spiky { in_spike: false };
            (kind, rng.log_between(0.001, 0.03), LIMITS[rank % LIMITS.len()])
        } else if let Some(rank) = BUSY.rank(n) {
            (Kind::Steady, rng.between(0.3, 0.75), LIMITS[rank % LIMITS.len()])
        } else {
            (Kind::Steady, rng.log_between(0.001, 0.03), LIMITS[n as usize % LIMITS.len()])
        };
        let mut source = Self {
            rng,
            limit,
            kind,
            usual,
            next: START,
            left_of_burst: 0,
            rate: 0.0,
            changes: START,
        };
        source.change();
        source.advance();
        source
    }

    /// Moves on to the next request.
    fn advance(&mut self) {
        if self.left_of_burst > 0 {
            self.left_of_burst -= 1;
            let mean = WITHIN_BURST.min(WITHIN_BURST_PART / self.rate);
            self.next += nanos(self.rng.exponential(mean));
            return;
        }
        loop {
            let next = self.next + nanos(self.rng.exponential(BURST / self.rate));
            if next < self.changes {
                self.next = next;
                break;
            }
            self.next = self.changes;
            self.change();
        }
        // Geometric, with BURST requests on average.
        while self.rng.unit() < 1.0 - 1.0 / BURST {
            self.left_of_burst += 1;
        }
    }

    /// Begins the next phase at `changes`.
    fn change(&mut self) {
        let per_second =
            |part: f64, limit: u32| part * f64::from(limit) / WINDOW.as_secs_ceil() as f64;
        let seconds = match &mut self.kind {
            Kind::Steady => {
                self.rate = per_second(self.usual, self.limit);
                1e9
            }
            Kind::Spiky { in_spike } => {
                // The first quiet phase has the length of what is left of one.
                *in_spike = !*in_spike && self.rate > 0.0;
                if *in_spike {
                    let seconds = self.rng.between(2.0, 60.0);
                    let requests = self.rng.between(1.2, 4.0) * f64::from(self.limit);
                    self.rate = requests / seconds;
                    seconds
                } else {
                    self.rate = per_second(self.usual, self.limit);
                    self.rng.exponential(MEAN_QUIET)
                }
            }
        };
        self.changes += nanos(seconds);
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
fn nanos(seconds: f64) -> u64 {
    (seconds * SECOND as f64) as u64
}

// === impl Part ===

/// A fraction of all sources, evenly spread over their numbers. With different phases no source is
/// of two kinds.
struct Part {
    of_all: f64,
    phase: f64,
}

impl Part {
    /// How many of this part come before source `n`, if that is one of them.
    #[allow(clippy::cast_sign_loss, reason = "a positive number")]
    fn rank(&self, n: u64) -> Option<usize> {
        let of_first = |sources: u64| sources as f64 * self.of_all + self.phase;
        let (before, after) = (of_first(n) as usize, of_first(n + 1) as usize);
        (after > before).then_some(before)
    }
}

// === impl Rng ===

/// `SplitMix64`.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Between 0 and 1, never 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// As often below the geometric mean of the two as above.
    fn log_between(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}
