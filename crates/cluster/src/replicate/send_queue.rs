//! What one peer is still to be told: keys in line, each once, and one message under way.
//!
//! The line holds names, not states: what is sent is the latest when its turn comes, however often
//! the key changed meanwhile. Places in line are numbered; a *ticket* names the last one given, and
//! everything up to it is told once that many were answered. What a failed message held stands in
//! front of the line again under its old numbers.
//!
//! **Bound:** [`KEYS_MAX`] keys. A key that finds no place stays in the store's line of changed
//! keys and comes again.
//!
//! **Example.** Keys a, b, c are put in line: ticket 3. A message takes a and b; a changes and is
//! put in line again: ticket 4. The message fails: a, b stand in front of c, a. The next one takes
//! a, b and c; number 4 is skipped, because a was told later than it was put there.

use std::collections::{BTreeSet, VecDeque};

use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Span, Timestamp};

use crate::mesh::CallError;

/// Most keys in line for one peer: what some ten messages take.
pub(super) const KEYS_MAX: usize = 16_384;
/// How long a peer is left alone after a message that failed: what was wrong is seldom over at
/// once.
const REST: Span = Span::from_millis(20);

/// What one peer is still to be told.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    line: VecDeque<Place>,
    /// The keys that are to be told. The line may name one of them twice, and others that are not
    /// to be told any more: those places are skipped.
    owed: BTreeSet<KeyHash>,
    /// The places in line that the message under way took, with the ones it skipped.
    under_way: Option<Vec<Place>>,
    /// Places in line ever given.
    given: u64,
    /// Places in line that were taken or skipped, those of the message under way included.
    taken: u64,
    /// Places up to which everything was answered.
    answered: u64,
    /// No message begins before.
    rests_until: Timestamp,
    /// Messages that failed, and why the last one did.
    failures: (u64, Option<CallError>),
}

/// A place in line.
#[derive(Clone, Copy, Debug)]
struct Place {
    key: KeyHash,
    since: Timestamp,
    /// Whether the message under way tells the key; a skipped place is told by another.
    is_acked: bool,
}

impl SendQueue {
    /// Puts a key in line; false when there is no place.
    pub(super) fn add(&mut self, key: KeyHash, now: Timestamp) -> bool {
        if self.owed.contains(&key) {
            return true;
        }
        if self.line.len() >= KEYS_MAX {
            return false;
        }
        self.owed.insert(key);
        self.line.push_back(Place { key, since: now, is_acked: false });
        self.given += 1;
        true
    }

    /// Begins a message with the keys in front of the line that it `takes`, unless one is under
    /// way. Returns whether there is one. When the rest of the line held nothing to tell, it counts
    /// as answered.
    pub(super) fn begin(&mut self, mut takes: impl FnMut(KeyHash) -> bool) -> bool {
        if self.under_way.is_some() {
            return false;
        }
        let mut tokens = Vec::new();
        while let Some(&token) = self.line.front() {
            let is_acked = self.owed.contains(&token.key);
            if is_acked && !takes(token.key) {
                break;
            }
            self.owed.remove(&token.key);
            tokens.push(Place { is_acked, ..token });
            self.line.pop_front();
            self.taken += 1;
        }
        let is_begun = tokens.iter().any(|token| token.is_acked);
        if is_begun {
            self.under_way = Some(tokens);
        } else {
            self.answered = self.taken;
        }
        is_begun
    }

    /// The message under way was answered.
    pub(super) fn succeed(&mut self) {
        self.under_way = None;
        self.answered = self.taken;
    }

    /// The message under way, if there is one, was not answered: its keys stand in front again, and
    /// the next message waits for a moment.
    pub(super) fn fail(&mut self, error: CallError, now: Timestamp) {
        self.rests_until = now.plus(REST);
        self.failures = (self.failures.0 + 1, Some(error));
        for token in self.under_way.take().into_iter().flatten().rev() {
            if token.is_acked {
                self.owed.insert(token.key);
            }
            self.line.push_front(token);
            self.taken -= 1;
        }
    }

    /// Takes the keys out of line that are not to be `kept`.
    pub(super) fn give_up(&mut self, mut kept: impl FnMut(KeyHash) -> bool) -> Vec<KeyHash> {
        let (stay, go): (BTreeSet<_>, _) =
            std::mem::take(&mut self.owed).into_iter().partition(|key| kept(*key));
        self.owed = stay;
        if self.owed.is_empty() && self.under_way.is_none() {
            self.line.clear();
            (self.taken, self.answered) = (self.given, self.given);
        }
        go.into_iter().collect()
    }

    /// The last place in line that was given.
    pub(super) fn ticket(&self) -> u64 {
        self.given
    }

    /// Whether all places up to `ticket` were answered.
    pub(super) fn is_acked(&self, ticket: u64) -> bool {
        self.answered >= ticket
    }

