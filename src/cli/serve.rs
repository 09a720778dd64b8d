//! `tidegate serve`, `tidegate ratelimit` and `tidegate gubernator`: run a node until a signal,
//! configured by its own file and variables, or by the environment of envoyproxy/ratelimit or
//! Gubernator.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime;

use super::{Failure, shutdown};
use crate::compat::{envoy_ratelimit, gubernator};
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

/// Run a node with envoyproxy/ratelimit's environment variables and ports.
#[derive(Debug, clap::Args)]
#[command(after_help = RATELIMIT_EXAMPLES)]
pub(super) struct RatelimitArgs {
    /// Set a configuration key; overrides the environment
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Log level, or module=level, ...; default: `LOG_LEVEL`
    #[arg(long, value_name = "FILTER", env = "TIDEGATE_LOG")]
    log: Option<String>,
    /// Log format; default: `LOG_FORMAT`
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT")]
    log_format: Option<log::Format>,
}

/// Run a node with Gubernator's environment variables and ports.
#[derive(Debug, clap::Args)]
#[command(after_help = GUBERNATOR_EXAMPLES)]
pub(super) struct GubernatorArgs {
    /// Set a configuration key; overrides the environment
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Log level, or module=level, ...; default: `GUBER_LOG_LEVEL`
    #[arg(long, value_name = "FILTER", env = "TIDEGATE_LOG")]
    log: Option<String>,
    /// Log format; default: `GUBER_LOG_FORMAT`
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT")]
    log_format: Option<log::Format>,
}

/// How long threads may take to end after the node has.
const THREADS_PATIENCE: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Every key of cluster.toml is also a variable: TIDEGATE_HTTP__LISTEN sets listen in [http].
File, then variables, then --set; each overrides the one before.

Examples:
  tidegate serve
  tidegate serve --config cluster.toml --set node.id=node-2
  TIDEGATE_LIMITS__KEYS_MAX=5000000 tidegate serve --config cluster.toml --log debug";

const RATELIMIT_EXAMPLES: &str = "\
A binary called `ratelimit` does the same. Variables of tidegate (TIDEGATE_SECTION__KEY) override
those of envoyproxy/ratelimit; REDIS_* and MEMCACHE_* are accepted and have no effect, because there
is no central store.

Examples:
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit tidegate ratelimit
  PORT=9080 GRPC_PORT=9081 LOG_LEVEL=debug /bin/ratelimit";

const GUBERNATOR_EXAMPLES: &str = "\
A binary called `gubernator` does the same. Variables of tidegate (TIDEGATE_SECTION__KEY) override
those of Gubernator; how its peers find each other has no effect, because nodes of tidegate are
members of a cluster with certificates.

Examples:
  GUBER_GRPC_ADDRESS=0.0.0.0:1051 GUBER_HTTP_ADDRESS=0.0.0.0:1050 tidegate gubernator
  GUBER_LOG_LEVEL=debug /bin/gubernator";

pub(super) fn run(args: &Args) -> Result<bool, Failure> {
    let config = config::load(args.config.as_deref(), &args.sets)?;
    let _log = init_log(&args.log, args.log_format)?;
    node(config, args.until_stdin_closes)
}

/// `tidegate ratelimit`.
pub(super) fn ratelimit(args: &RatelimitArgs) -> Result<bool, Failure> {
    let start = envoy_ratelimit::environment::load(&args.sets)?;
    let filter = args.log.as_deref().unwrap_or(start.log_level);
    let _log = init_log(filter, args.log_format.unwrap_or(start.log_format))?;
    for warning in &start.warnings {
        tracing::warn!("{warning}");
    }
    node(start.config, false)
}

/// `tidegate gubernator`.
pub(super) fn gubernator(args: &GubernatorArgs) -> Result<bool, Failure> {
    let start = gubernator::environment::load(&args.sets)?;
    let filter = args.log.as_deref().unwrap_or(start.log_level);
    let _log = init_log(filter, args.log_format.unwrap_or(start.log_format))?;
    if !start.ignored.is_empty() {
        let ignored = start.ignored.join(", ");
        tracing::warn!("settings without effect: {ignored}; see docs/gubernator.md");
    }
    node(start.config, false)
}

pub(super) fn init_log(filter: &str, format: log::Format) -> Result<log::Guard, log::Error> {
    let filter = filter.to_owned();
    log::init(&log::Options { filter, format, colour: io::stderr().is_terminal() })
}

/// Runs a node until shutdown.
///
/// The listeners have a runtime of their own. A task waits until every other one that can run had
/// its turn, so the more connections have requests, the longer each of them waits; a ping must not,
/// because a lease depends on it. A node that may have only one thread has both on it: where
/// several nodes share a machine, changing between threads would cost each check a quarter more.
pub(super) fn node(config: Config, until_stdin_closes: bool) -> Result<bool, Failure> {
    let runtime = |name: &str| {
        let mut builder = runtime::Builder::new_multi_thread();
        if config.node.threads > 0 {
            builder.worker_threads(config.node.threads);
        }
        let fix = "raise the process limit (ulimit -u)";
        let runtime = builder.thread_name(name).enable_all().build();
        runtime.map_err(UserError::context("failed to start threads", fix))
    };
    let core = runtime("core")?;
    let listeners = if config.node.threads == 1 { None } else { Some(runtime("listeners")?) };
    let front = listeners.as_ref().unwrap_or(&core).handle().clone();
    let ended = core.block_on(async {
        let what = "failed to install signal handlers";
        let shutdown =
            shutdown::on_signal().map_err(UserError::context(what, "raise `ulimit -n`"))?;
        if until_stdin_closes {
            let what = "failed to watch standard input";
            shutdown::when_stdin_closes(shutdown.clone())
                .map_err(UserError::context(what, "raise `ulimit -u`"))?;
        }
        Box::pin(node::run(config, &front, shutdown)).await?;
        Ok(true)
    });
    // What still blocks a thread reads from a file system that hangs.
    for runtime in listeners.into_iter().chain([core]) {
        runtime.shutdown_timeout(THREADS_PATIENCE);
    }
    ended
}
