//! `tidegate completions`: scripts with which a shell completes the command line.

use std::io::Write;

use clap_complete::Shell;

use super::Failure;

/// Write the completions of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  tidegate completions bash > /usr/share/bash-completion/completions/tidegate
  source <(tidegate completions zsh)";

/// `cli` is the whole command line.
pub(super) fn run(
    args: &Args,
    cli: &mut clap::Command,
    out: &mut dyn Write,
) -> Result<bool, Failure> {
    // The generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, cli, "tidegate", &mut script);
    out.write_all(&script)?;
    Ok(true)
}
