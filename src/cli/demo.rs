//! `tidegate demo`: three nodes on this machine, limits under load, and a node that is killed. The
//! crate `tidegate-demo` does the work.

use std::env;
use std::io::Write;

use tidegate_demo::Options;
use tokio::runtime;

use super::{Failure, shutdown};
use crate::config::UserError;

/// Start three nodes in two regions on this machine and demonstrate limits.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// End after the last step; the exit code tells whether all expectations were met
    #[arg(long)]
    once: bool,

    /// Put an Envoy in front too: the one in the PATH, or the one fetched by scripts/envoy-tools
    #[arg(long)]
    envoy: bool,
}

const EXAMPLES: &str = "\
The cluster stays up until Ctrl-C, so that you can try it. Then everything is removed.

Exit code: 0 all expectations met, 1 one was not, 2 the demo could not run.

Examples:
  tidegate demo
  tidegate demo --envoy
  tidegate demo --once";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    let executable = env::current_exe()
        .map_err(UserError::context("find this program's file", "mount /proc"))?;
    let options = Options { executable, once: args.once, envoy: args.envoy, color: screen };
    let runtime = runtime::Builder::new_multi_thread().enable_all().build();
    let fix = "raise the process limit (ulimit -u)";
    runtime.map_err(UserError::context("start threads", fix))?.block_on(async {
        let shutdown = shutdown::first_signal()
            .map_err(UserError::context("listen for signals", "raise `ulimit -n`"))?;
        Ok(tidegate_demo::run(&options, shutdown, out).await?)
    })
}
