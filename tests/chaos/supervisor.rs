//! The supervisor: creates the network, starts the worker in it, and removes the network when the
//! worker ends, for whatever reason.
//!
//! The worker's standard input is a pipe from the supervisor. If the supervisor is killed, the
//! worker reads end of file and removes the network itself.

use std::path::PathBuf;
use std::process::Stdio;
use std::{env, fs, thread};

use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::network::{self, Network};
use crate::options::Options;
use crate::{faults, shell};

/// The required capabilities, by their bit in `CapEff`.
const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN")];
/// Exit code after an interrupt, as used by shells.
const INTERRUPTED: u8 = 130;

/// Runs the worker and returns its exit code.
pub(crate) async fn run(options: &Options) -> Result<u8, String> {
    check_requirements(options)?;
    for name in Network::remove_leftovers()? {
        eprintln!("removed the network of a killed run: {name}");
    }
    remove_old_runs();
    let network = Network::of(std::process::id());
    let code = run_worker(&network, options).await;
    // Also after a failed creation.
    let removed = network.remove();
    let runs = runs(std::process::id());
    if code == Ok(1) {
        // Kept until the next run.
        eprintln!("configurations and logs of the nodes: {}", runs.display());
    } else {
        let _ = fs::remove_dir_all(runs);
    }
    code.and_then(|code| removed.map(|()| code))
}

/// Folder of the run whose supervisor has the process id `creator`.
pub(crate) fn runs(creator: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{creator}"))
}

/// Removes the folders of runs whose supervisors have exited.
fn remove_old_runs() {
    let folders = fs::read_dir(env!("CARGO_TARGET_TMPDIR")).into_iter().flatten().flatten();
    for folder in folders {
        let name = folder.file_name();
        let creator =
            name.to_str().and_then(|name| name.strip_prefix("chaos-")?.parse::<u32>().ok());
        if creator.is_some_and(|creator| !network::is_alive(creator)) {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

/// In the worker: removes the network and exits when the supervisor is gone.
pub(crate) fn watch_supervisor(network: Network) {
    thread::spawn(move || {
        // The supervisor never writes, so this returns when it exits.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = network.remove();
        std::process::exit(INTERRUPTED.into());
    });
}

async fn run_worker(network: &Network, options: &Options) -> Result<u8, String> {
    let failed = |error: std::io::Error| format!("failed to start the worker: {error}");
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    network.create()?;
    let mut worker = start(network).map_err(failed)?;
    // `wait` closes the child's standard input, which must stay open until the supervisor exits.
    let _pipe = worker.stdin.take();
    let within = options.time_limit();
    // All branches are cancel-safe.
    tokio::select! {
        status = worker.wait() => {
            let code = status.map_err(failed)?.code();
            Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(2))
        }
        _ = term.recv() => Ok(INTERRUPTED),
        _ = interrupt.recv() => Ok(INTERRUPTED),
        () = tokio::time::sleep(within) => Err(format!("timed out after {within:?}")),
    }
}

fn start(network: &Network) -> std::io::Result<Child> {
    let mut command = Command::new("nsenter");
    command.env_clear().env("PATH", shell::PATH);
    command.arg(format!("--net=/run/netns/{}", network.hub())).arg("--");
    command.arg(env::current_exe()?).args(env::args_os().skip(1));
    command.arg("--supervisor").arg(std::process::id().to_string());
    command.stdin(Stdio::piped()).kill_on_drop(true).spawn()
}

/// Checks privileges and programs before anything is created.
fn check_requirements(options: &Options) -> Result<(), String> {
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
