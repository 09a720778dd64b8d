//! Five nodes, the load on them, and what may be done to both.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tidegate_testkit::certificates;
use tidegate_testkit::random::Random;
use tidegate_testkit::wait::until;
use tokio::task::JoinSet;

use crate::checks::NodeMetadata;
use crate::group::{Group, Key};
use crate::history::Event;
use crate::load::Load;
use crate::network::{Network, PLACES};
use crate::node::Node;

/// Nodes that run from the start; there is room for one that joins.
pub(crate) const NODES: usize = 5;

/// Nodes before they run.
pub(crate) struct Setup {
    pub(crate) nodes: Vec<Node>,
    /// More keys of `[cluster]` in every node's `cluster.toml`.
    pub(crate) cluster: String,
    /// More sections.
    pub(crate) more: String,
}

/// Nodes that run, under load.
pub(crate) struct Arena {
    pub(crate) nodes: Vec<Node>,
    pub(crate) load: Load,
    pub(crate) random: Random,
    pub(crate) network: Network,
    pub(crate) node_metadata: NodeMetadata,
    /// How long a fault that lasts is to last.
    pub(crate) hold: Duration,
    /// Broken promises that are no matter of the history.
    pub(crate) broken: Vec<String>,
}

/// How long the nodes may take to the first view.
const START_WITHIN: Duration = Duration::from_secs(30);
/// How long a read of a key, or one view, may take.
const TIMEOUT: Duration = Duration::from_secs(15);

impl Setup {
    /// Folders and certificates of all nodes that may run, below `runs`.
    pub(crate) fn new(runs: &Path, network: &Network) -> Self {
        fs::create_dir_all(runs).unwrap();
        let nodes: Vec<Node> = (0..PLACES).map(|token| Node::new(token, runs, network)).collect();
        let ids = nodes.iter().map(|node| node.id.as_str());
        certificates::write(env!("CARGO_BIN_EXE_tidegate"), &runs.join("pki"), ids);
        Self { nodes, cluster: String::new(), more: String::new() }
    }

    /// Starts the first five and waits for one view.
    pub(crate) async fn start(self, network: &Network, random: Random, hold: Duration) -> Arena {
        let Self { mut nodes, cluster, more } = self;
        let meshes: Vec<SocketAddr> = nodes.iter().map(|node| node.advertise).collect();
        for node in &nodes {
            let others = meshes[..NODES].iter().filter(|mesh| **mesh != node.advertise);
            node.write(&others.copied().collect::<Vec<_>>(), &cluster, &more);
        }
        for node in &mut nodes[..NODES] {
            node.start();
        }
        let load = Load::new(&nodes);
        let (network, node_metadata) = (network.clone(), NodeMetadata::default());
        let mut arena =
            Arena { nodes, load, random, network, node_metadata, hold, broken: Vec::new() };
        let what = format!("{NODES} nodes have one view");
        until(&what, START_WITHIN, async || arena.have_one_view().await).await;
        arena
    }
}

impl Arena {
    /// Nodes that run now.
    pub(crate) fn running(&self) -> Vec<usize> {
        self.nodes.iter().filter(|node| node.is_running()).map(|node| node.token).collect()
    }

    /// A node that runs, drawn.
    pub(crate) fn draw(&mut self) -> usize {
        let running = self.running();
        running[self.random.below(running.len())]
    }

    /// `kill -9`. The load stops at once.
    pub(crate) fn kill(&mut self, token: usize) {
        self.load.open(token, false);
        self.nodes[token].kill();
        self.node_metadata.crashes.push(self.load.now());
    }

    /// SIGTERM, and waits for its end. The load continues until it is not ready.
    pub(crate) async fn leave(&mut self, token: usize) {
        let node = &self.nodes[token];
        node.terminate();
        let not_ready = async || match node.is_ready().await {
            Ok(true) => Err("it is ready".to_owned()),
            Ok(false) | Err(_) => Ok(()),
        };
        until("a leaving node is not ready", TIMEOUT, not_ready).await;
        self.load.open(token, false);
        self.nodes[token].ended(Duration::from_secs(20)).await;
    }

