//! Arbitrary records of the snapshot file: the first 16 bytes are the key, the rest is the value.
//! Invariants: no panic; a decoded record encodes and decodes to an equal one; only plausible
//! records are merged.
//!
//! A random value almost never has a valid checksum, so the value is also decoded with the checksum
//! appended. It is computed here; [`checksum_matches_the_product`] compares it with that of the
//! product.

#![no_main]

use std::hash::Hasher;

use libfuzzer_sys::fuzz_target;
use siphasher::sip::SipHasher13;
use tidegate::storage::record::{self, KEY_BYTES};
use tidegate_fuzz::{NOW, checks, frames};
use tidegate_limiter::engine::State;
use tidegate_limiter::store::{KeyHash, MergeOutcome, StoredCounter};
use tidegate_limiter::units::Span;

const CHECKSUM_BYTES: usize = size_of::<u64>();

fuzz_target!(init: checksum_matches_the_product(), |bytes: &[u8]| {
    let Some((key, value)) = bytes.split_first_chunk::<KEY_BYTES>() else { return };
    record::expires_in(value);
    decode(*key, value);
    decode(*key, &with_checksum(key, value));
});

fn decode(key: [u8; KEY_BYTES], value: &[u8]) {
    let Ok(counter) = record::decode(key, value) else { return };
    let encoded = record::encode(&counter).expect("the record can be encoded");
    assert_eq!(record::encode_key(counter.key), key);
    assert_eq!(record::decode(key, &encoded), Ok(counter.clone()));
    assert_eq!(record::expires_in(&encoded), Some(counter.expires));
    load(counter);
}

/// Merges a counter into a store, as a node does at its start.
fn load(counter: StoredCounter) {
    let (key, is_per_actor) = (counter.key, counter.state.actor_counters().is_some());
    if key.is_eventual() != is_per_actor || !counter.state.is_plausible(counter.expires, NOW) {
        return;
    }
    let store = checks::small_store();
    if let MergeOutcome::Merged { .. } = store.merge(counter, NOW) {
        let stored = store.get(key, NOW).expect("merged");
        let encoded = record::encode(&stored).expect("the record can be encoded");
        assert_eq!(record::decode(record::encode_key(key), &encoded), Ok(stored.clone()));
        frames::assert_round_trip(&stored.state);
    }
    checks::check_all_quotas(&store, key);
}

fn with_checksum(key: &[u8; KEY_BYTES], value: &[u8]) -> Vec<u8> {
    let mut sip = SipHasher13::new_with_key(b"tidegate counts\x01");
    sip.write(key);
    sip.write(value);
    [value, &sip.finish().to_be_bytes()].concat()
}

fn checksum_matches_the_product() {
    let key = KeyHash { token: 1, tag: 8 };
    let state = State::FixedWindow { index: 20_454, used: 7 };
    let expires = NOW.plus(Span::from_secs(1));
    let value = record::encode(&StoredCounter { key, state, expires }).expect("a small value");
    let unchecked = &value[..value.len() - CHECKSUM_BYTES];
    assert_eq!(
        with_checksum(&record::encode_key(key), unchecked),
        value,
        "the checksum in record.rs has changed"
    );
}
