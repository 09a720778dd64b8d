//! Strict checks that leave the node they were asked at: counted once, whoever holds the key and
//! whatever happens to the messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod denials;
mod retries;
mod searches;
#[path = "../support/mod.rs"]
mod support;
mod together;
