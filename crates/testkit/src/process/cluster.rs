//! Nodes with certificates of one authority, in a folder that is removed with them.

use tempfile::TempDir;
use tokio::sync::MutexGuard;

use super::Node;
use crate::http_client::Http;
use crate::{certificates, exclusive};

/// Running nodes. One cluster runs at a time.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub http: Http,
    /// Dropped after the nodes.
    pub dir: TempDir,
    program: &'static str,
    _exclusive: MutexGuard<'static, ()>,
}

/// How the nodes of a cluster are configured.
#[derive(Clone, Copy, Default)]
pub struct ClusterOptions<'a> {
    /// Ids of the nodes. A single node is outside of any cluster.
    pub nodes: &'a [&'a str],
    /// The rules of every node.
    pub rules: &'a str,
    /// More sections of every node's `cluster.toml`.
    pub config: &'a str,
    /// Keys given with `--set` to every node.
    pub sets: &'a [&'a str],
}

pub const THREE: &[&str] = &["n1", "n2", "n3"];

impl Cluster {
    /// Starts the nodes of `program` and waits until each is ready and has all others in its view.
    pub async fn start(program: &'static str, options: ClusterOptions<'_>) -> Self {
        let exclusive = exclusive::lock().await;
        let dir = tempfile::tempdir().unwrap();
        let http = Http::new();
        let node =
            |id: &&str| Node::new(program, dir.path(), id, options.rules, options.sets, &http);
        let nodes: Vec<Node> = options.nodes.iter().map(node).collect();
        if let [node] = &nodes[..] {
            node.write_config(options.config);
        } else {
            let ids = options.nodes.iter().copied();
            certificates::write(program, &dir.path().join("pki"), ids);
            for node in &nodes {
                node.write_config(&format!("{}{}", membership(node, &nodes), options.config));
            }
        }
        let mut cluster = Self { nodes, http, dir, program, _exclusive: exclusive };
        for node in &mut cluster.nodes {
            node.start();
        }
        let members = cluster.nodes.len();
        for node in &mut cluster.nodes {
            node.ready(members).await;
        }
        cluster
    }

    /// Three nodes with `rules`.
    pub async fn three(program: &'static str, rules: &str) -> Self {
        Self::start(program, ClusterOptions { nodes: THREE, rules, ..ClusterOptions::default() })
            .await
    }

    /// Starts one more node, with the others as its seeds, and waits until all have it in their
    /// view.
    pub async fn join(&mut self, id: &str, options: ClusterOptions<'_>) {
        certificates::issue(self.program, &self.dir.path().join("pki"), id);
        let mut node =
            Node::new(self.program, self.dir.path(), id, options.rules, options.sets, &self.http);
        node.write_config(&format!("{}{}", membership(&node, &self.nodes), options.config));
        node.start();
        self.nodes.push(node);
        self.one_view().await;
    }

    /// Waits until each running node is ready and has all running nodes in its view.
    pub async fn one_view(&mut self) {
        let members = self.nodes.iter().filter(|node| node.is_running()).count();
        for node in self.nodes.iter_mut().filter(|node| node.is_running()) {
            node.ready(members).await;
        }
    }

    /// The sum of one source of verdicts over all running nodes.
    pub async fn verdicts(&self, source: &str) -> u64 {
        let mut sum = 0;
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            sum += node.verdicts(source).await;
        }
        sum
    }
}

impl Drop for Cluster {
    /// SIGTERM for all at once. What still runs is killed when the nodes are dropped.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                node.terminate();
            }
        }
    }
}

/// `[cluster]` and `[tls]` of one node: the other nodes are its seeds, and all are founders.
fn membership(node: &Node, nodes: &[Node]) -> String {
    let Node { id, mesh, .. } = node;
    let seeds = nodes.iter().filter(|other| other.id != *id);
    let seeds: Vec<String> = seeds.map(|other| format!("{:?}", other.mesh.to_string())).collect();
    let seeds = seeds.join(", ");
    let founders: Vec<String> = nodes.iter().map(|node| format!("{:?}", node.id)).collect();
    let founders = founders.join(", ");
    format!(
        "[cluster]\nlisten = \"{mesh}\"\nseeds = [{seeds}]\nfounders = [{founders}]\n\
         [tls]\nca = \"../pki/ca.pem\"\ncert = \"../pki/{id}.pem\"\nkey = \"../pki/{id}.key\"\n\
         secret = \"../pki/cluster.secret\"\n"
    )
}
