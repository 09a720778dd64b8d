//! The program of `scripts/bench` runs, and leaves no process when it ends or is killed.
//!
//! The tests run it with `--quick`. Targets that are not installed on this machine are reported as
//! absent. The tests take minutes, so `scripts/check-long bench` runs them and `scripts/test` does
//! not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "deadlines of a test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// An environment variable of all processes of a run.
const RUN_ID: &str = "TIDEGATE_BENCH_RUN";
const TABLES: [&str; 12] = [
    "resp-1", "resp-16", "open", "grpc-1", "grpc-16", "http", "proxy", "cluster", "peers-1",
    "peers-16", "store", "expiry",
];

#[test]
fn a_quick_run_fills_every_table_and_leaves_no_process() {
    let run_id = format!("quick-{}", std::process::id());
    let before = fs::read_to_string("docs/benchmarks.json").unwrap_or_default();

    let output =
        bench(&run_id, &["--quick", "--json"]).spawn().unwrap().wait_with_output().unwrap();

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
    assert_eq!(remaining(&run_id), Vec::<String>::new());
    let after = fs::read_to_string("docs/benchmarks.json").unwrap_or_default();
    assert!(before == after, "a quick run changed the documents");
}

#[test]
fn an_interrupted_run_leaves_no_process() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let run_id = format!("ended-{}-{}", signal.as_raw(), std::process::id());
        let mut run = bench(&run_id, &["--quick", "peers"]).spawn().unwrap();
        wait_for(&mut run, "accuracy");
        assert!(
            remaining(&run_id).len() >= 2,
            "expected running servers: {:?}",
            remaining(&run_id)
        );

        let program = processes(&run_id).into_iter().find(|(_, name)| name == "sidebyside");
        let pid = program.and_then(|(pid, _)| Pid::from_raw(pid)).unwrap();
        kill_process(pid, signal).unwrap();
        run.wait().unwrap();

        let deadline = Instant::now() + Duration::from_secs(5);
        while !remaining(&run_id).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(remaining(&run_id), Vec::<String>::new(), "after {signal:?}");
    }
}

fn bench(run_id: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["bench", "--quiet", "--profile", "dev", "--bench", "sidebyside", "--"]);
    command.args(args).env(RUN_ID, run_id).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Reads standard error until a line ends with `end`.
fn wait_for(run: &mut Child, end: &str) {
    let stderr = BufReader::new(run.stderr.take().unwrap());
    let mut lines = stderr.lines();
    assert!(lines.by_ref().any(|line| line.unwrap().ends_with(end)), "no line ends with {end}");
    // Drains the rest: a full pipe would block the program.
    std::thread::spawn(move || lines.count());
}

/// Names of the running processes of a run.
fn remaining(run_id: &str) -> Vec<String> {
    processes(run_id).into_iter().map(|(_, name)| name).collect()
}

fn processes(run_id: &str) -> Vec<(i32, String)> {
    let run_id = format!("{RUN_ID}={run_id}");
    let is_of_run = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == run_id.as_bytes())
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_of_run(*pid))
        .map(|pid| {
            let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (pid, name.split('-').next().unwrap_or_default().to_owned())
        })
        .collect()
}
