//! What a run has to hold, given what goes wrong in it: the one place where a fault buys an
//! allowance.
//!
//! Strict limits are exact while no key changes its owner. What happens when one does depends on
//! how owners keep what they know, which is what [`Keeping`] says.

use crate::fault::Fault;
use crate::history::Record;
use crate::keys::{Key, Kind};
use crate::scenario::Scenario;
use crate::world::{Crash, Isolation};

/// How owners keep what they know when keys move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Not at all: one node owns a key at any moment, but a key that moves is counted anew. How
    /// often keys move is up to the failure detector, so no bound is stated for runs in which they
    /// may.
    Nothing,
    /// A planned change hands states over. A crash loses what its owner admitted since the last
    /// replication; an owner that is cut off from its replicas decides until its lease has run out,
    /// and what it admitted then is not known to the next one.
    Handover {
        /// The oldest change that a replica may not have.
        replication_lag_ms: u64,
    },
}

impl Keeping {
    /// How the product keeps counts.
    pub(crate) const PRODUCT: Self = Self::HANDOVER;
    /// What a product has to hold whose owners hand over and replicate.
    const HANDOVER: Self = Self::Handover { replication_lag_ms: 50 };

    /// The promise that `name` stands for.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Nothing, Self::HANDOVER].into_iter().find(|keeping| keeping.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Handover { .. } => "handover",
        }
    }
}

/// What a run has to hold about its strict keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guarantee {
    keeping: Keeping,
    /// Whether keys may change their owner.
    moves_keys: bool,
    /// Whether there may be no room for what a key brings along.
    may_fill_stores: bool,
    /// Nothing stands between a caller and the owner: every ask is decided as one exact node would,
    /// and none is answered by policy.
    pub(crate) is_undisturbed: bool,
}

impl Guarantee {
    /// What `scenario` has to hold.
    pub(crate) fn of(scenario: &Scenario, keeping: Keeping) -> Self {
        let any = |what: fn(&Fault) -> bool| scenario.incidents.iter().any(|it| what(&it.fault));
        Self {
            keeping,
            moves_keys: any(Fault::moves_keys),
            may_fill_stores: scenario.may_fill_stores(),
            is_undisturbed: !any(Fault::disturbs),
        }
    }

    /// The most admitted hits of `key` that may be forgotten, and so be admitted again; `None` when
    /// no bound is stated.
    pub(crate) fn forgotten_max(
        &self,
        key: Key,
        records: &[Record],
        crashes: &[Crash],
        isolations: &[Isolation],
    ) -> Option<u64> {
        if !self.moves_keys {
            return Some(0);
        }
        if self.may_fill_stores {
            return None;
        }
        let Keeping::Handover { replication_lag_ms } = self.keeping else { return None };
        let crashed = crashes.iter().filter(|crash| crash.owned.contains(&key));
        let crashed = crashed.filter_map(|crash| {
            let to_ms = crash.at_ms;
            // A crash in the middle of something else may find no replica that knows anything.
            match (crash.is_alone, key.kind) {
                (false, _) => Some(Isolation { from_ms: 0, to_ms }),
                (true, Kind::Durable) => None,
                (true, _) => Some(Isolation { from_ms: to_ms, to_ms }),
            }
        });
        let times: Vec<Isolation> = crashed.chain(isolations.iter().copied()).collect();
        // It was decided at some time between the ask and its answer, which may arrive after the
        // owner's end.
        let is_lost = |asked_ms: u64, answered_ms: u64| {
            times.iter().any(|time| {
                let from_ms = time.from_ms.saturating_sub(replication_lag_ms);
                asked_ms <= time.to_ms && answered_ms >= from_ms
            })
        };
        let lost = records.iter().filter(|record| {
            record.key == key
                && record.outcome.is_some_and(|outcome| is_lost(record.at_ms, outcome.at_ms))
        });
        Some(lost.map(Record::admitted_by_owner).sum())
    }
}

#[cfg(test)]
mod tests {
    use tidegate::decide::VerdictSource;

    use super::*;
    use crate::history::Outcome;

    const KEY: Key = Key { kind: Kind::Strict, number: 0 };

    fn hit_at(at_ms: u64) -> Record {
        let outcome =
            Outcome { at_ms, is_allowed: true, source: VerdictSource::Owner, remaining: 0 };
        Record { at_ms, node: 0, key: KEY, hits: 1, outcome: Some(outcome) }
    }

    fn forgotten(guarantee: Guarantee, is_alone: bool) -> Option<u64> {
        let records: Vec<_> = [100, 900, 990, 1_000, 1_100].into_iter().map(hit_at).collect();
        let crash = Crash { at_ms: 1_000, owned: vec![KEY], is_alone };
        guarantee.forgotten_max(KEY, &records, &[crash], &[])
    }

    #[test]
    fn a_crash_may_lose_what_was_not_replicated() {
        let keeping = Keeping::Handover { replication_lag_ms: 50 };
        let handover =
            Guarantee { keeping, moves_keys: true, may_fill_stores: false, is_undisturbed: false };
        assert_eq!(forgotten(handover, true), Some(2), "what was admitted from 950 ms on");
        assert_eq!(forgotten(handover, false), Some(4), "everything before the crash");
        assert_eq!(handover.forgotten_max(KEY, &[hit_at(10)], &[], &[]), Some(0), "nobody crashed");
        let cut = Isolation { from_ms: 900, to_ms: 1_300 };
        let records = [800, 860, 1_300, 1_301].map(hit_at);
        assert_eq!(
            handover.forgotten_max(KEY, &records, &[], &[cut]),
            Some(2),
            "until the lease ends"
        );
    }

    #[test]
    fn without_handover_only_keys_that_stay_are_exact() {
        let nothing = Guarantee {
            keeping: Keeping::Nothing,
            moves_keys: true,
            may_fill_stores: false,
            is_undisturbed: false,
        };
        assert_eq!(forgotten(nothing, true), None);
        let still = Guarantee { moves_keys: false, ..nothing };
        assert_eq!(still.forgotten_max(KEY, &[], &[], &[]), Some(0));
    }
}
