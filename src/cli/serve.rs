//! `tidegate serve`: runs a node until a signal.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use tokio::runtime;

use super::{Failure, Outcome, shutdown};
use crate::config::{self, Config, UserError};
use crate::node;
use crate::observe::log;

/// Run a node until SIGTERM or Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The configuration file; without one, a single node on loopback with example rules
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Set a configuration key; overrides file and environment
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Log level, or module=level, ...
    #[arg(long, value_name = "FILTER", env = "TIDEGATE_LOG", default_value = "info")]
    log: String,
    /// Log format
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text")]
    log_format: log::Format,
    /// Drain when standard input ends: for a parent that holds the other end of a pipe
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

const EXAMPLES: &str = "\
Every key of cluster.toml is also a variable: TIDEGATE_HTTP__LISTEN sets listen in [http].
File, then variables, then --set; each overrides the one before.

Examples:
  tidegate serve
  tidegate serve --config cluster.toml --set node.id=node-2
  TIDEGATE_LIMITS__KEYS_MAX=5000000 tidegate serve --config cluster.toml --log debug";

pub(super) fn run(args: &Args) -> Result<Outcome, Failure> {
    let config = config::load(args.config.as_deref(), &args.sets)?;
    let log = Log { filter: args.log.clone(), format: args.log_format };
    node(config, &log, args.until_stdin_closes, || ())
}

/// Level and format of the log.
pub(super) struct Log {
    pub(super) filter: String,
    pub(super) format: log::Format,
}

/// Runs a node until shutdown. `begin` is called once the log is set up.
pub(super) fn node(
    config: Config,
    log: &Log,
    until_stdin_closes: bool,
    begin: impl FnOnce(),
) -> Result<Outcome, Failure> {
    log::init(&log::Options {
        filter: log.filter.clone(),
        format: log.format,
        colour: io::stderr().is_terminal(),
    })?;
    begin();
    let mut builder = runtime::Builder::new_multi_thread();
    if config.node.threads > 0 {
        builder.worker_threads(config.node.threads);
    }
    let runtime = builder.enable_all().build().map_err(|error| {
        UserError::new(
            format!("failed to start threads: {error}"),
            "raise the process limit (ulimit -u)",
        )
    })?;
    runtime.block_on(async {
        let shutdown = shutdown::on_signal().map_err(|error| {
            UserError::new(
                format!("failed to install signal handlers: {error}"),
                "raise `ulimit -n`",
            )
        })?;
        if until_stdin_closes {
            shutdown::when_stdin_closes(shutdown.clone()).map_err(|error| {
                UserError::new(
                    format!("failed to watch standard input: {error}"),
                    "raise `ulimit -u`",
                )
            })?;
        }
        Ok::<_, Failure>(node::run(config, shutdown).await?)
    })?;
    Ok(Outcome::Yes)
}
