//! What this node says about itself to peers that ask, rendered at most once in
//! [`SAYS_ANEW_AFTER`], however many ask.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How old what a node says of itself may be when it is sent to a peer.
const SAYS_ANEW_AFTER: Duration = Duration::from_millis(500);

type Render = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

#[derive(Default)]
pub(super) struct Saying {
    /// Unknown while the node is built, and where it has no listeners, as in tests.
    render: OnceLock<Render>,
    rendered: Mutex<Option<(Instant, Vec<u8>)>>,
}

impl Saying {
    /// From now on it is what `render` returns. Called once.
    pub(super) fn begin(&self, render: impl Fn() -> Vec<u8> + Send + Sync + 'static) {
        let _ = self.render.set(Box::new(render));
    }

    /// As JSON; without anything to say an empty object.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut rendered = self.rendered.lock();
        if let Some((at, text)) = &*rendered
            && at.elapsed() < SAYS_ANEW_AFTER
        {
            return text.clone();
        }
        let text = self.render.get().map_or_else(|| b"{}".to_vec(), |render| render());
        rendered.insert((Instant::now(), text)).1.clone()
    }
}
