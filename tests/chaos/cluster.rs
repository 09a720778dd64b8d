//! Five nodes under load, and the operations on them.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_testkit::certificates;
use tidegate_testkit::random::Random;
use tidegate_testkit::wait::until;
use tokio::task::JoinSet;

use crate::checks::Observations;
use crate::group::{Group, Key};
use crate::history::Event;
use crate::load::Load;
use crate::network::{NODES_MAX, Network};
use crate::node::Node;

/// Nodes that run from the start; more may join.
pub(crate) const NODES: usize = 5;

/// Nodes that have not started.
pub(crate) struct Setup {
    pub(crate) nodes: Vec<Node>,
    /// Additional keys of `[cluster]` in every node's `cluster.toml`.
    pub(crate) cluster_options: String,
    /// Additional sections.
    pub(crate) sections: String,
    pki: PathBuf,
}

/// Running nodes under load.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) load: Load,
    pub(crate) random: Random,
    pub(crate) network: Network,
    pub(crate) observations: Observations,
    /// Duration of a fault that lasts.
    pub(crate) duration: Duration,
    /// Violations found outside the history.
    pub(crate) violations: Vec<String>,
}

/// Time limit for the first common view, and for a node to become ready.
const START_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for a read of a key and for a common view.
const TIMEOUT: Duration = Duration::from_secs(15);

impl Setup {
    /// Creates the folders of all nodes below `runs`.
    pub(crate) fn new(runs: &Path, network: &Network) -> Self {
        fs::create_dir_all(runs).unwrap();
        let nodes: Vec<Node> =
            (0..NODES_MAX).map(|node_index| Node::new(node_index, runs, network)).collect();
        let pki = runs.join("pki");
        Self { nodes, cluster_options: String::new(), sections: String::new(), pki }
    }

    /// Starts the first five nodes and waits until their views agree.
    pub(crate) async fn start(
        self,
        network: &Network,
        random: Random,
        duration: Duration,
    ) -> Cluster {
        let Self { mut nodes, cluster_options, sections, pki } = self;
        let named =
            nodes.iter().map(|node| (node.id.as_str(), node.region.map(|region| region.name)));
        certificates::write(env!("CARGO_BIN_EXE_tidegate"), &pki, named);
        let meshes: Vec<SocketAddr> = nodes.iter().map(|node| node.advertise).collect();
        for node in &nodes {
            let others = meshes[..NODES].iter().filter(|mesh| **mesh != node.advertise);
            node.write(&others.copied().collect::<Vec<_>>(), &cluster_options, &sections);
        }
        for node in &mut nodes[..NODES] {
            node.start();
        }
        let load = Load::new(&nodes);
        let (network, observations) = (network.clone(), Observations::default());
        let mut cluster = Cluster {
            nodes,
            load,
            random,
            network,
            observations,
            duration,
            violations: Vec::new(),
        };
        let what = format!("{NODES} nodes agree on one view");
        until(&what, START_WITHIN, async || cluster.check_convergence().await).await;
        // A cluster begins with fewer voters: only now the larger side of a cut has most of them.
        until("all nodes vote that may", START_WITHIN, async || cluster.check_voters().await).await;
        cluster
    }
}

impl Cluster {
    /// Indexes of the running nodes.
    pub(crate) fn running(&self) -> Vec<usize> {
        self.nodes.iter().filter(|node| node.is_running()).map(|node| node.index).collect()
    }

    /// Draws a running node.
    pub(crate) fn draw(&mut self) -> usize {
        let running = self.running();
        running[self.random.below(running.len())]
    }

    /// `kill -9`. The load on the node stops at once.
    pub(crate) fn kill(&mut self, node_index: usize) {
        self.load.open(node_index, false);
        self.nodes[node_index].kill();
        self.observations.crashes.push(self.load.now());
    }

    /// Sends SIGTERM and waits for the exit. The load continues until the node is not ready.
    pub(crate) async fn leave(&mut self, node_index: usize) {
        let node = &self.nodes[node_index];
        node.terminate();
        let not_ready = async || match node.is_ready().await {
            Ok(true) => Err("it is ready".to_owned()),
            Ok(false) | Err(_) => Ok(()),
        };
        until("a leaving node is not ready", TIMEOUT, not_ready).await;
        self.load.open(node_index, false);
        self.nodes[node_index].wait_for_exit(Duration::from_secs(20)).await;
    }

