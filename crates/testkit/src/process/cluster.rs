//! Nodes with certificates of one authority, in a folder that is removed with them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::Node;
use crate::exclusive::Exclusive;
use crate::http_client::{Http, Reply, check_body};
use crate::relay::{Link, Relay};
use crate::{certificates, exclusive};

/// Running nodes. Few clusters run at a time ([`exclusive`]).
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub http: Http,
    /// Dropped after the nodes.
    pub dir: TempDir,
    program: &'static str,
    /// Ids of the nodes that it was started with.
    founders: Vec<String>,
    /// In front of the meshes of regions that are far from each other, by the index of the node.
    relays: Vec<Relay>,
    _exclusive: Exclusive,
}

/// Cuts a region off.
pub struct Cutter {
    /// The nodes of the region.
    meshes: Vec<SocketAddr>,
    /// To each node, and whether it is in the region.
    links: Vec<(bool, Arc<Link>)>,
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
    /// Whether nodes keep the cluster map on a disk: they remain voters over a restart. Otherwise
    /// the nodes of the start are the only voters.
    pub has_disks: bool,
    /// Whether `limits.drain_delay` is as configured. Otherwise nodes drain at once.
    pub has_drain_delay: bool,
    /// Regions with the ids of their nodes, also of those that join later. None: all nodes are in
    /// one.
    pub regions: &'a [(&'a str, &'a [&'a str])],
}

impl<'a> ClusterOptions<'a> {
    /// The region of the node `id`, if it is in one of `regions`.
    pub fn region(&self, id: &str) -> Option<&'a str> {
        let has = |(_, nodes): &&(&str, &[&str])| nodes.contains(&id);
        self.regions.iter().find(has).map(|(name, _)| *name)
    }
}

pub const THREE: &[&str] = &["n1", "n2", "n3"];

impl Cluster {
    /// Starts the nodes of `program` and waits until each is ready and has all others in its view.
    pub async fn start(program: &'static str, options: ClusterOptions<'_>) -> Self {
        Self::start_with(program, options, exclusive::share().await).await
    }

    /// The same for a test that measures, or keeps the machine busy: see [`exclusive::alone`].
    pub async fn start_alone(program: &'static str, options: ClusterOptions<'_>) -> Self {
        Self::start_with(program, options, exclusive::alone().await).await
    }

    /// As [`Cluster::start_alone`], with regions that are `round_trip` apart: what passes between
    /// them is delayed, and cut by a [`Cutter`].
    pub async fn start_apart(
        program: &'static str,
        options: ClusterOptions<'_>,
        round_trip: Duration,
    ) -> Self {
        let mut cluster = Self::create(program, options, exclusive::alone().await);
        for node in &cluster.nodes {
            let near = cluster.in_region(&options, options.region(&node.id));
            let link = Link::long(round_trip).near(near.map(|node| node.mesh));
            cluster.relays.push(Relay::start(node.mesh, link).await);
        }
        cluster.start_all(options).await;
        cluster
    }

    async fn start_with(
        program: &'static str,
        options: ClusterOptions<'_>,
        exclusive: Exclusive,
    ) -> Self {
        let mut cluster = Self::create(program, options, exclusive);
        cluster.start_all(options).await;
        cluster
    }

