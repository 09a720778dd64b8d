//! `tidegate drain`: removes a node from its cluster without losing a count.

use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use http::Method;

use super::Failure;
use super::client::{AdminDoor, Waited};
use crate::admin::{DrainReport, StatusReport};

/// Drain a node: it hands over its ranges and exits, as with SIGTERM.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    listener: AdminDoor,
    /// Do not wait until the node has exited
    #[arg(long)]
    no_wait: bool,
    /// Timeout in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u32,
}

const EXAMPLES: &str = "\
Examples:
  tidegate drain
  tidegate drain --url http://10.1.0.4:8082 --timeout 120

The node says that it is not ready and goes on for `limits.drain_delay`, so that load balancers stop
sending to it. Then its peers take over its keys with their counts; its admin door closes last. The
exit code is 1 when it is still there after the timeout, or has exited without handing over all of
its keys, or leaves the others without a majority.";

/// Poll interval.
const POLL: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    if args.no_wait {
        args.listener.order("/drain")?;
        writeln!(out, "draining")?;
        return Ok(true);
    }
    writeln!(out, "waiting until the node has drained and exited")?;
    out.flush()?;
    let timeout = Duration::from_secs(args.timeout.into());
    let waited = args.listener.order_and_wait("/drain?wait=true", timeout)?;
    let Waited::Ended(report) = waited else { return still_runs(args, out) };
    let report: Option<DrainReport> = report;
    for _ in 0..args.timeout.saturating_mul(10) {
        if has_exited(&args.listener, report.as_ref()) {
            writeln!(out, "{}", outcome(report.as_ref()))?;
            return Ok(report.is_none_or(|it| it.handed_over && it.leaves_majority));
        }
        sleep(POLL);
    }
    still_runs(args, out)
}

/// Whether the process that drained listens no more. A supervisor may have started the next one.
fn has_exited(listener: &AdminDoor, drained: Option<&DrainReport>) -> bool {
    let Ok(response) = listener.ask(Method::GET, "/status") else { return true };
    let status: Option<StatusReport> = serde_json::from_slice(response.body()).ok();
    let (Some(status), Some(drained)) = (status, drained) else { return false };
    drained.generation != 0 && status.node.generation != drained.generation
}

fn still_runs(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    writeln!(out, "still running after {} s; see `tidegate status`", args.timeout)?;
    Ok(false)
}

/// What became of a node that has exited. A node of an earlier release reports nothing.
fn outcome(report: Option<&DrainReport>) -> String {
    match report {
        Some(DrainReport { handed_over: true, leaves_majority: true, .. }) => "drained".to_owned(),
        Some(DrainReport { handed_over: true, .. }) => {
            "drained, but the voters that stay are no majority: no strict key is decided until \
             enough of their voters are back"
                .to_owned()
        }
        Some(DrainReport { reason, .. }) => format!(
            "exited, but not all keys were handed over with their counts: {}",
            reason.as_deref().unwrap_or("no reason given")
        ),
        None => "exited; its log says whether all keys were handed over".to_owned(),
    }
}
