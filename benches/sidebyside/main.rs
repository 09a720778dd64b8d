//! tidegate beside what one would take instead, on the same machine in the same run.
//!
//! `scripts/bench` builds all of it and starts this. Measurements are closed loops with the tools
//! that others measure with, open loops at fixed rates, memory a key, and a duel about who admits
//! what is right. Each is measured in turns, A B A B, and given as the median of the rounds with
//! the least and the most. Client and servers share the machine's cores, so the processor time of
//! both stands beside the rates. What is missed is called missed.

#![allow(clippy::disallowed_methods, reason = "a benchmark has to read a clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::print_stderr, reason = "a benchmark says how far it is")]
#![allow(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
#![allow(clippy::cast_possible_truncation, reason = "rates and counts fit")]
#![allow(clippy::cast_sign_loss, reason = "rates and counts are positive")]
#![allow(unreachable_pub, reason = "a benchmark is a crate of its own")]

mod awake;
mod documents;
mod duel;
mod engine;
mod machine;
mod measure;
mod peers;
mod processes;
mod questions;
#[allow(dead_code, reason = "a test reads what this writes")]
mod render;
mod results;
mod tools;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use measure::{Plan, cluster, expiry, grpc, holds, http, memory, open, resp, store};
use peers::{empty_tonic, tidegate};
use results::Results;

/// A run that takes longer ends here, with all it started.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What the arguments say.
#[derive(Clone, Debug, Default)]
struct Arguments {
    is_quick: bool,
    is_json: bool,
    /// Makes the documents from what was measured last.
    is_render: bool,
    /// The measurements that are run; empty: all, and the documents are written.
    only: Vec<String>,
}

fn main() -> ExitCode {
    match start() {
        Ok(()) => processes::end(0),
        Err(error) => {
            say(&error.to_string());
            processes::end(1)
        }
    }
}

fn start() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == empty_tonic::PART) {
        return empty_tonic::serve();
    }
    if let Some(part) = words.iter().find(|word| store::PARTS.contains(&word.as_str())) {
        let keys = words.iter().find_map(|word| word.parse().ok());
        println!("{}", store::memory(part, keys.unwrap_or(Plan::FULL.keys)));
        return Ok(());
    }
    let arguments = Arguments::of(&words)?;
    if arguments.is_render {
        return documents::write(&documents::read()?);
    }
    processes::guard(LIMIT)?;
    let folder = tempfile::tempdir()?.keep();
    processes::set_folder(folder.clone());
    let results = run(&arguments, &folder)?;
    if arguments.is_json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{}", render::document(&results));
    }
    if arguments.only.is_empty() && !arguments.is_quick {
        documents::keep(&results)?;
    }
    Ok(())
}

fn run(arguments: &Arguments, folder: &Path) -> io::Result<Results> {
    let begin = Instant::now();
    let plan = if arguments.is_quick { Plan::QUICK } else { Plan::FULL };
    let wants =
        |part: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == part);
    let why = |error: io::Error| error.to_string();
    let mut results = Results { machine: machine::describe(), ..Results::default() };
    say("starting the servers");
    let node = tidegate::Setting::new(folder)?.start().map_err(why);
    let peers = resp::peers(folder, &node);
    let tables = &mut results.tables;
    if wants("resp") {
        tables.push(resp::measure(&plan, &peers, 1));
        tables.push(resp::measure(&plan, &peers, 16));
    }
    if wants("open") {
        tables.push(open::measure(&plan, &peers));
    }
    if wants("grpc") {
        let empty = empty_tonic::start(folder).map_err(why);
        tables.push(grpc::measure(&plan, folder, &empty, &node, 1));
        tables.push(grpc::measure(&plan, folder, &empty, &node, 16));
    }
    if wants("http") {
        tables.push(http::measure(&plan, folder, &node));
    }
    if wants("cluster") {
        // Three share two cores.
        let setting = tidegate::Setting::new(folder)?.with("node.threads", 1);
        let (nodes, apart) = (setting.start_cluster(), setting.start_apart());
        let nodes = cluster::Nodes {
            cluster: nodes.map_err(why),
            apart: apart.map_err(why),
            alone: node.clone().map(|node| vec![node]),
        };
        tables.push(cluster::measure(&plan, &nodes, resp::peer(&peers, resp::INCR)));
    }
    if wants("duel") {
        say("duel");
        let scripts = resp::scripts(&peers);
        let find = |name: &str| peers.iter().find(|peer| peer.name == name).cloned();
        if let (Some(cell), Some(crab)) = (find(resp::CELL), find(resp::THROTTLECRAB)) {
            results.duel = duel::run(duel::all(&scripts, &cell, &crab, &node));
        }
    }
    drop((peers, node));
    if wants("store") {
        tables.push(store::measure(&plan)?);
    }
    if wants("memory") {
        tables.push(memory::measure(&plan, folder));
    }
    if wants("expiry") {
        tables.push(expiry::measure(&plan, folder));
    }
    results.seconds = begin.elapsed().as_secs();
    results.holds = holds::all(&results);
    Ok(results)
}

impl Arguments {
    fn of(words: &[String]) -> io::Result<Self> {
        let mut arguments = Self::default();
        for word in words {
            match word.as_str() {
                "--quick" => arguments.is_quick = true,
                "--json" => arguments.is_json = true,
                "--render" => arguments.is_render = true,
                // Cargo's own.
                "--bench" => {}
                word if word.starts_with('-') => {
                    return Err(io::Error::other(format!("{word} is not known")));
                }
                part => arguments.only.push(part.to_owned()),
            }
        }
        Ok(arguments)
    }
}

/// How far it is, for people.
pub fn say(text: &str) {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGIN.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("{:02}:{:02} {text}", seconds / 60, seconds % 60);
}
