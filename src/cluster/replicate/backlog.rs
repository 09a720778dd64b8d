//! What one peer is still to be told: keys in line, each once, and one message under way.
//!
//! The line holds names, not states: what is sent is the latest when its turn comes, however often
//! the key changed meanwhile. Places in line are numbered; a *ticket* names the last one given, and
//! everything up to it is told once that many were answered. What a failed message held stands in
//! front of the line again under its old numbers.
//!
//! **Bound:** [`KEYS_MAX`] keys. A key that finds no place stays in the store's line of changed keys
//! and comes again.
//!
//! **Example.** Keys a, b, c are put in line: ticket 3. A message takes a and b; a changes and is put
//! in line again: ticket 4. The message fails: a, b stand in front of c, a. The next one takes a, b
//! and c; number 4 is skipped, because a was told later than it was put there.

use std::collections::{BTreeSet, VecDeque};

use crate::cluster::mesh::CallError;
use crate::store::KeyHash;
use crate::units::Timestamp;

/// Most keys in line for one peer: what some ten messages take.
pub(super) const KEYS_MAX: usize = 16_384;

/// What one peer is still to be told.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Each with the time it was put there.
    line: VecDeque<(KeyHash, Timestamp)>,
    /// The keys that are to be told; the line may name one of them twice.
    owed: BTreeSet<KeyHash>,
    /// What the message under way holds.
    under_way: Option<Vec<(KeyHash, Timestamp)>>,
    /// Places in line ever given.
    given: u64,
    /// Places in line that were taken or skipped, those of the message under way included.
    taken: u64,
    /// Places up to which everything was answered.
    answered: u64,
    /// Messages that failed, and why the last one did.
    failures: (u64, Option<CallError>),
}

impl Backlog {
    /// Puts a key in line; false when there is no place.
    pub(super) fn add(&mut self, key: KeyHash, now: Timestamp) -> bool {
        if self.owed.contains(&key) {
            return true;
        }
        if self.line.len() >= KEYS_MAX {
            return false;
        }
        self.owed.insert(key);
        self.line.push_back((key, now));
        self.given += 1;
        true
    }

    /// Begins a message with the keys in front of the line that it `takes`, unless one is under way.
    /// Returns whether there is one. When the rest of the line held nothing to tell, it counts as
    /// answered.
    pub(super) fn begin(&mut self, mut takes: impl FnMut(KeyHash) -> bool) -> bool {
        if self.under_way.is_some() {
            return false;
        }
        let mut message = Vec::new();
        while let Some(&(key, since)) = self.line.front() {
            if self.owed.contains(&key) {
                if !takes(key) {
                    break;
                }
                self.owed.remove(&key);
                message.push((key, since));
            }
            self.line.pop_front();
            self.taken += 1;
        }
        if message.is_empty() {
            self.answered = self.taken;
            return false;
        }
        self.under_way = Some(message);
        true
    }

    /// The message under way was answered.
    pub(super) fn succeed(&mut self) {
        self.under_way = None;
        self.answered = self.taken;
    }

    /// The message under way, if there is one, was not answered: its keys stand in front again.
    pub(super) fn fail(&mut self, error: CallError) {
        self.failures = (self.failures.0 + 1, Some(error));
        for (key, since) in self.under_way.take().into_iter().flatten().rev() {
            self.owed.insert(key);
            self.line.push_front((key, since));
            self.taken -= 1;
        }
    }

    /// Takes the keys out of line that are not to be `kept`.
    pub(super) fn give_up(&mut self, mut kept: impl FnMut(KeyHash) -> bool) -> Vec<KeyHash> {
        let (stay, go): (BTreeSet<_>, _) =
            std::mem::take(&mut self.owed).into_iter().partition(|key| kept(*key));
        self.line.retain(|(key, _)| stay.contains(key));
        self.owed = stay;
        self.taken = self.given - self.line.len() as u64;
        go.into_iter().collect()
    }

    /// The last place in line that was given.
    pub(super) fn ticket(&self) -> u64 {
        self.given
    }

    /// Whether all places up to `ticket` were answered.
    pub(super) fn is_told(&self, ticket: u64) -> bool {
        self.answered >= ticket
    }

