//! Forwarded checks and columns that a peer sends. The store stays within its bounds, verdicts are
//! sane, and joined columns can be told on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_cluster::mesh::wire::{Call, Reply, Sync, SyncEntry};
use tidegate_limiter::engine::AHEAD_MAX;
use tidegate_limiter::engine::delta::ACTORS_MAX;
use tidegate_limiter::engine::delta::Bounds;
use tidegate_limiter::store::MergeOutcome;
use tidegate_fuzz::{NOW, asks, wire};

fuzz_target!(|bytes: &[u8]| match wire::call(bytes) {
    Some(Call::Check(check)) => {
        let store = asks::store();
        let verdicts = store.check(&check.counters, check.hits, NOW);
        wire::can_be_told(&Reply::Verdicts(verdicts));
        asks::ask(&store, &check.counters);
    }
    Some(Call::Sync(sync)) => join(&sync),
    _ => {}
});

fn join(sync: &Sync) {
    let store = asks::store();
    let bounds = Bounds { now: NOW, ahead_max: AHEAD_MAX, actors_max: ACTORS_MAX };
    for SyncEntry { key, actor_counters } in &sync.entries {
        if actor_counters.validate(&bounds).is_err() {
            continue;
        }
        if let MergeOutcome::Merged { .. } = store.merge_actor_counters(*key, actor_counters, NOW) {
            assert_eq!(store.merge_actor_counters(*key, actor_counters, NOW), MergeOutcome::Merged { changed: false });
            let actor_counters = store.actor_counters(*key).expect("joined").to_delta();
            assert_eq!(actor_counters.validate(&bounds), Ok(()));
            wire::can_be_told(&Reply::ActorCounters(vec![SyncEntry { key: *key, actor_counters }]));
        }
        asks::is_within_bounds(&store);
    }
    for entry in &sync.entries {
        asks::ask_all(&store, entry.key);
    }
}
