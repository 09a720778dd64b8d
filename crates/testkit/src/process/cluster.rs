//! Nodes with one authority, in a folder that goes away with them.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use super::Node;
use crate::http_client::Http;

/// One cluster at a time: two cores have to carry it, and some tests say how fast it must be.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Running nodes.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub http: Http,
    /// After the nodes: they are gone before their files are.
    pub dir: TempDir,
    program: &'static str,
    _alone: MutexGuard<'static, ()>,
}

/// What a cluster is made of.
#[derive(Clone, Copy, Default)]
pub struct Shape<'a> {
    /// Ids of the nodes; one alone joins nothing.
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
    /// Starts the nodes and waits until each is ready and sees all others.
    pub async fn start(program: &'static str, shape: Shape<'_>) -> Self {
        let alone = ALONE.lock().await;
        let dir = tempfile::tempdir().unwrap();
        let http = Http::new();
        let node = |id: &&str| Node::new(program, dir.path(), id, shape.rules, shape.sets, &http);
        let nodes: Vec<Node> = shape.nodes.iter().map(node).collect();
        if let [node] = &nodes[..] {
            node.write_config(shape.config);
        } else {
            make_authority(program, &dir.path().join("pki"), shape.nodes);
            for node in &nodes {
                node.write_config(&format!("{}{}", membership(node, &nodes), shape.config));
            }
        }
        let mut cluster = Self { nodes, http, dir, program, _alone: alone };
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
        Self::start(program, Shape { nodes: THREE, rules, ..Shape::default() }).await
    }

    /// Starts one more node, with the others as its seeds, and waits until all see it.
    pub async fn join(&mut self, id: &str, shape: Shape<'_>) {
        issue(self.program, &self.dir.path().join("pki"), id);
        let mut node =
            Node::new(self.program, self.dir.path(), id, shape.rules, shape.sets, &self.http);
        node.write_config(&format!("{}{}", membership(&node, &self.nodes), shape.config));
        node.start();
        self.nodes.push(node);
        self.one_view().await;
    }

    /// Waits until each node that runs is ready and sees all that run.
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
    /// Politely at first, so that a node that does not end on SIGTERM is seen in its own test and
    /// not hidden here; what still runs is killed when the nodes are dropped.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                node.terminate();
            }
        }
    }
}

fn make_authority(program: &str, pki: &Path, nodes: &[&str]) {
    ca(program, pki, &["init"]);
    for node in nodes {
        issue(program, pki, node);
    }
    assert!(fs::metadata(pki.join("cluster.secret")).is_ok());
}

fn issue(program: &str, pki: &Path, node: &str) {
    ca(program, pki, &["issue", "--node", node]);
}

fn ca(program: &str, pki: &Path, args: &[&str]) {
    let mut command = Command::new(program);
    let command = command.env_clear().arg("ca").args(args).arg("--dir").arg(pki);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `[cluster]` and `[tls]` of one node: the other nodes are its seeds.
fn membership(node: &Node, nodes: &[Node]) -> String {
    let Node { id, mesh, .. } = node;
    let seeds = nodes.iter().filter(|other| other.id != *id);
    let seeds: Vec<String> = seeds.map(|other| format!("{:?}", other.mesh.to_string())).collect();
    let seeds = seeds.join(", ");
    format!(
        "[cluster]\nlisten = \"{mesh}\"\nseeds = [{seeds}]\n\
         [tls]\nca = \"../pki/ca.pem\"\ncert = \"../pki/{id}.pem\"\nkey = \"../pki/{id}.key\"\n\
         secret = \"../pki/cluster.secret\"\n"
    )
}
