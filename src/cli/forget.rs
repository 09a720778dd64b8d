//! `tidegate forget`: removes an evicted member from the cluster map.

use std::io::Write;

use percent_encoding::utf8_percent_encode;

use super::Failure;
use super::client::{AdminDoor, RESERVED};

/// Forget an evicted member now.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The node's id, as in `tidegate members`
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    listener: AdminDoor,
}

const EXAMPLES: &str = "\
A member that is down is remembered for cluster.forget_after, because limits with on_unavailable:
local are divided among it too. Forget it when it will not come back. Only the node that leads does
this; `tidegate members` on a voter names it.

Example:
  tidegate forget node-3 --url http://10.1.0.4:8082";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    let node = utf8_percent_encode(&args.node, RESERVED);
    args.listener.order(&format!("/forget?node={node}"))?;
    writeln!(out, "forgetting {}", args.node)?;
    Ok(true)
}
