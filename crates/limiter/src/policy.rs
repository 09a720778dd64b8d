//! The choices a rule makes about consistency and failure; `[defaults]` makes them for rules that
//! do not say.

use serde::{Deserialize, Serialize};

/// Who decides a rule's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The key's owner, exactly.
    #[default]
    Strict,
    /// Every node on the spot; columns are synchronised later.
    Eventual,
}

/// Which nodes share a strict limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The nodes of a region: each region enforces the limit by itself.
    #[default]
    Region,
    /// All nodes: one ring over all regions.
    Global,
}

/// The answer when the owner does not answer within the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnavailable {
    /// Let it pass.
    Allow,
    /// Refuse it.
    Deny,
    /// Decide alone on this node's share of the limit.
    #[default]
    Local,
}

/// What an owner owes its replicas before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing: they hear a few milliseconds later. A crash may forget the hits of that time.
    #[default]
    Async,
    /// One of them has confirmed the count. A crash of the owner forgets nothing that was answered.
    Replicated,
}
