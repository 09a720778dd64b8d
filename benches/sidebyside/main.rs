//! Compares tidegate with its alternatives, on the same machine in the same run.
//!
//! `scripts/bench` builds everything and starts this program once per part. It measures closed
//! loops with the usual load tools, open loops at fixed rates, memory per key, and accuracy.
//! Rounds are interleaved, A B A B; a cell is the median of the rounds with minimum and maximum.
//! Client and servers share the machine's cores, so the CPU time of both is listed with the rates.
//! A bound that is not met is reported as missed.

#![allow(clippy::disallowed_methods, reason = "a benchmark has to read a clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::print_stderr, reason = "a benchmark reports its progress")]
#![allow(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
#![allow(clippy::cast_possible_wrap, reason = "counts are far below 2^63")]
#![allow(clippy::cast_possible_truncation, reason = "rates and counts fit")]
#![allow(clippy::cast_sign_loss, reason = "rates and counts are positive")]
#![allow(unreachable_pub, reason = "a benchmark is a crate of its own")]

mod accuracy;
mod clients;
mod documents;
mod failures;
mod machine;
mod measure;
mod peers;
mod processes;
mod render;
mod results;
mod tools;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use measure::{
    Plan, bounds, cluster, expiry, grpc, http, memory, open, proxy, resp, services, store,
};
use peers::{empty_tonic, tidegate};
use results::Results;

/// Time limit of a part. After it, this process and all it started are killed.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// The parts. `scripts/bench` runs each in its own process. Only `peers` needs throttlecrab and
/// redis-cell, and only `services` and `failures` limiters that the user installs.
const PARTS: [&str; 8] =
    ["listeners", "proxy", "cluster", "store", "expiry", "peers", "services", failures::PART];

#[derive(Clone, Debug, Default)]
struct Arguments {
    is_quick: bool,
    is_json: bool,
    /// Only renders the documents from the stored results.
    is_render: bool,
    /// One of [`PARTS`]; all of them when empty.
    parts: Vec<String>,
}

fn main() -> ExitCode {
    match start() {
        Ok(()) => processes::exit(0),
        Err(error) => {
            progress(&error.to_string());
            processes::exit(1)
        }
    }
}

fn start() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == empty_tonic::PART) {
        return empty_tonic::serve();
    }
    if let Some(part) = args.iter().find(|arg| store::PARTS.contains(&arg.as_str())) {
        let keys = args.iter().find_map(|arg| arg.parse().ok());
        println!("{}", store::memory(part, keys.unwrap_or(Plan::FULL.keys)));
        return Ok(());
    }
    let arguments = Arguments::parse(&args)?;
    if arguments.is_render {
        return documents::render(&documents::read()?);
    }
    processes::start_watchdog(LIMIT)?;
    let folder = tempfile::tempdir()?.keep();
    processes::remove_at_exit(folder.clone());
    let results = run(&arguments, &folder)?;
    if arguments.is_json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{}", render::document(&results));
    }
    if !arguments.is_quick && measure::only().is_none() {
        documents::update(results)?;
    }
    Ok(())
}

fn run(arguments: &Arguments, folder: &Path) -> io::Result<Results> {
    let begin = Instant::now();
    let plan = if arguments.is_quick { Plan::QUICK } else { Plan::FULL };
    let has = |part: &str| {
        arguments.parts.is_empty() || arguments.parts.iter().any(|selected| selected == part)
    };
    let text = |error: io::Error| error.to_string();
    let mut results = Results { machine: machine::describe(), ..Results::default() };
    let tables = &mut results.tables;
    if has("listeners") || has("cluster") || has("peers") {
        progress("starting the servers");
        let node = tidegate::Setting::new(folder)?.start().map_err(text);
        let peers =
            if has("peers") { resp::peers(folder, &node) } else { resp::baseline(folder, &node) };
        if has("listeners") {
            tables.push(resp::measure(&plan, &peers, "resp", 1));
            tables.push(resp::measure(&plan, &peers, "resp", 16));
            tables.push(open::measure(&plan, &peers));
            let empty = empty_tonic::start(folder).map_err(text);
            tables.push(grpc::measure(&plan, folder, &empty, &node, 1));
            tables.push(grpc::measure(&plan, folder, &empty, &node, 16));
            tables.push(http::measure(&plan, folder, &node));
        }
        if has("cluster") {
            // Three nodes share two cores: one thread per node.
            let setting = tidegate::Setting::new(folder)?.with("node.threads", 1);
            let (nodes, separate) = (setting.start_cluster(), setting.start_separate());
            let nodes = cluster::Nodes {
                cluster: nodes.map_err(text),
                separate: separate.map_err(text),
                single: node.clone().map(|node| vec![node]),
            };
            tables.push(cluster::measure(&plan, &nodes, resp::peer(&peers, resp::INCR)));
            tables.push(cluster::measure_paced(&plan, &nodes));
        }
        if has("peers") {
            tables.push(resp::measure(&plan, &peers, "peers", 1));
            tables.push(resp::measure(&plan, &peers, "peers", 16));
            progress("accuracy");
            let scripts = resp::scripts(&peers);
            let find = |name: &str| peers.iter().find(|peer| peer.name == name).cloned();
            if let (Some(cell), Some(crab)) = (find(resp::CELL), find(resp::THROTTLECRAB)) {
                let setting = tidegate::Setting::new(folder)?.with("node.threads", 1);
                let cluster = setting.start_cluster().map_err(text);
                let participants = accuracy::all(&scripts, &cell, &crab, &node, &cluster);
                results.accuracy = accuracy::run(participants);
            }
        }
    }
    if has("proxy") {
        tables.push(proxy::measure(&plan, folder));
    }
    if has("store") {
        tables.push(store::measure(&plan)?);
        tables.push(memory::measure(&plan, folder));
    }
    if has("expiry") {
        tables.push(expiry::measure(&plan, folder));
    }
    if has("services") {
        progress("starting the services");
        let services = services::start(folder)?;
        tables.push(services::measure(&plan, &services));
        tables.push(services::measure_batches(&plan, &services));
        drop(services);
        tables.push(services::measure_memory(&plan, folder));
    }
    if has(failures::PART) {
        results.failures = failures::run(&plan, folder);
    }
    let took = begin.elapsed().as_secs();
    results.seconds =
        PARTS.iter().filter(|part| has(part)).map(|part| ((*part).into(), took)).collect();
    results.bounds = bounds::all(&results);
    Ok(results)
}

impl Arguments {
    fn parse(args: &[String]) -> io::Result<Self> {
        let mut arguments = Self::default();
        for arg in args {
            match arg.as_str() {
                "--quick" => arguments.is_quick = true,
                "--json" => arguments.is_json = true,
                "--render" => arguments.is_render = true,
                // Added by cargo.
                "--bench" => {}
                flag if flag.starts_with('-') => {
                    return Err(io::Error::other(format!("unknown option {flag}")));
                }
                part if PARTS.contains(&part) => arguments.parts.push(part.to_owned()),
                other => {
                    let parts = PARTS.join(", ");
                    return Err(io::Error::other(format!(
                        "unknown part {other}; the parts are {parts}"
                    )));
                }
            }
        }
        Ok(arguments)
    }
}

/// Prints progress to standard error.
pub fn progress(text: &str) {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGIN.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("{:02}:{:02} {text}", seconds / 60, seconds % 60);
}
