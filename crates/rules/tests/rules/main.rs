//! Rule files: loaded, matched, refused with advice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "how many cases pass belongs in the output of the test")]

mod errors;
mod folder;
mod golden;
mod matching;
mod tally_laws;
mod untrusted;
