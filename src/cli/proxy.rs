//! `tidegate proxy`: a node that is a reverse proxy and nothing else, without a configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Failure, serve};
use crate::config::load::load_without_file;
use crate::config::proxy::Upstream;
use crate::observe::log;

/// Run a reverse proxy in front of an application.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A server of the application; repeat it for several
    #[arg(long, required = true, value_name = "URL", value_parser = upstream)]
    upstream: Vec<Upstream>,
    /// Folder of rule files, or one file
    #[arg(long, value_name = "PATH")]
    rules: PathBuf,
    /// Address of the proxy
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Set a configuration key; overrides the environment
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Log level, or module=level, ...
    #[arg(long, value_name = "FILTER", env = "TIDEGATE_LOG", default_value = "info")]
    log: String,
    /// Log format
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text")]
    log_format: log::Format,
}

const EXAMPLES: &str = "\
Requests are limited by the rules of the domain \"http\" with the descriptors remote_address, path,
and method with remote_address; [auth] in docs/configuration.md changes that. Other listeners are
off unless --set names them: admin.listen for metrics and `tidegate status`.

Examples:
  tidegate proxy --upstream http://127.0.0.1:3000 --rules rules/
  tidegate proxy --upstream http://10.0.0.1:3000 --upstream http://10.0.0.2:3000 \\
    --rules limits.yaml --listen 0.0.0.0:8000 --set admin.listen=127.0.0.1:8082";

pub(super) fn run(args: &Args) -> Result<bool, Failure> {
    let servers: Vec<String> = args.upstream.iter().map(ToString::to_string).collect();
    let own = [
        format!("proxy.listen={}", args.listen),
        format!("proxy.upstream={}", servers.join(",")),
        format!("rules.path={}", args.rules.display()),
    ];
    let sets: Vec<String> = own.into_iter().chain(args.sets.iter().cloned()).collect();
    let config = load_without_file(&sets)?;
    let _log = serve::init_log(&args.log, args.log_format)?;
    serve::node(config, false)
}

fn upstream(text: &str) -> Result<Upstream, String> {
    Upstream::try_from(text.to_owned())
}