    /// How many messages failed, and why the last one did.
    pub(super) fn failures(&self) -> (u64, Option<CallError>) {
        self.failures
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
        let under_way = self.under_way.iter().flatten().map(|(_, since)| *since);
        under_way.chain(self.line.front().map(|(_, since)| *since)).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(tag: u64) -> KeyHash {
        KeyHash { place: 1, tag }
    }

    fn add(backlog: &mut Backlog, tag: u64) -> bool {
        backlog.add(key(tag), Timestamp::EPOCH)
    }

    /// The keys of the next message of at most `max`.
    fn begin(backlog: &mut Backlog, max: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        backlog.begin(|key| {
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
        let mut backlog = Backlog::default();
        for tag in [1, 2, 3] {
            assert!(add(&mut backlog, tag));
        }
        assert_eq!(begin(&mut backlog, 2), [1, 2]);
        assert!(add(&mut backlog, 1), "it changed while it was under way");
        assert_eq!(begin(&mut backlog, 9), [0_u64; 0], "one message at a time");
        backlog.fail(CallError::Timeout);
        let ticket = backlog.ticket();
        assert_eq!(begin(&mut backlog, 9), [1, 2, 3]);
        assert!(!backlog.is_told(ticket));
        backlog.succeed();
        assert!(backlog.is_told(ticket) && backlog.is_empty());
        assert_eq!(backlog.failures(), (1, Some(CallError::Timeout)));
    }

    #[test]
    fn a_full_line_takes_no_other_key() {
        let mut backlog = Backlog::default();
        assert!((0..KEYS_MAX as u64).all(|tag| add(&mut backlog, tag)));
        assert!(!add(&mut backlog, u64::MAX));
        assert!(add(&mut backlog, 7), "it is in line already");
    }

    #[test]
    fn keys_that_are_given_up_are_named_once_and_the_others_stay() {
        let mut backlog = Backlog::default();
        for tag in 1..=6 {
            add(&mut backlog, tag);
        }
        begin(&mut backlog, 2);
        backlog.fail(CallError::Closed);
        assert_eq!(backlog.give_up(|key| key.tag % 2 == 0), [1, 3, 5].map(key));
        let ticket = backlog.ticket();
        assert_eq!(begin(&mut backlog, 9), [2, 4, 6]);
        backlog.succeed();
        assert!(backlog.is_told(ticket));
    }

    proptest! {
            #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

            /// Whatever comes, fails and is given up: a ticket is told only after a message that was
            /// answered took each of its keys after it was put in line.
            #[test]
            fn a_ticket_is_told_when_all_before_it_are(
                ops in prop::collection::vec((0..5_u8, 0..8_u8), 1..200),
            ) {
                let mut backlog = Backlog::default();
                let (mut under_way, mut owed) = (Vec::new(), BTreeSet::new());
                let mut tickets: Vec<(u64, BTreeSet<u64>)> = Vec::new();
                for (op, n) in ops {
                    let (n, max) = (u64::from(n), usize::from(n) + 1);
                    match op {
                        0 | 1 => {
                            add(&mut backlog, n);
                            owed.insert(n);
                            tickets.push((backlog.ticket(), &owed | &under_way.iter().copied().collect()));
                        }
                        2 if !backlog.is_busy() => {
                            under_way = begin(&mut backlog, max);
                            owed.retain(|tag| !under_way.contains(tag));
                        }
                        3 if backlog.is_busy() => {
                            backlog.succeed();
                            for tag in under_way.drain(..) {
                                for (_, keys) in &mut tickets {
     keys.remove(&tag);
    }
                            }
                        }
                        4 if backlog.is_busy() => {
                            backlog.fail(CallError::Timeout);
                            owed.extend(under_way.drain(..));
                        }
                        _ => {}
                    }
                    for (ticket, keys) in &tickets {
                        prop_assert!(!backlog.is_told(*ticket) || keys.is_empty());
                    }
                }
                backlog.fail(CallError::Closed);
                while !begin(&mut backlog, 3).is_empty() {
                    backlog.succeed();
                }
                prop_assert!(backlog.is_told(backlog.ticket()) && backlog.is_empty());
            }
        }
}
