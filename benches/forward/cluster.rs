//! Three node processes on loopback, ended when dropped.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate::admin::StatusReport;

use crate::door::Http;

pub const DOMAIN: &str = "bench";
pub const KEY: &str = "user";
/// The node that clients ask.
pub const ASKED: &str = "node-1";

const NODES: [&str; 3] = [ASKED, "node-2", "node-3"];
/// A limit that nothing here reaches, so that every check is charged, and a window that no run
/// outlives, so that every count is worth a copy.
const RULES: &str = "domain: bench
descriptors:
  - key: user
    DURABILITY
    rate_limit: {unit: day, requests_per_unit: 1000000000, algorithm: fixed_window}
";
/// Three nodes are up within a second; a machine that needs longer has no room for them.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// The kernel's unit of processor time in `/proc`, 100 a second on every Linux.
const US_PER_TICK: f64 = 10_000.0;

/// Whether counts are copied to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// `cluster.replicas = 0`.
    None,
    /// One replica hears of them a few milliseconds later.
    Async,
    /// One replica has confirmed each before its answer: `durability: replicated`.
    Confirmed,
}

/// The processes and where they listen.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    /// Certificates, rules and logs; goes last.
    _dir: TempDir,
}

#[derive(Debug)]
struct Node {
    process: Child,
    http: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
}

/// What the nodes used and did so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time of all three, microseconds.
    pub cpu_us: f64,
    /// Checks that the asked node answered without their owner.
    pub by_policy: f64,
    /// Checks that the asked node's peers answered for it.
    pub forwarded: f64,
}

impl Cluster {
    /// Starts the nodes and waits until each sees all.
    pub fn start(copies: Copies) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let rules = dir.path().join("rules");
        fs::create_dir(&rules)?;
        let durability = match copies {
            Copies::Confirmed => "durability: replicated",
            Copies::None | Copies::Async => "durability: async",
        };
        fs::write(rules.join("bench.yaml"), RULES.replace("DURABILITY", durability))?;
        let pki = dir.path().join("pki");
        tidegate(&["ca", "init", "--dir", text(&pki)?])?;
        let mut nodes: Vec<Node> = Vec::new();
        let seed = free_udp()?;
        for (number, id) in NODES.into_iter().enumerate() {
            tidegate(&["ca", "issue", "--dir", text(&pki)?, "--node", id])?;
            let mesh = if number == 0 { seed } else { free_udp()? };
            let doors = [free_tcp()?, free_tcp()?, free_tcp()?];
            let process = spawn(dir.path(), id, mesh, seed, doors, copies)?;
            let [http, grpc, admin] = doors;
            nodes.push(Node { process, http, grpc, admin });
        }
        let cluster = Self { nodes, _dir: dir };
        for node in &cluster.nodes {
            node.wait_until_it_sees_all()?;
        }
        Ok(cluster)
    }

    pub fn http(&self) -> SocketAddr {
        self.nodes[0].http
    }

    pub fn grpc(&self) -> SocketAddr {
        self.nodes[0].grpc
    }

    pub fn admin(&self) -> SocketAddr {
        self.nodes[0].admin
    }

    /// What the nodes used and did so far.
    pub fn usage(&self) -> io::Result<Usage> {
        let ticks = self.nodes.iter().map(Node::ticks).sum::<io::Result<u64>>()?;
        let metrics = Http::connect(self.admin())?.get("/metrics")?;
        let verdicts = |source: &str| {
            let name = format!("tidegate_verdicts_total{{source=\"{source}\"}} ");
            let value = metrics.lines().find_map(|line| line.strip_prefix(name.as_str()));
            value.and_then(|value| value.parse().ok()).ok_or_else(|| io::Error::other(name.clone()))
        };
        Ok(Usage {
            cpu_us: ticks as f64 * US_PER_TICK,
            by_policy: verdicts("policy")?,
            forwarded: verdicts("owner")?,
        })
    }
}

impl Usage {
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_us: self.cpu_us - before.cpu_us,
            by_policy: self.by_policy - before.by_policy,
            forwarded: self.forwarded - before.forwarded,
        }
    }
}

impl Node {
    fn wait_until_it_sees_all(&self) -> io::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let report = Http::connect(self.admin).and_then(|mut admin| admin.get("/status"));
            let report = report.and_then(|text| Ok(serde_json::from_str::<StatusReport>(&text)?));
            let up = |report: &StatusReport| {
                let is_up = |state: &str| ["self", "up"].contains(&state);
                report.members.iter().filter(|member| is_up(member.state.name())).count()
            };
            match report {
                Ok(report) if up(&report) == NODES.len() && report.not_ready.is_none() => {
                    return Ok(());
                }
                other if Instant::now() > deadline => {
                    return Err(io::Error::other(format!("the nodes are not up: {other:?}")));
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Processor time of the process, in user and system mode.
    fn ticks(&self) -> io::Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // The name in parentheses may hold spaces; the fields behind it are counted from 3.
        let (_, fields) = stat.rsplit_once(") ").ok_or_else(|| io::Error::other(stat.clone()))?;
        let field = |number: usize| fields.split(' ').nth(number - 3)?.parse::<u64>().ok();
        field(14)
            .zip(field(15))
            .map(|(user, system)| user + system)
            .ok_or_else(|| io::Error::other(format!("no processor time in {stat:?}")))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Nothing here is worth draining.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(
    dir: &Path,
    id: &str,
    mesh: SocketAddr,
    seed: SocketAddr,
    doors: [SocketAddr; 3],
    copies: Copies,
) -> io::Result<Child> {
    let [http, grpc, admin] = doors;
    let pki = |name: &str| dir.join("pki").join(name).display().to_string();
    let settings = [
        ("node.id", id.to_owned()),
        ("cluster.listen", mesh.to_string()),
        ("cluster.seeds", seed.to_string()),
        ("cluster.replicas", u32::from(copies != Copies::None).to_string()),
        // A copy before the answer is two trips on two busy cores: how long they take is measured.
        ("cluster.deadline_ms", "100".to_owned()),
        ("tls.ca", pki("ca.pem")),
        ("tls.cert", pki(&format!("{id}.pem"))),
        ("tls.key", pki(&format!("{id}.key"))),
        ("tls.secret", pki("cluster.secret")),
        ("http.listen", http.to_string()),
        ("grpc.listen", grpc.to_string()),
        ("admin.listen", admin.to_string()),
        ("rules.path", dir.join("rules").display().to_string()),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "--log", "warn"]);
    for (key, value) in settings {
        command.arg("--set").arg(format!("{key}={value}"));
    }
    let log = File::create(dir.join(format!("{id}.log")))?;
    command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()
}

fn tidegate(args: &[&str]) -> io::Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(io::Error::other(told.into_owned())) }
}

fn text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other("the temporary folder has no UTF-8 name"))
}

/// A port that is free now. Somebody else may take it first; the node then says so and the
/// benchmark ends.
fn free_tcp() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn free_udp() -> io::Result<SocketAddr> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
