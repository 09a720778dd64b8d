//! The binary: arguments in, exit code out.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os())
}
