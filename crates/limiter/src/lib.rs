//! A rate limiter for one process.

pub mod descriptor;
pub mod engine;
pub mod policy;
pub mod quota;
pub mod store;
pub mod units;
