//! One counter as bytes on disk.
//!
//! ```text
//! key    place: u64, BE │ tag: u64, BE                                      16 bytes
//! value  version: u8 │ expires: u64, BE │ state: postcard │ sum: u64, BE     at most 4 MiB
//! ```
//!
//! The sum is SipHash-1-3 of key and value under a fixed key: it finds what a disk or an editor did
//! to the bytes, and a value that lies under another's key. It is no protection against somebody
//! who means it; whoever can write the file could as well change the rules.
//!
//! What decodes was once encoded by a node. Whether it may still be believed (a clock that was
//! wrong then) is [`StoredCounter::is_plausible`](State::is_plausible)'s question.
//!
//! Example: 7 hits of window 20,454, key (1, 8), expiring at day 20,455:
//! `01 │ 1886c0e67f490000 │ 01 e69f01 07 │ cacfb4ce8c133d47`. 22 bytes, and the key.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use tidegate_limiter::engine::State;
use tidegate_limiter::store::{KeyHash, StoredCounter};
use tidegate_limiter::units::Timestamp;

/// The version that values are written in. A reader knows this one alone: a file that holds another
/// says so in front, and is set aside as a whole.
pub const VERSION: u8 = 1;

/// Longest value. A column set of every slice and every column that may be kept takes some 2 MiB.
pub const VALUE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

const EXPIRES_AT: usize = 1;
const STATE_AT: usize = EXPIRES_AT + size_of::<u64>();
const SUM_BYTES: usize = size_of::<u64>();

/// Names the use: the same bytes hashed elsewhere do not fit here.
const SUM_KEY: [u8; 16] = *b"tidegate counts\x01";

/// Why bytes are no counter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too short for a value, or longer than [`VALUE_BYTES_MAX`].
    #[error("a value of {0} bytes is none; the file was written by something else")]
    Length(usize),
    /// A version that this node does not read.
    #[error("value version {0}, expected {VERSION}; a newer tidegate wrote it")]
    Version(u8),
    /// The bytes are not those that were written, or lie under another key.
    #[error("the checksum does not fit; the disk or somebody changed the file")]
    Sum,
    /// The state is none, although the checksum fits.
    #[error("the state cannot be read: {0}; a broken tidegate wrote it")]
    State(postcard::Error),
}

/// The bytes of a key; they sort as keys do.
pub fn encode_key(key: KeyHash) -> [u8; KEY_BYTES] {
    ((u128::from(key.token) << 64) | u128::from(key.tag)).to_be_bytes()
}

/// The key of these bytes. Any 16 bytes are one.
pub fn decode_key(bytes: [u8; KEY_BYTES]) -> KeyHash {
    let [p0, p1, p2, p3, p4, p5, p6, p7, t0, t1, t2, t3, t4, t5, t6, t7] = bytes;
    KeyHash {
        token: u64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7]),
        tag: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
    }
}

/// The value of a counter. Fails only when the state is larger than any that a node keeps.
pub fn encode(counted: &StoredCounter) -> Result<Vec<u8>, Error> {
    let mut value = vec![VERSION];
    value.extend_from_slice(&counted.expires.as_nanos().to_be_bytes());
    let mut value = postcard::to_extend(&counted.state, value).map_err(Error::State)?;
    let sum = sum(&encode_key(counted.key), &value);
    value.extend_from_slice(&sum.to_be_bytes());
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::Length(value.len()));
    }
    Ok(value)
}

/// The counter under `key`.
pub fn decode(key: [u8; KEY_BYTES], value: &[u8]) -> Result<StoredCounter, Error> {
    let no_value = Error::Length(value.len());
    if value.len() > VALUE_BYTES_MAX {
        return Err(no_value);
    }
    let Some((rest, written)) = value.split_last_chunk::<SUM_BYTES>() else { return Err(no_value) };
    if sum(&key, rest) != u64::from_be_bytes(*written) {
        return Err(Error::Sum);
    }
    let (Some(&version), Some(expires)) = (rest.first(), expires_in(rest)) else {
        return Err(no_value);
    };
    if version != VERSION {
        return Err(Error::Version(version));
    }
    let (state, behind) =
        postcard::take_from_bytes::<State>(&rest[STATE_AT..]).map_err(Error::State)?;
    if !behind.is_empty() {
        return Err(Error::Length(value.len()));
    }
    Ok(StoredCounter { key: decode_key(key), state, expires })
}

/// When a value expires, without a look at its state or its sum: cheap, for a sweep.
pub fn expires_in(value: &[u8]) -> Option<Timestamp> {
    let bytes = value.get(EXPIRES_AT..STATE_AT)?.first_chunk()?;
    Some(Timestamp::from_nanos(u64::from_be_bytes(*bytes)))
}