    /// Starts a node, and load on it once it is ready.
    pub(crate) async fn start(&mut self, node_index: usize) {
        self.nodes[node_index].start();
        let node = &mut self.nodes[node_index];
        let ready = async || {
            node.assert_running();
            if node.is_ready().await? { Ok(()) } else { Err("it is not ready".to_owned()) }
        };
        until("a node that starts is ready", START_WITHIN, ready).await;
        self.load.open(node_index, true);
    }

    /// Waits until the view of each running node is the running nodes; returns how long that took.
    pub(crate) async fn await_convergence(&mut self) -> Duration {
        let started = tokio::time::Instant::now();
        while let Err(difference) = self.check_convergence().await {
            if started.elapsed() > TIMEOUT {
                self.violations.push(format!("views differ after {TIMEOUT:?}: {difference}"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        started.elapsed()
    }

    async fn check_voters(&self) -> Result<(), String> {
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let map = node.map().await?;
            let nodes = node.region.map_or(NODES, |region| region.nodes);
            let wanted = if nodes % 2 == 0 { nodes - 1 } else { nodes };
            if map.voters != wanted || map.voters_change {
                return Err(format!("{wanted} are to vote; {} knows {map:?}", node.id));
            }
        }
        Ok(())
    }

    async fn check_convergence(&mut self) -> Result<(), String> {
        let running: Vec<String> = self
            .running()
            .into_iter()
            .map(|node_index| self.nodes[node_index].id.clone())
            .collect();
        // By region: each has a ring.
        let mut epochs = BTreeMap::new();
        for node in &mut self.nodes {
            node.assert_running();
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
            let known = epochs.entry(status.node.region).or_insert_with(|| status.epoch.clone());
            if *known != status.epoch {
                return Err(format!("{} is at {}, others at {known}", node.id, status.epoch));
            }
        }
        Ok(())
    }

    /// Compares the nodes' counts of fallback answers with the history: each node that never
    /// restarted must have counted at least as many as its clients received.
    pub(crate) async fn check_fallback_counts(&mut self, history: &[Event]) {
        for node in &self.nodes[..NODES] {
            if !node.is_running() || node.starts() > 1 {
                continue;
            }
            let is_seen =
                |event: &&Event| event.node_index == node.index && event.answer.is_fallback();
            let seen = i64::try_from(history.iter().filter(is_seen).count()).unwrap();
            match node.metric("tidegate_verdicts_total{source=\"policy\"}").await {
                Ok(counted) if counted >= seen => {}
                counted => {
                    let id = &node.id;
                    self.violations.push(format!(
                        "{id} counted {counted:?} answers by the fallback, clients received {seen}"
                    ));
                }
            }
        }
    }

    /// Reads the owners' counts for each key of [`Group::Count`], without a hit.
    pub(crate) async fn count(&mut self) {
        for index in 0..Group::Count.keys() {
            let key = Key { group: Group::Count, index };
            let node_index = self.draw();
            let load = &self.load;
            let peek = tokio::time::timeout(TIMEOUT, async {
                loop {
                    if let Ok(counted) = load.counted(node_index, key).await {
                        return counted;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            match peek.await {
                Ok(counted) => drop(self.observations.counted.insert(key, counted)),
                Err(_) => self
                    .violations
                    .push(format!("no answer of the owner of {key:?} within {TIMEOUT:?}")),
            }
        }
    }

    /// Sends hits to each key of `groups` until its owner refuses, so that the admitted hits can be
    /// compared with the limit.
    pub(crate) async fn reach_limits(&mut self, groups: &[Group]) {
        let mut keys = JoinSet::new();
        let limited = Group::ALL.into_iter().filter(|group| group.reaches_limit());
        for group in limited.filter(|group| groups.contains(group)) {
            for index in 0..group.keys() {
                let (load, mut random) = (self.load.clone(), self.random.apart());
                if keys.len() >= 16 {
                    keys.join_next().await;
                }
                keys.spawn(async move {
                    let key = Key { group, index };
                    // More than any limit: the checks report a key that still admits.
                    for _ in 0..group.limit() * 3 {
                        let Some(node_index) = load.draw(&mut random) else { break };
                        let answer = load.hit(node_index, key).await;
                        if !answer.is_allowed() && !answer.is_fallback() {
                            break;
                        }
                    }
                });
            }
        }
        keys.join_all().await;
    }
}
