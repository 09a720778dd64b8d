//! The keys that one peer is still to be sent, each once, and the messages in flight.
//!
//! The queue holds keys, not states: the state is read when the message is filled, however often
//! the key changed meanwhile. Entries are numbered in sequence; everything up to a sequence number
//! is acknowledged once no entry up to it is queued or in flight. The entries of a failed message
//! return to the queue under their old numbers, so they are sent first.
//!
//! # Window
//!
//! With one message per round trip a peer 150 ms away would get 6,800 keys a second, and the queue
//! would grow without end beyond that. So several messages are in flight, as many as the link has
//! shown to carry:
//!
//! ```text
//! acknowledged within `fastest + 50 ms`   window + 1, so it doubles every round trip
//! acknowledged later, or failed           window / 2, once for messages in flight together
//! ```
//!
//! `fastest` is the shortest time of an acknowledgement, measured anew while the window is one
//! message. A fixed number of messages would be too small for a long link, and on a slow one they
//! would delay the pings behind them until the peer counts as unreachable.
//!
//! Messages may arrive in any order. An older state that arrives after a newer one of its key
//! changes nothing, because the receiver merges states and `merge` is commutative and idempotent.
//!
//! **Bounds:** [`KEYS_MAX`] entries, besides those of failed messages. A key that does not fit
//! stays in the store's replication queue and is collected again. [`WINDOW_MAX`] messages in
//! flight; none begins while [`WINDOW_BYTES_MAX`] are.
//!
//! **Example.** Keys a, b, c are added: sequence number 3. A message takes a and b; a changes and
//! is added again: number 4. The message fails: the queue is a, b, c, a. The next message takes a,
//! b and c; entry 4 is dropped, because that message read a's state after the entry was added.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Monotonic, Span};

use crate::mesh::CallError;
use crate::mesh::tls::STREAM_WINDOW_BYTES;

/// Most entries for one peer: what some ten messages take.
pub(super) const KEYS_MAX: usize = 16_384;
/// Most messages in flight. With one every 5 ms they cover a round trip of 160 ms; beyond it each
/// carries more keys.
const WINDOW_MAX: usize = 32;
/// While this many bytes are in flight no further message is sent. It is the flow control window of
/// a stream: what exceeds it would wait on this side, before the messages of others.
const WINDOW_BYTES_MAX: usize = STREAM_WINDOW_BYTES as usize;
/// How much longer than the fastest a message may take before the window shrinks. Far below the
/// time after which a peer counts as unreachable.
const QUEUEING_MAX: Span = Span::from_millis(50);
/// The pause after a failed message: its cause seldom ends at once.
const BACKOFF: Span = Span::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// By sequence number.
    queue: BTreeMap<u64, Entry>,
    /// The keys that are to be sent. The queue may hold an entry for one of them twice.
    pending: BTreeSet<KeyHash>,
    /// By id.
    in_flight: BTreeMap<MessageId, Message>,
    window: Window,
    /// Number of messages begun.
    begun: u64,
    /// Sequence number of the last entry added.
    pub(super) added: u64,
    /// No message begins before.
    backoff_until: Monotonic,
    /// Number of failures, and the error of the last one.
    pub(super) failures: (u64, Option<CallError>),
    /// How often even a window of one message failed, or the peer could not be reached.
    pub(super) stalls: u64,
    /// Messages of which the peer did not merge everything.
    pub(super) refused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MessageId(u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: KeyHash,
    since: Monotonic,
}

#[derive(Debug)]
struct Message {
    /// With their sequence numbers, in order.
    entries: Vec<(u64, Entry)>,
    bytes: usize,
    begun: Monotonic,
}

/// How many messages may be in flight.
#[derive(Debug)]
struct Window {
    messages: usize,
    /// The shortest time from a message to its acknowledgement.
    fastest: Span,
    /// Messages up to this one began before the window last shrank. They are late or fail for the
    /// same cause, and do not shrink it again.
    shrank_at: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { messages: 1, fastest: Span::ZERO, shrank_at: 0 }
    }
}

