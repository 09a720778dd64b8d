//! The work folder and the processes of the demo.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::error::Error;
use crate::node::{Node, until};
use crate::output::Output;
use crate::requests;

/// `[cluster] deadline`, in milliseconds: how long a key's owner may take to respond to a peer.
/// The default is 10 ms; here one machine runs three nodes and all their clients, and the results
/// should not depend on its other load.
pub(crate) const DEADLINE_MS: u64 = 100;

/// The keys of the rules. The header of each is `x-` and the key.
pub(crate) const KEYS: [&str; 7] =
    ["user", "login", "licence", "strict", "leased", "eventual", "visitor"];

/// The nodes with their regions.
pub(crate) const NODES: [(&str, &str); 3] = [("eu-1", "eu"), ("eu-2", "eu"), ("us-1", "us")];

const RULES: &str = include_str!("../rules.yaml");

/// How long a process may take to drain before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How many lines of each log are printed after a failure.
const LOG_TAIL_LINES: usize = 12;

const DISK_FULL: &str = "set TMPDIR to a folder with some space";

pub(crate) struct Cluster {
    executable: PathBuf,
    folder: TempDir,
    processes: Vec<Process>,
}

struct Process {
    name: &'static str,
    /// Ends at the end of its standard input, a pipe whose other end is here.
    child: Child,
}

impl Cluster {
    /// Creates the work folder with an authority and the rules.
    pub(crate) fn create(executable: &Path) -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("tidegate-demo-").tempdir();
        let folder = folder.map_err(Error::context("make a temporary folder", DISK_FULL))?;
        let cluster = Self { executable: executable.to_owned(), folder, processes: Vec::new() };
        cluster.ca(&["init"])?;
        fs::create_dir(cluster.folder().join("rules"))
            .map_err(Error::context("make the folder of the rules", DISK_FULL))?;
        cluster.write("rules/demo.yaml", RULES)?;
        Ok(cluster)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file of the work folder and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.folder().join(name);
        fs::write(&path, text)
            .map_err(Error::context(format!("write {}", path.display()), DISK_FULL))?;
        Ok(path)
    }

    /// Starts a node and waits until it listens.
    pub(crate) async fn start(
        &mut self,
        id: &'static str,
        region: &'static str,
        seed: Option<SocketAddr>,
    ) -> Result<Node, Error> {
        self.ca(&["issue", "--days", "30", "--node", id, "--region", region])?;
        let founders: Vec<&str> =
            NODES.iter().filter(|(_, other)| *other == region).map(|(id, _)| *id).collect();
        let regions: BTreeSet<&str> = NODES.iter().map(|(_, region)| *region).collect();
        let regions: Vec<&str> = regions.into_iter().collect();
        let config = node_configuration(id, region, &founders, &regions, seed);
        let config = self.write(&format!("{id}.toml"), &config)?;
        let mut command = Command::new(&self.executable);
        // Variables that configure the user's own nodes must not apply.
        command.args(["serve", "--until-stdin-closes", "--config"]).arg(config).env_clear();
        let pid = self.spawn(id, &mut command)?;
        let log = self.log(id);
        let addresses = async || listeners(&fs::read_to_string(&log).unwrap_or_default());
        let [http, grpc, admin] = self.wait_for_start(id, addresses).await?;
        Ok(Node { client: requests::client(), id, region, pid, http, grpc, admin })
    }

    /// Starts a process that ends at the end of its standard input, and returns its id. It is owned
    /// from now on, because a signal may end the demo at the next await.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        command: &mut Command,
    ) -> Result<u32, Error> {
        let mut spawn = || -> io::Result<Child> {
            let log = File::create(self.log(name))?;
            command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
            // A process group of its own: Ctrl-C reaches this process alone.
            command.process_group(0).spawn()
        };
        let child = spawn().map_err(Error::context(
            format!("start {name}"),
            "check `ulimit -u` and `ulimit -n`",
        ))?;
        let pid = child.id().unwrap_or_default();
        self.processes.push(Process { name, child });
        Ok(pid)
    }

    /// Polls until `started` returns a value, and fails if the process ends before.
    pub(crate) async fn wait_for_start<T>(
        &mut self,
        name: &str,
        mut started: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T, Error> {
        until(&format!("{name} did not listen"), async || {
            let found = started().await;
            let process = self.processes.iter_mut().find(|process| process.name == name);
            match process.and_then(|process| process.child.try_wait().ok().flatten()) {
                Some(status) if found.is_none() => Err(Error::new(
                    format!("{name} exited at its start ({status})"),
                    "its log is above",
                )),
                _ => Ok(found),
            }
        })
        .await
    }

    /// Kills a node with SIGKILL, without a drain.
    pub(crate) async fn kill(&mut self, id: &str) -> Result<(), Error> {
        for process in self.processes.iter_mut().filter(|process| process.name == id) {
            let killed = process.child.kill().await;
            killed.map_err(Error::context(format!("kill {id}"), "start the demo again"))?;
        }
        self.processes.retain(|process| process.name != id);
        Ok(())
    }

    /// Prints the end of every log.
    pub(crate) fn write_log_tails(&self, output: &mut Output<'_>) -> io::Result<()> {
        for process in &self.processes {
            let log = self.log(process.name);
            writeln!(output, "\nthe end of {}", log.display())?;
            let text = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..] {
                writeln!(output, "  {line}")?;
            }
        }
        Ok(())
    }

    /// Drains all processes at once, kills those that take too long, and removes the work folder.
    pub(crate) async fn close(mut self) -> Result<(), Error> {
        for process in &mut self.processes {
            drop(process.child.stdin.take());
        }
        for process in &mut self.processes {
            if timeout(STOP_TIMEOUT, process.child.wait()).await.is_err() {
                // Fails only for a process that has ended.
                let _ = process.child.kill().await;
            }
        }
        let folder = self.folder().display().to_string();
        let removed = self.folder.close();
        removed.map_err(Error::context(
            format!("remove {folder}"),
            format!("remove it: rm -r {folder}"),
        ))
    }

    /// Runs `tidegate ca` on the work folder. Blocks for some milliseconds.
    fn ca(&self, args: &[&str]) -> Result<(), Error> {
        let mut command = process::Command::new(&self.executable);
        command.arg("ca").args(args).arg("--dir").arg(self.folder().join("pki"));
        let done = command.env_clear().process_group(0).output();
        let done = done.map_err(Error::context("run `tidegate ca`", "check `ulimit -u`"))?;
        if done.status.success() {
            return Ok(());
        }
        let problem = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        Err(Error::new(format!("create certificates: {problem}"), DISK_FULL))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder().join(format!("{name}.log"))
    }
}

