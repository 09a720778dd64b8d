//! The repository itself: layers, documents, and the rules that ship with it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod architecture;
mod bench_rendering;
mod docs;
mod imports;
mod monitoring;
mod mutants;
mod reference;
mod rules_schema;
mod rules_shipped;
mod source;
