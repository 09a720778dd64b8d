//! Forwarded checks and per-actor counters from a peer. Invariants: the store stays within its
//! bounds, verdicts are sane, and merged counters can be encoded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_cluster::mesh::wire::{Call, CombinedCheck, GrantAsk, Reply, Sync, SyncEntry};
use tidegate_fuzz::{NOW, checks, frames};
use tidegate_limiter::engine::AHEAD_MAX;
use tidegate_limiter::engine::delta::ACTORS_MAX;
use tidegate_limiter::engine::delta::Bounds;
use tidegate_limiter::engine::grant::Terms;
use tidegate_limiter::store::{Ask, Granted, Leased, MergeOutcome};
use tidegate_limiter::units::Span;
use tidegate_ownership::Epoch;

fuzz_target!(|bytes: &[u8]| match frames::call(bytes) {
    Some(Call::Check(check)) => {
        let store = checks::small_store();
        let verdicts = store.check(&check.counters, check.hits, NOW);
        frames::assert_round_trip(&Reply::Verdicts(verdicts));
        checks::check(&store, &check.counters);
    }
    Some(Call::CombinedCheck(CombinedCheck { first, further, ask })) => {
        let store = checks::small_store();
        let ask = ask.map(|GrantAsk { wanted, held, shortest }| Ask {
            wanted,
            held,
            divisor: 4,
            terms: Terms { longest: Span::from_secs(1), useful: shortest },
            shortest,
        });
        let Leased { verdicts, granted, .. } = store
            .check_leased_if(&first.counters, &*further, ask, &[], NOW, || true)
            .expect("it owns all keys");
        assert_eq!(verdicts.len(), further.len() * first.counters.len());
        if let Some(Granted { hits, marks, .. }) = granted {
            let ends = (Terms { longest: Span::from_secs(1), useful: Span::ZERO }, NOW);
            let back = store.give_back_if(&first.counters, &marks, hits, ends, NOW, || true);
            assert!(back.iter().all(|back| *back <= hits));
        }
        checks::check(&store, &first.counters);
    }
    Some(Call::Sync(sync)) => merge(&sync),
    _ => {}
});

fn merge(sync: &Sync) {
    let store = checks::small_store();
    let bounds = Bounds { now: NOW, ahead_max: AHEAD_MAX, actors_max: ACTORS_MAX };
    for SyncEntry { key, actor_counters } in &sync.entries {
        if actor_counters.validate(&bounds).is_err() {
            continue;
        }
        if let MergeOutcome::Merged { .. } = store.merge_actor_counters(*key, actor_counters, NOW) {
            assert_eq!(
                store.merge_actor_counters(*key, actor_counters, NOW),
                MergeOutcome::Merged { changed: false }
            );
            let actor_counters = store.actor_counters(*key).expect("merged").to_delta();
            assert_eq!(actor_counters.validate(&bounds), Ok(()));
            frames::assert_round_trip(&Reply::ActorCounters {
                members: Epoch(1),
                entries: vec![SyncEntry { key: *key, actor_counters }],
            });
        }
        checks::assert_within_bounds(&store);
    }
    for entry in &sync.entries {
        checks::check_all_quotas(&store, entry.key);
    }
}