    fn create(program: &'static str, options: ClusterOptions<'_>, exclusive: Exclusive) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let http = Http::new();
        let node = |id: &&str| Node::new(program, dir.path().join(id), id, &options, &http);
        let nodes: Vec<Node> = options.nodes.iter().map(node).collect();
        let founders = options.nodes.iter().map(ToString::to_string).collect();
        let relays = Vec::new();
        Self { nodes, http, dir, program, founders, relays, _exclusive: exclusive }
    }

    async fn start_all(&mut self, options: ClusterOptions<'_>) {
        if let [node] = &self.nodes[..] {
            node.write_config(options.config);
        } else {
            let ids = options.nodes.iter().map(|id| (*id, options.region(id)));
            certificates::write(self.program, &self.dir.path().join("pki"), ids);
            for node in &self.nodes {
                self.write_config(node, &options);
            }
        }
        for node in &mut self.nodes {
            node.start();
        }
        self.one_view().await;
    }

    /// Three nodes with `rules`, whose owners have a second to answer: on a busy machine a process
    /// may stand still for longer than the ten milliseconds of the default, and a test of what an
    /// owner answers would see what `on_unavailable` does instead.
    pub async fn three(program: &'static str, rules: &str) -> Self {
        let sets = &["cluster.deadline=1s"];
        Self::start(program, ClusterOptions { nodes: THREE, rules, sets, ..Default::default() })
            .await
    }

    /// Starts one more node, with the others as its seeds, and waits until all have it in their
    /// view.
    pub async fn join(&mut self, id: &str, options: ClusterOptions<'_>) {
        self.add(id, id, options).start();
        self.one_view().await;
    }

    /// A further node, in the folder `folder` of the cluster, with the others as its seeds. It does
    /// not run yet. Its id may be that of another node.
    pub fn add(&mut self, id: &str, folder: &str, options: ClusterOptions<'_>) -> &mut Node {
        if self.nodes.iter().all(|node| node.id != id) {
            certificates::issue(self.program, &self.dir.path().join("pki"), id, options.region(id));
        }
        self.add_without_certificate(id, folder, options)
    }

    /// The same for a node that is to get its certificate in another way.
    fn add_without_certificate(
        &mut self,
        id: &str,
        folder: &str,
        options: ClusterOptions<'_>,
    ) -> &mut Node {
        let node = Node::new(self.program, self.dir.path().join(folder), id, &options, &self.http);
        self.write_config(&node, &options);
        self.nodes.push(node);
        self.nodes.last_mut().expect("just added")
    }

    /// A further node with the files that `tidegate join` wrote into `pki`. It does not run yet.
    pub fn add_joined(&mut self, id: &str, pki: &Path, options: ClusterOptions<'_>) -> &mut Node {
        let folder = format!("{id}-{}", pki.file_name().unwrap().display());
        let node = self.add_without_certificate(id, &folder, options);
        for (key, name) in [
            ("ca", "ca.pem"),
            ("cert", "node.pem"),
            ("key", "node.key"),
            ("secret", "cluster.secret"),
        ] {
            node.set(&format!("tls.{key}={}", pki.join(name).display()));
        }
        node
    }

    /// An edge whose seeds are the first two nodes. It does not run yet, and is none of the nodes.
    pub fn edge(&self, id: &str, options: ClusterOptions<'_>) -> Node {
        certificates::issue_edge(self.program, &self.dir.path().join("pki"), id);
        let options = ClusterOptions { has_disks: false, ..options };
        let mut edge = Node::new(self.program, self.dir.path().join(id), id, &options, &self.http);
        let seeds = list(self.nodes.iter().take(2).map(|node| node.mesh.to_string()));
        edge.write_config(&format!("[cluster]\nseeds = {seeds}\n{}{}", tls(id), options.config));
        edge.set("node.role=edge");
        edge
    }

    /// What cuts `region` off from all others; of a cluster that was
    /// [started apart](Cluster::start_apart).
    pub fn cutter(&self, options: &ClusterOptions<'_>, region: &str) -> Cutter {
        assert_eq!(self.relays.len(), self.nodes.len(), "the regions are not apart");
        let of = |node: &Node| options.region(&node.id) == Some(region);
        let meshes = self.nodes.iter().filter(|node| of(node)).map(|node| node.mesh).collect();
        let links = self.nodes.iter().zip(&self.relays);
        let links = links.map(|(node, relay)| (of(node), relay.link.clone())).collect();
        Cutter { meshes, links }
    }

    /// The nodes of a region.
    pub fn in_region<'a>(
        &'a self,
        options: &'a ClusterOptions<'_>,
        region: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().filter(move |node| options.region(&node.id) == region)
    }

    /// Waits until each running node is ready and has all running nodes in its view.
    pub async fn one_view(&mut self) {
        let members = self.nodes.iter().filter(|node| node.is_running()).count();
        for node in self.nodes.iter_mut().filter(|node| node.is_running()) {
            node.ready(members).await;
        }
    }

    /// The first `count` of `PREFIX-0`, `PREFIX-1` and so on whose owner is `node`, as values of
    /// `key`, by what the first running node says.
    pub async fn owned(
        &self,
        domain: &str,
        key: &str,
        prefix: &str,
        node: &str,
        count: usize,
    ) -> Vec<String> {
        let asked = self.nodes.iter().find(|node| node.is_running()).expect("a running node");
        let mut owned = Vec::new();
        for number in 0..10_000 {
            let value = format!("{prefix}-{number}");
            if asked.owner(domain, key, &value).await == node {
                owned.push(value);
            }
            if owned.len() == count {
                return owned;
            }
        }
        panic!("{node} owns only {} of 10000 values of {key}", owned.len())
    }

    /// How many of `checks` checks the nodes at `indexes` admit, in turn. One that does not listen
    /// admits nothing.
    pub async fn admitted(
        &self,
        indexes: &[usize],
        domain: &str,
        key: &str,
        value: &str,
        checks: usize,
    ) -> usize {
        let body = check_body(domain, key, value);
        // Connections of before may belong to a process that was killed.
        let http = Http::new();
        let mut admitted = 0;
        for turn in 0..checks {
            let node = &self.nodes[indexes[turn % indexes.len()]];
            match http.check(node.http, &body).await {
                Ok(Reply { status: 200, .. }) => admitted += 1,
                Ok(Reply { status: 429, .. }) => {}
                Ok(reply) => panic!("{}: {reply:?}", node.id),
                Err(error) => assert!(error.contains("refused"), "{}: {error}", node.id),
            }
        }
        admitted
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

impl Cutter {
    /// Cuts it off, or ends that.
    pub fn cut(&self, is_cut: bool) {
        for (is_of_region, link) in &self.links {
            if *is_of_region {
                link.cut(is_cut);
            } else {
                self.meshes.iter().for_each(|mesh| link.cut_one(*mesh, is_cut));
            }
        }
    }
}

// === impl Cluster: configuration ===

impl Cluster {
    /// Writes the file of `node`: the other nodes are its seeds, and those of the start found the
    /// cluster, each that of its region.
    fn write_config(&self, node: &Node, options: &ClusterOptions<'_>) {
        let Node { id, mesh, .. } = node;
        let reached_at = |at: usize| self.relays.get(at).map_or(self.nodes[at].mesh, |it| it.front);
        let others = (0..self.nodes.len()).filter(|other| self.nodes[*other].id != *id);
        let seeds = list(others.map(|other| reached_at(other).to_string()));
        let own = self.nodes.iter().position(|other| other.mesh == *mesh);
        // A node that is being added is reached directly.
        let advertise = own.map_or(*mesh, reached_at);
        let region = options.region(id);
        let founders = self.founders.iter().filter(|founder| options.region(founder) == region);
        let founders = list(founders.cloned());
        let regions = list(options.regions.iter().map(|(name, _)| (*name).to_owned()));
        node.write_config(&format!(
            "[cluster]\nlisten = \"{mesh}\"\nadvertise = \"{advertise}\"\nseeds = {seeds}\n\
             founders = {founders}\n\
             regions = {regions}\n{}{}",
            tls(id),
            options.config
        ));
    }
}

/// The files of the node `id`.
fn tls(id: &str) -> String {
    format!(
        "[tls]\nca = \"../pki/ca.pem\"\ncert = \"../pki/{id}.pem\"\nkey = \"../pki/{id}.key\"\n\
         secret = \"../pki/cluster.secret\"\n"
    )
}

/// A list of strings in TOML.
fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(", "))
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
