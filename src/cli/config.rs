//! `tidegate config schema`: the configuration file, described to editors.

use std::io::Write;

use clap::Subcommand;

use super::Failure;
use crate::config;

/// Describe the configuration file to editors.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the JSON schema of cluster.toml
    #[command(after_help = EXAMPLES)]
    Schema,
}

const EXAMPLES: &str = "\
Save it, and name it in the first line of the file:
  #:schema cluster.schema.json

Example:
  tidegate config schema > cluster.schema.json";

pub(super) fn run(command: &Command, out: &mut dyn Write) -> Result<bool, Failure> {
    match command {
        Command::Schema => writeln!(out, "{:#}", config::schema())?,
    }
    Ok(true)
}
