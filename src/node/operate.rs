//! What an operator orders, for `tidegate bootstrap`, `tidegate forget` and `tidegate regions`.

use std::sync::Arc;

use tidegate_cluster::global::Global;
use tidegate_cluster::membership::{ForgetError, Membership};
use tidegate_ownership::identity::NodeId;

use super::inspect::View;
use crate::admin::{Operate, Refusal};

impl Operate for View {
    fn bootstrap(&self) -> Result<(), Refusal> {
        self.membership()?.bootstrap().map_err(Refusal::Conflict)
    }

    fn region_lost(&self, region: &str) -> Result<(), Refusal> {
        let membership = &self.global()?.membership;
        if !membership.maps().borrow().homes.contains(region) {
            return Err(Refusal::Unknown(format!("{region} is no home of global keys")));
        }
        membership.region_lost(region).map_err(|error| Refusal::Conflict(error.to_string()))
    }

    fn forget(&self, node: &str) -> Result<(), Refusal> {
        let membership = self.membership()?;
        let node = NodeId::new(node).map_err(|error| {
            Refusal::Unknown(format!("{node:?} is not the id of a node: {error}"))
        })?;
        membership.forget(&node).map_err(|error| match error {
            ForgetError::Unknown(_) => Refusal::Unknown(error.to_string()),
            _ => Refusal::Conflict(error.to_string()),
        })
    }
}

impl View {
    fn global(&self) -> Result<&Arc<Global>, Refusal> {
        let global = self.core.joined.as_ref().and_then(|joined| joined.global.as_ref());
        global.ok_or_else(|| {
            let text = "global.founders is not set: the homes of global keys never change";
            Refusal::Conflict(text.to_owned())
        })
    }

    fn membership(&self) -> Result<&Arc<Membership>, Refusal> {
        let joined = self.core.joined.as_ref();
        joined.map(|joined| &joined.membership).ok_or_else(|| {
            let text = match self.core.edge {
                Some(_) => "this is an edge, which is in no cluster map; ask a core",
                None => "this is a standalone node; set cluster.listen to run it in a cluster",
            };
            Refusal::Conflict(text.to_owned())
        })
    }
}
