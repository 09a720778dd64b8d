//! The keys that one peer is still to be sent, each once, and the one message in flight.
//!
//! The queue holds keys, not states: the state is read when the message is filled, however often
//! the key changed meanwhile. Entries are numbered in sequence; everything up to a sequence number
//! is acknowledged once that many entries are. The entries of a failed message return to the front
//! under their old numbers.
//!
//! **Bound:** [`KEYS_MAX`] entries. A key that does not fit stays in the store's replication queue
//! and is collected again.
//!
//! **Example.** Keys a, b, c are added: sequence number 3. A message takes a and b; a changes and
//! is added again: number 4. The message fails: the queue is a, b, c, a. The next message takes a,
//! b and c; entry 4 is skipped, because that message read a's state after the entry was added.

use std::collections::{BTreeSet, VecDeque};

use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Span, Timestamp};

use crate::mesh::CallError;

/// Most entries for one peer: what some ten messages take.
pub(super) const KEYS_MAX: usize = 16_384;
/// The pause after a failed message: its cause seldom ends at once.
const BACKOFF: Span = Span::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    queue: VecDeque<Entry>,
    /// The keys that are to be sent. The queue may hold an entry for one of them twice, and entries
    /// for other keys; those entries are skipped.
    pending: BTreeSet<KeyHash>,
    /// The entries that the message in flight took, with the skipped ones between them.
    in_flight: Option<Vec<Entry>>,
    /// Sequence number of the last entry added.
    pub(super) added: u64,
    /// Sequence number of the last entry taken or skipped, by the message in flight too.
    taken: u64,
    /// Sequence number up to which everything is acknowledged.
    acked: u64,
    /// No message begins before.
    backoff_until: Timestamp,
    /// Number of failed messages, and the error of the last one.
    pub(super) failures: (u64, Option<CallError>),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: KeyHash,
    since: Timestamp,
    /// Whether the message in flight carries the key for this entry; a skipped entry's key is
    /// carried for another.
    is_sent: bool,
}

impl SendQueue {
    /// Adds a key, unless it is pending already. False if the queue is full.
    pub(super) fn add(&mut self, key: KeyHash, now: Timestamp) -> bool {
        if self.pending.contains(&key) {
            return true;
        }
        if self.queue.len() >= KEYS_MAX {
            return false;
        }
        self.pending.insert(key);
        self.queue.push_back(Entry { key, since: now, is_sent: false });
        self.added += 1;
        true
    }

    /// Begins a message with keys from the front of the queue, as long as `take` returns true,
    /// unless one is in flight. Returns whether a message was begun. If none of the entries was
    /// pending, they count as acknowledged.
    pub(super) fn begin(&mut self, mut take: impl FnMut(KeyHash) -> bool) -> bool {
        if self.in_flight.is_some() {
            return false;
        }
        let mut entries = Vec::new();
        while let Some(&entry) = self.queue.front() {
            let is_sent = self.pending.contains(&entry.key);
            if is_sent && !take(entry.key) {
                break;
            }
            self.pending.remove(&entry.key);
            entries.push(Entry { is_sent, ..entry });
            self.queue.pop_front();
            self.taken += 1;
        }
        let is_begun = entries.iter().any(|entry| entry.is_sent);
        if is_begun {
            self.in_flight = Some(entries);
        } else {
            self.acked = self.taken;
        }
        is_begun
    }

    /// The message in flight was acknowledged.
    pub(super) fn ack(&mut self) {
        self.in_flight = None;
        self.acked = self.taken;
    }

    /// The message in flight, if any, failed: its entries return to the front of the queue, and the
    /// next message waits for [`BACKOFF`].
    pub(super) fn fail(&mut self, error: CallError, now: Timestamp) {
        self.backoff_until = now.plus(BACKOFF);
        self.failures = (self.failures.0 + 1, Some(error));
        for entry in self.in_flight.take().into_iter().flatten().rev() {
            if entry.is_sent {
                self.pending.insert(entry.key);
            }
            self.queue.push_front(entry);
            self.taken -= 1;
        }
    }

