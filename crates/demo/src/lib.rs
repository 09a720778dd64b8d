//! The command `tidegate demo`: three nodes in two regions on one machine, limits under load, and a
//! node that is killed.
//!
//! The nodes are processes of the given executable. Their certificates, rules, configurations and
//! logs are in a work folder below the system's folder for temporary files. A load balancer in this
//! process checks each request with a node (`/auth`) before its upstream responds; with
//! [`Options::envoy`], an Envoy does the same over gRPC. Nodes are used as by any user: by their
//! command line and over HTTP.
//!
//! | file | content |
//! |---|---|
//! | `steps` | the steps of the demo, in their order |
//! | `cluster` | work folder and processes |
//! | `node` | a node's addresses, and what it reports over HTTP |
//! | `gateway` | the load balancer and its upstream |
//! | `envoy` | Envoy as a process, with the configuration of `docs/examples/envoy.yaml` |
//! | `requests` | HTTP client, bursts and steady load |
//! | `output` | numbered steps, verdicts; tables and colours, which other commands use too |
//!
//! **Invariant:** no process outlives the demo, however it ends. The standard input of each process
//! is a pipe whose other end is held here: it closes when this process ends, even by SIGKILL, and
//! the node then drains. Except after SIGKILL, the work folder is removed too.

mod cluster;
mod envoy;
mod error;
mod gateway;
mod node;
pub mod output;
mod requests;
mod steps;

use std::io::Write;

pub use cluster::node_configuration;
pub use error::Error;
pub use steps::Options;

use self::cluster::Cluster;
use self::output::Output;

/// Runs the demo, then stops its processes and removes its files. Returns whether all expectations
/// were met; false as well when `shutdown` ended it although it was to run `once`.
///
/// `shutdown` resolves to the name of the signal that ends the demo. `out` is expected to flush
/// itself at each line, as standard output does.
///
/// # Errors
///
/// The demo could not run, or `out` could not be written.
pub async fn run(
    options: &Options,
    shutdown: impl Future<Output = &'static str>,
    out: &mut dyn Write,
) -> Result<bool, Error> {
    let envoy = options.envoy.then(envoy::find).transpose()?;
    let mut cluster = Cluster::create(&options.executable)?;
    let mut output = Output::new(out, options.color);
    let ended = tokio::select! {
        biased;
        signal = shutdown => Ok(Some(signal)),
        done = steps::run(options, envoy, &mut cluster, &mut output) => done.map(|()| None),
    };
    if matches!(ended, Err(Error::Failed { .. })) {
        // The logs are removed below. A failure to print them would hide the first error.
        let _ = cluster.write_log_tails(&mut output);
    }
    let folder = cluster.folder().display().to_string();
    cluster.close().await?;
    let Some(signal) = ended? else { return Ok(output.all_met) };
    writeln!(output, "\n{signal}: nodes stopped, {folder} removed")?;
    Ok(!options.once)
}
