//! What the nodes count about themselves.

use std::collections::BTreeMap;

use tidegate_testkit::process::Cluster;

/// All samples of each node.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Vec<BTreeMap<String, f64>>);

impl Metrics {
    /// Of the running nodes, in their order.
    pub(crate) async fn read(cluster: &Cluster) -> Self {
        let mut nodes = Vec::new();
        for node in &cluster.nodes {
            let text = cluster.http.get(node.admin, "/metrics").await.unwrap().body;
            let sample = |line: &str| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            };
            nodes.push(text.lines().filter_map(sample).collect());
        }
        Self(nodes)
    }

    /// The growth of a sample since `before`, over all nodes.
    pub(crate) fn since(&self, before: &Self, sample: &str) -> f64 {
        (0..self.0.len()).map(|node| self.of_node_since(before, node, sample)).sum()
    }

    /// The growth of a sample of one node since `before`.
    pub(crate) fn of_node_since(&self, before: &Self, node: usize, sample: &str) -> f64 {
        let of = |metrics: &Self| {
            *metrics.0[node]
                .get(sample)
                .unwrap_or_else(|| panic!("no {sample} in {:?}", metrics.0[node].keys()))
        };
        of(self) - of(before)
    }

    /// Descriptors that were decided since `before`, by source.
    pub(crate) fn verdicts_since(&self, before: &Self, source: &str) -> f64 {
        self.since(before, &format!("tidegate_verdicts_total{{source=\"{source}\"}}"))
    }

    /// Calls and replies that were sent since `before`, by kind.
    pub(crate) fn messages_since(&self, before: &Self, kind: &str) -> f64 {
        self.since(before, &format!("tidegate_mesh_sent_messages_total{{kind=\"{kind}\"}}"))
    }

    /// The bytes of these.
    pub(crate) fn bytes_since(&self, before: &Self, kind: &str) -> f64 {
        self.since(before, &format!("tidegate_mesh_sent_bytes_total{{kind=\"{kind}\"}}"))
    }
}
