//! Metrics, readiness and log of a node. It uses no other module, so that every other one may
//! use it.

pub mod health;
pub mod latency;
pub mod log;
pub mod metrics;
pub mod names;
pub mod samples;

pub use health::Health;
pub use metrics::Metrics;
