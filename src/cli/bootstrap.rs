//! `tidegate bootstrap`: founds a cluster by hand.

use std::io::Write;

use super::Failure;
use super::client::AdminDoor;

/// Found a cluster with one node as its only voter.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    listener: AdminDoor,
}

const EXAMPLES: &str = "\
For nodes that are configured with neither cluster.founders nor cluster.bootstrap_expect. Run it
once in each region, on one node: the others join it, and vote when there are enough. The node
refuses when it knows a cluster or a peer does, and while one is being founded.

Example:
  tidegate bootstrap --url http://10.1.0.4:8082";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    args.listener.order("/bootstrap")?;
    writeln!(out, "founding a cluster; `tidegate members` shows it in a few seconds")?;
    Ok(true)
}
