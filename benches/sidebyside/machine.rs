//! What a run ran on, and with which versions.

use std::fs;
use std::process::Command;

use crate::awake;
use crate::peers::tool;

/// Rows for people, in the order they are printed.
pub fn describe() -> Vec<(String, String)> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = field(&meminfo, "MemTotal").split(' ').next().and_then(|kib| kib.parse::<f64>().ok());
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let tools = fs::read_to_string(tool("versions")).unwrap_or_default();
    let version = |name: &str| {
        let line = tools.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or("not had").to_owned()
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let rows = [
        ("machine", format!("{cores} cores of {}", field(&cpuinfo, "model name"))),
        ("memory", format!("{:.0} GiB", kib.unwrap_or_default() / 1024.0 / 1024.0)),
        ("kernel", told("uname", &["-sr"])),
        ("system", release.unwrap_or_default().trim_matches('"').to_owned()),
        ("date", told("date", &["-u", "+%F %R UTC"])),
        ("load average before", load.split(' ').next().unwrap_or_default().to_owned()),
        ("cores in open loops", awake::describe()),
        ("tidegate", format!("{} at {}", env!("CARGO_PKG_VERSION"), commit())),
        ("rustc", told("rustc", &["--version"])),
        ("redis-server", told("redis-server", &["--version"])),
        ("redis-cell", version("redis-cell")),
        ("throttlecrab-server", version("throttlecrab-server")),
        ("governor, tonic", format!("{}, {}", locked("governor"), locked("tonic"))),
        ("redis-benchmark", told("redis-benchmark", &["--version"])),
        ("h2load", told("h2load", &["--version"])),
        ("wrk", told("wrk", &["-v"])),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The first line that a program prints.
fn told(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match text.lines().next() {
        Some(line) => line.trim().to_owned(),
        None => "not had".to_owned(),
    }
}

fn commit() -> String {
    let state = told("git", &["status", "--porcelain", "--untracked-files=no"]);
    let commit = told("git", &["rev-parse", "--short", "HEAD"]);
    if state == "not had" { commit } else { format!("{commit} with changes") }
}

/// The version of a library that this was built with.
fn locked(name: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let name = format!("name = \"{name}\"\nversion = \"");
    let version = lock.split_once(&name).and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("unknown").to_owned()
}
