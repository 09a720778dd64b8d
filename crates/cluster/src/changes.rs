//! The signal that the store has changed keys to send, so that an idle node does not look for them.
//!
//! The store wakes it under a shard's lock, for every shard in which a first key is queued. Wakes
//! are frequent under load and have to be cheap: all but the first of a round find the flag set,
//! and write nothing.
//!
//! **Example.** Two keys change in two shards: the first sets the flag and wakes the task that
//! sends them, the second does neither. The task resets the flag *before* it drains the queues. A
//! key that is queued before its shard is drained is in that drain, and one that is queued later
//! finds the flag reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Changes {
    is_signalled: AtomicBool,
    notify: Notify,
}

impl Changes {
    /// Waits for the first change since the last [`Changes::reset`]. Cancel-safe.
    pub(crate) async fn first(&self) {
        self.notify.notified().await;
    }

    /// The next change is signalled again. Call it before the queues are drained.
    pub(crate) fn reset(&self) {
        self.is_signalled.store(false, Ordering::SeqCst);
    }
}

impl Wake for Changes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_signalled = self.is_signalled.load(Ordering::SeqCst);
        if !is_signalled && !self.is_signalled.swap(true, Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }
}
