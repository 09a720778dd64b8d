//! The machine of a run, the versions of the tools, and the idle states of the cores.

use std::fs::{self, File};
use std::io::{self, Write};
use std::process::Command;

use crate::peers::{envoy_ratelimit, gubernator, limitador, nginx, tool};
use crate::processes;

/// The kernel polls instead of halting while this device is open with a zero written to it.
const CPU_DMA_LATENCY: &str = "/dev/cpu_dma_latency";

/// No core halts while this exists.
#[derive(Debug)]
pub struct IdleDisabled(#[allow(dead_code, reason = "held open")] File);

/// Names and values, in the order of output.
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
        line.unwrap_or("not available").to_owned()
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let rows = [
        ("machine", format!("{cores} cores of {}", field(&cpuinfo, "model name"))),
        ("memory", format!("{:.0} GiB", kib.unwrap_or_default() / 1024.0 / 1024.0)),
        ("kernel", first_line("uname", &["-sr"])),
        ("system", release.unwrap_or_default().trim_matches('"').to_owned()),
        ("date", first_line("date", &["-u", "+%F %R UTC"])),
        ("load average before", load.split(' ').next().unwrap_or_default().to_owned()),
        ("cores in open loops", idle_state()),
        ("tidegate", format!("{} at {}", env!("CARGO_PKG_VERSION"), commit())),
        ("rustc", first_line("rustc", &["--version"])),
        ("redis-server", first_line("redis-server", &["--version"])),
        ("redis-cell", version("redis-cell")),
        ("throttlecrab-server", version("throttlecrab-server")),
        ("gubernator", go_module("gubernator", gubernator::VARIABLE)),
        ("envoyproxy/ratelimit", go_module("ratelimit", envoy_ratelimit::VARIABLE)),
        ("limitador-server", limitador_version()),
        ("governor, tonic", format!("{}, {}", locked("governor"), locked("tonic"))),
        ("redis-benchmark", first_line("redis-benchmark", &["--version"])),
        ("h2load", first_line("h2load", &["--version"])),
        ("wrk", first_line("wrk", &["-v"])),
        ("nginx", nginx::version()),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The version of a Go program: of its module, or the commit that it was built from.
fn go_module(program: &str, variable: &str) -> String {
    let Ok(program) = processes::find_peer(program, variable) else {
        return "not available".to_owned();
    };
    let output = Command::new("go").args(["version", "-m"]).arg(program).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let module =
        text.lines().find_map(|line| line.trim().strip_prefix("mod\t")?.split('\t').nth(1));
    let commit = text.lines().find_map(|line| line.trim().strip_prefix("build\tvcs.revision="));
    match (module, commit) {
        (_, Some(commit)) => commit.get(..8).unwrap_or(commit).to_owned(),
        (Some(version), None) => version.to_owned(),
        (None, None) => "of an unknown version".to_owned(),
    }
}

fn limitador_version() -> String {
    match processes::find_peer("limitador-server", limitador::VARIABLE) {
        Ok(program) => first_line(&program.display().to_string(), &["--version"]),
        Err(_) => "not available".to_owned(),
    }
}

/// The first line of a program's output.
fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match text.lines().next() {
        Some(line) => line.trim().to_owned(),
        None => "not available".to_owned(),
    }
}

/// Keeps all cores from halting, as `cyclictest` does. Needs write access to the device.
///
/// A core without work halts. On a virtual machine the host resumes it, which can take
/// milliseconds, independent of the server. A closed loop that keeps all cores busy is not
/// affected; the latency of an open loop at a tenth of the machine's capacity is dominated by it.
/// The expiry part also measures without this.
pub fn disable_idle() -> io::Result<IdleDisabled> {
    let refused = |error| io::Error::other(format!("{CPU_DMA_LATENCY}: {error}"));
    let mut device = File::options().write(true).open(CPU_DMA_LATENCY).map_err(refused)?;
    device.write_all(&0_i32.to_ne_bytes()).map_err(refused)?;
    Ok(IdleDisabled(device))
}

fn idle_state() -> String {
    match disable_idle() {
        Ok(_) => "kept from halting".into(),
        Err(why) => format!("may halt ({why})"),
    }
}

/// A sentence for the tables measured with [`disable_idle`].
pub fn idle_note() -> String {
    format!("Cores in the open loops: {} (a zero in `{CPU_DMA_LATENCY}`).", idle_state())
}

fn commit() -> String {
    let state = first_line("git", &["status", "--porcelain", "--untracked-files=no"]);
    let commit = first_line("git", &["rev-parse", "--short", "HEAD"]);
    if state == "not available" { commit } else { format!("{commit} with changes") }
}

/// The version of a library in `Cargo.lock`.
fn locked(name: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let name = format!("name = \"{name}\"\nversion = \"");
    let version = lock.split_once(&name).and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("unknown").to_owned()
}
