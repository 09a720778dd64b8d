//! The sending side: from the store's replication queue into the send queues, and from there to the
//! peers; and what a handoff needs of it.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{Cursor, KeyHash};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tokio::task::JoinSet;

use super::batch::Batch;
use super::replicator::{Replicator, count};
use super::send_queue::SendQueue;
use crate::mesh::wire::{Call, Reply, StateEntry};
use crate::mesh::{CallError, StreamClass};

/// Keys that one round takes from the store; the rest waits for the next.
const ROUND_KEYS_MAX: usize = 16_384;
/// How long a message waits for its reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long [`Replicator::flush`] waits for the next reply: to the message in flight and to the one
/// after it, with some margin.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// States that one step of [`Replicator::copy`] takes from the store. Few, because logs are large.
const COPY_KEYS: usize = 128;

/// What a round could not move from the replication queue into the send queues.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The round stopped at its bound before the end of the queue.
    has_more: bool,
    /// Peers whose send queue was full.
    full: BTreeSet<NodeId>,
}

impl Collected {
    /// Whether every key for `to` is in its send queue.
    fn is_complete_for(&self, to: &NodeId) -> bool {
        !self.has_more && !self.full.contains(to)
    }

    pub(super) fn is_complete(&self) -> bool {
        !self.has_more && self.full.is_empty()
    }
}

// === handoff ===

impl Replicator {
    /// From now on `to` also receives every change of strict keys in `ranges` of the ring of
    /// `scope`. Replaces an earlier subscription of `to` on that ring.
    pub fn subscribe(&self, scope: Scope, to: NodeId, ranges: Ranges) {
        let mut subscribers = self.shared.subscribers.lock();
        subscribers.insert(scope, to, ranges);
        if self.shared.options.replicas == 0 {
            self.shared.store.set_replicated(true);
        }
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, scope: Scope, to: &NodeId) {
        let mut subscribers = self.shared.subscribers.lock();
        subscribers.remove(scope, to);
        if self.shared.options.replicas == 0 && subscribers.is_empty() {
            self.shared.store.set_replicated(false);
        }
    }

