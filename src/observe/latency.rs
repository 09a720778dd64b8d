//! A lock-free histogram of durations, shared by all threads that decide.
//!
//! The bounds are fixed: dense around the usual duration of a decision (some hundred microseconds),
//! with one at each deadline to alert on: the default 10 ms of a forwarded check, Envoy's 20 ms.
//! The default bounds of Prometheus' client libraries, 5 ms to 10 s, are among them, so that their
//! buckets can be derived.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use tidegate_limiter::units::Span;

/// Upper bounds of the buckets in microseconds.
pub const BOUNDS: [u64; 20] = [
    50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 25_000, 50_000, 100_000, 200_000,
    250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Counts durations by bucket. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Buckets>);

/// One reading of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The count of each bucket; the last is for durations above all [`BOUNDS`].
    pub counts: [u64; BOUNDS.len() + 1],
    pub sum: Span,
}

#[derive(Debug, Default)]
struct Buckets {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

impl Latency {
    pub fn record(&self, span: Span) {
        self.record_many(span, 1);
    }

    /// Counts the same duration `times` times: each check of a batch takes as long as the batch.
    pub fn record_many(&self, span: Span, times: u64) {
        let nanos = span.as_nanos();
        let bucket = BOUNDS.partition_point(|micros| *micros * 1_000 < nanos);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(times, Ordering::Relaxed);
        }
        self.0.sum_nanos.fetch_add(nanos.saturating_mul(times), Ordering::Relaxed);
    }

    /// A consistent reading: the total is derived from the same counts as the buckets.
    pub fn read(&self) -> Times {
        Times {
            counts: self.0.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum: Span::from_nanos(self.0.sum_nanos.load(Ordering::Relaxed)),
        }
    }
}

impl Times {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl TypedMetric for Latency {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        let times = self.read();
        let bounds = BOUNDS.iter().map(|micros| seconds(*micros * 1_000)).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(times.counts).collect();
        let sum = seconds(times.sum.as_nanos());
        encoder.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Nanoseconds in the unit of Prometheus.
#[expect(clippy::cast_precision_loss, reason = "exact below 104 days, and only for display")]
pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_bucket_below() {
        let latency = Latency::default();
        for nanos in [0, 50_000, 50_001, 10_000_000_000, 10_000_000_001, u64::MAX] {
            latency.record(Span::from_nanos(nanos));
        }
        let mut counts = [0; BOUNDS.len() + 1];
        (counts[0], counts[1], counts[19], counts[20]) = (2, 1, 1, 2);
        assert_eq!(latency.read().counts, counts);
        assert_eq!(latency.read().count(), 6);
    }
}
