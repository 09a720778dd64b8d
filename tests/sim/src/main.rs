//! Whole tidegate nodes in one process, one thread and simulated time, under faults that are drawn
//! from a seed.
//!
//! ```text
//!   sim [--seeds N] [--from S]      runs seeds S to S + N - 1, several processes at once
//!   sim --seed S                    runs one seed
//!   sim --seed S --show             prints the scenario of seed S without running it
//! ```
//!
//! A node is the product's own [`tidegate::node::Core`]: decisions, store, gossip, mesh, TLS and
//! QUIC. Only its environment (clock, randomness, network) is simulated. `mad-turmoil` interposes
//! the clocks and randomness that libraries read directly. It does so for the whole process, so
//! every seed runs in a process of its own.
//!
//! Most seeds have faults of requests within some seconds in one region; [`membership`] and
//! [`regions`] have one seed in ten each. Some have leased rules, [`reservations`] or edges as
//! well.
//!
//! [`scenario`] draws the faults, [`world`] runs the cluster and injects them, [`check`] compares
//! the [`history`] with the bounds of [`guarantee`], [`coverage`] lists the situations that a suite
//! must reach, and [`suite`] runs many seeds.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its results")]

mod check;
mod client;
mod clock;
mod coverage;
mod dice;
mod disk;
mod fault;
mod guarantee;
mod history;
mod identity;
mod keys;
mod layout;
mod log;
mod membership;
mod net;
mod node;
mod options;
mod platter;
mod regions;
mod release;
mod report;
mod reservations;
mod run;
mod scenario;
mod suite;
mod world;

use std::process::ExitCode;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::clock::Time;
use crate::guarantee::Guarantee;
use crate::log::Log;
use crate::options::{Job, Options};
use crate::scenario::Scenario;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("sim: {error}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match options.job {
        Job::Child { seed } => child(seed, &options),
        Job::Show { seed } => {
            show(&Scenario::draw(seed));
            ExitCode::SUCCESS
        }
        Job::Suite => match suite::run(&options) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("sim: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Runs one seed in this process and writes its report to standard output.
fn child(seed: u64, options: &Options) -> ExitCode {
    let log = match Log::create(&suite::log_path(&options.logs, seed), Time::default()) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("sim: failed to create a log in {}: {error}", options.logs.display());
            return ExitCode::FAILURE;
        }
    };
    log.capture_tracing();
    let scenario = Scenario::draw(seed);
    log.event(format_args!("{scenario:?}"));
    // From here on no code in this process reads a real clock or real randomness.
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let _clocks = mad_turmoil::time::SimClocksGuard::init();
    let report = run::run(&scenario, Guarantee::of(&scenario), &log);
    print!("{report}");
    if report.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(scenario: &Scenario) {
    println!(
        "seed {}: {} of {} nodes at the start, {} edges, latency up to {} ms, deadline {} ms, {} keys \
         per node, clock offsets {:?} ms, {:?}",
        scenario.seed,
        scenario.initial_nodes,
        scenario.nodes,
        scenario.layout.edges,
        scenario.latency_max_ms,
        scenario.deadline_ms,
        scenario.keys_max,
        scenario.clock_offsets_ms,
        scenario.layout,
    );
    for incident in &scenario.incidents {
        println!("  {incident}");
    }
}