    /// Waits until `to` has acknowledged every change made before this call to the keys that it
    /// subscribes to or holds copies of.
    ///
    /// # Errors
    ///
    /// The error of the first message that fails. Its keys stay in the send queue, so the call may
    /// be repeated.
    pub async fn flush(&self, to: &NodeId) -> Result<(), CallError> {
        loop {
            let collected = self.collect();
            self.shared.wake.notify_one();
            self.wait_until_acked(to).await?;
            if collected.is_complete_for(to) {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends to `to` every strict state in the store whose key passes `filter`, in bounded steps,
    /// one message at a time. Returns their number.
    ///
    /// A key that changes after the scan has passed it is not sent again: call
    /// [`Replicator::subscribe`] first.
    ///
    /// # Errors
    ///
    /// The error of the first message that fails.
    pub async fn copy(
        &self,
        to: &NodeId,
        filter: impl Fn(KeyHash) -> bool + Send,
    ) -> Result<u64, CallError> {
        let shared = &self.shared;
        let (mut copied, mut batch) = (0, Batch::default());
        let (mut found, mut from) = (Vec::new(), Some(Cursor::default()));
        while let Some(cursor) = from {
            let filter = |key: KeyHash| key.is_owned() && filter(key);
            from = shared.store.scan(cursor, shared.clock.now(), COPY_KEYS, filter, &mut found);
            for counter in found.drain(..) {
                copied += 1;
                if let Err(counter) = batch.add(counter) {
                    self.send_states(to, std::mem::take(&mut batch).into_entries()).await?;
                    // An empty batch has room for any state.
                    let _ = batch.add(counter);
                }
            }
            tokio::task::yield_now().await;
        }
        if batch.len() > 0 {
            self.send_states(to, batch.into_entries()).await?;
        }
        Ok(copied)
    }

    /// Waits until `to` has acknowledged everything that is in its send queue now.
    async fn wait_until_acked(&self, to: &NodeId) -> Result<(), CallError> {
        let shared = &self.shared;
        let Some((sequence, failures)) = ({
            let send_queues = shared.send_queues.lock();
            send_queues.get(to).map(|queue| (queue.last_sequence(), queue.failures().0))
        }) else {
            return Ok(());
        };
        loop {
            let acked = shared.acked.notified();
            tokio::pin!(acked);
            // Registers before the check below, so that a reply in between is not missed.
            acked.as_mut().enable();
            {
                let send_queues = shared.send_queues.lock();
                // A queue is dropped only when it is empty and its peer is unreachable.
                let Some(queue) = send_queues.get(to) else {
                    return Err(CallError::NotConnected);
                };
                match queue.failures() {
                    (now, Some(error)) if now != failures => return Err(error),
                    _ if queue.is_acked(sequence) => return Ok(()),
                    _ => {}
                }
            }
            let waited = tokio::time::timeout(FLUSH_TIMEOUT, acked).await;
            waited.map_err(|_| CallError::Timeout)?;
        }
    }
}

// === rounds ===

impl Replicator {
    /// Drains the store's replication queue into the send queues of the replicas and subscribers.
    pub(super) fn collect(&self) -> Collected {
        let shared = &self.shared;
        let targets = self.targets();
        let _collecting = shared.collecting.lock();
        let mut changed = Vec::new();
        let drained = shared.store.drain_replication_queue(ROUND_KEYS_MAX, |key| changed.push(key));
        if changed.is_empty() {
            return Collected::default();
        }
        let now = shared.clock.now();
        let mut full = BTreeSet::new();
        let mut postponed = Vec::new();
        {
            let subscribers = shared.subscribers.lock();
            let mut send_queues = shared.send_queues.lock();
            let mut add = |to: &NodeId, key| match send_queues.get_mut(to) {
                Some(queue) => queue.add(key, now),
                None => send_queues.entry(to.clone()).or_default().add(key, now),
            };
            for key in changed {
                let replicas = targets.replicas(key);
                let others = subscribers.of(key).filter(|id| !replicas.contains(id));
                // A peer whose queue is full does not keep the key from the others.
                let mut is_queued = true;
                for to in replicas.iter().chain(others) {
                    if !add(to, key) {
                        full.insert(to.clone());
                        is_queued = false;
                    }
                }
                if !is_queued {
                    postponed.push(key);
                }
            }
        }
        for key in &postponed {
            shared.store.enqueue_replication(*key);
        }
        Collected { has_more: drained == ROUND_KEYS_MAX, full }
    }

    /// Starts a task for every peer that has keys to be sent and no message in flight. The keys of
    /// an unreachable peer return to the store, and from there go to the next node on the ring;
    /// those it subscribes to stay in its queue.
    pub(super) fn send(&self, messages: &mut JoinSet<()>) {
        let shared = &self.shared;
        let targets = self.targets();
        let now = shared.clock.now();
        let mut returned = Vec::new();
        {
            let subscribers = shared.subscribers.lock();
            let mut send_queues = shared.send_queues.lock();
            for (to, queue) in send_queues.iter_mut() {
                if queue.is_empty() || queue.has_in_flight() || queue.is_backing_off(now) {
                    continue;
                }
                if !targets.is_reachable(to) {
                    returned.extend(queue.retain(|key| subscribers.contains(to, key)));
                    queue.fail(CallError::NotConnected, now);
                } else if let Some(batch) = self.next_batch(queue) {
                    let (this, to) = (self.clone(), to.clone());
                    messages.spawn(async move { this.send_all(to, batch).await });
                }
            }
            send_queues.retain(|to, queue| !queue.is_empty() || targets.is_reachable(to));
        }
        for key in returned {
            shared.store.enqueue_replication(key);
        }
        shared.acked.notify_waiters();
    }

    /// Sends message after message to one peer, until its send queue is empty or a message fails.
    async fn send_all(self, to: NodeId, first: Batch) {
        let mut next = Some(first);
        while let Some(batch) = next.take() {
            let result = self.send_states(&to, batch.into_entries()).await;
            {
                let mut send_queues = self.shared.send_queues.lock();
                let Some(queue) = send_queues.get_mut(&to) else { return };
                match result {
                    Ok(()) => {
                        queue.ack();
                        next = self.next_batch(queue);
                    }
                    Err(error) => queue.fail(error, self.shared.clock.now()),
                }
            }
            self.shared.acked.notify_waiters();
        }
    }

    /// Fills a message with the current states of the keys at the front of the queue.
    fn next_batch(&self, queue: &mut SendQueue) -> Option<Batch> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let mut batch = Batch::default();
        let is_begun = queue.begin(|key| {
            if batch.is_full() {
                return false;
            }
            // A key that has left the store meanwhile has no state to send.
            shared.store.get(key, now).is_none_or(|counter| batch.add(counter).is_ok())
        });
        is_begun.then_some(batch)
    }

    /// Sends one message of states. A reply that some of them were not merged is a success too: the
    /// peer would not merge them the second time either.
    async fn send_states(&self, to: &NodeId, entries: Vec<StateEntry>) -> Result<(), CallError> {
        let shared = &self.shared;
        count(&shared.counters.sent, entries.len() as u64);
        let call = Call::States(entries);
        let reply = shared.mesh.call(to, StreamClass::Bulk, call, REPLY_TIMEOUT).await;
        let result = reply.and_then(|reply| match reply {
            Reply::Done | Reply::Unconfirmed => Ok(()),
            // This node is not yet in the peer's view.
            _ => Err(CallError::Declined),
        });
        if result.is_err() {
            count(&shared.counters.failed, 1);
        }
        result
    }
}
