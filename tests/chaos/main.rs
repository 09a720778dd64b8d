//! Fault injection on real processes: five nodes in network namespaces of their own, load from
//! outside through every node, faults, and the same checks for all of them. `scripts/chaos` builds
//! and runs it.
//!
//! ```text
//! scripts/chaos ─▶ supervisor: creates the network, waits, removes it        supervisor
//!                    └▶ worker, in the hub: for each fault                    trial
//!                         starts five nodes and the load                      cluster, load
//!                         injects the fault and ends it                       faults
//!                         checks views, counts and limits                     checks
//!                    the table, or JSON                                       report
//! ```
//!
//! Exit codes: 0 when every guarantee held, 1 when one was violated (the nodes' folders are kept
//! below `target/tmp`), 2 when it could not run, 130 when it was interrupted.

#![allow(clippy::unwrap_used, reason = "a failed trial panics")]
#![allow(clippy::print_stdout, reason = "prints its results")]
#![allow(clippy::print_stderr, reason = "prints progress and errors")]

mod checks;
mod cluster;
mod faults;
mod group;
mod history;
mod load;
mod network;
mod node;
mod options;
mod report;
mod shell;
mod supervisor;
mod trial;

use std::process::ExitCode;

use clap::Parser;
use faults::FaultOptions;
use network::Network;
use options::Options;
use tidegate_testkit::random::Random;
use tokio::task::LocalSet;
use trial::Trial;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(creator) = options.supervisor {
        supervisor::watch_supervisor(Network::of(creator));
        return LocalSet::new().run_until(run_faults(&options, creator)).await;
    }
    match supervisor::run(&options).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("scripts/chaos: {error}");
            ExitCode::from(2)
        }
    }
}

/// The worker: runs the faults one after the other.
async fn run_faults(options: &Options, creator: u32) -> ExitCode {
    let seed = options.seed();
    let mut random = Random::new(seed);
    eprintln!("scripts/chaos --seed {seed}");
    let (mut trials, mut failed): (Vec<Trial>, bool) = (Vec::new(), false);
    for fault in options.faults() {
        eprintln!("{} for {:.1?}", fault.name(), options.duration(fault));
        let runs = supervisor::runs(creator).join(fault.name());
        let (duration, random) = (options.duration(fault), random.apart());
        let fault_options = FaultOptions { junk: options.junk };
        // In its own task: a panic fails this fault, not the run.
        let trial = tokio::task::spawn_local(async move {
            trial::run(fault, duration, fault_options, random, (&Network::of(creator), &runs)).await
        });
        let limit = options.fault_time_limit(fault);
        let abort = trial.abort_handle();
        match tokio::time::timeout(limit, trial).await {
            Ok(Ok(trial)) => {
                if options.json {
                    println!("{}", report::json(&trial, seed));
                }
                failed |= !trial.violations.is_empty();
                trials.push(trial);
            }
            Ok(Err(error)) => {
                eprintln!("{}: failed: {error}", fault.name());
                failed = true;
            }
            Err(_) => {
                abort.abort();
                eprintln!("{}: timed out after {limit:?}", fault.name());
                failed = true;
            }
        }
    }
    if !options.json {
        print!("{}", report::table(&trials));
    }
    ExitCode::from(u8::from(failed))
}
