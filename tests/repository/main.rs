//! The repository itself: layers, documents, and the rules that ship with it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod architecture;
mod bench_docs;
mod docs;
mod imports;
mod rules_shipped;
mod source;
