//! A histogram of durations without a lock: every decision of every thread goes through it.
//!
//! The bounds are fixed. They are dense around what a decision should take (some hundred
//! microseconds) and have one at each deadline people alert on: our own 10 ms, Envoy's 20 ms.

use std::array;
use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

use crate::units::Span;

/// Upper bounds of the buckets in nanoseconds, and as the text shows them, in seconds.
const BOUNDS: [(u64, f64); 12] = [
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
    (50_000_000, 0.05),
    (200_000_000, 0.2),
];

/// Counts durations by bucket. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    /// One more than there are bounds: the last is for everything beyond.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

impl Latency {
    /// Counts one duration.
    pub fn record(&self, span: Span) {
        let nanos = span.as_nanos();
        let bucket = BOUNDS.partition_point(|(bound, _)| *bound < nanos);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.0.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
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
        // Read once, so that the buckets and their total agree while others count on.
        let counts = self.0.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let bounds = BOUNDS.iter().map(|(_, seconds)| *seconds).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let nanos = self.0.sum_nanos.load(Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "a sum for people, not for a decision")]
        let seconds = nanos as f64 / 1e9;
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
        for nanos in [0, 50_000, 50_001, 200_000_000, 200_000_001, u64::MAX] {
            latency.record(Span::from_nanos(nanos));
        }
        let counts = latency.0.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(latency.count(), 6);
    }
}
