//! One `tidegate serve` in its own namespace.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::admin::report::MapReport;
use tidegate::admin::{MembersReport, StatusReport};
use tidegate_testkit::http_client::Http;
use tidegate_testkit::process::Process;

use crate::cluster::NODES;
use crate::network::{self, Network};
use crate::{group, shell};

/// A node, running or stopped.
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) index: usize,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Address at which peers reach its mesh: its own, or that of a relay.
    pub(crate) advertise: SocketAddr,
    /// Otherwise all nodes are in one region.
    pub(crate) region: Option<Region>,
    client: Arc<Mutex<Http>>,
    dir: PathBuf,
    network: Network,
    environment: Vec<(String, String)>,
    /// A command prefix, such as `unshare`.
    command_prefix: Vec<String>,
    process: Option<Process>,
    starts: u32,
}

/// A region, and the number of its nodes at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) name: &'static str,
    pub(crate) nodes: usize,
}

const HTTP_PORT: u16 = 8080;
const ADMIN_PORT: u16 = 8082;
pub(crate) const MESH_PORT: u16 = 7600;
/// Folder of the counts, below the node's folder.
const DISK: &str = "disk";

impl Node {
    pub(crate) fn new(index: usize, runs: &Path, network: &Network) -> Self {
        let id = format!("n{}", index + 1);
        let at = |port| SocketAddr::new(network::node_ip(index), port);
        Self {
            index,
            http: at(HTTP_PORT),
            admin: at(ADMIN_PORT),
            advertise: at(MESH_PORT),
            region: None,
            client: Arc::new(Mutex::new(Http::new())),
            dir: runs.join(&id),
            id,
            network: network.clone(),
            environment: Vec::new(),
            command_prefix: Vec::new(),
            process: None,
            starts: 0,
        }
    }

    /// Writes `cluster.toml` and the rules.
    pub(crate) fn write(&self, seeds: &[SocketAddr], cluster_options: &str, sections: &str) {
        let Self { id, http, admin, advertise, .. } = self;
        let mesh = SocketAddr::new(network::node_ip(self.index), MESH_PORT);
        let seeds: Vec<String> = seeds.iter().map(|seed| format!("\"{seed}\"")).collect();
        let seeds = seeds.join(", ");
        let region = self.region.map(|region| format!("region = \"{}\"\n", region.name));
        let region = region.unwrap_or_default();
        let founders = self.region.map_or(NODES, |region| region.nodes);
        let config = format!(
            "[node]\nid = \"{id}\"\n{region}data_dir = \"{DISK}\"\n[http]\nlisten = \"{http}\"\n[admin]\nlisten = \"{admin}\"\n\
             [rules]\npath = \"rules\"\n\
             [cluster]\nlisten = \"{mesh}\"\nadvertise = \"{advertise}\"\nseeds = [{seeds}]\n\
             bootstrap_expect = {founders}\n{cluster_options}[tls]\nca = \"../pki/ca.pem\"\ncert = \"../pki/{id}.pem\"\n\
             key = \"../pki/{id}.key\"\n\
             secret = \"../pki/cluster.secret\"\n\
             [storage]\ninterval = \"500ms\"\n{sections}\n"
        );
        fs::create_dir_all(self.dir.join("rules")).unwrap();
        fs::create_dir_all(self.disk()).unwrap();
        fs::write(self.dir.join("cluster.toml"), config).unwrap();
        fs::write(self.dir.join("rules/rules.yaml"), group::rules()).unwrap();
    }

    /// Sets an environment variable from the next start on.
    pub(crate) fn set_variable(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Limits the size of its disk from the next start on. The disk is a mount that only the
    /// process sees and that ends with it.
    pub(crate) fn set_disk_size(&mut self, size: &str) {
        let mount = format!("mount -t tmpfs -o size={size} none \"$0\" && exec \"$@\"");
        self.command_prefix =
            ["unshare", "--mount", "sh", "-c", &mount].map(str::to_owned).to_vec();
        self.command_prefix.push(self.disk().display().to_string());
    }

    pub(crate) fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.id);
        let mut command = shell::command("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.network.node(self.index))).arg("--");
        command.args(&self.command_prefix);
        if !self.environment.is_empty() {
            command.arg("env");
            command.args(self.environment.iter().map(|(name, value)| format!("{name}={value}")));
        }
        command.arg(env!("CARGO_BIN_EXE_tidegate")).arg("serve");
        command.arg("--config").arg(self.dir.join("cluster.toml"));
        // Connections to the previous process are closed; the first use of each would fail.
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Http::new();
        self.starts += 1;
        self.process = Some(Process::spawn(&self.id, &mut command, &self.dir.join("log")));
    }

    /// The HTTP client of the load.
    pub(crate) fn client(&self) -> Arc<Mutex<Http>> {
        self.client.clone()
    }

    pub(crate) fn http(&self) -> Http {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `GET /status`.
    pub(crate) async fn status(&self) -> Result<StatusReport, String> {
        let reply = self.http().get(self.admin, "/status").await?;
        serde_json::from_str(&reply.body).map_err(|error| format!("{error} in {}", reply.body))
    }

    /// The cluster map by which it decides.
    pub(crate) async fn map(&self) -> Result<MapReport, String> {
        let reply = self.http().get(self.admin, "/members").await?;
        let report: MembersReport = serde_json::from_str(&reply.body)
            .map_err(|error| format!("{error}: {}", reply.body))?;
        report.map.ok_or_else(|| "it knows no cluster".to_owned())
    }

    /// Reads one sample of `/metrics`, by name and labels.
    pub(crate) async fn metric(&self, sample: &str) -> Result<i64, String> {
        let text = self.http().get(self.admin, "/metrics").await?.body;
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| format!("{} has no {sample}", self.id))
    }

    /// Number of starts.
    pub(crate) fn starts(&self) -> u32 {
        self.starts
    }

    /// Reads `/readyz`.
    pub(crate) async fn is_ready(&self) -> Result<bool, String> {
        Ok(self.http().get(self.http, "/readyz").await?.status == 200)
    }

    pub(crate) fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    pub(crate) fn terminate(&self) {
        self.running().terminate();
    }

    /// Waits for the exit after [`Node::terminate`].
    pub(crate) async fn wait_for_exit(&mut self, within: Duration) {
        let mut process = self.process.take().expect("it runs");
        let status = process.ended(within).await;
        assert!(status.success(), "{} ended with {status}\n{}", self.id, process.tail());
    }

    pub(crate) fn pause(&self) {
        self.running().pause();
    }

    pub(crate) fn resume(&self) {
        self.running().resume();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Panics with the end of the log if the process has exited.
    pub(crate) fn assert_running(&mut self) {
        if let Some(process) = self.process.as_mut()
            && let Some(status) = process.exit()
        {
            panic!("{} ended with {status}\n{}", self.id, process.tail());
        }
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.running().resident_bytes()
    }

    /// Folder of the counts, as the node's process sees it.
    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.join(DISK)
    }

    /// The same folder, as this process sees it.
    pub(crate) fn disk_from_host(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.running().pid()));
        root.join(self.disk().strip_prefix("/").expect("an absolute path"))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.dir
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }
}
