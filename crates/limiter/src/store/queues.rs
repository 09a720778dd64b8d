//! What the keys of a shard are in line for: to be told to peers, and to be written to disk.
//!
//! Two kinds of keys wait in lines of their own, because they go to other peers at another pace:
//! eventual ones as columns, strict ones as whole states. A slot has one flag for both, since its
//! state says which kind it is; an absent state has nothing to tell and belongs to neither.
//!
//! Strict keys stand in line only in a store whose changes somebody drains, and the flag for the
//! disk is raised only in one that is written to disk: both are switches, and off costs one test.

use super::key::KeyHash;
use super::key_queue::KeyQueue;
use super::slot::{Slot, Stamp, SyncPriority};
use super::table::Table;
use crate::engine::{ActorCounters, State};

/// The lines of one shard.
///
/// Made when a key first stands in one: every check reads the shard around them, and most stores
/// use one kind or none.
#[derive(Debug, Default)]
pub(super) struct Queues {
    actor_counters: Option<Box<KeyQueue>>,
    strict: Option<Box<KeyQueue>>,
    keeps_changed: bool,
    keeps_unsaved: bool,
}

impl Queues {
    /// An eventual key has news for its peers.
    pub(super) fn enqueue_eventual(&mut self, slot: &mut Slot, priority: SyncPriority) {
        self.actor_counters.get_or_insert_default().mark(slot, priority);
    }

    /// A strict key has news for its replicas. A node's own share concerns nobody.
    pub(super) fn enqueue_strict(&mut self, slot: &mut Slot) {
        if self.keeps_changed && slot.key.is_owned() {
            self.strict.get_or_insert_default().mark(slot, SyncPriority::Calm);
        }
    }

    /// A key holds something that the disk does not.
    pub(super) fn enqueue_snapshot(&self, slot: &mut Slot) {
        if self.keeps_unsaved && slot.key.is_long() {
            slot.stamp.raise(Stamp::UNSAVED);
        }
    }

    /// Switches the line of strict keys. Keys that stood in it when it was switched off are found
    /// again; what changed in between is not.
    pub(super) fn set_replicated(&mut self, keeps: bool) {
        if self.keeps_changed != keeps {
            self.strict = None;
            self.keeps_changed = keeps;
        }
        if keeps {
            self.strict.get_or_insert_default().search();
        }
    }

    /// Switches the flag for the disk.
    pub(super) fn set_snapshotted(&mut self, keeps: bool) {
        self.keeps_unsaved = keeps;
    }

    /// See [`KeyQueue::drain`].
    pub(super) fn drain_eventual(
        &mut self,
        table: &mut Table,
        urgent_only: bool,
        max: usize,
        mut send: impl FnMut(KeyHash, &ActorCounters),
    ) -> (usize, bool) {
        let Some(line) = &mut self.actor_counters else { return (0, false) };
        line.drain(table, urgent_only, max, |slot| {
            take_eventual(slot, SyncPriority::Calm, &mut send)
        })
    }

    /// See [`KeyQueue::drain`].
    pub(super) fn drain_strict(
        &mut self,
        table: &mut Table,
        max: usize,
        mut send: impl FnMut(KeyHash),
    ) -> (usize, bool) {
        let Some(line) = &mut self.strict else { return (0, false) };
        line.drain(table, false, max, |slot| {
            let is_sent = leaves_line(slot, SyncPriority::Calm, |state| {
                !matches!(state, State::ActorCounters(_))
            });
            if is_sent {
                send(slot.key);
            }
            is_sent
        })
    }

    /// Eventual keys in line.
    pub(super) fn eventual_len(&self) -> usize {
        self.actor_counters.as_ref().map_or(0, |line| line.len())
    }

    /// Strict keys in line.
    pub(super) fn strict_len(&self) -> usize {
        self.strict.as_ref().map_or(0, |line| line.len())
    }

    pub(super) fn bytes(&self) -> usize {
        [&self.actor_counters, &self.strict].into_iter().flatten().map(|line| line.bytes()).sum()
    }
}

/// Hands over an eventual key whose news are due at least as soon as `least`; whether it did.
pub(super) fn take_eventual(
    slot: &mut Slot,
    least: SyncPriority,
    send: &mut impl FnMut(KeyHash, &ActorCounters),
) -> bool {
    let is_sent = leaves_line(slot, least, |state| matches!(state, State::ActorCounters(_)));
    if let (true, State::ActorCounters(actor_counters)) = (is_sent, &slot.state) {
        send(slot.key, actor_counters);
    }
    is_sent
}

/// Takes a key out of line and says whether it is to be sent. One that was sent from the other line
/// of its kind already is not, nor is one whose news are less than `least` since; one of the other
/// kind goes on standing in that kind's lines.
fn leaves_line(
    slot: &mut Slot,
    least: SyncPriority,
    is_of_kind: impl FnOnce(&State) -> bool,
) -> bool {
    let is_absent = matches!(slot.state, State::Absent);
    if !is_absent && !is_of_kind(&slot.state) {
        return false;
    }
    let is_due = slot.stamp.priority() >= least;
    if is_due || is_absent {
        slot.stamp.set_priority(SyncPriority::Nothing);
    }
    is_due && !is_absent
}
