//! The report of this node that peers request for their dashboards, rendered at most once in
//! [`MAX_AGE`], however many request it.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The maximum age of a report when it is sent to a peer.
const MAX_AGE: Duration = Duration::from_millis(500);

type Render = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

#[derive(Default)]
pub(super) struct OwnReport {
    /// Not set while the node is built, and where it has no listeners, as in tests.
    render: OnceLock<Render>,
    rendered: Mutex<Option<(Instant, Vec<u8>)>>,
}

impl OwnReport {
    /// Reports what `render` returns from now on. Called once.
    pub(super) fn begin(&self, render: impl Fn() -> Vec<u8> + Send + Sync + 'static) {
        let _ = self.render.set(Box::new(render));
    }

    /// As JSON: an empty object before [`OwnReport::begin`].
    pub(super) fn json(&self) -> Vec<u8> {
        let mut rendered = self.rendered.lock();
        if let Some((at, json)) = &*rendered
            && at.elapsed() < MAX_AGE
        {
            return json.clone();
        }
        let json = self.render.get().map_or_else(|| b"{}".to_vec(), |render| render());
        rendered.insert((Instant::now(), json)).1.clone()
    }
}
