//! The sending side: from the store's replication queue into the send queues, and from there to the
//! peers; what a handoff needs of it; and `durability: replicated`, where a verdict waits for one
//! copy of its counters.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use backon::BackoffBuilder;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tidegate_limiter::engine::{State, Verdict};
use tidegate_limiter::policy::Durability;
use tidegate_limiter::store::{Cursor, KeyHash, StoredCounter};
use tidegate_limiter::units::{Hits, Monotonic, Timestamp};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tokio::task::JoinSet;

use super::replicator::Replicator;
use super::send_queue::{MessageId, SendQueue};
use super::targets::Subscription;
use crate::backoff::exponential;
use crate::count;
use crate::mesh::codec::{FIRST_HIT_WINDOWS, RESERVATIONS};
use crate::mesh::wire::{Call, Reply, STATE_ENTRIES_MAX, StateEntry};
use crate::mesh::{CallError, StreamClass};

/// Keys that one round takes from the store; the rest waits for the next.
const ROUND_KEYS_MAX: usize = 16_384;
/// How long a message waits for its reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long [`Replicator::flush`] and [`Replicator::copy`] wait for the next reply: to the message
/// in flight and to the one after it, with some margin.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Most keys in a send queue to which [`Replicator::copy`] adds: what some four messages take. More
/// would delay the changes that are queued behind them.
const COPY_KEYS_MAX: usize = 4_096;

/// The pauses before a replica that could not be asked is asked again for a confirmation, doubled
/// from the first to the second. What comes after them is a new connection or a new view.
const CONFIRM_PAUSE_MIN: Duration = Duration::from_millis(1);
const CONFIRM_PAUSE_MAX: Duration = Duration::from_millis(32);

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

/// Whether these verdicts wait for [`Replicator::confirm`]: something was counted. A peek counts
/// nothing, and neither does a check that one of its limits denied.
pub fn awaits_confirm(durability: Durability, hits: Hits, verdicts: &[Verdict]) -> bool {
    durability == Durability::Replicated
        && hits != Hits::PEEK
        && verdicts.iter().all(|verdict| verdict.allowed)
}

// === handoff ===

impl Replicator {
    /// From now on `to` also receives every change of strict keys in `ranges`. Replaces an earlier
    /// subscription of `to`.
    pub fn subscribe(&self, to: NodeId, ranges: Ranges) {
        let mut subscribers = self.subscribers.lock();
        subscribers.0.insert(to, Subscription { ranges, has_refused: false });
        if self.options.replicas == 0 {
            self.store.set_replicated(Some(&self.waker()));
        }
    }