impl SendQueue {
    /// Adds a key, unless it is pending already. False if the queue is full.
    pub(super) fn add(&mut self, key: KeyHash, now: Monotonic) -> bool {
        if self.pending.contains(&key) {
            return true;
        }
        if !self.has_room(KEYS_MAX) {
            return false;
        }
        self.pending.insert(key);
        self.added += 1;
        self.queue.insert(self.added, Entry { key, since: now });
        true
    }

    /// Begins a message with keys from the front of the queue, as long as `take` returns the bytes
    /// of a key's state. `None` if no key is pending or no further message may be in flight.
    pub(super) fn begin(
        &mut self,
        now: Monotonic,
        mut take: impl FnMut(KeyHash) -> Option<usize>,
    ) -> Option<MessageId> {
        let bytes_in_flight: usize = self.in_flight.values().map(|message| message.bytes).sum();
        if self.in_flight.len() >= self.window.messages || bytes_in_flight >= WINDOW_BYTES_MAX {
            return None;
        }
        let mut message = Message { entries: Vec::new(), bytes: 0, begun: now };
        while let Some(first) = self.queue.first_entry() {
            let key = first.get().key;
            // Otherwise an earlier entry of the key was taken after this one had been added.
            if self.pending.contains(&key) {
                let Some(bytes) = take(key) else { break };
                message.bytes += bytes;
                message.entries.push((*first.key(), *first.get()));
                self.pending.remove(&key);
            }
            first.remove();
        }
        if message.entries.is_empty() {
            return None;
        }
        self.begun += 1;
        let id = MessageId(self.begun);
        self.in_flight.insert(id, message);
        Some(id)
    }

    /// A message in flight was acknowledged.
    pub(super) fn ack(&mut self, id: MessageId, now: Monotonic) {
        let Some(message) = self.in_flight.remove(&id) else { return };
        self.window.acked(id, now.since(message.begun), self.begun);
    }

    /// A message in flight failed: its entries return to the queue, and the next message waits for
    /// [`BACKOFF`].
    pub(super) fn fail(&mut self, id: MessageId, error: CallError, now: Monotonic) {
        for (sequence, entry) in self.in_flight.remove(&id).into_iter().flat_map(|m| m.entries) {
            self.pending.insert(entry.key);
            self.queue.insert(sequence, entry);
        }
        self.stalls += u64::from(self.window.messages == 1 && id.0 > self.window.shrank_at);
        self.window.shrink(id, self.begun);
        self.back_off(error, now);
    }

    /// The peer cannot be reached: no message begins before [`BACKOFF`].
    pub(super) fn peer_unreachable(&mut self, now: Monotonic) {
        self.window = Window { shrank_at: self.begun, ..Window::default() };
        self.stalls += 1;
        self.back_off(CallError::NotConnected, now);
    }

    fn back_off(&mut self, error: CallError, now: Monotonic) {
        self.backoff_until = now.plus(BACKOFF);
        self.failures = (self.failures.0 + 1, Some(error));
    }

    /// Keeps the pending keys for which `keep` returns true, and returns the others.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(KeyHash) -> bool) -> Vec<KeyHash> {
        let (kept, removed): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|key| keep(*key));
        self.pending = kept;
        self.queue.retain(|_, entry| self.pending.contains(&entry.key));
        removed.into_iter().collect()
    }

    /// Whether all entries up to `sequence` are acknowledged.
    pub(super) fn is_acked(&self, sequence: u64) -> bool {
        let mut messages = self.in_flight.values().filter_map(|message| message.entries.first());
        self.queue.keys().next().is_none_or(|first| *first > sequence)
            && messages.all(|(first, _)| *first > sequence)
    }

    /// Whether fewer than `keys_max` entries wait.
    pub(super) fn has_room(&self, keys_max: usize) -> bool {
        self.queue.len() < keys_max
    }

    pub(super) fn is_backing_off(&self, now: Monotonic) -> bool {
        now < self.backoff_until
    }

    /// Whether there is neither an entry nor a message in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// When the oldest entry that is not acknowledged was added.
    pub(super) fn oldest(&self) -> Option<Monotonic> {
        let messages = self.in_flight.values().filter_map(|message| message.entries.first());
        let in_flight = messages.map(|(_, entry)| entry);
        in_flight.chain(self.queue.values().next()).map(|entry| entry.since).min()
    }
}

