//! `tidegate healthcheck`: the health of a node as an exit code, for images without a shell.

use std::io::Write;

use http::{Method, StatusCode};

use super::Failure;
use super::client::{self, AdminDoor};

/// Ask a node whether it is ready.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    listener: AdminDoor,
    /// Ask whether the process is alive instead, which it is before it joins
    #[arg(long)]
    alive: bool,
}

const EXAMPLES: &str = "\
Exit code: 0 ready, 1 not ready, 2 no answer.

Examples:
  tidegate healthcheck
  tidegate healthcheck --alive --url http://10.1.0.4:8082
  tidegate healthcheck --url http://127.0.0.1:8080          the HTTP listener knows it too";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    let path = if args.alive { "/healthz" } else { "/readyz" };
    let response = args.listener.ask(Method::GET, path)?;
    let is_healthy = match response.status() {
        StatusCode::OK => true,
        StatusCode::SERVICE_UNAVAILABLE => false,
        _ => return Err(client::unexpected(&args.listener.at(path), &response, "")),
    };
    writeln!(out, "{}", String::from_utf8_lossy(response.body()).trim_end())?;
    Ok(is_healthy)
}
