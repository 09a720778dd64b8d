//! Which keys of a shard changed since their peers last heard of them.
//!
//! A key stands in line once: its slot says so. There are two lines. Eventual keys close to their
//! limit go first, because there a late word costs over-admission. Those that are far from it stand
//! in no line: a slow walk finds them (`far.rs`). Strict keys are calm, neither urgent nor far:
//! their owner decides alone.
//!
//! **Bound:** each line holds [`QUEUE_KEYS_MAX`] keys. A key that finds its line full keeps its flag
//! and is found by a walk over the table when the lines are empty: it is sent later, never lost.

use std::collections::VecDeque;

use super::key::KeyHash;
use super::slot::{Slot, SyncPriority};
use super::table::Table;
use crate::engine::Verdict;

/// Most keys in each of a shard's two lines; 16 KiB a line. A shard holds some 4,096 keys, and a
/// sync round that finds a quarter of all keys changed is better off walking the table.
pub(super) const QUEUE_KEYS_MAX: usize = 1_024;
/// Slots a walk looks at before it lets go of the shard's lock.
const WALK_SLOTS: usize = 512;
/// A key is urgent when at most one part in this many of its limit is left.
const URGENT_PART: u32 = 5;

/// Whether a verdict brought its key so close to the limit that its peers should hear at once:
/// 20 % or less is left. A refusal is not urgent; nothing more was admitted.
pub fn is_urgent(verdict: &Verdict) -> bool {
    verdict.allowed && verdict.remaining <= verdict.limit / URGENT_PART
}

/// The two lines of one kind of keys in one shard.
#[derive(Debug, Default)]
pub(super) struct KeyQueue {
    urgent: VecDeque<KeyHash>,
    calm: VecDeque<KeyHash>,
    missed: Missed,
}

/// How far the walk for keys that found their line full has come.
#[derive(Debug, Default)]
enum Missed {
    #[default]
    Nothing,
    /// Everything up to `seen` was looked at; `again` when a key was missed meanwhile, perhaps
    /// behind the walk's back.
    Walk { seen: Option<KeyHash>, again: bool },
}

impl KeyQueue {
    /// Puts a key in line, or moves it up to where it is told sooner.
    pub(super) fn mark(&mut self, slot: &mut Slot, priority: SyncPriority) {
        if slot.stamp.priority() >= priority {
            return;
        }
        slot.stamp.set_priority(priority);
        let line = match priority {
            SyncPriority::Nothing | SyncPriority::Far => return,
            SyncPriority::Calm => &mut self.calm,
            SyncPriority::Urgent => &mut self.urgent,
        };
        if line.len() < QUEUE_KEYS_MAX {
            line.push_back(slot.key);
        } else {
            self.missed = match self.missed {
                Missed::Nothing => Missed::Walk { seen: None, again: false },
                Missed::Walk { seen, .. } => Missed::Walk { seen, again: true },
            };
        }
    }

    /// Lets `take` have changed keys, urgent ones first, until it took `max` of them. Returns how
    /// many, and whether there may be more. `take` says whether it took the key, and then has
    /// noted that there is no news of it.
    pub(super) fn drain(
        &mut self,
        table: &mut Table,
        urgent_only: bool,
        max: usize,
        mut take: impl FnMut(&mut Slot) -> bool,
    ) -> (usize, bool) {
        let mut sent = 0;
        while sent < max {
            let next = self.urgent.pop_front();
            let next = if urgent_only { next } else { next.or_else(|| self.calm.pop_front()) };
            let Some(key) = next else { break };
            sent += usize::from(table.find_mut(key).is_some_and(&mut take));
        }
        if urgent_only || sent == max {
            self.give_back();
            return (sent, !self.urgent.is_empty() || !urgent_only && self.waits());
        }
        sent += self.walk(table, max - sent, take);
        self.give_back();
        (sent, self.waits())
    }

    /// Has the whole table walked over: there may be flags that nothing stands in line for.
    pub(super) fn search(&mut self) {
        self.missed = Missed::Walk { seen: None, again: false };
    }

    /// Keys in both lines. A key that became urgent may be counted twice.
    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.calm.len()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + (self.urgent.capacity() + self.calm.capacity()) * size_of::<KeyHash>()
    }

    fn waits(&self) -> bool {
        self.len() > 0 || matches!(self.missed, Missed::Walk { .. })
    }

    /// One bounded stretch of the walk over the table.
    fn walk(
        &mut self,
        table: &mut Table,
        max: usize,
        mut take: impl FnMut(&mut Slot) -> bool,
    ) -> usize {
        let Missed::Walk { seen, again } = self.missed else { return 0 };
        let (range, mut next) = table.stretch(seen, WALK_SLOTS);
        let (mut sent, mut last) = (0, seen);
        for slot in table.taken_mut(range) {
            if sent == max {
                next = last;
                break;
            }
            sent += usize::from(take(slot));
            last = Some(slot.key);
        }
        self.missed = match next {
            None if !again => Missed::Nothing,
            None => Missed::Walk { seen: None, again: false },
            seen => Missed::Walk { seen, again },
        };
        sent
    }

    /// A line that was long once does not keep its memory for ever.
    fn give_back(&mut self) {
        for line in [&mut self.urgent, &mut self.calm] {
            if line.is_empty() && line.capacity() > 64 {
                *line = VecDeque::new();
            }
        }
    }
}
