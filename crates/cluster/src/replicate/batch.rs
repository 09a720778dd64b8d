//! One message of states, filled to what a frame holds.

use tidegate_limiter::store::StoredCounter;

use crate::mesh::wire::{STATE_ENTRIES_MAX, StateEntry};

/// Most bytes of states in one message: half a frame. The largest state, a log of ten thousand
/// hits, weighs 140 KB, so every state fits into an empty message.
const WEIGHT_MAX: usize = 512 * 1024;

/// States for one message.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<StateEntry>,
    weight: usize,
}

impl Batch {
    /// Adds a state; gives it back when there is no room.
    pub(super) fn add(&mut self, counted: StoredCounter) -> Result<(), StoredCounter> {
        let weight = self.weight + counted.state.encoded_bytes_max() + size_of::<StateEntry>();
        if self.is_full() || (weight > WEIGHT_MAX && !self.entries.is_empty()) {
            return Err(counted);
        }
        let StoredCounter { key, state, expires } = counted;
        self.entries.push(StateEntry { key, state, expires });
        self.weight = weight;
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() == STATE_ENTRIES_MAX
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn into_entries(self) -> Vec<StateEntry> {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tidegate_limiter::engine::{State, Tat, decide};
    use tidegate_limiter::quota::{Algorithm, LOG_LIMIT_MAX, Quota};
    use tidegate_limiter::store::KeyHash;
    use tidegate_limiter::units::{Hits, Span, Timestamp};

    use super::*;
    use crate::mesh::codec;
    use crate::mesh::wire::{Call, Numbered};

    fn counted(state: &State) -> StoredCounter {
        let key = KeyHash { token: u64::MAX, tag: u64::MAX };
        StoredCounter { key, state: state.clone(), expires: Timestamp::NEVER }
    }

    /// How many of `state` fit; the message must fit a frame.
    fn fill(state: &State) -> usize {
        let mut batch = Batch::default();
        while batch.add(counted(state)).is_ok() {}
        let len = batch.len();
        let call = Numbered { id: u64::MAX, body: Call::States(batch.into_entries()) };
        codec::encode(&call, &mut BytesMut::new()).expect("fits a frame");
        len
    }

    #[test]
    fn a_full_message_fits_a_frame_whatever_it_holds() {
        assert_eq!(fill(&State::Tat(Tat::new(u64::MAX, u32::MAX))), STATE_ENTRIES_MAX);
        let quota = Quota::simple(Algorithm::SlidingWindowLog, LOG_LIMIT_MAX, Span::from_secs(60));
        let (quota, mut log) = (quota.expect("a valid quota"), State::Absent);
        for n in 0..u64::from(LOG_LIMIT_MAX) {
            decide(&mut log, &quota, Hits::ONE, Timestamp::from_nanos(u64::MAX - 20_000 + n));
        }
        assert_eq!(fill(&log), 3);
    }
}