fn sum(key: &[u8; KEY_BYTES], value: &[u8]) -> u64 {
    let mut sip = SipHasher13::new_with_key(&SUM_KEY);
    sip.write(key);
    sip.write(value);
    sip.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_limiter::engine::{ActorId, Tat, decide, decide_eventual};
    use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
    use tidegate_limiter::units::{Hits, Span};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

    fn counted(state: State, expires: Timestamp) -> StoredCounter {
        StoredCounter { key: KeyHash { token: 1, tag: 8 }, state, expires }
    }

    fn counts() -> Vec<StoredCounter> {
        let quota = |algorithm, sub_windows| {
            let parts = QuotaParts {
                algorithm,
                limit: 10,
                window: Span::from_secs(86_400),
                burst: 10,
                sub_windows,
                queue: None,
            };
            Quota::new(parts).expect("a valid quota")
        };
        let strict = [
            quota(Algorithm::FixedWindow, 1),
            quota(Algorithm::SlidingWindowCounter, 1),
            quota(Algorithm::SlidingWindowCounter, 24),
            quota(Algorithm::SlidingWindowLog, 1),
            quota(Algorithm::Gcra, 1),
        ];
        let mut states: Vec<(State, Timestamp)> = strict
            .iter()
            .map(|quota| {
                let mut state = State::Absent;
                decide(&mut state, quota, Hits::new(3), NOW);
                decide(&mut state, quota, Hits::new(4), NOW.plus(Span::from_secs(7)));
                let expires = state.expires_at(quota);
                (state, expires)
            })
            .collect();
        let mut actor_counters = State::Absent;
        for actor in 1..4 {
            decide_eventual(&mut actor_counters, ActorId::new(actor), &strict[2], Hits::ONE, NOW);
        }
        let expires = actor_counters.expires_at(&strict[2]);
        states.push((actor_counters, expires));
        states.into_iter().map(|(state, expires)| counted(state, expires)).collect()
    }

    #[test]
    fn every_kind_of_state_comes_back_as_it_was() {
        for counted in counts() {
            let value = encode(&counted).expect("encodes");
            assert_eq!(expires_in(&value), Some(counted.expires));
            assert_eq!(decode(encode_key(counted.key), &value), Ok(counted));
        }
    }

    /// A file of an older tidegate is read by this one: these bytes never change.
    #[test]
    fn values_are_written_as_they_were_released() {
        let day = 86_400;
        let window = counted(
            State::FixedWindow { index: 20_454, used: 7 },
            Timestamp::from_secs(20_455 * day),
        );
        let bucket = counted(State::Tat(Tat::new(NOW.as_nanos(), 6)), NOW);
        let hex = |counted| {
            let value = encode(counted).expect("encodes");
            value.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
        };
        assert_eq!(hex(&window), "011886c0e67f49000001e69f0107cacfb4ce8c133d47");
        assert_eq!(hex(&bucket), "0118867251edfa0000038080e8ef9eca9cc3180645933aad583c268b");
    }

    #[test]
    fn keys_sort_as_their_bytes_do() {
        let keys = [(0, 1), (0, u64::MAX), (1, 0), (u64::MAX, 7)];
        let keys = keys.map(|(token, tag)| KeyHash { token, tag });
        assert!(keys.map(encode_key).is_sorted());
        assert_eq!(keys.map(encode_key).map(decode_key), keys);
    }

    #[test]
    fn a_value_under_another_key_is_refused() {
        let value = encode(&counts()[0]).expect("encodes");
        assert_eq!(decode([7; KEY_BYTES], &value), Err(Error::Sum));
    }

    #[test]
    fn versions_and_lengths_that_no_node_writes_are_refused() {
        let key = encode_key(KeyHash { token: 1, tag: 8 });
        let with_sum = |body: &[u8]| [body, &sum(&key, body).to_be_bytes()].concat();
        let body = encode(&counts()[0]).expect("encodes");
        let body = &body[..body.len() - SUM_BYTES];
        let newer = [&[VERSION + 1], &body[1..]].concat();
        assert_eq!(decode(key, &with_sum(&newer)), Err(Error::Version(VERSION + 1)));
        assert!(matches!(decode(key, &with_sum(&[body, &[0]].concat())), Err(Error::Length(_))));
        assert!(matches!(decode(key, &with_sum(&body[..STATE_AT])), Err(Error::State(_))));
        assert!(matches!(decode(key, &with_sum(&body[..3])), Err(Error::Length(_))));
        assert_eq!(decode(key, &[]), Err(Error::Length(0)));
    }

    #[test]
    fn a_claimed_length_is_not_believed() {
        let key = encode_key(KeyHash { token: 1, tag: 8 });
        for kind in [4, 5, 6] {
            // A boxed state whose list claims 2⁶³ entries.
            let mut body = [&[VERSION][..], &[0; 8], &[kind, 1, 1]].concat();
            body.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
            let value = [&body[..], &sum(&key, &body).to_be_bytes()].concat();
            assert!(decode(key, &value).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn a_changed_byte_is_never_a_wrong_count(
            which: prop::sample::Index,
            at: prop::sample::Index,
            flip in 1_u8..,
        ) {
            let all = counts();
            let counted = which.get(&all);
            let (key, mut value) = (encode_key(counted.key), encode(counted).expect("encodes"));
            let at = at.index(value.len());
            value[at] ^= flip;
            prop_assert_eq!(decode(key, &value), Err(Error::Sum));
        }

        #[test]
        fn random_bytes_are_errors(value: Vec<u8>) {
            prop_assert!(decode([0; KEY_BYTES], &value).is_err());
        }
    }
}
