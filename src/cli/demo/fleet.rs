//! The nodes: processes of this very binary.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::super::Failure;
use super::screen::Screen;
use super::site::Site;
use crate::config::UserError;

/// How long a node may take to open its doors. It takes some 50 ms; a machine may be busy.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long a node may take to drain before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How often a log is looked at for the line that says where the doors are.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How much of a log is worth reading when something went wrong.
const LAST_WORDS_LINES: usize = 12;

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: &'static str,
    pub(super) region: &'static str,
    pub(super) pid: u32,
    pub(super) http: SocketAddr,
    pub(super) grpc: SocketAddr,
    pub(super) admin: SocketAddr,
}

/// The running processes. They die with it.
pub(super) struct Fleet {
    processes: Vec<Process>,
}

struct Process {
    id: &'static str,
    /// Its standard input is a pipe that nobody writes to: it ends when we do, and the node with
    /// it.
    child: Child,
    log: PathBuf,
}

impl Fleet {
    /// None yet.
    pub(super) fn new() -> Self {
        Self { processes: Vec::new() }
    }

    /// Starts a node and waits until its doors are open.
    pub(super) async fn start(
        &mut self,
        site: &Site,
        id: &'static str,
        region: &'static str,
        seed: Option<SocketAddr>,
    ) -> Result<Node, Failure> {
        let config = site.prepare(id, region, seed)?;
        let log = site.log(id);
        let child = spawn(&config, &log).map_err(|error| {
            UserError::new(format!("start {id}: {error}"), "check `ulimit -u` and `ulimit -n`")
        })?;
        let pid = child.id().unwrap_or_default();
        // Owned by the fleet before anything is waited for: a signal may end the wait.
        self.adopt(id, child, log.clone());
        let deadline = Instant::now() + START_PATIENCE;
        while Instant::now() < deadline {
            if let Some([http, grpc, admin]) =
                listeners(&fs::read_to_string(&log).unwrap_or_default())
            {
                return Ok(Node { id, region, pid, http, grpc, admin });
            }
            if let Some(status) = self.ended(id) {
                return Err(UserError::new(
                    format!("{id} ended at its start ({status})"),
                    "its log is above",
                )
                .into());
            }
            sleep(LOOK_INTERVAL).await;
        }
        Err(UserError::new(
            format!("{id} opened no doors within {START_PATIENCE:?}"),
            "try it on a machine that is less busy; its log is above",
        )
        .into())
    }

    /// Takes over a process that ends when its standard input, a pipe, does.
    pub(super) fn adopt(&mut self, id: &'static str, child: Child, log: PathBuf) {
        self.processes.push(Process { id, child, log });
    }

    /// How a process ended, if it did.
    pub(super) fn ended(&mut self, id: &str) -> Option<ExitStatus> {
        let process = self.processes.iter_mut().find(|process| process.id == id)?;
        process.child.try_wait().ok().flatten()
    }

    /// Kills a node with SIGKILL: it can say goodbye to nobody.
    pub(super) async fn kill(&mut self, id: &str) -> Result<(), Failure> {
        for process in self.processes.iter_mut().filter(|process| process.id == id) {
            process.child.kill().await.map_err(|error| {
                UserError::new(format!("kill {id}: {error}"), "start the demo again")
            })?;
        }
        self.processes.retain(|process| process.id != id);
        Ok(())
    }

    /// Lets every node drain, kills those that do not, and waits for all to be gone.
    pub(super) async fn stop(&mut self) {
        for process in &mut self.processes {
            drop(process.child.stdin.take());
        }
        for mut process in self.processes.drain(..) {
            if timeout(STOP_PATIENCE, process.child.wait()).await.is_err() {
                // It fails only for a process that is gone, which is what is wanted.
                let _ = process.child.kill().await;
            }
        }
    }

    /// The end of every log, for whoever has to find out what went wrong.
    pub(super) fn write_last_words(&self, screen: &mut Screen<'_>) -> Result<(), Failure> {
        for process in &self.processes {
            screen.line(&format!("\nthe end of {}", process.log.display()))?;
            let text = fs::read_to_string(&process.log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(LAST_WORDS_LINES)..] {
                screen.line(&format!("  {line}"))?;
            }
        }
        Ok(())
    }
}

fn spawn(config: &Path, log: &Path) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["serve", "--until-stdin-closes", "--config"])
        .arg(config)
        // Variables that configure the person's own nodes are not for these.
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(File::create(log)?)
        // Ctrl-C is for us alone, who then stop the nodes in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// The addresses in the line `listening on http A, grpc B, admin C` of a log.
fn listeners(log: &str) -> Option<[SocketAddr; 3]> {
    let (_, rest) = log.split_once("listening on ")?;
    let (line, _) = rest.split_once('\n')?;
    let listener = |name: &str| {
        let mut parts = line.split(", ").filter_map(|part| part.strip_prefix(name));
        parts.next()?.split_whitespace().next()?.parse().ok()
    };
    Some([listener("http ")?, listener("grpc ")?, listener("admin ")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doors_are_read_from_a_whole_line_alone() {
        let line = "INFO listening on http 127.0.0.1:1, grpc 127.0.0.1:2, admin 127.0.0.1:3 node=a";
        assert_eq!(listeners(line), None);
        let found = listeners(&format!("first\n{line}\n")).unwrap();
        assert_eq!(found.map(|addr| addr.port()), [1, 2, 3]);
        assert_eq!(listeners("listening on http 127.0.0.1:1\n"), None);
    }
}
