//! The binary: arguments in, exit code out.

use std::process::ExitCode;

/// Returns the memory of expired counters to the system within seconds; glibc's allocator keeps it.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
