//! The encoding of one counter on disk.
//!
//! ```text
//! key        token: u64, BE │ tag: u64, BE                                               16 bytes
//! value      version: u8 │ expires: u64, BE │ state: postcard │ extension │ sum: u64, BE
//! extension  absent, or length: u32, BE │ that many bytes
//! ```
//!
//! **Growth.** A later version appends its fields to the extension, in the order of their
//! introduction, and keeps [`VERSION`]. A reader takes the fields that it knows and ignores the
//! rest. This version knows none and writes no extension, so a record without one is the same bytes
//! as in every earlier version. A change that old readers must not ignore needs a new [`VERSION`].
//! See `docs/adr/0041-disk-codec.md`.
//!
//! **Checksum.** SipHash-1-3 of key and value under a fixed key. It detects damage, and a value
//! under the wrong key. It does not protect against an attacker: whoever can write the file can
//! also change the rules.
//!
//! A value that decodes was once encoded by a node. Whether its times are credible, or were counted
//! by a wrong clock, is checked by [`State::is_plausible`].
//!
//! Example: 7 hits of window 20,454, key (1, 8), expiring at day 20,455:
//! `01 │ 1886c0e67f490000 │ 01 e69f01 07 │ cacfb4ce8c133d47`. 22 bytes, and the key.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use tidegate_limiter::engine::State;
use tidegate_limiter::store::{KeyHash, StoredCounter};
use tidegate_limiter::units::Timestamp;

/// The version of the encoding. Values of any other version are skipped.
pub const VERSION: u8 = 1;
/// That of per-actor counters, whose actors have a start since then.
pub const ACTOR_COUNTERS_VERSION: u8 = 2;

/// Longest value. Per-actor counters of every actor in every sub-window take some 3 MiB.
pub const VALUE_BYTES_MAX: usize = 4 * 1024 * 1024;

pub const KEY_BYTES: usize = 16;

/// The first byte of an encoded [`State::ActorCounters`].
const ACTOR_COUNTERS_KIND: u8 = 6;
const EXPIRES_AT: usize = 1;
const STATE_AT: usize = EXPIRES_AT + size_of::<u64>();
const EXTENSION_LENGTH_BYTES: usize = size_of::<u32>();
const SUM_BYTES: usize = size_of::<u64>();

/// Distinct from the keys of other hashes, so that their sums never match.
const SUM_KEY: [u8; 16] = *b"tidegate counts\x01";

/// Why a value cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too short for a value, longer than [`VALUE_BYTES_MAX`], or with an extension of another
    /// length than it states.
    #[error("a value cannot have {0} bytes; another program wrote the file")]
    Length(usize),
    #[error(
        "value version {0}, expected {VERSION}, or {ACTOR_COUNTERS_VERSION} for counters of \
             eventual keys; another tidegate wrote it"
    )]
    Version(u8),
    /// The bytes were changed, or belong to another key.
    #[error("the checksum does not match; the file was changed or is damaged")]
    Sum,
    /// The checksum matches, but the state cannot be decoded.
    #[error("the state cannot be decoded: {0}; a defective tidegate wrote it")]
    State(postcard::Error),
}

/// The bytes of a key, which sort as keys do.
pub fn encode_key(key: KeyHash) -> [u8; KEY_BYTES] {
    ((u128::from(key.token) << 64) | u128::from(key.tag)).to_be_bytes()
}

/// The key of these bytes. Any 16 bytes are a key.
#[allow(clippy::cast_possible_truncation, reason = "the lower half is the tag")]
pub fn decode_key(bytes: [u8; KEY_BYTES]) -> KeyHash {
    let key = u128::from_be_bytes(bytes);
    KeyHash { token: (key >> 64) as u64, tag: key as u64 }
}

/// The value of a counter.
///
/// # Errors
///
/// [`Error::Length`] if the value is longer than [`VALUE_BYTES_MAX`]: no state that a node keeps
/// is.
pub fn encode(counter: &StoredCounter) -> Result<Vec<u8>, Error> {
    let mut value = vec![version_of(&counter.state)];
    value.extend_from_slice(&counter.expires.as_nanos().to_be_bytes());
    let mut value = postcard::to_extend(&counter.state, value).map_err(Error::State)?;
    let sum = sum(&encode_key(counter.key), &value);
    value.extend_from_slice(&sum.to_be_bytes());
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::Length(value.len()));
    }
    Ok(value)
}

