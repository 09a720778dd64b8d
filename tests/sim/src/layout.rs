//! Which region each node is in, and how far the regions are from one another.
//!
//! Example: `eu` and `us` with three nodes each are homes of global keys, `w` with one node is a
//! witness. Nodes that start later belong to a region as well.

/// The regions of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) names: Vec<&'static str>,
    /// How many of the first regions are homes of global keys; 0 without global keys.
    pub(crate) homes: usize,
    /// The region of each node, those that start later included; the last ones are edges.
    pub(crate) of_nodes: Vec<usize>,
    /// Nodes of the role edge.
    pub(crate) edges: usize,
    /// Milliseconds of a datagram from one region to another, either way.
    pub(crate) latency_ms: Vec<Vec<u64>>,
    /// `None` without `global.founders`: homes never change.
    pub(crate) failover: Option<Failover>,
}

/// How the keys of a lost region move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failover {
    Auto,
    /// When an operator says so.
    Manual,
}

/// The default of `node.region`.
const ONLY: &str = "local";

impl Layout {
    /// One region with this number of nodes.
    pub(crate) fn single(nodes: usize) -> Self {
        Self {
            names: vec![ONLY],
            homes: 0,
            of_nodes: vec![0; nodes],
            edges: 0,
            latency_ms: vec![vec![0]],
            failover: None,
        }
    }

    pub(crate) fn name(&self, node: usize) -> &'static str {
        self.names[self.of_nodes[node]]
    }

    /// Adds an edge of the first region.
    pub(crate) fn add_edge(&mut self) {
        self.of_nodes.push(0);
        self.edges += 1;
    }

    /// The number of nodes that are no edges.
    pub(crate) fn cores(&self) -> usize {
        self.of_nodes.len() - self.edges
    }

    pub(crate) fn is_edge(&self, node: usize) -> bool {
        node >= self.cores()
    }

    /// The cores of `region`, those that start later included.
    pub(crate) fn nodes(&self, region: usize) -> impl Iterator<Item = usize> {
        let of_nodes = self.of_nodes[..self.cores()].iter().enumerate();
        of_nodes.filter(move |(_, of)| **of == region).map(|(node, _)| node)
    }

    pub(crate) fn are_together(&self, one: usize, other: usize) -> bool {
        self.of_nodes[one] == self.of_nodes[other]
    }

    /// Milliseconds of a datagram between two nodes.
    pub(crate) fn latency_ms(&self, from: usize, to: usize) -> u64 {
        self.latency_ms[self.of_nodes[from]][self.of_nodes[to]]
    }

    pub(crate) fn longest_ms(&self) -> u64 {
        self.latency_ms.iter().flatten().copied().max().unwrap_or(0)
    }

    /// The regions among which global keys are divided, sorted.
    pub(crate) fn home_names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.names[..self.homes].iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        names
    }

    pub(crate) fn has_global_keys(&self) -> bool {
        self.homes > 0
    }
}
