//! The bounds that a run is checked against, given its faults. This is the only place that permits
//! a loss because of a fault.
//!
//! Strict limits are exact while no key changes its owner. What may be lost when one does depends
//! on how state moves between owners: see [`Handoff`].

use crate::fault::Fault;
use crate::history::Record;
use crate::keys::{Key, Kind};
use crate::scenario::Scenario;
use crate::world::{Crash, Isolation};

/// How counters reach the next owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handoff {
    /// Not at all: a key that moves starts from zero. How often keys move depends on the failure
    /// detector, so runs in which keys may move have no bound.
    None,
    /// A planned change transfers counters. A crash loses what the owner admitted since the last
    /// replication. An owner without its replicas decides until its lease ends, and the next owner
    /// does not have those hits.
    Replicated {
        /// Age of the oldest change that a replica may lack.
        replication_lag_ms: u64,
    },
}

impl Handoff {
    /// What the product implements.
    pub(crate) const PRODUCT: Self = Self::REPLICATED;
    /// Transfer and replication.
    const REPLICATED: Self = Self::Replicated { replication_lag_ms: 50 };

    /// Parses a name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::None, Self::REPLICATED].into_iter().find(|handoff| handoff.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Replicated { .. } => "replicated",
        }
    }
}

/// The bounds on the strict keys of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guarantee {
    handoff: Handoff,
    moves_keys: bool,
    /// Whether a store may lack room for a transferred key.
    may_fill_stores: bool,
    /// No fault affects requests: every verdict equals that of one exact node, and no answer comes
    /// from the fallback.
    pub(crate) is_exact: bool,
}

impl Guarantee {
    /// The bounds for `scenario`.
    pub(crate) fn of(scenario: &Scenario, handoff: Handoff) -> Self {
        let any = |what: fn(&Fault) -> bool| scenario.incidents.iter().any(|it| what(&it.fault));
        Self {
            handoff,
            moves_keys: any(Fault::moves_keys),
            may_fill_stores: scenario.may_fill_stores(),
            is_exact: !any(Fault::disrupts_requests),
        }
    }

    /// Upper bound on the admitted hits of `key` that may be lost, and so be admitted again; `None`
    /// without a bound.
    pub(crate) fn lost_max(
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
        let Handoff::Replicated { replication_lag_ms } = self.handoff else { return None };
        let crashed = crashes.iter().filter(|crash| crash.owned.contains(&key));
        let crashed = crashed.filter_map(|crash| {
            let to_ms = crash.at_ms;
            // During another fault, the replicas may hold nothing.
            match (crash.is_only_fault, key.kind) {
                (false, _) => Some(Isolation { from_ms: 0, to_ms }),
                (true, Kind::Durable) => None,
                (true, _) => Some(Isolation { from_ms: to_ms, to_ms }),
            }
        });
        let windows: Vec<Isolation> = crashed.chain(isolations.iter().copied()).collect();
        // The hit was decided between request and response; the response may arrive after the
        // owner's end.
        let may_be_lost = |sent_ms: u64, answered_ms: u64| {
            windows.iter().any(|window| {
                let from_ms = window.from_ms.saturating_sub(replication_lag_ms);
                sent_ms <= window.to_ms && answered_ms >= from_ms
            })
        };
        let in_doubt = records.iter().filter(|record| {
            record.key == key
                && record.response.is_some_and(|response| may_be_lost(record.at_ms, response.at_ms))
        });
        Some(in_doubt.map(Record::admitted_by_owner).sum())
    }
}

#[cfg(test)]
mod tests {
    use tidegate::decide::VerdictSource;

    use super::*;
    use crate::history::Response;

    const KEY: Key = Key { kind: Kind::Strict, number: 0 };

    fn hit_at(at_ms: u64) -> Record {
        let response =
            Response { at_ms, is_allowed: true, source: VerdictSource::Owner, remaining: 0 };
        Record { at_ms, node: 0, key: KEY, hits: 1, response: Some(response) }
    }

    fn lost(guarantee: Guarantee, is_only_fault: bool) -> Option<u64> {
        let records: Vec<_> = [100, 900, 990, 1_000, 1_100].into_iter().map(hit_at).collect();
        let crash = Crash { at_ms: 1_000, owned: vec![KEY], is_only_fault };
        guarantee.lost_max(KEY, &records, &[crash], &[])
    }

    #[test]
    fn a_crash_may_lose_hits_that_were_not_replicated() {
        let handoff = Handoff::Replicated { replication_lag_ms: 50 };
        let replicated =
            Guarantee { handoff, moves_keys: true, may_fill_stores: false, is_exact: false };
        assert_eq!(lost(replicated, true), Some(2), "what was admitted from 950 ms on");
        assert_eq!(lost(replicated, false), Some(4), "everything before the crash");
        assert_eq!(replicated.lost_max(KEY, &[hit_at(10)], &[], &[]), Some(0), "no crash");
        let cut = Isolation { from_ms: 900, to_ms: 1_300 };
        let records = [800, 860, 1_300, 1_301].map(hit_at);
        assert_eq!(
            replicated.lost_max(KEY, &records, &[], &[cut]),
            Some(2),
            "until the lease ends"
        );
    }

    #[test]
    fn without_handoff_only_keys_that_keep_their_owner_are_exact() {
        let none = Guarantee {
            handoff: Handoff::None,
            moves_keys: true,
            may_fill_stores: false,
            is_exact: false,
        };
        assert_eq!(lost(none, true), None);
        let fixed = Guarantee { moves_keys: false, ..none };
        assert_eq!(fixed.lost_max(KEY, &[], &[], &[]), Some(0));
    }
}