/// The counter under `key`.
///
/// # Errors
///
/// If the value was not written by [`encode`] for this key, or by a later version of it.
pub fn decode(key: [u8; KEY_BYTES], value: &[u8]) -> Result<StoredCounter, Error> {
    let wrong_length = Error::Length(value.len());
    if value.len() > VALUE_BYTES_MAX {
        return Err(wrong_length);
    }
    let Some((body, written)) = value.split_last_chunk::<SUM_BYTES>() else {
        return Err(wrong_length);
    };
    if sum(&key, body) != u64::from_be_bytes(*written) {
        return Err(Error::Sum);
    }
    let (Some(&version), Some(expires)) = (body.first(), expires_in(body)) else {
        return Err(wrong_length);
    };
    if !(VERSION..=ACTOR_COUNTERS_VERSION).contains(&version) {
        return Err(Error::Version(version));
    }
    // Before decoding: the two versions of per-actor counters are not told apart by their bytes.
    let are_actor_counters = body.get(STATE_AT) == Some(&ACTOR_COUNTERS_KIND);
    if are_actor_counters != (version == ACTOR_COUNTERS_VERSION) {
        return Err(Error::Version(version));
    }
    let (state, extension) =
        postcard::take_from_bytes::<State>(&body[STATE_AT..]).map_err(Error::State)?;
    if !is_extension(extension) {
        return Err(wrong_length);
    }
    Ok(StoredCounter { key: decode_key(key), state, expires })
}

fn version_of(state: &State) -> u8 {
    if state.actor_counters().is_some() { ACTOR_COUNTERS_VERSION } else { VERSION }
}

/// Whether the bytes after the state are none or a length-prefixed extension.
fn is_extension(bytes: &[u8]) -> bool {
    let length_and_fields = bytes.split_first_chunk::<EXTENSION_LENGTH_BYTES>();
    bytes.is_empty()
        || length_and_fields.is_some_and(|(length, fields)| {
            usize::try_from(u32::from_be_bytes(*length)) == Ok(fields.len())
        })
}

