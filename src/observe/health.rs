//! Readiness: a set of named conditions, all of which must hold.
//!
//! Every part of the node that can fail has its own condition, such as `rules` or `gossip`, and
//! sets it to red with a reason for the operator. `/readyz` and the gRPC health service return
//! [`Health::ready`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// The conditions of one node. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The red conditions with their reasons. Names are constants of the code, which bounds it.
    red: Arc<RwLock<BTreeMap<&'static str, String>>>,
}

impl Health {
    /// A starting node: `conditions` are red until each is set to green.
    pub fn starting(conditions: &[&'static str]) -> Self {
        let health = Self::default();
        for condition in conditions {
            health.red(condition, "starting");
        }
        health
    }

    /// Sets the condition to red for `reason`, or to green. Returns whether it was red.
    pub fn set(&self, condition: &'static str, reason: Option<impl Into<String>>) -> bool {
        let mut red = self.red.write();
        let before = match reason {
            Some(reason) => red.insert(condition, reason.into()),
            None => red.remove(condition),
        };
        before.is_some()
    }

    /// Sets the condition to red.
    pub fn red(&self, condition: &'static str, reason: impl Into<String>) {
        self.set(condition, Some(reason));
    }

    /// Sets the condition to green.
    pub fn green(&self, condition: &'static str) {
        self.set(condition, None::<String>);
    }

    /// Whether every condition is green.
    ///
    /// # Errors
    ///
    /// All reasons on one line: `gossip: starting; rules: edge.yaml:3: ...`.
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
