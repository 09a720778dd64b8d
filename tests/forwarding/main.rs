//! Strict checks that leave the node they were asked at: counted once, whoever holds the key and
//! whatever happens to the messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod all_or_nothing;
mod bench;
mod negative_cache;
mod retries;
mod searches;
#[path = "../support/mod.rs"]
mod support;
