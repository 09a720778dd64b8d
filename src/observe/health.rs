//! Whether this node should be sent traffic: a set of named conditions, all of which must hold.
//!
//! A part of the node that can fail has a condition of its own and turns it red with a reason a
//! person understands: `rules`, `mesh`, `gossip`, `drain`. A load balancer asks [`Health::ready`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// The conditions of one node. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Why each red condition is red; a green one is not in it. There are as many as there are
    /// names in our own code, so this is bounded.
    red: Arc<RwLock<BTreeMap<&'static str, String>>>,
}

impl Health {
    /// A node whose `conditions` are red until each is turned green: a node that is still starting
    /// is not ready.
    pub fn starting(conditions: &[&'static str]) -> Self {
        let health = Self::default();
        for condition in conditions {
            health.red(condition, "starting");
        }
        health
    }

    /// The condition does not hold, and why.
    pub fn red(&self, condition: &'static str, reason: impl Into<String>) {
        self.red.write().insert(condition, reason.into());
    }

    /// The condition holds; whether it did not before.
    pub fn green(&self, condition: &'static str) -> bool {
        self.red.write().remove(condition).is_some()
    }

    /// Ready, or every reason why not on one line: `gossip: starting; rules: edge.yaml:3: ...`.
    pub fn ready(&self) -> Result<(), String> {
        let red = self.red.read();
        if red.is_empty() {
            return Ok(());
        }
        let reasons = red.iter().map(|(condition, reason)| format!("{condition}: {reason}"));
        Err(reasons.collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_when_every_condition_is_green() {
        let health = Health::starting(&["rules", "gossip"]);
        assert_eq!(health.ready(), Err("gossip: starting; rules: starting".to_owned()));
        health.green("gossip");
        health.clone().red("rules", "a.yaml:3: no domain");
        assert_eq!(health.ready(), Err("rules: a.yaml:3: no domain".to_owned()));
        health.green("rules");
        assert_eq!(health.ready(), Ok(()));
    }
}