/// When a value expires, without decoding its state or checking its sum: cheap, for a sweep.
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
    use tidegate_limiter::engine::{ActorId, decide, decide_eventual};
    use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
    use tidegate_limiter::units::{Hits, Span};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

    fn counter(state: State, expires: Timestamp) -> StoredCounter {
        StoredCounter { key: KeyHash { token: 1, tag: 8 }, state, expires }
    }

    /// A counter of every kind of state.
    fn counters() -> Vec<StoredCounter> {
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
            quota(Algorithm::FirstHitWindow, 1),
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
            let actor = ActorId::of_start(actor, 1_767_225_600_123);
            decide_eventual(&mut actor_counters, actor, &strict[2], Hits::ONE, NOW);
        }
        let expires = actor_counters.expires_at(&strict[2]);
        // In the order of the golden records.
        states.insert(5, (actor_counters, expires));
        states.into_iter().map(|(state, expires)| counter(state, expires)).collect()
    }

    #[test]
    fn every_kind_of_state_is_decoded_as_encoded() {
        for counter in counters() {
            let value = encode(&counter).expect("encodes");
            assert_eq!(expires_in(&value), Some(counter.expires));
            assert_eq!(decode(encode_key(counter.key), &value), Ok(counter));
        }
    }

    /// The golden records were written before records had an extension area.
    #[test]
    fn records_of_version_1_are_read_and_written_as_released() {
        let golden = include_str!("../../tests/golden_records/v1.txt");
        let mut expected = counters().into_iter();
        for line in golden.lines().filter(|line| !line.starts_with('#')) {
            let [name, key, value] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("not three words: {line}");
            };
            let key = unhex(key).try_into().expect("16 bytes");
            let counter = expected.next().expect("a counter for every record");
            let decoded = decode(key, &unhex(value));
            if counter.state.actor_counters().is_some() {
                assert_eq!(decoded, Err(Error::Version(1)), "{name}: its actors have no start");
                continue;
            }
            assert_eq!(decoded.as_ref(), Ok(&counter), "{name}");
            assert_eq!(encode(&counter).expect("encodes"), unhex(value), "{name}");
        }
        assert_eq!(expected.next(), None);
    }

    #[test]
    fn per_actor_counters_of_version_2_are_read_and_written_as_released() {
        let golden = include_str!("../../tests/golden_records/v2.txt");
        let words: Vec<&str> = golden.lines().last().expect("a line").split(' ').collect();
        let counter = counters().into_iter().find(|it| it.state.actor_counters().is_some());
        let counter = counter.expect("per-actor counters");
        assert_eq!(encode(&counter), Ok(unhex(words[2])));
        let key = unhex(words[1]).try_into().expect("16 bytes");
        assert_eq!(decode(key, &unhex(words[2])), Ok(counter));
    }

    fn unhex(digits: &str) -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn an_extension_of_a_later_version_is_ignored() {
        for counter in counters() {
            let key = encode_key(counter.key);
            let value = encode(&counter).expect("encodes");
            let body = &value[..value.len() - SUM_BYTES];
            let extended = |extension: &[u8]| {
                let body = [body, extension].concat();
                decode(key, &[&body[..], &sum(&key, &body).to_be_bytes()].concat())
            };
            assert_eq!(extended(&[0, 0, 0, 3, 1, 2, 3]), Ok(counter));
            for wrong in [&[0][..], &[0, 0, 0, 4, 1, 2, 3], &[0, 0, 0, 2, 1, 2, 3], &[0xff; 4]] {
                assert!(matches!(extended(wrong), Err(Error::Length(_))), "{wrong:?}");
            }
        }
    }

    #[test]
    fn keys_sort_as_their_bytes_do() {
        let keys = [(0, 1), (0, u64::MAX), (1, 0), (u64::MAX, 7)];
        let keys = keys.map(|(token, tag)| KeyHash { token, tag });
        assert!(keys.map(encode_key).is_sorted());
        assert_eq!(keys.map(encode_key).map(decode_key), keys);
    }

    #[test]
    fn a_value_under_another_key_is_an_error() {
        let value = encode(&counters()[0]).expect("encodes");
        assert_eq!(decode([7; KEY_BYTES], &value), Err(Error::Sum));
    }

    #[test]
    fn unknown_versions_and_wrong_lengths_are_errors() {
        let key = encode_key(KeyHash { token: 1, tag: 8 });
        let with_sum = |body: &[u8]| [body, &sum(&key, body).to_be_bytes()].concat();
        let body = encode(&counters()[0]).expect("encodes");
        let body = &body[..body.len() - SUM_BYTES];
        for version in [0, ACTOR_COUNTERS_VERSION, ACTOR_COUNTERS_VERSION + 1] {
            let other = [&[version], &body[1..]].concat();
            assert_eq!(decode(key, &with_sum(&other)), Err(Error::Version(version)));
        }
        assert!(matches!(decode(key, &with_sum(&[body, &[0]].concat())), Err(Error::Length(_))));
        assert!(matches!(decode(key, &with_sum(&body[..STATE_AT])), Err(Error::State(_))));
        assert!(matches!(decode(key, &with_sum(&body[..3])), Err(Error::Length(_))));
        assert_eq!(decode(key, &[]), Err(Error::Length(0)));
    }

    #[test]
    fn a_claimed_length_reserves_no_memory() {
        let key = encode_key(KeyHash { token: 1, tag: 8 });
        for kind in [4, 5, 6] {
            // A boxed state with a list that claims 2⁶³ entries.
            let version = if kind == 6 { ACTOR_COUNTERS_VERSION } else { VERSION };
            let mut body = [&[version][..], &[0; 8], &[kind, 1, 1]].concat();
            body.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
            let value = [&body[..], &sum(&key, &body).to_be_bytes()].concat();
            assert!(decode(key, &value).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn a_changed_byte_is_an_error(
            which: prop::sample::Index,
            at: prop::sample::Index,
            flip in 1_u8..,
        ) {
            let all = counters();
            let counter = which.get(&all);
            let (key, mut value) = (encode_key(counter.key), encode(counter).expect("encodes"));
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
