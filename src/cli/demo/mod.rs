//! `tidegate demo`: a cluster of three on this machine, limits at work, and a node that dies.
//!
//! The nodes are real processes of this very binary, with certificates, rules and logs in a folder
//! of their own under the system's one for temporary files. A load balancer in this process asks
//! them in turn (`/auth`) before it lets a request through to its upstream. With `--envoy` a real
//! Envoy does so too, over gRPC.
//!
//! **Invariant:** nothing is left behind, however it ends. The nodes hold the reading end of a pipe
//! whose other end is here: it closes when this process ends, even by SIGKILL, and they drain.

mod envoy;
mod fleet;
mod gateway;
mod load;
mod screen;
mod show;
mod site;
mod stage;

use std::io::Write;
use std::path::PathBuf;

use tokio::runtime;

use self::fleet::Fleet;
use self::screen::Screen;
use self::site::Site;
use super::{Failure, Outcome, shutdown};
use crate::config::UserError;

/// Start three nodes in two regions on this machine and show limits at work.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// End after the show; the exit code says whether everything was as promised
    #[arg(long)]
    once: bool,

    /// Put a real Envoy in front too: the one in the PATH, or that of scripts/envoy-tools
    #[arg(long)]
    envoy: bool,
}

const EXAMPLES: &str = "\
It stays up until Ctrl-C, for you to try things, and then removes everything that it made.

Exit code: 0 all was as promised, 1 it was not, 2 the demo could not be given.

Examples:
  tidegate demo
  tidegate demo --envoy
  tidegate demo --once";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<Outcome, Failure> {
    // Before anything is made.
    let program = args.envoy.then(envoy::find).transpose()?;
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        UserError::new(format!("start threads: {error}"), "raise the process limit (ulimit -u)")
    })?;
    runtime.block_on(give(args.once, program, Screen::new(screen, out)))
}

/// Gives the show and clears up after it, however it went.
async fn give(
    once: bool,
    envoy: Option<PathBuf>,
    mut screen: Screen<'_>,
) -> Result<Outcome, Failure> {
    // From here on a signal means: clear up.
    let stopped = shutdown::first_signal().map_err(|error| {
        UserError::new(format!("listen for signals: {error}"), "raise `ulimit -n`")
    })?;
    let site = Site::make()?;
    let mut fleet = Fleet::new();
    let shown = tokio::select! {
        biased;
        signal = stopped => Ok(End::Signal(signal)),
        shown = show::run(once, envoy, &site, &mut fleet, &mut screen) => shown.map(End::Shown),
    };
    if shown.as_ref().is_err_and(|failure| !matches!(failure, Failure::Output(_))) {
        // The logs are about to go, so what they say last is said here. Whether anybody can read it
        // is not what went wrong.
        let _ = fleet.write_last_words(&mut screen);
    }
    fleet.stop().await;
    let folder = site.path().display().to_string();
    site.remove().map_err(|error| {
        UserError::new(format!("remove {folder}: {error}"), format!("remove it: rm -r {folder}"))
    })?;
    match shown? {
        End::Shown(as_promised) => Ok(if as_promised { Outcome::Yes } else { Outcome::No }),
        End::Signal(signal) => {
            screen.line(&format!("\n{signal}: nodes stopped, {folder} removed"))?;
            // Whoever watches has seen enough; a script wanted the whole show.
            Ok(if once { Outcome::No } else { Outcome::Yes })
        }
    }
}

/// How the show ended.
enum End {
    /// By itself; whether all was as promised.
    Shown(bool),
    /// By a signal, named here.
    Signal(&'static str),
}
