//! States from a peer, by replication or handoff. Invariants: the store stays within its bounds; a
//! merged state can be encoded; merging is idempotent and commutative; later checks get sane
//! verdicts.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_cluster::mesh::wire::{Call, StateEntry};
use tidegate_cluster::replication::is_plausible;
use tidegate_fuzz::{NOW, checks, frames};
use tidegate_limiter::engine::{AHEAD_MAX, State};
use tidegate_limiter::store::{MergeOutcome, StoredCounter};

fuzz_target!(|bytes: &[u8]| {
    let Some(Call::States(entries)) = frames::call(bytes) else { return };
    assert_merge_commutes(&entries);
    let store = checks::small_store();
    for StateEntry { key, state, expires } in entries.iter().cloned() {
        if !is_plausible(key, &state, expires, NOW, AHEAD_MAX) {
            continue;
        }
        let received = StoredCounter { key, state, expires };
        if let MergeOutcome::Merged { .. } = store.merge(received.clone(), NOW) {
            assert_eq!(store.merge(received, NOW), MergeOutcome::Merged { changed: false });
            let StoredCounter { key, state, expires } = store.get(key, NOW).expect("merged");
            frames::assert_round_trip(&Call::States(vec![StateEntry { key, state, expires }]));
        }
        checks::assert_within_bounds(&store);
    }
    for entry in &entries {
        checks::check_all_quotas(&store, entry.key);
    }
});

/// Merging is commutative and idempotent, also for implausible states.
fn assert_merge_commutes(entries: &[StateEntry]) {
    let merge = |a: &State, b: &State| {
        let mut merged = a.clone();
        merged.merge(b.clone());
        merged
    };
    for two in entries.windows(2) {
        let (a, b) = (&two[0].state, &two[1].state);
        let both = merge(a, b);
        assert_eq!(both, merge(b, a), "of {a:?} and {b:?}");
        assert_eq!(both, merge(&both, a), "of {a:?} and {b:?}");
        assert_eq!(both, merge(&both, b), "of {a:?} and {b:?}");
        assert_eq!(*a, merge(a, a));
    }
}
