//! The requests of many sources.
//!
//! A source has a limit between 10 and 1,000 a minute and draws the times of its requests from a
//! generator of its own, so a run depends on its seed alone. Requests come in short bursts: of four
//! on average, some 50 ms apart.
//!
//! | kind | sources | requests |
//! |---|---|---|
//! | quiet | the others | 0.1 to 3 % of the limit per minute, 0.9 % on average, always |
//! | busy | 0.15 % | 30 to 75 % of the limit, always |
//! | spiky | 0.06 % | quiet for some half an hour, then 1.2 to 4 times the limit within a minute |
//! | over | 0.001 % | 1.1 to 3 times the limit, always |

use tidegate_limiter::units::Span;

pub(crate) const WINDOW: Span = Span::from_secs(60);
pub(crate) const SOURCES: u64 = 270_000;
/// Requests for which there are so many sources; fewer requests have fewer.
const REQUESTS: u64 = 100_000_000;
/// Fraction of the sources of each kind but quiet.
const BUSY: f64 = 0.001_5;
const SPIKY: f64 = 0.000_6;
const OVER: f64 = 0.000_01;

const SECOND: u64 = 1_000_000_000;
/// In the year 2026, within a window.
const START: u64 = 1_790_000_017 * SECOND;
const LIMITS: [u32; 8] = [10, 20, 50, 100, 100, 200, 500, 1_000];
const BURST: f64 = 4.0;
/// Mean time between two requests of a burst.
const WITHIN_BURST: f64 = 0.05;
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
        let source = |n| Source::new(Rng(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ (n << 20)));
        Self { sources: (0..sources).map(source).collect(), second: 0 }
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
    fn new(mut rng: Rng) -> Self {
        rng.next();
        let limit = LIMITS[(rng.next() % LIMITS.len() as u64) as usize];
        let kind = rng.unit();
        let (kind, usual) = if kind < OVER {
            (Kind::Steady, rng.between(1.1, 3.0))
        } else if kind < OVER + SPIKY {
            (Kind::Spiky { in_spike: false }, rng.log_between(0.001, 0.03))
        } else if kind < OVER + SPIKY + BUSY {
            (Kind::Steady, rng.between(0.3, 0.75))
        } else {
            (Kind::Steady, rng.log_between(0.001, 0.03))
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
            self.next += nanos(self.rng.exponential(WITHIN_BURST));
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
