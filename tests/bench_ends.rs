//! `scripts/bench` works, and leaves nothing behind: neither when it ends nor when it is ended.
//!
//! The program behind it is built and run with small numbers, so that it takes seconds. What is
//! missing on this machine is reported by the program. It takes minutes, so it is run by
//! `scripts/check-long bench` and not by `scripts/test`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "deadlines of a test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// In the environment of all that a run starts.
const MARK: &str = "TIDEGATE_BENCH_RUN";
const TABLES: [&str; 11] = [
    "resp-1", "resp-16", "open", "grpc-1", "grpc-16", "http", "cluster", "peers-1", "peers-16",
    "store", "expiry",
];

#[test]
fn a_quick_run_fills_every_table_and_leaves_nothing() {
    let mark = format!("quick-{}", std::process::id());
    let before = fs::read_to_string("docs/benchmarks.json").unwrap_or_default();

    let output = bench(&mark, &["--quick", "--json"]).spawn().unwrap().wait_with_output().unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tables = results["tables"].as_array().unwrap();
    for id in TABLES {
        let table = tables.iter().find(|table| table["id"] == id).unwrap();
        for row in table["rows"].as_array().unwrap() {
            let has_cells = row["cells"].as_array().is_some_and(|cells| !cells.is_empty());
            assert!(has_cells || row["absent"].is_string(), "{id} has an empty row: {row}");
        }
    }
    assert_eq!(left(&mark), Vec::<String>::new());
    let after = fs::read_to_string("docs/benchmarks.json").unwrap_or_default();
    assert!(before == after, "a quick run is not one for the documents");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mark = format!("ended-{}-{}", signal.as_raw(), std::process::id());
        let mut run = bench(&mark, &["--quick", "peers"]).spawn().unwrap();
        wait_for(&mut run, "duel");
        assert!(left(&mark).len() >= 2, "it runs with servers: {:?}", left(&mark));

        let program = processes(&mark).into_iter().find(|(_, name)| name == "sidebyside");
        let pid = program.and_then(|(pid, _)| Pid::from_raw(pid)).unwrap();
        kill_process(pid, signal).unwrap();
        run.wait().unwrap();

        let deadline = Instant::now() + Duration::from_secs(5);
        while !left(&mark).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(left(&mark), Vec::<String>::new(), "after {signal:?}");
    }
}

fn bench(mark: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["bench", "--quiet", "--profile", "dev", "--bench", "sidebyside", "--"]);
    command.args(args).env(MARK, mark).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Reads its output until a line ends with `end`.
fn wait_for(run: &mut Child, end: &str) {
    let stderr = BufReader::new(run.stderr.take().unwrap());
    let mut lines = stderr.lines();
    assert!(lines.by_ref().any(|line| line.unwrap().ends_with(end)), "no line ends with {end}");
    // It keeps writing, and a full pipe would block it.
    std::thread::spawn(move || lines.count());
}

/// Names of all that has the mark.
fn left(mark: &str) -> Vec<String> {
    processes(mark).into_iter().map(|(_, name)| name).collect()
}

fn processes(mark: &str) -> Vec<(i32, String)> {
    let mark = format!("{MARK}={mark}");
    let has_mark = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| has_mark(*pid))
        .map(|pid| {
            let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (pid, name.split('-').next().unwrap_or_default().to_owned())
        })
        .collect()
}
