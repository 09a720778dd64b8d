//! A histogram of durations without a lock: every decision of every thread goes through it.
//!
//! The bounds are fixed. They are dense around what a decision should take (some hundred
//! microseconds) and have one at each deadline people alert on: our own 10 ms, Envoy's 20 ms. Those
//! of Prometheus' client libraries are among them, 5 ms to 10 s, so that what was counted can be
//! told in their buckets too.

use std::array;
use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use tidegate_limiter::units::Span;

/// Upper bounds of the buckets in nanoseconds, and as the text shows them, in seconds.
pub const BOUNDS: [(u64, f64); 20] = [
    (50_000, 0.000_05),
    (100_000, 0.000_1),
    (200_000, 0.000_2),
    (300_000, 0.000_3),
    (500_000, 0.000_5),
    (1_000_000, 0.001),
    (2_000_000, 0.002),
    (5_000_000, 0.005),
    (10_000_000, 0.01),
    (20_000_000, 0.02),
    (25_000_000, 0.025),
    (50_000_000, 0.05),
    (100_000_000, 0.1),
    (200_000_000, 0.2),
    (250_000_000, 0.25),
    (500_000_000, 0.5),
    (1_000_000_000, 1.0),
    (2_500_000_000, 2.5),
    (5_000_000_000, 5.0),
    (10_000_000_000, 10.0),
];

/// Counts durations by bucket. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Buckets>);

/// What was counted, read once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// How many fell into each bucket; the last is for everything beyond the last of [`BOUNDS`].
    pub counts: [u64; BOUNDS.len() + 1],
    /// Of all together.
    pub sum: Span,
}

#[derive(Debug)]
struct Buckets {
    /// One more than there are bounds: the last is for everything beyond.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

impl Latency {
    /// Counts one duration.
    pub fn record(&self, span: Span) {
        self.record_many(span, 1);
    }

    /// Counts the same duration `times` times: what was decided together took each as long.
    pub fn record_many(&self, span: Span, times: u64) {
        let nanos = span.as_nanos();
        let bucket = BOUNDS.partition_point(|(bound, _)| *bound < nanos);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(times, Ordering::Relaxed);
        }
        self.0.sum_nanos.fetch_add(nanos.saturating_mul(times), Ordering::Relaxed);
    }

    /// What was counted until now. Read once, so that the buckets and their total agree while
    /// others count on.
    pub fn read(&self) -> Times {
        Times {
            counts: self.0.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum: Span::from_nanos(self.0.sum_nanos.load(Ordering::Relaxed)),
        }
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.read().count()
    }
}

impl Times {
    /// How many durations there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Default for Buckets {
    fn default() -> Self {
        Self { counts: array::from_fn(|_| AtomicU64::new(0)), sum_nanos: AtomicU64::new(0) }
    }
}

impl TypedMetric for Latency {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        let Times { counts, sum } = self.read();
        let bounds = BOUNDS.iter().map(|(_, seconds)| *seconds).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        #[expect(clippy::cast_precision_loss, reason = "a sum for people, not for a decision")]
        let seconds = sum.as_nanos() as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(seconds, counts.iter().sum(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_belongs_below_it() {
        let latency = Latency::default();
        for nanos in [0, 50_000, 50_001, 10_000_000_000, 10_000_000_001, u64::MAX] {
            latency.record(Span::from_nanos(nanos));
        }
        let mut counts = [0; BOUNDS.len() + 1];
        (counts[0], counts[1], counts[19], counts[20]) = (2, 1, 1, 2);
        assert_eq!(latency.read().counts, counts);
        assert_eq!(latency.count(), 6);
    }
}
