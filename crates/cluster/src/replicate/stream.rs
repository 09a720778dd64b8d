//! The sending end: from the store's line into backlogs, from backlogs to peers.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::{Cursor, KeyHash};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tokio::task::JoinSet;

use super::Replicator;
use super::batch::Batch;
use super::counters::count;
use super::send_queue::SendQueue;
use crate::mesh::wire::{Call, Reply, StateEntry};
use crate::mesh::{CallError, StreamClass};

/// Keys that one round takes from the store; more wait for the next.
const ROUND_KEYS_MAX: usize = 16_384;
/// How long a message may stay unanswered.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long [`Replicator::flush`] waits for the next answer: the message under way and its own.
const FLUSH_PATIENCE: Duration = Duration::from_secs(3);
/// States that one step of [`Replicator::copy`] takes from the store. Few, because logs are large.
const COPY_KEYS: usize = 128;

/// What a round left behind in the store.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// It did not get to the end of the store's line.
    is_more: bool,
    /// Whose lines had no place for some key.
    full: BTreeSet<NodeId>,
}

impl Collected {
    /// Whether everything is in the line of `to` that it is to be told.
    fn has_all_for(&self, to: &NodeId) -> bool {
        !self.is_more && !self.full.contains(to)
    }

    /// Whether nothing was left behind.
    pub(super) fn is_all(&self) -> bool {
        !self.is_more && self.full.is_empty()
    }
}

impl Replicator {
    /// From now on `to` also gets every change of strict keys on the ring of `scope` in `ranges`,
    /// and of no others on it but those it holds copies of.
    pub fn follow(&self, scope: Scope, to: NodeId, ranges: Ranges) {
        let mut subscribers = self.shared.subscribers.lock();
        subscribers.set(scope, to, ranges);
        if self.shared.options.replicas == 0 {
            self.shared.store.set_replicated(true);
        }
    }

    /// Ends what [`Replicator::follow`] began.
    pub fn unsubscribe(&self, scope: Scope, to: &NodeId) {
        let mut subscribers = self.shared.subscribers.lock();
        subscribers.unset(scope, to);
        if self.shared.options.replicas == 0 && subscribers.is_empty() {
            self.shared.store.set_replicated(false);
        }
    }

