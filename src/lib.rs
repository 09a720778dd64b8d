//! A rate limiter that is a cluster of equal peers, with no central store.

pub mod admin;
pub mod cli;
pub mod compat;
pub mod config;
pub mod decide;
pub mod enrolment;
pub mod export;
pub mod front;
pub mod node;
pub mod observe;
pub mod reload;
pub mod storage;
pub mod traces;
pub mod xds;
