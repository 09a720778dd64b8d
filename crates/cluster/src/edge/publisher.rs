//! The core: sends its followers what they lack ([`Followers`]).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_ownership::ClusterMap;
use tidegate_ownership::cluster_map::MapState;
use tidegate_ownership::membership::View;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::followers::Followers;
use crate::mesh::wire::{Call, ClusterView, EdgeCall};
use crate::mesh::{Mesh, Peer, StreamClass};
use crate::ownership::{Driver, Ownership};

/// Sends edges what this core knows of the cluster.
#[derive(Debug, Default)]
pub struct Publisher {
    followers: Mutex<Followers>,
    wake: Notify,
}

/// What it is read from.
#[derive(Debug)]
pub struct Sources {
    pub maps: watch::Receiver<Arc<ClusterMap>>,
    /// With `global.founders`.
    pub global_maps: Option<watch::Receiver<Arc<ClusterMap>>>,
    pub views: watch::Receiver<View>,
    pub ownership: Ownership,
    pub driver: Arc<Driver>,
}

/// How often it looks for changes.
const INTERVAL: Duration = Duration::from_millis(100);

impl Publisher {
    /// The edge `from` follows this core, and has this revision of it. One of another region has no
    /// use for the map of this one.
    pub fn follow_received(&self, from: &Peer, revision: u64, mesh: &Mesh) {
        if from.region == mesh.region() {
            let now = mesh.clock.monotonic();
            self.followers.lock().follows(&from.id, from.generation, revision, now);
            self.wake.notify_one();
        }
    }

    /// Sends until `stop`.
    pub async fn run(self: Arc<Self>, sources: Sources, mesh: Arc<Mesh>, stop: CancellationToken) {
        let mut ticks = mesh.ticks.every(INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
                () = self.wake.notified() => {}
            }
            let followers = &mut *self.followers.lock();
            let (now, edges) = (mesh.clock.monotonic(), mesh.edges());
            let was_empty = followers.is_empty();
            followers.forget(now, |id, generation| {
                edges.get(id).is_some_and(|edge| edge.generation == generation)
            });
            if was_empty && followers.is_empty() {
                continue;
            }
            let view = sources.read(followers);
            sources.driver.edges_changed(view.edges);
            followers.knows(view, mesh.clock.system().as_nanos(), now);
            followers.send_due(|edge, view| {
                let call = EdgeCall::Cluster(Box::new(view.clone()));
                mesh.notify(edge, StreamClass::Control, Call::Edge(call))
            });
        }
    }
}

impl Sources {
    fn read(&self, followers: &Followers) -> ClusterView {
        let region = ClusterMap::clone(&self.maps.borrow());
        let up = region.present().filter(|member| member.state == MapState::Up).count();
        let global = self.global_maps.as_ref().map(|maps| ClusterMap::clone(&maps.borrow()));
        ClusterView {
            revision: 0,
            region,
            global,
            members: self.views.borrow().members().to_vec(),
            edges: followers.edges_of(up),
            has_lease: self.ownership.has_lease(),
        }
    }
}
