//! The keys of a shard whose changes are still to be sent to peers or written to disk.
//!
//! There is one queue for eventual keys, which are sent as per-actor counters, and one for strict
//! keys, which are sent as whole states, because they go to different peers at a different pace. A
//! slot has one priority for both, since its state determines its kind; an absent state has nothing
//! to send and belongs to neither. Changes to be written to disk are a flag in the slot, without a
//! queue: a snapshot scans the whole table every few seconds.
//!
//! Strict keys are queued only while [`Queues::set_replicated`] is on, and the disk flag is raised
//! only while [`Store::set_snapshotted`](super::Store::set_snapshotted) is on. Off costs one
//! branch.
//!
//! **Order.** A key is queued at most once per priority. Eventual keys of which this node holds
//! back much of what is left of their limit are urgent and go first, because there a late message
//! costs over-admission. Those far from it are not queued: a background scan finds them
//! (`sync.rs`). Strict keys have normal priority, because their owner decides alone.
//!
//! **Bound:** a queue holds [`QUEUE_KEYS_MAX`] keys per priority. A key that finds its queue full
//! keeps its priority in the slot and is found by a scan of the table once the queue is empty: it
//! is sent later, never lost.

use std::collections::{BTreeSet, VecDeque};
use std::task::Waker;

use super::key::KeyHash;
use super::slot::{Meta, Slot, SyncPriority};
use super::table::Table;
use crate::engine::{ActorCounters, State};

/// Most keys of each priority in a queue, 16 KiB each. A shard holds some 4,096 keys, and for a
/// quarter of them a scan of the table is cheaper than a longer queue.
pub(super) const QUEUE_KEYS_MAX: usize = 1_024;
/// Most keys of a shard that end between two snapshots and are removed from the disk. A restart may
/// bring others back, until their windows end.
const ENDED_MAX: usize = 4_096;
/// Slots that a scan for overflowed keys looks at under one lock.
const RESCAN_SLOTS: usize = 512;

/// The queues of one shard.
///
/// Allocated when a key is first queued: every check reads the shard around them, and most stores
/// use one kind or none.
#[derive(Debug, Default)]
pub(super) struct Queues {
    eventual: Option<Box<KeyQueue>>,
    strict: Option<Box<KeyQueue>>,
    /// Woken when strict keys are queued; `None` while they are not.
    replicated: Option<Waker>,
    /// Woken when an urgent eventual key is queued.
    synchronised: Option<Waker>,
    /// While changes are marked for snapshots: long keys of which nothing is left, and which may be
    /// in the last one.
    #[expect(clippy::box_collection, reason = "a shard has 256 bytes, and no room for a set")]
    ended: Option<Box<BTreeSet<KeyHash>>>,
}

/// The changed keys of one kind in one shard.
#[derive(Debug, Default)]
struct KeyQueue {
    urgent: VecDeque<KeyHash>,
    normal: VecDeque<KeyHash>,
    rescan: Rescan,
}

/// The scan for keys that found their queue full.
#[derive(Debug, Default)]
enum Rescan {
    #[default]
    Idle,
    /// Slots up to `seen` are done. `again` when a key overflowed meanwhile, possibly in that part.
    Running { seen: Option<KeyHash>, again: bool },
}

// === impl Queues ===

impl Queues {
    /// Queues an eventual key for its peers.
    pub(super) fn enqueue_eventual(&mut self, slot: &mut Slot, priority: SyncPriority) {
        let queue = self.eventual.get_or_insert_default();
        let had_urgent = !queue.urgent.is_empty();
        queue.push(slot, priority);
        if !had_urgent
            && !queue.urgent.is_empty()
            && let Some(waker) = &self.synchronised
        {
            waker.wake_by_ref();
        }
    }

    /// Queues a strict key for its replicas. A node's local share has none.
    pub(super) fn enqueue_strict(&mut self, slot: &mut Slot) {
        let Some(waker) = self.replicated.as_ref().filter(|_| slot.key.is_owned()) else { return };
        let queue = self.strict.get_or_insert_default();
        let was_empty = !queue.has_more();
        queue.push(slot, SyncPriority::Normal);
        if was_empty && queue.has_more() {
            waker.wake_by_ref();
        }
    }

