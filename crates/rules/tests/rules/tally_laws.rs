//! The tallies against a model that counts each hit by itself.
//!
//! In a fixed window the n-th hit is over the limit if `n > limit`, and near it if it is not over
//! but beyond the near part. The sums over random requests must be the counters. A failing case is
//! printed in full, shrunk; proptest keeps no file of it.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tidegate_rules::tally::{Outcome, Tally};

/// The model of one window.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    total: u64,
    over: u64,
    near: u64,
    from_memory: u64,
    within: u64,
    shadow: u64,
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn the_counters_are_sums_over_single_hits(
        limit in 0..30_u32,
        tenths in 0..=10_u64,
        requests in prop::collection::vec(0..12_u64, 0..20),
        remembers in any::<bool>(),
        shadow in any::<bool>(),
    ) {
        // Counted in tenths, so that the model's boundary owes nothing to floating point. The two
        // agree for limits this small.
        let near_from = u64::from(limit) * tenths / 10;
        let ratio = f32::from(u8::try_from(tenths).unwrap()) / 10.0;
        let limit_hits = u64::from(limit);
        let (mut model, tally) = (Model::default(), Tally::default());
        let mut used = 0;
        let mut is_remembered = false;
        for hits in requests {
            model.total += hits;
            if is_remembered {
                model.over += hits;
                model.from_memory += hits;
                model.shadow += if shadow { hits } else { 0 };
                tally.count(limit, 0, hits, Outcome::OverFromMemory, shadow, ratio);
                continue;
            }
            for nth in used + 1..=used + hits {
                if nth > limit_hits {
                    model.over += 1;
                    model.shadow += u64::from(shadow);
                } else if nth > near_from {
                    model.near += 1;
                }
            }
            used += hits;
            let outcome = if used > limit_hits { Outcome::Over } else { Outcome::Within };
            if outcome == Outcome::Within {
                model.within += hits;
            }
            is_remembered = remembers && outcome == Outcome::Over;
            tally.count(limit, used, hits, outcome, shadow, ratio);
        }
        prop_assert_eq!(counted(&tally), model);
    }

    /// Any numbers are counted without a panic, and the total is the sum of the hits.
    #[test]
    fn any_numbers_are_counted(
        limit in any::<u32>(),
        after in any::<u64>(),
        hits in any::<u64>(),
        ratio in any::<f32>(),
        shadow in any::<bool>(),
        outcome in prop::sample::select(
            vec![Outcome::Within, Outcome::Over, Outcome::OverFromMemory]
        ),
    ) {
        let tally = Tally::default();
        tally.count(limit, after, hits, outcome, shadow, ratio);
        let counted = counted(&tally);
        prop_assert_eq!(counted.total, hits);
        prop_assert_eq!(counted.shadow, if shadow { counted.over } else { 0 });
    }
}

fn counted(tally: &Tally) -> Model {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Model {
        total: read(&tally.total_hits),
        over: read(&tally.over_limit),
        near: read(&tally.near_limit),
        from_memory: read(&tally.over_limit_with_local_cache),
        within: read(&tally.within_limit),
        shadow: read(&tally.shadow_mode),
    }
}
