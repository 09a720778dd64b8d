//! Consistency and failure policy of a rule. `[defaults]` sets the values for rules that omit them.

use serde::{Deserialize, Serialize};

/// Where a rule's limits are decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By the key's owner, exactly.
    #[default]
    Strict,
    /// By the node that receives the request, from hits that the key's owner has granted it; near
    /// the limit by the owner. Never over the limit.
    Leased,
    /// By the node that receives the request; per-actor counters are synchronised later.
    Eventual,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Strict, Self::Leased, Self::Eventual];

    /// Its name in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Leased => "leased",
            Self::Eventual => "eventual",
        }
    }
}

/// Which nodes share a strict or a leased limit. Rings are arrays in the order of the variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The nodes of a region: each region enforces the limit separately.
    #[default]
    Region,
    /// All nodes: one ring over all regions.
    Global,
}

/// The answer when the owner does not respond within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnavailable {
    Allow,
    Deny,
    /// Decide on this node's share of the limit.
    #[default]
    Local,
}

/// When an owner may answer, relative to replication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// At once; replicas receive the count some milliseconds later. A crash of the owner may lose
    /// the hits of that time.
    #[default]
    Async,
    /// After one replica has confirmed the count. A crash of the owner loses no answered hit.
    Replicated,
}
