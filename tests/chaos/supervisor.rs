//! The outer half of the program: makes the network, starts the inner half in it, and takes all of
//! it away again, however the inner half ends.
//!
//! The inner half holds the other end of a pipe to this one: if this process is killed, it sees the
//! pipe close and takes the network away itself.

use std::path::PathBuf;
use std::process::Stdio;
use std::{env, fs, thread};

use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::faults;
use crate::network::{self, Network};
use crate::options::Options;
use crate::shell;

/// What capabilities are needed for, by their numbers in `CapEff`.
const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN")];
/// The exit code that shells give a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Runs the inner half; its exit code.
pub(crate) async fn run(options: &Options) -> Result<u8, String> {
    check_means(options)?;
    for name in Network::remove_leftovers()? {
        eprintln!("removed what a killed run left: {name}");
    }
    remove_old_runs();
    let network = Network::of(std::process::id());
    let code = run_inside(&network, options).await;
    // Even when it was not made whole.
    let removed = network.remove();
    let runs = runs(std::process::id());
    if code == Ok(1) {
        // Until the next run.
        eprintln!("configurations and logs of the nodes: {}", runs.display());
    } else {
        let _ = fs::remove_dir_all(runs);
    }
    code.and_then(|code| removed.map(|()| code))
}

/// Where the process `maker` and what it starts keep their files.
pub(crate) fn runs(maker: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{maker}"))
}

/// Files of runs whose makers are gone.
fn remove_old_runs() {
    let folders = fs::read_dir(env!("CARGO_TARGET_TMPDIR")).into_iter().flatten().flatten();
    for folder in folders {
        let name = folder.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix("chaos-")?.parse::<u32>().ok());
        if maker.is_some_and(|maker| !network::is_alive(maker)) {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

/// Takes the network away when the outer half is gone.
pub(crate) fn watch_outer_half(network: Network) {
    thread::spawn(move || {
        // It never writes: this ends with it.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = network.remove();
        std::process::exit(INTERRUPTED.into());
    });
}

async fn run_inside(network: &Network, options: &Options) -> Result<u8, String> {
    let failed = |error: std::io::Error| format!("start the inner half: {error}");
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    network.create()?;
    let mut inner = start(network).map_err(failed)?;
    // Waiting for a child closes its standard input, which is to stay open as long as this runs.
    let _pipe = inner.stdin.take();
    let within = options.ends_within();
    // All are cancel-safe.
    tokio::select! {
        status = inner.wait() => {
            let code = status.map_err(failed)?.code();
            Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(2))
        }
        _ = term.recv() => Ok(INTERRUPTED),
        _ = interrupt.recv() => Ok(INTERRUPTED),
        () = tokio::time::sleep(within) => Err(format!("it hangs: not done within {within:?}")),
    }
}

fn start(network: &Network) -> std::io::Result<Child> {
    let mut command = Command::new("nsenter");
    command.env_clear().env("PATH", shell::PATH);
    command.arg(format!("--net=/run/netns/{}", network.hub())).arg("--");
    command.arg(env::current_exe()?).args(env::args_os().skip(1));
    command.arg("--inside").arg(std::process::id().to_string());
    command.stdin(Stdio::piped()).kill_on_drop(true).spawn()
}

/// Reports what is missing before anything is made.
fn check_means(options: &Options) -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or_default();
    for (bit, name) in CAPABILITIES {
        if held & (1 << bit) == 0 {
            return Err(format!(
                "network namespaces need {name}: run it as root (sudo scripts/chaos)"
            ));
        }
    }
    for (probe, package) in [
        ("ip -Version", "iproute2"),
        ("nft --version", "nftables"),
        ("nsenter --version", "util-linux"),
    ] {
        shell::run(probe).map_err(|error| format!("{error}; apt-get install {package}"))?;
    }
    if options.faults().contains(&faults::Fault::ClockJump) {
        faults::clock::library()?;
    }
    Ok(())
}