    /// Waits until everything that changed before this call, and that `to` follows or holds copies
    /// of, was sent and answered. Fails with the first message that is not answered; what it held
    /// stays in line, so it may be called again.
    pub async fn flush(&self, to: &NodeId) -> Result<(), CallError> {
        loop {
            let collected = self.collect();
            self.shared.hurried.notify_one();
            self.until_told(to).await?;
            if collected.has_all_for(to) {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends every strict state that this node has and `wants` names, in bounded steps, each
    /// message answered before the next. Returns how many there were.
    ///
    /// A key that changes behind the walk's back is not sent again: let `to` follow first.
    pub async fn copy(
        &self,
        to: &NodeId,
        wants: impl Fn(KeyHash) -> bool + Send,
    ) -> Result<u64, CallError> {
        let shared = &self.shared;
        let (mut copied, mut batch) = (0, Batch::default());
        let (mut found, mut from) = (Vec::new(), Some(Cursor::default()));
        while let Some(cursor) = from {
            let is_wanted = |key: KeyHash| key.is_owned() && wants(key);
            from = shared.store.scan(cursor, shared.clock.now(), COPY_KEYS, is_wanted, &mut found);
            for counted in found.drain(..) {
                copied += 1;
                if let Err(counted) = batch.add(counted) {
                    self.tell(to, std::mem::take(&mut batch).into_entries()).await?;
                    // An empty message takes any state.
                    let _ = batch.add(counted);
                }
            }
            tokio::task::yield_now().await;
        }
        if batch.len() > 0 {
            self.tell(to, batch.into_entries()).await?;
        }
        Ok(copied)
    }

    /// Empties the store's line into the backlogs of those that are to be told. Returns what it
    /// left behind.
    pub(super) fn collect(&self) -> Collected {
        let shared = &self.shared;
        let targets = self.targets();
        let _one_at_a_time = shared.collecting.lock();
        let mut changed = Vec::new();
        let drained = shared.store.drain_replication_queue(ROUND_KEYS_MAX, |key| changed.push(key));
        if changed.is_empty() {
            return Collected::default();
        }
        let now = shared.clock.now();
        let mut full = BTreeSet::new();
        let mut found_no_place = Vec::new();
        {
            let subscribers = shared.subscribers.lock();
            let mut send_queues = shared.send_queues.lock();
            let mut add = |to: &NodeId, key| match send_queues.get_mut(to) {
                Some(send_queue) => send_queue.add(key, now),
                None => send_queues.entry(to.clone()).or_default().add(key, now),
            };
            for key in changed {
                let replicas = targets.of(key);
                let others = subscribers.of(key).filter(|id| !replicas.contains(id));
                // Everybody who has room gets it, whoever else has none.
                let mut has_place = true;
                for to in replicas.iter().chain(others) {
                    if !add(to, key) {
                        full.insert(to.clone());
                        has_place = false;
                    }
                }
                if !has_place {
                    found_no_place.push(key);
                }
            }
        }
        for key in &found_no_place {
            shared.store.enqueue_replication(*key);
        }
        Collected { is_more: drained == ROUND_KEYS_MAX, full }
    }

    /// Sends to every peer that owes no answer, in a task of its own. What is in line for one that
    /// cannot be reached goes back to the store, and from there to the next on the ring; what it
    /// follows waits for it.
    pub(super) fn send(&self, messages: &mut JoinSet<()>) {
        let shared = &self.shared;
        let targets = self.targets();
        let now = shared.clock.now();
        let mut given_up = Vec::new();
        {
            let subscribers = shared.subscribers.lock();
            let mut send_queues = shared.send_queues.lock();
            for (to, send_queue) in send_queues.iter_mut() {
                if send_queue.is_empty() || send_queue.is_busy() || send_queue.rests(now) {
                    continue;
                }
                if !targets.is_reachable(to) {
                    given_up.extend(send_queue.give_up(|key| subscribers.follows(to, key)));
                    send_queue.fail(CallError::NotConnected, now);
                } else if let Some(batch) = self.begin(send_queue) {
                    let (this, to) = (self.clone(), to.clone());
                    messages.spawn(async move { this.empty_line(to, batch).await });
                }
            }
            send_queues.retain(|to, send_queue| !send_queue.is_empty() || targets.is_reachable(to));
        }
        for key in given_up {
            shared.store.enqueue_replication(key);
        }
        shared.answered.notify_waiters();
    }

    /// Sends message after message to one peer, until nothing is in line for it or it does not
    /// answer.
    async fn empty_line(self, to: NodeId, first: Batch) {
        let mut next = Some(first);
        while let Some(batch) = next.take() {
            let answer = self.tell(&to, batch.into_entries()).await;
            {
                let mut send_queues = self.shared.send_queues.lock();
                let Some(send_queue) = send_queues.get_mut(&to) else { return };
                match answer {
                    Ok(()) => {
                        send_queue.succeed();
                        next = self.begin(send_queue);
                    }
                    Err(error) => send_queue.fail(error, self.shared.clock.now()),
                }
            }
            self.shared.answered.notify_waiters();
        }
    }

    /// Fills a message with the present states of the keys in front of the line.
    fn begin(&self, send_queue: &mut SendQueue) -> Option<Batch> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let mut batch = Batch::default();
        let is_begun = send_queue.begin(|key| {
            if batch.is_full() {
                return false;
            }
            // A key that is gone meanwhile has nothing to tell.
            shared.store.get(key, now).is_none_or(|counted| batch.add(counted).is_ok())
        });
        is_begun.then_some(batch)
    }

    /// Sends one message of states. An answer means that it was looked at: what a peer will not
    /// take, it will not take the second time either.
    async fn tell(&self, to: &NodeId, entries: Vec<StateEntry>) -> Result<(), CallError> {
        let shared = &self.shared;
        count(&shared.counters.sent, entries.len() as u64);
        let call = Call::States(entries);
        let answer = shared.mesh.call(to, StreamClass::Bulk, call, ANSWER_TIMEOUT).await;
        let answer = answer.and_then(|reply| match reply {
            Reply::Done | Reply::Unconfirmed => Ok(()),
            // It does not know this node yet.
            _ => Err(CallError::Declined),
        });
        if answer.is_err() {
            count(&shared.counters.failed, 1);
        }
        answer
    }

    /// Waits until `to` has answered all that stands in line for it now.
    async fn until_told(&self, to: &NodeId) -> Result<(), CallError> {
        let shared = &self.shared;
        let Some((ticket, failures)) = ({
            let send_queues = shared.send_queues.lock();
            send_queues.get(to).map(|send_queue| (send_queue.ticket(), send_queue.failures().0))
        }) else {
            return Ok(());
        };
        loop {
            let answered = shared.answered.notified();
            tokio::pin!(answered);
            // From here on no answer is missed, also one that comes before the wait.
            answered.as_mut().enable();
            {
                let send_queues = shared.send_queues.lock();
                // It is forgotten only when it cannot be reached and nothing is left for it.
                let Some(send_queue) = send_queues.get(to) else {
                    return Err(CallError::NotConnected);
                };
                match send_queue.failures() {
                    (now, Some(error)) if now != failures => return Err(error),
                    _ if send_queue.is_acked(ticket) => return Ok(()),
                    _ => {}
                }
            }
            let waited = tokio::time::timeout(FLUSH_PATIENCE, answered).await;
            waited.map_err(|_| CallError::Timeout)?;
        }
    }
}
