//! The statistics of envoyproxy/ratelimit under its names: a reading of the `Tallies`, exported to
//! statsd and Prometheus.
//!
//! A [tally](tidegate_rules::tally) has a name such as `domain.key_value.key`. For statsd it is
//! part of the counter's name, `ratelimit.service.rate_limit.domain.key_value.key.total_hits`; for
//! Prometheus its first three parts are labels.
//!
//! Source: envoyproxy/ratelimit, `src/stats/manager_impl.go`, `src/metrics/metrics.go`.

mod exporter;
mod name;
pub mod prometheus;
mod reading;
pub mod statsd;

pub use self::exporter::StatsdExporter;
pub use self::name::sanitized;
pub use self::reading::{Source, Statistics};
