//! The command line: one file per sub-command.
//!
//! Results go to standard output, everything else to standard error. The exit code is 0 on success,
//! 1 when the result is negative (a refused check, invalid rules), 2 on failure, with one line that
//! says what to do.

mod bootstrap;
mod ca;
mod check;
mod client;
mod completions;
mod config;
mod config_check;
mod demo;
mod drain;
mod entry;
mod export;
mod failure;
mod forget;
mod healthcheck;
mod join;
mod key;
mod man;
mod members;
mod proxy;
mod recover;
mod regions;
pub mod rules;
mod serve;
mod shutdown;
mod status;
mod top;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::compat::envoy_ratelimit::command;

pub use failure::Failure;

/// A distributed rate limiter: equal peers, no central store.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node until SIGTERM or Ctrl-C
    Serve(serve::Args),
    /// Run a node with envoyproxy/ratelimit's environment variables and ports
    Ratelimit(serve::RatelimitArgs),
    /// Run a node with Gubernator's environment variables and ports
    Gubernator(serve::GubernatorArgs),
    /// Run a reverse proxy in front of an application, without a configuration file
    Proxy(proxy::Args),
    /// Check a descriptor against its limits and charge the hits
    Check(check::Args),
    /// Validate and test rule files without a node
    #[command(subcommand)]
    Rules(rules::Command),
    /// Describe the configuration file to editors
    #[command(subcommand)]
    Config(config::Command),
    /// Check rule files as envoyproxy/ratelimit's checker does
    RatelimitConfigCheck(config_check::Args),
    /// Create the cluster's certificates
    #[command(subcommand)]
    Ca(ca::Command),
    /// Get this node's certificate from a node of the cluster, with a token
    Join(join::Args),
    /// Show members, regions, ring shares, rules and clocks, or the owner of a key
    Status(status::Args),
    /// Show the whole cluster, live, in the terminal
    Top(top::Args),
    /// Ask a node whether it is ready
    Healthcheck(healthcheck::Args),
    /// Show the agreed members and voters of a region
    Members(members::Args),
    /// Show the regions that own global keys, or say that one is lost
    Regions(regions::Args),
    /// Drain a node: it hands over its ranges and exits
    Drain(drain::Args),
    /// Show one key, begin it anew, or block it
    #[command(subcommand)]
    Key(key::Command),
    /// Forget an evicted member now
    Forget(forget::Args),
    /// Found a cluster with one node as its only voter
    Bootstrap(bootstrap::Args),
    /// Make a stopped node the only voter, after a majority was lost for good
    Recover(recover::Args),
    /// Pass sources that are far over their limits on to a firewall
    #[command(subcommand)]
    Export(export::Command),
    /// Start three nodes in two regions on this machine and demonstrate limits
    Demo(demo::Args),
    /// Write the completions of a shell
    Completions(completions::Args),
    /// Write the manual pages into a folder
    Man(man::Args),
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve                              one node on loopback, with example rules
  tidegate check demo user=alice              may alice pass?
  tidegate serve --config cluster.toml        a node as cluster.toml says
  tidegate proxy --upstream http://127.0.0.1:3000 --rules rules/
                                              limits in front of an application
  tidegate status                             how the cluster looks from the node here
  tidegate top                                all of it, live
  tidegate demo                               three nodes, two regions, limits at work";

/// The commands with their options, for the reference in the documents.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command line `args`, the program's name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(command::arguments(args)) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap too; it selects the stream for each.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let stdout = io::stdout();
    let screen = stdout.is_terminal();
    let mut out = stdout.lock();
    let result = dispatch(cli.command, screen, &mut out).and_then(|is_yes| {
        out.flush()?;
        Ok(is_yes)
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // A closed pipe is no failure: `tidegate status | head -1`.
        Err(Failure::Output(error) | Failure::Demo(tidegate_demo::Error::Output(error)))
            if error.kind() == io::ErrorKind::BrokenPipe =>
        {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let _ = writeln!(io::stderr().lock(), "tidegate: {failure}");
            ExitCode::from(2)
        }
    }
}

/// Whether the result is positive. `screen` is whether standard output is a terminal, so that
/// colours are used.
fn dispatch(command: Command, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Ratelimit(args) => serve::ratelimit(&args),
        Command::Gubernator(args) => serve::gubernator(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Check(args) => check::run(&args, screen, out),
        Command::Rules(command) => rules::run(&command, out),
        Command::Config(command) => config::run(&command, out),
        Command::RatelimitConfigCheck(args) => config_check::run(&args, out),
        Command::Ca(command) => ca::run(&command, screen, out),
        Command::Status(args) => status::run(&args, screen, out),
        Command::Top(args) => top::run(&args, screen, out),
        Command::Healthcheck(args) => healthcheck::run(&args, out),
        Command::Members(args) => members::run(&args, screen, out),
        Command::Regions(args) => regions::run(&args, screen, out),
        Command::Drain(args) => drain::run(&args, out),
        Command::Key(command) => key::run(&command, screen, out),
        Command::Forget(args) => forget::run(&args, out),
        Command::Join(args) => join::run(&args, out),
        Command::Bootstrap(args) => bootstrap::run(&args, out),
        Command::Recover(args) => recover::run(&args, out),
        Command::Export(command) => export::run(&command, out),
        Command::Demo(args) => demo::run(&args, screen, out),
        Command::Completions(args) => completions::run(&args, &mut Cli::command(), out),
        Command::Man(args) => man::run(&args, Cli::command(), out),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::text::OPTION_VARIABLES;

    fn variables(command: &clap::Command) -> BTreeSet<String> {
        let own = command.get_arguments().filter_map(clap::Arg::get_env);
        let own = own.map(|name| name.to_string_lossy().into_owned());
        own.chain(command.get_subcommands().flat_map(variables)).collect()
    }

    /// A variable that is set for commands must not keep `serve` from starting.
    #[test]
    fn variables_of_options_are_not_taken_for_keys_of_the_configuration() {
        let expected = OPTION_VARIABLES.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(variables(&Cli::command()), expected);
    }
}
