//! A rate limiter that is a cluster of equal peers, with no central store.

pub mod admin;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod decide;
pub mod engine;
pub mod front;
pub mod node;
pub mod observe;
pub mod pki;
pub mod rules;
pub mod seam;
pub mod storage;
pub mod store;
pub mod units;
pub mod xds;