/// The configuration of a node. The system chooses all ports; the node's log contains them.
pub fn node_configuration(
    id: &str,
    region: &str,
    founders: &[&str],
    regions: &[&str],
    seed: Option<SocketAddr>,
) -> String {
    let seed = seed.map(|seed| format!("\"{seed}\"")).unwrap_or_default();
    let descriptors = KEYS
        .map(|key| format!("  {{ entries = [{{ key = \"{key}\", header = \"x-{key}\" }}] }},\n"))
        .concat();
    format!(
        r#"node = {{ id = "{id}", region = "{region}" }}
rules.path = "rules"
http.listen = "127.0.0.1:0"
grpc.listen = "127.0.0.1:0"
admin.listen = "127.0.0.1:0"
limits.drain_delay = "0s"
limits.drain_timeout = "1s"

[cluster]
name = "demo"
listen = "127.0.0.1:0"
seeds = [{seed}]
founders = {founders:?}
regions = {regions:?}
deadline = "{DEADLINE_MS}ms"

[tls]
ca = "pki/ca.pem"
cert = "pki/{id}.pem"
key = "pki/{id}.key"
secret = "pki/cluster.secret"

# The headers that limit the load balancer's /auth requests, as far as they are present.
[auth]
domain = "demo"
original = "x-original"
descriptors = [
{descriptors}]
"#
    )
}

/// The addresses in the line `listening on http A, grpc B, admin C` of a log.
fn listeners(log: &str) -> Option<[SocketAddr; 3]> {
    let (_, rest) = log.split_once("listening on ")?;
    let (line, _) = rest.split_once('\n')?;
    let address = |name: &str| {
        let mut parts = line.split(", ").filter_map(|part| part.strip_prefix(name));
        parts.next()?.split_whitespace().next()?.parse().ok()
    };
    Some([address("http ")?, address("grpc ")?, address("admin ")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_a_complete_line_only() {
        let line = "INFO listening on http 127.0.0.1:1, grpc 127.0.0.1:2, admin 127.0.0.1:3 node=a";
        assert_eq!(listeners(line), None);
        let found = listeners(&format!("first\n{line}\n")).unwrap();
        assert_eq!(found.map(|addr| addr.port()), [1, 2, 3]);
        assert_eq!(listeners("listening on http 127.0.0.1:1\n"), None);
    }
}