    /// Marks a key as changed since the last snapshot. One of which nothing is left, as all of it
    /// was given back, is noted: its slot may be gone before the next one.
    pub(super) fn enqueue_snapshot(&mut self, slot: &mut Slot) {
        if self.is_snapshotted() && slot.key.is_long() {
            slot.meta.raise(Meta::UNSAVED);
            if slot.is_settled_reservation() {
                slot.meta.clear(Meta::PASSED);
            }
            if matches!(slot.state, State::Absent) {
                self.note_ended(slot.key);
            }
        }
    }

    /// Notes a key that ends earlier than the last snapshot has it: when the next one is written,
    /// it may have expired.
    #[cold]
    pub(super) fn note_ended(&mut self, key: KeyHash) {
        if let Some(ended) = &mut self.ended
            && key.is_long()
            && ended.len() < ENDED_MAX
        {
            ended.insert(key);
        }
    }

    /// Whether changes are marked for snapshots.
    pub(super) fn is_snapshotted(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn set_snapshotted(&mut self, enabled: bool) {
        if enabled != self.is_snapshotted() {
            self.ended = enabled.then(Box::default);
        }
    }

    /// The keys that ended since the last call.
    pub(super) fn take_ended(&mut self) -> BTreeSet<KeyHash> {
        self.ended.as_deref_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Queues strict keys from now on and wakes `waker` when it queues the first, or stops. Keys
    /// that were queued when it stopped are found again when it goes on; changes in between are
    /// not.
    pub(super) fn set_replicated(&mut self, waker: Option<&Waker>) {
        if self.replicated.is_some() != waker.is_some() {
            self.strict = None;
        }
        self.replicated = waker.cloned();
        if let Some(waker) = waker {
            self.strict.get_or_insert_default().start_rescan();
            waker.wake_by_ref();
        }
    }

    /// Whom to wake for urgent eventual keys, also for those that are queued already.
    pub(super) fn set_synchronised(&mut self, waker: Option<&Waker>) {
        self.synchronised = waker.cloned();
        let has_urgent = self.eventual.as_ref().is_some_and(|queue| !queue.urgent.is_empty());
        if let Some(waker) = waker.filter(|_| has_urgent) {
            waker.wake_by_ref();
        }
    }

    /// See [`KeyQueue::drain`].
    pub(super) fn drain_eventual(
        &mut self,
        table: &mut Table,
        urgent_only: bool,
        max: usize,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> (usize, bool) {
        let Some(queue) = &mut self.eventual else { return (0, false) };
        queue.drain(table, urgent_only, max, |slot| {
            send_eventual(slot, SyncPriority::Normal, &mut send)
        })
    }

    /// See [`KeyQueue::drain`].
    pub(super) fn drain_strict(
        &mut self,
        table: &mut Table,
        max: usize,
        mut send: impl FnMut(KeyHash),
    ) -> (usize, bool) {
        let Some(queue) = &mut self.strict else { return (0, false) };
        queue.drain(table, false, max, |slot| {
            let is_due = take_due(slot, SyncPriority::Normal, false);
            if is_due {
                send(slot.key);
            }
            is_due
        })
    }

    pub(super) fn eventual_len(&self) -> usize {
        self.eventual.as_ref().map_or(0, |queue| queue.len())
    }

    pub(super) fn strict_len(&self) -> usize {
        self.strict.as_ref().map_or(0, |queue| queue.len())
    }

    pub(super) fn bytes(&self) -> usize {
        [&self.eventual, &self.strict].into_iter().flatten().map(|queue| queue.bytes()).sum()
    }
}

/// Passes an eventual key to `send` if its priority is at least `least`; returns whether it did.
pub(super) fn send_eventual(
    slot: &mut Slot,
    least: SyncPriority,
    send: &mut impl FnMut(KeyHash, &ActorCounters),
) -> bool {
    let is_due = take_due(slot, least, true);
    if let (true, State::ActorCounters(actor_counters)) = (is_due, &mut slot.state) {
        actor_counters.announced();
        send(slot.key, actor_counters);
    }
    is_due
}

/// Clears the priority of a key and returns whether the key is to be sent. It is not if it was sent
/// from the other priority of its kind, or if its priority is below `least`. A key of the other
/// kind stays in the queue of that kind.
fn take_due(slot: &mut Slot, least: SyncPriority, is_eventual: bool) -> bool {
    let is_absent = matches!(slot.state, State::Absent);
    if !is_absent && slot.state.actor_counters().is_some() != is_eventual {
        return false;
    }
    let is_due = slot.meta.priority() >= least;
    if is_due || is_absent {
        slot.meta.set_priority(SyncPriority::None);
    }
    is_due && !is_absent
}

// === impl KeyQueue ===

impl KeyQueue {
    /// Queues a key, or raises its priority.
    fn push(&mut self, slot: &mut Slot, priority: SyncPriority) {
        if slot.meta.priority() >= priority {
            return;
        }
        slot.meta.set_priority(priority);
        let queue = match priority {
            SyncPriority::None | SyncPriority::Lazy => return,
            SyncPriority::Normal => &mut self.normal,
            SyncPriority::Urgent => &mut self.urgent,
        };
        if queue.len() < QUEUE_KEYS_MAX {
            queue.push_back(slot.key);
        } else {
            self.rescan = match self.rescan {
                Rescan::Idle => Rescan::Running { seen: None, again: false },
                Rescan::Running { seen, .. } => Rescan::Running { seen, again: true },
            };
        }
    }

    /// Passes changed keys to `take`, urgent ones first, until it took `max` of them. Returns how
    /// many it took, and whether there may be more. `take` returns whether it took the key, and
    /// then has cleared its priority.
    fn drain(
        &mut self,
        table: &mut Table,
        urgent_only: bool,
        max: usize,
        mut take: impl FnMut(&mut Slot) -> bool,
    ) -> (usize, bool) {
        let mut sent = 0;
        while sent < max {
            let next = self.urgent.pop_front();
            let next = if urgent_only { next } else { next.or_else(|| self.normal.pop_front()) };
            let Some(key) = next else { break };
            sent += usize::from(table.find_mut(key).is_some_and(&mut take));
        }
        if urgent_only || sent == max {
            self.free_excess();
            return (sent, !self.urgent.is_empty() || !urgent_only && self.has_more());
        }
        sent += self.rescan(table, max - sent, take);
        self.free_excess();
        (sent, self.has_more())
    }

    /// Schedules a scan of the whole table for keys with a priority that are not queued.
    fn start_rescan(&mut self) {
        self.rescan = Rescan::Running { seen: None, again: false };
    }

    /// Keys of both priorities. A key that became urgent may be counted twice.
    fn len(&self) -> usize {
        self.urgent.len() + self.normal.len()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + (self.urgent.capacity() + self.normal.capacity()) * size_of::<KeyHash>()
    }

    fn has_more(&self) -> bool {
        self.len() > 0 || matches!(self.rescan, Rescan::Running { .. })
    }

    /// One bounded step of the scan of the table.
    fn rescan(
        &mut self,
        table: &mut Table,
        max: usize,
        mut take: impl FnMut(&mut Slot) -> bool,
    ) -> usize {
        let Rescan::Running { seen, again } = self.rescan else { return 0 };
        let (range, mut next) = table.next_range(seen, RESCAN_SLOTS);
        let (mut sent, mut last) = (0, seen);
        for slot in table.occupied_mut(range) {
            if sent == max {
                next = last;
                break;
            }
            sent += usize::from(take(slot));
            last = Some(slot.key);
        }
        self.rescan = match next {
            None if !again => Rescan::Idle,
            None => Rescan::Running { seen: None, again: false },
            seen => Rescan::Running { seen, again },
        };
        sent
    }

    /// Frees the memory of an empty queue that was long once.
    fn free_excess(&mut self) {
        for queue in [&mut self.urgent, &mut self.normal] {
            if queue.is_empty() && queue.capacity() > 64 {
                *queue = VecDeque::new();
            }
        }
    }
}
