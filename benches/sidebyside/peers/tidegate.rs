//! tidegate as it is delivered: one node, and three.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidegate::admin::StatusReport;

use super::{Limit, PREFIX, Target, cl_throttle};
use crate::duel;
use crate::engine::resp::Reply;
use crate::processes::{self, Server};
use crate::questions::Http;

pub const DOMAIN: &str = "bench";
/// Keys of the rules: counted by their owner, confirmed by a replica as well, counted on the spot.
pub const STRICT: &str = "user";
pub const CONFIRMED: &str = "account";
pub const EVENTUAL: &str = "visitor";

/// A limit that nothing here reaches, so that every check is charged, and a window that no run
/// outlives, so that every count is worth a copy.
const RULES: &str = "domain: bench
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000000, algorithm: fixed_window}
  - key: account
    durability: replicated
    rate_limit: {unit: day, requests_per_unit: 1000000000, algorithm: fixed_window}
  - key: visitor
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 1000000000}
";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Three nodes are up within a second; a machine that needs longer has no room for them.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// A node and its doors.
#[derive(Clone, Debug)]
pub struct Node {
    pub server: Rc<Server>,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub admin: SocketAddr,
    pub resp: Option<SocketAddr>,
}

/// What all nodes have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    folder: PathBuf,
    more: Vec<(&'static str, String)>,
}

impl Setting {
    /// Everything at its default, with the rules of these measurements.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let rules = folder.join("rules");
        fs::create_dir_all(&rules)?;
        fs::write(rules.join("bench.yaml"), RULES)?;
        fs::write(rules.join("duel.yaml"), duel::rules())?;
        Ok(Self { folder: folder.into(), more: Vec::new() })
    }

    pub fn with(mut self, key: &'static str, value: u64) -> Self {
        self.more.push((key, value.to_string()));
        self
    }

    /// Starts a single node.
    pub fn start(&self) -> io::Result<Node> {
        let node = self.spawn("alone", &[])?;
        node.wait_until_it_sees(1)?;
        Ok(node)
    }

    /// Starts as many as a cluster has that know nothing of each other.
    pub fn start_apart(&self) -> io::Result<Vec<Node>> {
        NODES.iter().map(|_| self.start()).collect()
    }

    /// Starts three that form a cluster.
    pub fn start_cluster(&self) -> io::Result<Vec<Node>> {
        let pki = self.folder.join("pki");
        let at = |name: &str| pki.join(name).display().to_string();
        tidegate(&["ca", "init", "--dir", &pki.display().to_string()])?;
        let seed = processes::free_udp()?;
        let mut nodes = Vec::new();
        for (number, id) in NODES.into_iter().enumerate() {
            tidegate(&["ca", "issue", "--dir", &pki.display().to_string(), "--node", id])?;
            let mesh = if number == 0 { seed } else { processes::free_udp()? };
            nodes.push(self.spawn(
                id,
                &[
                    ("cluster.listen", mesh.to_string()),
                    ("cluster.seeds", seed.to_string()),
                    ("tls.ca", at("ca.pem")),
                    ("tls.cert", at(&format!("{id}.pem"))),
                    ("tls.key", at(&format!("{id}.key"))),
                    ("tls.secret", at("cluster.secret")),
                ],
            )?);
        }
        for node in &nodes {
            node.wait_until_it_sees(NODES.len())?;
        }
        Ok(nodes)
    }

    fn spawn(&self, id: &str, own: &[(&'static str, String)]) -> io::Result<Node> {
        let [http, grpc, admin, resp] = [(); 4].map(|()| processes::free_tcp());
        let (http, grpc, admin, resp) = (http?, grpc?, admin?, resp?);
        let speaks_resp = tidegate::config::keys().iter().any(|key| key == "resp.listen");
        let mut settings = vec![
            ("node.id", id.to_owned()),
            ("http.listen", http.to_string()),
            ("grpc.listen", grpc.to_string()),
            ("admin.listen", admin.to_string()),
            ("rules.path", self.folder.join("rules").display().to_string()),
        ];
        if speaks_resp {
            settings.push(("resp.listen", resp.to_string()));
        }
        let mut command = processes::command(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "--log", "warn"]).current_dir(&self.folder);
        for (key, value) in settings.iter().chain(own).chain(&self.more) {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        let name = format!("tidegate-{id}-{}", admin.port());
        let mut server = Server::start(&mut command, &self.folder, &name)?;
        server.wait_for(admin)?;
        let resp = speaks_resp.then_some(resp);
        Ok(Node { server: Rc::new(server), http, grpc, admin, resp })
    }
}

impl Node {
    /// `CL.THROTTLE`.
    pub fn target(&self, limit: Limit) -> io::Result<Target> {
        let addr = self.resp.ok_or_else(|| io::Error::other("this build has no [resp] door"))?;
        let command = cl_throttle(limit);
        let (server, prefix) = (Rc::clone(&self.server), PREFIX);
        Ok(Target { server, addr, command, prefix, reply: Reply::Limited, is_busy: false })
    }

    /// A number of its metrics, summed over its labels that contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> io::Result<f64> {
        let metrics = Http::connect(self.admin)?.get("/metrics")?;
        let rows = metrics.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && line.contains(label)
        });
        Ok(rows.filter_map(|row| row.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    fn wait_until_it_sees(&self, nodes: usize) -> io::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let report = Http::connect(self.admin).and_then(|mut admin| admin.get("/status"));
            let report = report.and_then(|text| Ok(serde_json::from_str::<StatusReport>(&text)?));
            let up = |report: &StatusReport| {
                let is_up = |state: &str| ["self", "up"].contains(&state);
                report.members.iter().filter(|member| is_up(member.state.name())).count()
            };
            match report {
                Ok(report) if up(&report) >= nodes && report.not_ready.is_none() => return Ok(()),
                other if Instant::now() > deadline => {
                    return Err(io::Error::other(format!("tidegate is not up: {other:?}")));
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn tidegate(args: &[&str]) -> io::Result<()> {
    let mut command = processes::command(env!("CARGO_BIN_EXE_tidegate"));
    processes::run(command.args(args), START_PATIENCE).map(drop)
}
