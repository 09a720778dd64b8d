//! What a node tells about itself: metrics, health, log. Uses nothing but `units`, so that every
//! other module may use it.

pub mod health;
pub mod latency;
pub mod log;
pub mod metrics;
pub mod names;
pub mod samples;
pub mod statistics;

pub use health::Health;
pub use metrics::Metrics;
