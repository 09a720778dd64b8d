//! Chaos on real processes: five nodes in network namespaces of their own, load from outside
//! through every node, faults, and the same checks for all of them. `scripts/chaos` builds and runs
//! it.
//!
//! ```text
//! scripts/chaos ─▶ outer half: makes the network, waits, takes it away       guard
//!                    └▶ inner half, in the hub: for each fault                trial
//!                         five nodes start, load begins                       arena, load
//!                         the fault strikes, and is healed                    faults
//! one view? counts? limits?                           checks, on the history the table
//! report
//! ```
//!
//! Exit codes: 0 when every promise held, 1 when one was broken (the folders of the nodes are kept
//! below `target/tmp`), 2 when it could not run, 130 when it was interrupted.

#![allow(clippy::unwrap_used, reason = "a trial fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]
#![allow(clippy::print_stderr, reason = "progress, and the logs of nodes that failed")]

mod arena;
mod checks;
mod faults;
mod group;
mod guard;
mod history;
mod load;
mod network;
mod node;
mod options;
mod report;
mod shell;
mod trial;

use std::process::ExitCode;

use clap::Parser;
use faults::Extent;
use network::Network;
use options::Options;
use tidegate_testkit::random::Random;
use tokio::task::LocalSet;
use trial::Trial;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(maker) = options.inside {
        guard::watch_outer_half(Network::of(maker));
        return LocalSet::new().run_until(inside(&options, maker)).await;
    }
    match guard::run(&options).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("scripts/chaos: {error}");
            ExitCode::from(2)
        }
    }
}

/// The inner half: all faults, one after the other.
async fn inside(options: &Options, maker: u32) -> ExitCode {
    let seed = options.seed();
    let mut random = Random::new(seed);
    eprintln!("scripts/chaos --seed {seed}");
    let (mut trials, mut failed): (Vec<Trial>, bool) = (Vec::new(), false);
    for fault in options.faults() {
        eprintln!("{} for {:.1?}", fault.name(), options.hold(fault));
        let runs = guard::runs(maker).join(fault.name());
        let (hold, random) = (options.hold(fault), random.apart());
        let extent = Extent { junk: options.junk };
        // In a task of its own: what panics in it is one fault that failed, not the run.
        let trial = tokio::task::spawn_local(async move {
            trial::run(fault, hold, extent, random, (&Network::of(maker), &runs)).await
        });
        let within = options.fault_ends_within(fault);
        let abort = trial.abort_handle();
        match tokio::time::timeout(within, trial).await {
            Ok(Ok(trial)) => {
                if options.json {
                    println!("{}", report::json(&trial, seed));
                }
                failed |= !trial.broken.is_empty();
                trials.push(trial);
            }
            Ok(Err(error)) => {
                eprintln!("{}: failed: {error}", fault.name());
                failed = true;
            }
            Err(_) => {
                abort.abort();
                eprintln!("{}: not done within {within:?}", fault.name());
                failed = true;
            }
        }
    }
    if !options.json {
        print!("{}", report::table(&trials));
    }
    ExitCode::from(u8::from(failed))
}