impl Window {
    /// A message was acknowledged after `took`; `begun` have begun until now.
    fn acked(&mut self, id: MessageId, took: Span, begun: u64) {
        if self.messages == 1 || took < self.fastest {
            self.fastest = took;
        }
        if took.as_nanos() > self.fastest.as_nanos().saturating_add(QUEUEING_MAX.as_nanos()) {
            self.shrink(id, begun);
        } else {
            self.messages = (self.messages + 1).min(WINDOW_MAX);
        }
    }

    fn shrink(&mut self, MessageId(id): MessageId, begun: u64) {
        if id > self.shrank_at {
            self.messages = (self.messages / 2).max(1);
            self.shrank_at = begun;
        }
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
        queue.add(key(tag), Monotonic::START)
    }

    /// The next message, of at most `max` keys, and these keys.
    fn begin(queue: &mut SendQueue, max: usize) -> Option<(MessageId, Vec<u64>)> {
        let mut taken = Vec::new();
        let id = queue.begin(Monotonic::START, |key| {
            (taken.len() < max).then(|| {
                taken.push(key.tag);
                1
            })
        });
        id.map(|id| (id, taken))
    }

    /// Lets `messages` be in flight.
    fn open_window(queue: &mut SendQueue, messages: usize) {
        queue.window.messages = messages;
    }

    fn ack(queue: &mut SendQueue, id: MessageId) {
        queue.ack(id, Monotonic::START);
    }

    fn fail(queue: &mut SendQueue, id: MessageId) {
        queue.fail(id, CallError::Timeout, Monotonic::START);
    }

    #[test]
    fn the_keys_of_a_failed_message_are_sent_first_and_once() {
        let mut queue = SendQueue::default();
        for tag in [1, 2, 3] {
            assert!(add(&mut queue, tag));
        }
        let (first, keys) = begin(&mut queue, 2).unwrap();
        assert_eq!(keys, [1, 2]);
        assert!(add(&mut queue, 1), "it changed while it was in flight");
        assert_eq!(begin(&mut queue, 9), None, "the window is one message at first");
        fail(&mut queue, first);
        let sequence = queue.added;
        let (second, keys) = begin(&mut queue, 9).unwrap();
        assert_eq!(keys, [1, 2, 3]);
        assert!(!queue.is_acked(sequence));
        ack(&mut queue, second);
        assert!(queue.is_acked(sequence) && queue.is_empty());
        assert_eq!(queue.failures, (1, Some(CallError::Timeout)));
    }

    #[test]
    fn messages_that_fail_in_any_order_return_to_the_order_of_their_keys() {
        let mut queue = SendQueue::default();
        open_window(&mut queue, 3);
        for tag in 1..=7 {
            add(&mut queue, tag);
        }
        let messages: Vec<_> = (0..3).map(|_| begin(&mut queue, 2).unwrap().0).collect();
        fail(&mut queue, messages[0]);
        fail(&mut queue, messages[2]);
        ack(&mut queue, messages[1]);
        assert!(!queue.is_acked(1) && !queue.is_acked(4), "2 is not");
        let (rest, keys) = begin(&mut queue, 9).unwrap();
        assert_eq!(keys, [1, 2, 5, 6, 7]);
        ack(&mut queue, rest);
        assert!(queue.is_acked(7));
    }

    #[test]
    fn the_window_grows_with_acknowledgements_and_halves_once_per_cause() {
        let mut queue = SendQueue::default();
        for n in 0..100 {
            add(&mut queue, n);
            let (id, _) = begin(&mut queue, 1).unwrap();
            ack(&mut queue, id);
        }
        for n in 0..100 {
            add(&mut queue, n);
        }
        let messages: Vec<_> = std::iter::from_fn(|| begin(&mut queue, 1)).collect();
        assert_eq!(messages.len(), WINDOW_MAX);
        for (id, _) in messages {
            fail(&mut queue, id);
        }
        let half: Vec<_> = std::iter::from_fn(|| begin(&mut queue, 1)).collect();
        assert_eq!(half.len(), WINDOW_MAX / 2);
        assert_eq!(queue.stalls, 0);
        let (mut failed, mut messages) = (0, half);
        while queue.stalls == 0 {
            for (id, _) in messages {
                fail(&mut queue, id);
            }
            messages = std::iter::from_fn(|| begin(&mut queue, 1)).collect();
            failed += 1;
        }
        assert_eq!((failed, messages.len()), (5, 1), "16, 8, 4, 2, and then the only one");
    }