    /// Starts a node and sends it load when it is ready.
    pub(crate) async fn start(&mut self, token: usize) {
        self.nodes[token].start();
        let node = &mut self.nodes[token];
        let ready = async || {
            node.assert_runs();
            if node.is_ready().await? { Ok(()) } else { Err("it is not".to_owned()) }
        };
        until("a node that starts is ready", START_WITHIN, ready).await;
        self.load.open(token, true);
    }

    /// Waits until the view of each running node is the running nodes; how long that took.
    pub(crate) async fn one_view(&mut self) -> Duration {
        let begun = tokio::time::Instant::now();
        while let Err(lacks) = self.have_one_view().await {
            if begun.elapsed() > TIMEOUT {
                self.broken.push(format!("no one view within {TIMEOUT:?}: {lacks}"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        begun.elapsed()
    }

    async fn have_one_view(&mut self) -> Result<(), String> {
        let running: Vec<String> =
            self.running().into_iter().map(|token| self.nodes[token].id.clone()).collect();
        let mut epochs = BTreeMap::new();
        for node in &mut self.nodes {
            node.assert_runs();
        }
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            if !node.is_ready().await? {
                return Err(format!("{} is not ready", node.id));
            }
            let status = node.status().await?;
            let is_up = |state: &str| matches!(state, "self" | "up");
            let up = status.members.iter().filter(|member| is_up(member.state.name()));
            let up: Vec<&String> = up.map(|member| &member.id).collect();
            if up.len() != status.members.len() || !up.into_iter().eq(&running) {
                let seen = status.members.iter();
                let seen = seen.map(|member| format!("{} {}", member.id, member.state.name()));
                return Err(format!("{} sees {}", node.id, seen.collect::<Vec<_>>().join(", ")));
            }
            epochs.insert(status.epoch, node.id.clone());
        }
        if epochs.len() == 1 { Ok(()) } else { Err(format!("epochs differ: {epochs:?}")) }
    }

    /// Answers by the fallback are counted: each node that ran all the time has counted at least as
    /// many as its clients received.
    pub(crate) async fn hold_policy_against(&mut self, history: &[Event]) {
        for node in &self.nodes[..NODES] {
            if !node.is_running() || node.starts() > 1 {
                continue;
            }
            let is_seen = |event: &&Event| event.token == node.token && event.answer.is_by_policy();
            let seen = i64::try_from(history.iter().filter(is_seen).count()).unwrap();
            match node.metric("tidegate_verdicts_total{source=\"policy\"}").await {
                Ok(counted) if counted >= seen => {}
                counted => {
                    let id = &node.id;
                    self.broken.push(format!(
                        "{id} counted {counted:?} answers by the fallback, clients received {seen}"
                    ));
                }
            }
        }
    }

    /// What the owners count for each key of [`Group::Count`] now, without a hit.
    pub(crate) async fn count(&mut self) {
        for index in 0..Group::Count.keys() {
            let key = Key { group: Group::Count, index };
            let token = self.draw();
            let load = &self.load;
            let peek = tokio::time::timeout(TIMEOUT, async {
                loop {
                    if let Ok(counted) = load.counted(token, key).await {
                        return counted;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            match peek.await {
                Ok(counted) => drop(self.node_metadata.counted.insert(key, counted)),
                Err(_) => self.broken.push(format!("no owner answers for {key:?}")),
            }
        }
    }

    /// Hits each key of `groups` until its owner refuses, so that what was admitted can be compared
    /// with the limit.
    pub(crate) async fn reach_limits(&mut self, groups: &[Group]) {
        let mut keys = JoinSet::new();
        let limited = Group::ALL.into_iter().filter(|group| group.has_limit_reached());
        for group in limited.filter(|group| groups.contains(group)) {
            for index in 0..group.keys() {
                let (load, mut random) = (self.load.clone(), self.random.apart());
                if keys.len() >= 16 {
                    keys.join_next().await;
                }
                keys.spawn(async move {
                    let key = Key { group, index };
                    // Beyond any limit: the checks report a key that still admits then.
                    for _ in 0..group.limit() * 3 {
                        let Some(token) = load.draw(&mut random) else { break };
                        let answer = load.hit(token, key).await;
                        if !answer.is_allowed() && !answer.is_by_policy() {
                            break;
                        }
                    }
                });
            }
        }
        keys.join_all().await;
    }
}
