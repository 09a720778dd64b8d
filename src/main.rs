//! The binary: arguments in, exit code out.

use std::process::ExitCode;

/// Gives back what expired counters leave behind, within seconds and page by page. The system's
/// allocator keeps all of it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