    #[test]
    fn the_window_shrinks_while_messages_wait_behind_each_other() {
        let (mut window, mut id) = (Window::default(), 0);
        let mut acked = |millis| {
            id += 1;
            window.acked(MessageId(id), Span::from_millis(millis), id + 1);
            window.messages
        };
        assert_eq!([150, 160, 140, 190].map(&mut acked), [2, 3, 4, 5]);
        assert_eq!([191, 300].map(&mut acked), [2, 2], "the fastest took 140; the same cause");
        assert_eq!([191, 200].map(&mut acked), [1, 2], "the way is longer now");
        assert_eq!([250, 251].map(&mut acked), [3, 1]);
    }

    #[test]
    fn large_states_fill_the_window_with_fewer_messages() {
        let mut queue = SendQueue::default();
        open_window(&mut queue, WINDOW_MAX);
        for n in 0..100 {
            add(&mut queue, n);
        }
        let mut large = || {
            let mut is_taken = false;
            queue.begin(Monotonic::START, |_| {
                (!std::mem::replace(&mut is_taken, true)).then_some(700 * 1024)
            })
        };
        assert_eq!(std::iter::from_fn(&mut large).count(), 3, "the third passes the bound");
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
        let (first, _) = begin(&mut queue, 2).unwrap();
        fail(&mut queue, first);
        assert_eq!(queue.retain(|key| key.tag % 2 == 0), [1, 3, 5].map(key));
        let sequence = queue.added;
        let (rest, keys) = begin(&mut queue, 9).unwrap();
        assert_eq!(keys, [2, 4, 6]);
        ack(&mut queue, rest);
        assert!(queue.is_acked(sequence));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// In any order of adds, messages, acknowledgements and failures: a sequence number is
        /// acknowledged only after an acknowledged message took each key up to it after the key
        /// was added.
        #[test]
        fn a_sequence_number_is_acked_when_all_keys_up_to_it_are(
            ops in prop::collection::vec((0..5_u8, 0..8_u8), 1..200),
        ) {
            let mut queue = SendQueue::default();
            open_window(&mut queue, 4);
            let mut in_flight: Vec<(MessageId, Vec<u64>)> = Vec::new();
            // For each key when it was added last, and by a sequence number what it covers. Times
            // are numbers of steps.
            let mut unacked: Vec<(u64, BTreeMap<u64, usize>)> = Vec::new();
            let (mut added, mut begun) = (BTreeMap::new(), BTreeMap::new());
            for (step, (op, n)) in ops.into_iter().enumerate() {
                let (n, max) = (u64::from(n), usize::from(n) + 1);
                let any = usize::try_from(n).unwrap() % in_flight.len().max(1);
                match op {
                    0 | 1 => {
                        add(&mut queue, n);
                        added.insert(n, step);
                        unacked.push((queue.added, added.clone()));
                    }
                    2 => if let Some((id, keys)) = begin(&mut queue, max) {
                        begun.insert(id, step);
                        in_flight.push((id, keys));
                    },
                    3 if !in_flight.is_empty() => {
                        let (id, keys) = in_flight.remove(any);
                        ack(&mut queue, id);
                        for (_, added) in &mut unacked {
                            added.retain(|key, at| !keys.contains(key) || *at > begun[&id]);
                        }
                        added.retain(|key, at| !keys.contains(key) || *at > begun[&id]);
                    }
                    4 if !in_flight.is_empty() => {
                        fail(&mut queue, in_flight.remove(any).0);
                        open_window(&mut queue, 4);
                    }
                    _ => {}
                }
                for (sequence, keys) in &unacked {
                    prop_assert!(!queue.is_acked(*sequence) || keys.is_empty());
                }
            }
            for (id, _) in in_flight {
                fail(&mut queue, id);
            }
            while let Some((id, _)) = begin(&mut queue, 3) {
                ack(&mut queue, id);
            }
            prop_assert!(queue.is_acked(queue.added) && queue.is_empty());
        }
    }
}
