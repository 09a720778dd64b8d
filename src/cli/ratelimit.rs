//! `tidegate ratelimit`, and the binary under the name `ratelimit`: a node by the environment of
//! envoyproxy/ratelimit.

use super::serve::{self, Log, LogFormat};
use super::{Failure, Outcome};
use crate::config;

/// Run a node as envoyproxy/ratelimit is run: by its environment, on its ports.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Set a key of the configuration over the environment
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// How much to log: a level, or module=level, ...; without it, `LOG_LEVEL`
    #[arg(long, value_name = "FILTER", env = "TIDEGATE_LOG")]
    log: Option<String>,
    /// The form of the log; without it, `LOG_FORMAT`
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

const EXAMPLES: &str = "\
The same happens when the binary is called as `ratelimit`. Variables of our own
(TIDEGATE_SECTION__KEY) override those of envoyproxy/ratelimit; REDIS_* and MEMCACHE_* are accepted
and mean nothing, for there is no store to be connected to.

Examples:
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit tidegate ratelimit
  PORT=9080 GRPC_PORT=9081 LOG_LEVEL=debug /bin/ratelimit";

pub(super) fn run(args: &Args) -> Result<Outcome, Failure> {
    let start = config::load::load_reference(&args.sets)?;
    let format = if start.log_json { LogFormat::Json } else { LogFormat::Text };
    let log = Log {
        filter: args.log.clone().unwrap_or_else(|| start.log_level.to_owned()),
        format: args.log_format.unwrap_or(format),
    };
    serve::node(start.config, &log, false, || {
        for warning in &start.warnings {
            tracing::warn!("{warning}");
        }
    })
}