    /// How many messages failed, and why the last one did.
    pub(super) fn failures(&self) -> (u64, Option<CallError>) {
        self.failures
    }

    /// Whether a message failed a moment ago.
    pub(super) fn rests(&self, now: Timestamp) -> bool {
        now < self.rests_until
    }

    /// Whether a message is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether nothing is to be told and nothing under way.
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.under_way.is_none()
    }

    /// When the oldest of what was not answered yet was put in line.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let under_way = self.under_way.iter().flatten();
        under_way.chain(self.line.front()).map(|token| token.since).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(tag: u64) -> KeyHash {
        KeyHash { token: 1, tag }
    }

    fn add(send_queue: &mut SendQueue, tag: u64) -> bool {
        send_queue.add(key(tag), Timestamp::EPOCH)
    }

    /// The keys of the next message of at most `max`.
    fn begin(send_queue: &mut SendQueue, max: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        send_queue.begin(|key| {
            let has_room = taken.len() < max;
            if has_room {
                taken.push(key.tag);
            }
            has_room
        });
        taken
    }

    #[test]
    fn what_a_failed_message_held_is_told_before_the_rest_and_once() {
        let mut send_queue = SendQueue::default();
        for tag in [1, 2, 3] {
            assert!(add(&mut send_queue, tag));
        }
        assert_eq!(begin(&mut send_queue, 2), [1, 2]);
        assert!(add(&mut send_queue, 1), "it changed while it was under way");
        assert_eq!(begin(&mut send_queue, 9), [0_u64; 0], "one message at a time");
        send_queue.fail(CallError::Timeout, Timestamp::EPOCH);
        let ticket = send_queue.ticket();
        assert_eq!(begin(&mut send_queue, 9), [1, 2, 3]);
        assert!(!send_queue.is_acked(ticket));
        send_queue.succeed();
        assert!(send_queue.is_acked(ticket) && send_queue.is_empty());
        assert_eq!(send_queue.failures(), (1, Some(CallError::Timeout)));
    }

    #[test]
    fn a_full_line_takes_no_other_key() {
        let mut send_queue = SendQueue::default();
        assert!((0..KEYS_MAX as u64).all(|tag| add(&mut send_queue, tag)));
        assert!(!add(&mut send_queue, u64::MAX));
        assert!(add(&mut send_queue, 7), "it is in line already");
    }

    #[test]
    fn keys_that_are_given_up_are_named_once_and_the_others_stay() {
        let mut send_queue = SendQueue::default();
        for tag in 1..=6 {
            add(&mut send_queue, tag);
        }
        begin(&mut send_queue, 2);
        send_queue.fail(CallError::Closed, Timestamp::EPOCH);
        assert_eq!(send_queue.give_up(|key| key.tag % 2 == 0), [1, 3, 5].map(key));
        let ticket = send_queue.ticket();
        assert_eq!(begin(&mut send_queue, 9), [2, 4, 6]);
        send_queue.succeed();
        assert!(send_queue.is_acked(ticket));
    }

    proptest! {
            #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

            /// Whatever comes, fails and is given up: a ticket is told only after a message that
            /// was answered took each of its keys after it was put in line.
            #[test]
            fn a_ticket_is_told_when_all_before_it_are(
                ops in prop::collection::vec((0..5_u8, 0..8_u8), 1..200),
            ) {
                let mut send_queue = SendQueue::default();
                let (mut under_way, mut owed) = (Vec::new(), BTreeSet::new());
                let mut tickets: Vec<(u64, BTreeSet<u64>)> = Vec::new();
                for (op, n) in ops {
                    let (n, max) = (u64::from(n), usize::from(n) + 1);
                    match op {
                        0 | 1 => {
                            add(&mut send_queue, n);
                            owed.insert(n);
                            let untold = &owed | &under_way.iter().copied().collect();
                        tickets.push((send_queue.ticket(), untold));
                        }
                        2 if !send_queue.is_busy() => {
                            under_way = begin(&mut send_queue, max);
                            owed.retain(|tag| !under_way.contains(tag));
                        }
                        3 if send_queue.is_busy() => {
                            send_queue.succeed();
                            for tag in under_way.drain(..) {
                                for (_, keys) in &mut tickets {
     keys.remove(&tag);
    }
                            }
                        }
                        4 if send_queue.is_busy() => {
                            send_queue.fail(CallError::Timeout, Timestamp::EPOCH);
                            owed.extend(under_way.drain(..));
                        }
                        _ => {}
                    }
                    for (ticket, keys) in &tickets {
                        prop_assert!(!send_queue.is_acked(*ticket) || keys.is_empty());
                    }
                }
                send_queue.fail(CallError::Closed, Timestamp::EPOCH);
                while !begin(&mut send_queue, 3).is_empty() {
                    send_queue.succeed();
                }
                prop_assert!(send_queue.is_acked(send_queue.ticket()) && send_queue.is_empty());
            }
        }
}
