//! A value that follows from the topology, computed again only after a change of it.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_ownership::route::Topology;

pub(super) struct PerTopology<T>(Mutex<Option<(Arc<Topology>, T)>>);

impl<T> Default for PerTopology<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> PerTopology<T> {
    pub(super) fn get(&self, topology: &Arc<Topology>, compute: impl FnOnce(&Topology) -> T) -> T {
        let mut last = self.0.lock();
        match &*last {
            Some((of, value)) if Arc::ptr_eq(of, topology) => value.clone(),
            _ => last.insert((topology.clone(), compute(topology))).1.clone(),
        }
    }
}
