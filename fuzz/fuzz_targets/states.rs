//! States that a peer sends: copies, or keys that change hands. The store stays within its bounds,
//! what is joined can be told on, the second telling is no news, the order of joining does not
//! matter, and every ask that follows gets a sane verdict.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_cluster::mesh::wire::{Call, StateEntry};
use tidegate_cluster::replicate::is_plausible;
use tidegate_limiter::engine::State;
use tidegate_limiter::store::{StoredCounter, MergeOutcome};
use tidegate_fuzz::{NOW, asks, wire};

fuzz_target!(|bytes: &[u8]| {
    let Some(Call::States(entries)) = wire::call(bytes) else { return };
    join_in_any_order(&entries);
    let store = asks::store();
    for StateEntry { key, state, expires } in entries.iter().cloned() {
        if !is_plausible(key, &state, expires, NOW) {
            continue;
        }
        let told = StoredCounter { key, state, expires };
        if let MergeOutcome::Merged { .. } = store.merge(told.clone(), NOW) {
            assert_eq!(store.merge(told, NOW), MergeOutcome::Merged { changed: false });
            let StoredCounter { key, state, expires } = store.get(key, NOW).expect("joined");
            wire::can_be_told(&Call::States(vec![StateEntry { key, state, expires }]));
        }
        asks::is_within_bounds(&store);
    }
    for entry in &entries {
        asks::ask_all(&store, entry.key);
    }
});

/// Plausible or not, states of one key join to the same whoever comes first.
fn join_in_any_order(entries: &[StateEntry]) {
    let join = |a: &State, b: &State| {
        let mut joined = a.clone();
        joined.merge(b.clone());
        joined
    };
    for two in entries.windows(2) {
        let (a, b) = (&two[0].state, &two[1].state);
        let both = join(a, b);
        assert_eq!(both, join(b, a), "of {a:?} and {b:?}");
        assert_eq!(both, join(&both, a), "of {a:?} and {b:?}");
        assert_eq!(both, join(&both, b), "of {a:?} and {b:?}");
        assert_eq!(*a, join(a, a));
    }
}
