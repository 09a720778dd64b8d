//! The binary: arguments in, exit code out.

use std::process::ExitCode;

/// Returns the memory of expired counters to the system within seconds; glibc's allocator keeps it.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