    /// Keeps the pending keys for which `keep` returns true, and returns the others.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(KeyHash) -> bool) -> Vec<KeyHash> {
        let (kept, removed): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|key| keep(*key));
        self.pending = kept;
        if self.pending.is_empty() && self.in_flight.is_none() {
            self.queue.clear();
            (self.taken, self.acked) = (self.added, self.added);
        }
        removed.into_iter().collect()
    }

    /// Whether all entries up to `sequence` are acknowledged.
    pub(super) fn is_acked(&self, sequence: u64) -> bool {
        self.acked >= sequence
    }

    pub(super) fn is_backing_off(&self, now: Timestamp) -> bool {
        now < self.backoff_until
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether there is neither an entry nor a message in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none()
    }

    /// When the oldest entry that is not acknowledged was added.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let in_flight = self.in_flight.iter().flatten();
        in_flight.chain(self.queue.front()).map(|entry| entry.since).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(tag: u64) -> KeyHash {
        KeyHash { token: 1, tag }
    }

    fn add(queue: &mut SendQueue, tag: u64) -> bool {
        queue.add(key(tag), Timestamp::EPOCH)
    }

    /// The keys of the next message of at most `max`.
    fn begin(queue: &mut SendQueue, max: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        queue.begin(|key| {
            let has_room = taken.len() < max;
            if has_room {
                taken.push(key.tag);
            }
            has_room
        });
        taken
    }

    #[test]
    fn the_keys_of_a_failed_message_are_sent_first_and_once() {
        let mut queue = SendQueue::default();
        for tag in [1, 2, 3] {
            assert!(add(&mut queue, tag));
        }
        assert_eq!(begin(&mut queue, 2), [1, 2]);
        assert!(add(&mut queue, 1), "it changed while it was in flight");
        assert_eq!(begin(&mut queue, 9), [0_u64; 0], "one message at a time");
        queue.fail(CallError::Timeout, Timestamp::EPOCH);
        let sequence = queue.added;
        assert_eq!(begin(&mut queue, 9), [1, 2, 3]);
        assert!(!queue.is_acked(sequence));
        queue.ack();
        assert!(queue.is_acked(sequence) && queue.is_empty());
        assert_eq!(queue.failures, (1, Some(CallError::Timeout)));
    }

    #[test]
    fn a_full_queue_accepts_only_pending_keys() {
        let mut queue = SendQueue::default();
        assert!((0..KEYS_MAX as u64).all(|tag| add(&mut queue, tag)));
        assert!(!add(&mut queue, u64::MAX));
        assert!(add(&mut queue, 7), "it is pending already");
    }

    #[test]
    fn removed_keys_are_returned_once_and_the_others_stay() {
        let mut queue = SendQueue::default();
        for tag in 1..=6 {
            add(&mut queue, tag);
        }
        begin(&mut queue, 2);
        queue.fail(CallError::Closed, Timestamp::EPOCH);
        assert_eq!(queue.retain(|key| key.tag % 2 == 0), [1, 3, 5].map(key));
        let sequence = queue.added;
        assert_eq!(begin(&mut queue, 9), [2, 4, 6]);
        queue.ack();
        assert!(queue.is_acked(sequence));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// In any order of adds, messages and failures: a sequence number is acknowledged only
        /// after an acknowledged message took each key up to it after the key was added.
        #[test]
        fn a_sequence_number_is_acked_when_all_keys_up_to_it_are(
            ops in prop::collection::vec((0..5_u8, 0..8_u8), 1..200),
        ) {
            let mut queue = SendQueue::default();
            let (mut in_flight, mut pending) = (Vec::new(), BTreeSet::new());
            let mut sequences: Vec<(u64, BTreeSet<u64>)> = Vec::new();
            for (op, n) in ops {
                let (n, max) = (u64::from(n), usize::from(n) + 1);
                match op {
                    0 | 1 => {
                        add(&mut queue, n);
                        pending.insert(n);
                        let unacked = &pending | &in_flight.iter().copied().collect();
                        sequences.push((queue.added, unacked));
                    }
                    2 if !queue.has_in_flight() => {
                        in_flight = begin(&mut queue, max);
                        pending.retain(|tag| !in_flight.contains(tag));
                    }
                    3 if queue.has_in_flight() => {
                        queue.ack();
                        for tag in in_flight.drain(..) {
                            for (_, keys) in &mut sequences {
                                keys.remove(&tag);
                            }
                        }
                    }
                    4 if queue.has_in_flight() => {
                        queue.fail(CallError::Timeout, Timestamp::EPOCH);
                        pending.extend(in_flight.drain(..));
                    }
                    _ => {}
                }
                for (sequence, keys) in &sequences {
                    prop_assert!(!queue.is_acked(*sequence) || keys.is_empty());
                }
            }
            queue.fail(CallError::Closed, Timestamp::EPOCH);
            while !begin(&mut queue, 3).is_empty() {
                queue.ack();
            }
            prop_assert!(queue.is_acked(queue.added) && queue.is_empty());
        }
    }
}
