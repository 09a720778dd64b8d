//! Any bytes under a key of the file on disk: the first 16 are the key, the rest is the value.
//! Nothing makes a node panic; what is read is written and read as the same again, and joined only
//! if it is plausible.
//!
//! The checksum would keep out all but a few inputs in 2⁶⁴, so that the value is also read with
//! the sum that belongs behind it. That sum is computed here once more; [`seals_as_the_node_does`]
//! sees to it that the two agree.

#![no_main]

use std::hash::Hasher;

use libfuzzer_sys::fuzz_target;
use siphasher::sip::SipHasher13;
use tidegate_limiter::engine::State;
use tidegate::storage::record::{self, KEY_BYTES};
use tidegate_limiter::store::{StoredCounter, KeyHash, MergeOutcome};
use tidegate_limiter::units::Span;
use tidegate_fuzz::{NOW, asks, wire};

const SUM_BYTES: usize = size_of::<u64>();

fuzz_target!(init: seals_as_the_node_does(), |bytes: &[u8]| {
    let Some((key, value)) = bytes.split_first_chunk::<KEY_BYTES>() else { return };
    record::expires_in(value);
    read(*key, value);
    read(*key, &sealed(key, value));
});

fn read(key: [u8; KEY_BYTES], value: &[u8]) {
    let Ok(counted) = record::decode(key, value) else { return };
    let written = record::encode(&counted).expect("what was read can be written");
    assert_eq!(record::encode_key(counted.key), key);
    assert_eq!(record::decode(key, &written), Ok(counted.clone()));
    assert_eq!(record::expires_in(&written), Some(counted.expires));
    load(counted);
}

/// What a node does with a counter that it found on its disk.
fn load(counted: StoredCounter) {
    let (key, is_columns) = (counted.key, counted.state.actor_counters().is_some());
    if key.is_eventual() != is_columns || !counted.state.is_plausible(counted.expires, NOW) {
        return;
    }
    let store = asks::store();
    if let MergeOutcome::Merged { .. } = store.merge(counted, NOW) {
        let held = store.get(key, NOW).expect("joined");
        let written = record::encode(&held).expect("what is held can be written");
        assert_eq!(record::decode(record::encode_key(key), &written), Ok(held.clone()));
        wire::can_be_told(&held.state);
    }
    asks::ask_all(&store, key);
}

fn sealed(key: &[u8; KEY_BYTES], value: &[u8]) -> Vec<u8> {
    let mut sip = SipHasher13::new_with_key(b"tidegate counts\x01");
    sip.write(key);
    sip.write(value);
    [value, &sip.finish().to_be_bytes()].concat()
}

fn seals_as_the_node_does() {
    let key = KeyHash { token: 1, tag: 8 };
    let state = State::FixedWindow { index: 20_454, used: 7 };
    let expires = NOW.plus(Span::from_secs(1));
    let value = record::encode(&StoredCounter { key, state, expires }).expect("a small value");
    let unsealed = &value[..value.len() - SUM_BYTES];
    assert_eq!(sealed(&record::encode_key(key), unsealed), value, "record.rs sums otherwise now");
}
