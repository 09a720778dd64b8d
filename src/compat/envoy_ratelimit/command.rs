//! `tidegate ratelimit`, and the names under which the binary behaves like those of
//! envoyproxy/ratelimit: `ratelimit` is a node configured by its environment, and
//! `ratelimit_config_check` validates rule files. A link or a copy with that name is enough.

use std::ffi::OsString;
use std::path::Path;

use super::environment::{self, Start};
use crate::config::Error;
use crate::observe::log::Format;

/// Run a node with envoyproxy/ratelimit's environment variables and ports.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Set a configuration key; overrides the environment
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Log level, or module=level, ...; default: `LOG_LEVEL`
    #[arg(long, value_name = "FILTER", env = "TIDEGATE_LOG")]
    log: Option<String>,
    /// Log format; default: `LOG_FORMAT`
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT")]
    log_format: Option<Format>,
}

const EXAMPLES: &str = "\
A binary called `ratelimit` does the same. Variables of tidegate (TIDEGATE_SECTION__KEY) override
those of envoyproxy/ratelimit; REDIS_* and MEMCACHE_* are accepted and have no effect, because there
is no central store.

Examples:
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit tidegate ratelimit
  PORT=9080 GRPC_PORT=9081 LOG_LEVEL=debug /bin/ratelimit";

impl Args {
    /// Reads the environment.
    ///
    /// # Errors
    ///
    /// The first invalid variable or flag.
    pub fn load(&self) -> Result<Start, Error> {
        environment::load(&self.sets)
    }

    /// The log filter and format of these arguments, or else of the environment.
    pub fn log(&self, start: &Start) -> (String, Format) {
        let filter = self.log.clone().unwrap_or_else(|| start.log_level.to_owned());
        (filter, self.log_format.unwrap_or(start.log_format))
    }
}

/// Names of binaries, and the sub-commands they stand for.
const NAMES: [(&str, &str); 2] =
    [("ratelimit", "ratelimit"), ("ratelimit_config_check", "ratelimit-config-check")];

/// Inserts the sub-command that the name of the program, the first argument, stands for.
pub fn arguments(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.into_iter().collect();
    let program = args.first().and_then(|first| Path::new(first).file_name());
    let command = NAMES.iter().find(|(name, _)| program.is_some_and(|program| program == *name));
    if let Some((_, command)) = command {
        args.insert(1, command.into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_of_envoyproxy_ratelimit_become_sub_commands() {
        let of = |args: &[&str]| arguments(args.iter().map(OsString::from));
        assert_eq!(of(&["/bin/ratelimit"]), ["/bin/ratelimit", "ratelimit"]);
        assert_eq!(
            of(&["ratelimit_config_check", "-config_dir", "x"]),
            ["ratelimit_config_check", "ratelimit-config-check", "-config_dir", "x"]
        );
        assert_eq!(of(&["/ratelimit/tidegate", "serve"]), ["/ratelimit/tidegate", "serve"]);
        assert!(of(&[]).is_empty());
    }
}
