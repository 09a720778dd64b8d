//! Metrics, readiness and log of a node. It uses only `tidegate_limiter::units`, so that every
//! other module may use it.

pub mod health;
pub mod latency;
pub mod log;
pub mod metrics;
pub mod names;
pub mod samples;

pub use health::Health;
pub use metrics::Metrics;
