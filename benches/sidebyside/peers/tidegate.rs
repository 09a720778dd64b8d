//! tidegate with default settings: a single node, and three.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{fs, io};

use tidegate::admin::StatusReport;
use tidegate_testkit::loadgen::resp::Reply;

use super::{Limit, PREFIX, Target, cl_throttle};
use crate::accuracy;
use crate::clients::Http;
use crate::processes::{self, Server};

pub const DOMAIN: &str = "bench";
/// The keys of the rules: strict, strict with `durability: replicated`, leased, and eventual.
pub const STRICT: &str = "user";
pub const REPLICATED: &str = "account";
pub const LEASED: &str = "tenant";
pub const EVENTUAL: &str = "visitor";

/// No key reaches these limits, so every check counts. Windows are longer than a run, so every
/// count is replicated.
const RULES: &str = "domain: bench
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000000, algorithm: fixed_window}
  - key: account
    durability: replicated
    rate_limit: {unit: day, requests_per_unit: 1000000000, algorithm: fixed_window}
  - key: tenant
    mode: leased
    rate_limit: {unit: day, requests_per_unit: 1000000000, algorithm: fixed_window}
  - key: visitor
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 1000000000}
";
/// How requests to the proxy, and those of nginx, become descriptors.
const AUTH: &str = "[auth]
domain = \"http\"
[[auth.descriptors]]
entries = [{ key = \"path\", source = \"path\" }]
";
const HTTP_RULES: &str = "domain: http
descriptors:
  - key: path
    value: /
    rate_limit: {unit: day, requests_per_unit: 1000000000, algorithm: fixed_window}
";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Three nodes usually start within a second.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A node and its listeners.
#[derive(Clone, Debug)]
pub struct Node {
    pub server: Rc<Server>,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub admin: SocketAddr,
    pub resp: Option<SocketAddr>,
    /// Gubernator's API over gRPC.
    pub gubernator: Option<SocketAddr>,
    pub proxy: Option<SocketAddr>,
}

/// The settings of the nodes.
#[derive(Clone, Debug)]
pub struct Setting {
    folder: PathBuf,
    extra: Vec<(&'static str, String)>,
    has_gubernator: bool,
    /// What its proxy is in front of.
    upstream: Option<SocketAddr>,
}

impl Setting {
    /// Default settings and the rules of the benchmarks.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let rules = folder.join("rules");
        fs::create_dir_all(&rules)?;
        fs::write(rules.join("bench.yaml"), RULES)?;
        fs::write(rules.join("http.yaml"), HTTP_RULES)?;
        fs::write(rules.join("accuracy.yaml"), accuracy::rules())?;
        Ok(Self { folder: folder.into(), extra: Vec::new(), has_gubernator: false, upstream: None })
    }

    pub fn with(mut self, key: &'static str, value: u64) -> Self {
        self.extra.push((key, value.to_string()));
        self
    }

    /// With the listener of Gubernator's API over gRPC.
    pub fn with_gubernator(mut self) -> Self {
        self.has_gubernator = true;
        self
    }

    /// With a proxy in front of an application.
    pub fn with_proxy(mut self, upstream: SocketAddr) -> Self {
        self.upstream = Some(upstream);
        self
    }

    pub fn start(&self) -> io::Result<Node> {
        let node = self.spawn("single", &[])?;
        node.wait_for_members(1)?;
        Ok(node)
    }

    /// Starts three independent nodes.
    pub fn start_separate(&self) -> io::Result<Vec<Node>> {
        NODES.iter().map(|_| self.start()).collect()
    }

    /// Starts a cluster of three nodes.
    pub fn start_cluster(&self) -> io::Result<Vec<Node>> {
        let pki = self.folder.join("pki");
        let at = |name: &str| pki.join(name).display().to_string();
        run(&["ca", "init", "--dir", &pki.display().to_string()])?;
        let seed = processes::free_udp()?;
        let mut nodes = Vec::new();
        for (number, id) in NODES.into_iter().enumerate() {
            run(&["ca", "issue", "--dir", &pki.display().to_string(), "--node", id])?;
            let mesh = if number == 0 { seed } else { processes::free_udp()? };
            nodes.push(self.spawn(
                id,
                &[
                    ("cluster.listen", mesh.to_string()),
                    ("cluster.seeds", seed.to_string()),
                    ("cluster.bootstrap_expect", NODES.len().to_string()),
                    ("tls.ca", at("ca.pem")),
                    ("tls.cert", at(&format!("{id}.pem"))),
                    ("tls.key", at(&format!("{id}.key"))),
                    ("tls.secret", at("cluster.secret")),
                ],
            )?);
        }
        for node in &nodes {
            node.wait_for_members(NODES.len())?;
        }
        Ok(nodes)
    }

    fn spawn(&self, id: &str, own: &[(&'static str, String)]) -> io::Result<Node> {
        let [http, grpc, admin, resp] = [(); 4].map(|()| processes::free_tcp());
        let (http, grpc, admin, resp) = (http?, grpc?, admin?, resp?);
        let has_resp = tidegate::config::keys().iter().any(|key| key == "resp.listen");
        let mut settings = vec![
            ("node.id", id.to_owned()),
            ("http.listen", http.to_string()),
            ("grpc.listen", grpc.to_string()),
            ("admin.listen", admin.to_string()),
            ("rules.path", self.folder.join("rules").display().to_string()),
        ];
        if has_resp {
            settings.push(("resp.listen", resp.to_string()));
        }
        let gubernator = if self.has_gubernator { Some(processes::free_tcp()?) } else { None };
        if let Some(addr) = gubernator {
            settings.push(("gubernator.grpc", addr.to_string()));
        }
        let proxy = if self.upstream.is_some() { Some(processes::free_tcp()?) } else { None };
        if let Some((addr, upstream)) = proxy.zip(self.upstream) {
            settings.push(("proxy.listen", addr.to_string()));
            settings.push(("proxy.upstream", format!("http://{upstream}")));
        }
        let mut command = processes::command(binary());
        command.args(["serve", "--log", "warn"]).current_dir(&self.folder);
        if proxy.is_some() {
            let file = self.folder.join("proxy.toml");
            fs::write(&file, AUTH)?;
            command.arg("--config").arg(file);
        }
        for (key, value) in settings.iter().chain(own).chain(&self.extra) {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        let name = format!("tidegate-{id}-{}", admin.port());
        let mut server = Server::start(&mut command, &self.folder, &name)?;
        server.wait_for(admin)?;
        let resp = has_resp.then_some(resp);
        Ok(Node { server: Rc::new(server), http, grpc, admin, resp, gubernator, proxy })
    }
}

impl Node {
    /// `CL.THROTTLE`.
    pub fn target(&self, limit: Limit) -> io::Result<Target> {
        let addr =
            self.resp.ok_or_else(|| io::Error::other("this build has no [resp] listener"))?;
        let command = cl_throttle(limit);
        let (server, prefix) = (Rc::clone(&self.server), PREFIX);
        Ok(Target { server, addr, command, prefix, reply: Reply::Limited, is_busy: false })
    }

    /// The sum of a metric over the time series whose labels contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> io::Result<f64> {
        let metrics = Http::connect(self.admin)?.get("/metrics")?;
        let rows = metrics.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && line.contains(label)
        });
        Ok(rows.filter_map(|row| row.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    fn wait_for_members(&self, nodes: usize) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
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
                    return Err(io::Error::other(format!("tidegate did not start: {other:?}")));
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// That of `BENCH_BIN`, or the one that was built with the benchmark.
pub fn binary() -> String {
    std::env::var("BENCH_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tidegate").into())
}

pub fn run(args: &[&str]) -> io::Result<()> {
    let mut command = processes::command(binary());
    processes::run(command.args(args), START_TIMEOUT).map(drop)
}
