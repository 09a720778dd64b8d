//! `tidegate man`: the manual pages of all commands.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::Failure;
use crate::config::UserError;

/// Write the manual pages into a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The folder, which is created where it is missing: tidegate.1, tidegate-serve.1, ...
    folder: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tidegate man /usr/local/share/man/man1
  tidegate man pages && man pages/tidegate-serve.1";

/// `cli` is the whole command line.
pub(super) fn run(args: &Args, cli: clap::Command, out: &mut dyn Write) -> Result<bool, Failure> {
    let written =
        fs::create_dir_all(&args.folder).and_then(|()| clap_mangen::generate_to(cli, &args.folder));
    let problem = format!("{}: cannot be written", args.folder.display());
    written.map_err(UserError::context(&problem, "name a folder that you may write"))?;
    writeln!(out, "{}", args.folder.join("tidegate.1").display())?;
    Ok(true)
}