    /// Whether `to` did not merge a state of the ranges that it subscribes to, since the
    /// subscription began: its store is full, or the clocks of both nodes are too far apart.
    pub fn has_refused(&self, to: &NodeId) -> bool {
        let subscribers = self.subscribers.lock();
        subscribers.0.get(to).is_some_and(|subscription| subscription.has_refused)
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, to: &NodeId) {
        let mut subscribers = self.subscribers.lock();
        subscribers.0.remove(to);
        if self.options.replicas == 0 && subscribers.0.is_empty() {
            self.store.set_replicated(None);
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
            self.wake.notify_one();
            self.wait_until_acked(to).await?;
            if collected.is_complete_for(to) {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends to `to` every strict state in the store whose key passes `filter`, through its send
    /// queue, and waits until all of them are acknowledged. Adds the number of those that are to
    /// `copied` as it goes: while that grows, counts arrive.
    ///
    /// Messages that fail are sent again. A key that changes after the scan has passed it is not:
    /// call [`Replicator::subscribe`] first.
    ///
    /// # Errors
    ///
    /// The error of the last message when not even one at a time gets through.
    pub async fn copy(
        &self,
        to: &NodeId,
        filter: impl Fn(KeyHash) -> bool + Send,
        copied: &AtomicU64,
    ) -> Result<(), CallError> {
        let stalls = self.stalls(to);
        let has_stalled = |queue: &SendQueue| queue.stalls != stalls;
        let (mut keys, mut from) = (Vec::new(), Some(Cursor::default()));
        // Keys that are added and not acknowledged, with the sequence number of the last.
        let mut waiting: VecDeque<(u64, u64)> = VecDeque::new();
        while let Some(cursor) = from {
            let filter = |key: KeyHash| key.is_owned() && filter(key);
            let now = self.clock.now();
            from = self.store.visit(cursor, now, filter, |key, _, _| keys.push(key));
            while !keys.is_empty() {
                let before = keys.len();
                let last = self.add_copies(to, &mut keys);
                waiting.push_back((last, (before - keys.len()) as u64));
                let has_room = |queue: &SendQueue| queue.has_room(COPY_KEYS_MAX);
                self.wait_for_replies(to, has_stalled, has_room).await?;
                while let Some((last, keys)) = waiting.front().copied()
                    && self.is_acked(to, last)
                {
                    count(copied, keys);
                    waiting.pop_front();
                }
            }
            tokio::task::yield_now().await;
        }
        for (last, keys) in waiting {
            self.wait_for_replies(to, has_stalled, |queue| queue.is_acked(last)).await?;
            count(copied, keys);
        }
        Ok(())
    }

    fn is_acked(&self, to: &NodeId, sequence: u64) -> bool {
        self.send_queues.lock().get(to).is_some_and(|queue| queue.is_acked(sequence))
    }

    /// How often nothing got through to `to`: keys that were to be sent may have gone to others
    /// instead. 0 before anything is sent.
    fn stalls(&self, to: &NodeId) -> u64 {
        self.send_queues.lock().get(to).map_or(0, |queue| queue.stalls)
    }

    /// How often `to` may have missed counts: nothing got through, or it did not merge all, because
    /// its store is full or the clocks are too far apart. 0 before anything is sent.
    pub fn missed(&self, to: &NodeId) -> u64 {
        self.send_queues.lock().get(to).map_or(0, |queue| queue.stalls + queue.refused)
    }

    /// Moves keys to the send queue of `to` while it has room for copies. Returns the sequence
    /// number up to which it is to be acknowledged.
    fn add_copies(&self, to: &NodeId, keys: &mut Vec<KeyHash>) -> u64 {
        let now = self.clock.monotonic();
        let mut send_queues = self.send_queues.lock();
        let queue = send_queues.entry(to.clone()).or_default();
        while queue.has_room(COPY_KEYS_MAX)
            && let Some(key) = keys.pop()
        {
            queue.add(key, now);
        }
        self.wake.notify_one();
        queue.added
    }

    /// Waits until `to` has acknowledged everything that is in its send queue now.
    async fn wait_until_acked(&self, to: &NodeId) -> Result<(), CallError> {
        let Some((sequence, failures)) = ({
            let send_queues = self.send_queues.lock();
            send_queues.get(to).map(|queue| (queue.added, queue.failures.0))
        }) else {
            return Ok(());
        };
        let has_failed = |queue: &SendQueue| queue.failures.0 != failures;
        self.wait_for_replies(to, has_failed, |queue| queue.is_acked(sequence)).await
    }

    /// Waits until `is_done`. The error of the last message that failed as soon as `has_failed`.
    async fn wait_for_replies(
        &self,
        to: &NodeId,
        has_failed: impl Fn(&SendQueue) -> bool,
        is_done: impl Fn(&SendQueue) -> bool,
    ) -> Result<(), CallError> {
        loop {
            let acked = self.acked.notified();
            tokio::pin!(acked);
            // Registers before the check below, so that a reply in between is not missed.
            acked.as_mut().enable();
            {
                let send_queues = self.send_queues.lock();
                // A queue is dropped only when it is empty and its peer is no member.
                let Some(queue) = send_queues.get(to) else {
                    return Err(CallError::NotConnected);
                };
                match queue.failures {
                    (_, Some(error)) if has_failed(queue) => return Err(error),
                    _ if is_done(queue) => return Ok(()),
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
        let targets = self.targets();
        let _collecting = self.collecting.lock();
        let mut changed = Vec::new();
        let drained = self.store.drain_replication_queue(ROUND_KEYS_MAX, |key| changed.push(key));
        if changed.is_empty() {
            return Collected::default();
        }
        let now = self.clock.monotonic();
        let mut full = BTreeSet::new();
        let mut postponed = Vec::new();
        {
            let subscribers = self.subscribers.lock();
            let mut send_queues = self.send_queues.lock();
            let mut add = |to: &NodeId, key| match send_queues.get_mut(to) {
                Some(queue) => queue.add(key, now),
                None => send_queues.entry(to.clone()).or_default().add(key, now),
            };
            for key in changed {
                let replicas = targets.copies(key);
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
            self.store.enqueue_replication(*key);
        }
        Collected { has_more: drained == ROUND_KEYS_MAX, full }
    }

    /// Starts a task for every further message that may be in flight to a peer with keys to be
    /// sent. The keys of an unreachable peer return to the store, and from there go to the next
    /// node on the ring; those it subscribes to stay in its queue.
    pub(super) fn send(self: &Arc<Self>, messages: &mut JoinSet<()>) {
        let targets = self.targets();
        let now = self.clock.monotonic();
        let mut returned = Vec::new();
        {
            let subscribers = self.subscribers.lock();
            let mut send_queues = self.send_queues.lock();
            for (to, queue) in send_queues.iter_mut() {
                if queue.is_empty() || queue.is_backing_off(now) {
                    continue;
                }
                if !targets.reachable.contains(to) {
                    returned.extend(queue.retain(|key| subscribers.of(key).any(|id| id == to)));
                    queue.peer_unreachable(now);
                    continue;
                }
                while let Some(message) = self.next_message(queue) {
                    let (this, to) = (self.clone(), to.clone());
                    messages.spawn(async move { this.send_all(to, message).await });
                }
            }
            // That of a member stays, so that a flush and a copy do not miss what happened to it.
            let view = &targets.topology.view;
            send_queues.retain(|to, queue| !queue.is_empty() || view.get(to).is_some());
        }
        for key in returned {
            self.store.enqueue_replication(key);
        }
        self.acked.notify_waiters();
    }

    /// Sends message after message to one peer, until its send queue is empty or a message fails.
    /// [`Replicator::send`] starts more of these tasks when the window grows.
    async fn send_all(self: Arc<Self>, to: NodeId, first: (MessageId, Batch)) {
        let mut next = Some(first);
        while let Some((id, batch)) = next.take() {
            let result = self.send_states(&to, batch.entries).await;
            {
                let mut send_queues = self.send_queues.lock();
                let Some(queue) = send_queues.get_mut(&to) else { return };
                match result {
                    Ok(()) => {
                        queue.ack(id, self.clock.monotonic());
                        next = self.next_message(queue);
                    }
                    Err(error) => queue.fail(id, error, self.clock.monotonic()),
                }
            }
            self.acked.notify_waiters();
        }
    }

    /// Fills a message with the current states of the keys at the front of the queue.
    fn next_message(&self, queue: &mut SendQueue) -> Option<(MessageId, Batch)> {
        let now = self.clock.now();
        let mut batch = Batch::default();
        let id = queue.begin(self.clock.monotonic(), |key| {
            if batch.is_full() {
                return None;
            }
            let before = batch.weight;
            // A key that has left the store meanwhile has no state to send.
            let state = self.store.get(key, now).filter(|_| !self.is_held_back(key));
            let is_taken = state.is_none_or(|counter| batch.add(counter).is_ok());
            is_taken.then(|| batch.weight - before)
        });
        id.map(|id| (id, batch))
    }

    /// Sends one message of states. A reply that some of them were not merged is a success too: the
    /// peer would not merge them the second time either. Its subscriptions and queue remember it
    /// before the message counts as acknowledged, so that [`Replicator::has_refused`] and
    /// [`Replicator::missed`] cover what a flush or a copy waited for.
    async fn send_states(&self, to: &NodeId, entries: Vec<StateEntry>) -> Result<(), CallError> {
        let entries = self.readable(to, entries);
        count(&self.counters.sent, entries.len() as u64);
        let keys: Vec<KeyHash> = if self.subscribers.lock().has(to) {
            entries.iter().map(|entry| entry.key).collect()
        } else {
            Vec::new()
        };
        let call = Call::States(entries);
        let reply = self.mesh.call(to, StreamClass::Bulk, call, REPLY_TIMEOUT).await;
        let result = reply.and_then(|reply| match reply {
            Reply::Done => Ok(()),
            Reply::Unconfirmed => {
                self.subscribers.lock().refused(to, &keys);
                if let Some(queue) = self.send_queues.lock().get_mut(to) {
                    queue.refused += 1;
                }
                Ok(())
            }
            // This node is not yet in the peer's view.
            _ => Err(CallError::Declined),
        });
        if result.is_err() {
            count(&self.counters.failed, 1);
        }
        result
    }
}

impl Replicator {
    /// Whether this is the end of a reservation that no replica has confirmed, at a node without a
    /// lease: another one may decide the key, where the commit is to count.
    fn is_held_back(&self, key: KeyHash) -> bool {
        self.store.is_unconfirmed(key) && !self.decides.has_lease(key.scope())
    }

    /// Those of `entries` that `to` can read.
    fn readable(&self, to: &NodeId, mut entries: Vec<StateEntry>) -> Vec<StateEntry> {
        if let Some(peer) = self.mesh.peer(to) {
            entries.retain(|entry| can_read(peer.version, &entry.state));
        }
        entries
    }
}

/// Whether nodes that speak `version` know this kind of state.
fn can_read(version: u8, state: &State) -> bool {
    match state {
        State::Reservation { .. } => version >= RESERVATIONS,
        State::FirstHitWindow { .. } => version >= FIRST_HIT_WINDOWS,
        _ => true,
    }
}

// === confirmation ===

impl Replicator {
    /// Sends the current states of these keys, the counters that a check of `hits` charged, to
    /// their replicas, and waits until one replica holds all of them. Returns true at once if the
    /// ring has no other node. Returns false if no replica confirms within `deadline`, if all of
    /// them refuse or have no room, or if a key has no slot: it was counted in a shared counter of
    /// the full store, which has no copy.
    pub async fn confirm(&self, keys: &[KeyHash], hits: Hits, deadline: Duration) -> bool {
        let Some(first) = keys.first() else { return true };
        let ends = self.clock.monotonic().plus(deadline.into());
        let mut pauses = exponential(CONFIRM_PAUSE_MIN, CONFIRM_PAUSE_MAX).build();
        let is_confirmed = loop {
            let targets = self.targets();
            if !targets.has_others() {
                return true;
            }
            let replicas = targets.confirming(*first);
            match self.copy_now(keys, hits, &replicas, ends).await {
                Copied::Yes => break true,
                Copied::No => break false,
                // States are merged, so that a replica may get one twice.
                Copied::NotYet => match pauses.next() {
                    Some(pause) if self.clock.monotonic().plus(pause.into()) < ends => {
                        tokio::time::sleep(pause).await;
                    }
                    _ => break false,
                },
            }
        };
        let counters = &self.counters;
        count(if is_confirmed { &counters.confirmed } else { &counters.unconfirmed }, 1);
        is_confirmed
    }

    /// Like [`Replicator::confirm`], for checks of many keys, with the hits of each. Keys whose
    /// copies are at the same nodes leave together; a key without hits left holds no other up.
    pub async fn confirm_all(&self, checks: &[(KeyHash, Hits)], deadline: Duration) -> bool {
        let targets = self.targets();
        let mut groups: BTreeMap<(Arc<[NodeId]>, bool), BTreeSet<KeyHash>> = BTreeMap::new();
        for (key, hits) in checks {
            let gives_back = *hits < Hits::PEEK;
            groups.entry((targets.confirming(*key), gives_back)).or_default().insert(*key);
        }
        let confirms = groups.into_iter().map(|((_, gives_back), keys)| async move {
            let keys: Vec<KeyHash> = keys.into_iter().collect();
            let hits = if gives_back { Hits::new(-1) } else { Hits::ONE };
            self.confirm(&keys, hits, deadline).await
        });
        join_all(confirms).await.into_iter().all(|is_confirmed| is_confirmed)
    }

    async fn copy_now(
        &self,
        keys: &[KeyHash],
        hits: Hits,
        replicas: &[NodeId],
        ends: Monotonic,
    ) -> Copied {
        let now = self.clock.now();
        let mut batch = Batch::default();
        for key in keys {
            // The counter of a short window may have expired since the decision, and a refund to a
            // key without hits stores nothing.
            let is_kept = match self.store.get(*key, Timestamp::EPOCH) {
                Some(counter) if counter.expires <= now => true,
                // A message cannot hold eight logs of ten thousand hits on one descriptor.
                Some(counter) => batch.add(counter).is_ok(),
                None => hits < Hits::PEEK,
            };
            if !is_kept {
                return Copied::No;
            }
        }
        let entries = batch.entries;
        if entries.is_empty() {
            return Copied::Yes;
        }
        count(&self.counters.sent, (entries.len() * replicas.len()) as u64);
        let left = ends.since(self.clock.monotonic()).to_std();
        let call = |to| {
            let call = Call::States(self.readable(to, entries.clone()));
            self.mesh.call(to, StreamClass::Checks, call, left)
        };
        let mut replies: FuturesUnordered<_> = replicas.iter().map(call).collect();
        let mut copied = Copied::No;
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(Reply::Done) => return Copied::Yes,
                // The peer does not know this node yet, or the connection is just replaced: two
                // nodes that dial each other at once keep one of two.
                Ok(Reply::Handoff(_)) | Err(CallError::NotConnected | CallError::Closed) => {
                    copied = Copied::NotYet;
                }
                _ => {}
            }
        }
        copied
    }
}

/// Whether a replica holds all states of a check.
#[derive(Debug)]
enum Copied {
    Yes,
    /// None does, but one may soon.
    NotYet,
    No,
}

// === messages ===

/// Most bytes of states in one message: half a frame. The largest state, a log of ten thousand
/// hits, weighs 140 KB, so every state fits into an empty batch.
const WEIGHT_MAX: usize = 512 * 1024;

/// The states of one message, up to the size of a frame.
#[derive(Debug, Default)]
struct Batch {
    entries: Vec<StateEntry>,
    weight: usize,
}

impl Batch {
    /// Adds a state, or returns it if there is no room.
    fn add(&mut self, counter: StoredCounter) -> Result<(), StoredCounter> {
        let weight = self.weight + counter.state.encoded_bytes_max() + size_of::<StateEntry>();
        if self.is_full() || (weight > WEIGHT_MAX && !self.entries.is_empty()) {
            return Err(counter);
        }
        let StoredCounter { key, state, expires } = counter;
        self.entries.push(StateEntry { key, state, expires });
        self.weight = weight;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.entries.len() == STATE_ENTRIES_MAX
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tidegate_limiter::engine::{Tat, decide};
    use tidegate_limiter::quota::{Algorithm, LOG_LIMIT_MAX, Quota};
    use tidegate_limiter::units::Span;

    use super::*;
    use crate::mesh::codec;
    use crate::mesh::wire::Numbered;

    fn counter(state: &State) -> StoredCounter {
        let key = KeyHash { token: u64::MAX, tag: u64::MAX };
        StoredCounter { key, state: state.clone(), expires: Timestamp::NEVER }
    }

    /// How many of `state` fit into a batch, which must fit into a frame.
    fn fill(state: &State) -> usize {
        let mut batch = Batch::default();
        while batch.add(counter(state)).is_ok() {}
        let len = batch.entries.len();
        let call = Numbered { id: u64::MAX, body: Call::States(batch.entries) };
        codec::encode(&call, codec::VERSION, &mut BytesMut::new()).expect("fits a frame");
        len
    }

    #[test]
    fn a_full_batch_fits_into_a_frame_for_any_state() {
        assert_eq!(fill(&State::Tat(Tat::new(u64::MAX, u32::MAX))), STATE_ENTRIES_MAX);
        let quota = Quota::simple(Algorithm::SlidingWindowLog, LOG_LIMIT_MAX, Span::from_secs(60));
        let (quota, mut log) = (quota.expect("a valid quota"), State::Absent);
        for n in 0..u64::from(LOG_LIMIT_MAX) {
            decide(&mut log, &quota, Hits::ONE, Timestamp::from_nanos(u64::MAX - 20_000 + n));
        }
        assert_eq!(fill(&log), 3);
    }

    #[test]
    fn a_node_of_an_earlier_version_is_sent_no_state_that_it_does_not_know() {
        let quota = Quota::simple(Algorithm::FirstHitWindow, 9, Span::from_secs(60));
        let (mut state, now) = (State::Absent, Timestamp::from_secs(9));
        decide(&mut state, &quota.expect("valid"), Hits::ONE, now);
        assert!(!can_read(5, &state) && can_read(6, &state));
        let reservation = State::Reservation { until: now, amount: 1, is_settled: false };
        assert!(!can_read(5, &reservation) && can_read(6, &reservation));
        assert!(can_read(4, &State::Tat(Tat::new(7, 0))));
    }

    #[test]
    fn only_counted_hits_wait_for_a_copy() {
        let quota = Quota::simple(Algorithm::Gcra, 1, Span::from_secs(60)).expect("valid");
        let (mut state, now) = (State::Absent, Timestamp::from_secs(9));
        let mut check = |hits| decide(&mut state, &quota, Hits::new(hits), now);
        let (allowed, denied) = (check(1), check(1));
        let durable = Durability::Replicated;
        assert!(awaits_confirm(durable, Hits::ONE, &[allowed]));
        assert!(awaits_confirm(durable, Hits::new(-1), &[allowed]));
        assert!(!awaits_confirm(durable, Hits::ONE, &[allowed, denied]));
        assert!(!awaits_confirm(durable, Hits::PEEK, &[allowed]));
        assert!(!awaits_confirm(Durability::Async, Hits::ONE, &[allowed]));
    }
}
