//! `tidegate export nftables`: keeps sources that are far over their limits in sets of the kernel.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use http::Uri;
use ipnet::IpNet;
use tidegate_limiter::units::Span;
use tokio::runtime;
use tokio_util::sync::CancellationToken;

use super::client::read_token;
use super::{Failure, serve, shutdown};
use crate::admin::Reach;
use crate::config::{Secret, UserError};
use crate::export::{self, ALLOW_MAX, NODES_MAX, Options};
use crate::observe::log;

/// Pass sources that are far over their limits on to a firewall.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Block them in the kernel, in the table inet tidegate of nftables
    Nftables(Args),
}

/// Block sources that are far over their limits in the kernel.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URL of a node's admin listener; repeat it for each node
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_ADMIN_URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:8082",
        value_parser = node
    )]
    admin: Vec<Uri>,
    #[command(flatten)]
    reach: Reach,
    /// File with the token of the admin listeners (`admin.token_file`)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_TOKEN_FILE", hide_env = true)]
    token_file: Option<PathBuf>,
    /// A network that is never blocked; repeat it for several
    #[arg(long, value_name = "CIDR", value_parser = network)]
    allow: Vec<IpNet>,
    /// Length of the prefix by which IPv6 sources are blocked
    #[arg(long, value_name = "BITS", default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=128))]
    ipv6_prefix: u8,
    /// Longest time that an entry lasts without being renewed
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    timeout: Span,
    /// Remove the table, and exit
    #[arg(long, conflicts_with_all = ["flush_at_exit", "dry_run"])]
    flush: bool,
    /// Remove the table at the end; otherwise its entries time out
    #[arg(long)]
    flush_at_exit: bool,
    /// Print the transactions, one a line, instead of carrying them out
    #[arg(long)]
    dry_run: bool,
    /// The program nft
    #[arg(long, value_name = "PATH", default_value = "nft")]
    nft: PathBuf,
    /// Log level, or module=level, ...
    #[arg(long, value_name = "FILTER", env = "TIDEGATE_LOG", default_value = "info")]
    log: String,
    /// Log format
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text")]
    log_format: log::Format,
}

const EXAMPLES: &str = "\
Nodes name sources when [blocked_sources] entry is set; docs/nftables.md describes both. It needs
CAP_NET_ADMIN, and Debian's package nftables. Loopback, link-local addresses and those of the nodes
are never blocked.

Examples:
  tidegate export nftables
  tidegate export nftables --admin http://10.0.0.1:8082 --admin http://10.0.0.2:8082 \\
    --allow 192.0.2.0/24 --log-format json
  tidegate export nftables --dry-run
  tidegate export nftables --flush
  nft list table inet tidegate                what is blocked now";

pub(super) fn run(command: &Command, out: &mut dyn Write) -> Result<bool, Failure> {
    let Command::Nftables(args) = command;
    let _log = serve::init_log(&args.log, args.log_format)?;
    let fix = "raise the process limit (ulimit -u)";
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(UserError::context("failed to start the runtime", fix))?;
    if args.flush {
        runtime.block_on(export::remove_table(&args.nft)).map_err(export::Error::from)?;
        return Ok(true);
    }
    for (name, count, max) in
        [("--admin", args.admin.len(), NODES_MAX), ("--allow", args.allow.len(), ALLOW_MAX)]
    {
        if count > max {
            let problem = format!("{name} is there {count} times");
            return Err(UserError::new(problem, format!("give it at most {max} times")).into());
        }
    }
    let options = Options {
        nodes: args.admin.clone(),
        reach: args.reach.clone(),
        token: args.token_file.as_deref().map(read_token).transpose()?.as_deref().map(Secret::from),
        allow: args.allow.clone(),
        ipv6_prefix: args.ipv6_prefix,
        timeout: args.timeout,
        flush_at_exit: args.flush_at_exit,
        dry_run: args.dry_run,
        nft: args.nft.clone(),
    };
    runtime.block_on(async {
        let what = "failed to install signal handlers";
        let signal =
            shutdown::first_signal().map_err(UserError::context(what, "raise `ulimit -n`"))?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            let signal = signal.await;
            tracing::info!(signal, "stopping");
            stopped.cancel();
        });
        export::run(&options, stop, out).await?;
        Ok(true)
    })
}

/// `http://HOST:PORT`, or `https`.
fn node(text: &str) -> Result<Uri, String> {
    let uri = text.parse::<Uri>().ok().filter(|uri| {
        let has_path = uri.path_and_query().is_some_and(|path| path != "/");
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some() && !has_path
    });
    uri.ok_or_else(|| format!("{text:?} is not http://HOST:PORT or https://HOST:PORT"))
}

/// A network, or one address.
fn network(text: &str) -> Result<IpNet, String> {
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.map_err(|_| format!("{text:?} is not a network such as 192.0.2.0/24 or 2001:db8::/32"))
}

fn timeout(text: &str) -> Result<Span, String> {
    let span: Option<Span> = text.parse().ok();
    span.filter(|span| (Span::from_secs(2)..=Span::from_secs(86_400)).contains(span))
        .ok_or_else(|| format!("{text:?} is not a duration from 2s to 24h"))
}
