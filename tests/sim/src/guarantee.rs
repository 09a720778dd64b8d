//! The losses that a run may have, key by key. This is the only place that permits a loss because
//! of a fault.
//!
//! A strict limit is exceeded by as many hits as owners of the key lost, and owners lose hits only
//! when another process takes over: see [`Change`]. A planned change transfers all counts. A crash
//! loses what the owner admitted since the last replication; if another fault came shortly before,
//! its replica may lack more.

use crate::fault::Fault;
use crate::history::Record;
use crate::keys::{Key, Kind};
use crate::scenario::Scenario;
use crate::world::{Cause, Change, UNAWARE_MS};

/// The bounds on the strict keys of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guarantee {
    /// No fault affects requests: every verdict equals that of one exact node, and no answer comes
    /// from the fallback.
    pub(crate) is_exact: bool,
    /// A store may lack room for a transferred key, which then starts again.
    pub(crate) may_fill_stores: bool,
    /// Of a datagram from one region to another.
    pub(crate) longest_ms: u64,
}

/// What changes of the owner may have cost a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Hits that may be admitted again.
    pub(crate) hits: u64,
    /// Hits that were lost without a reason.
    pub(crate) unexplained: u64,
}

/// Age of the oldest change that a replica may lack.
pub(crate) const REPLICATION_LAG_MS: u64 = 50;
/// A token bucket of [`Kind::Bucket`] regains less than this in a run.
const REGAINED_MAX: u64 = 3;

impl Guarantee {
    /// The bounds for `scenario`.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let is_edge = |node: usize| scenario.layout.is_edge(node);
        // Which hold no counts of others, and give back what they hold.
        let is_harmless = |fault: &Fault| {
            let is_planned = matches!(fault, Fault::Start { .. } | Fault::Leave { .. });
            is_planned && fault.node().is_some_and(is_edge)
        };
        let disrupts = |fault: &Fault| fault.disrupts_requests() && !is_harmless(fault);
        Self {
            is_exact: !scenario.incidents.iter().any(|incident| disrupts(&incident.fault)),
            may_fill_stores: scenario.may_fill_stores(),
            longest_ms: scenario.layout.longest_ms(),
        }
    }

    /// The losses of `key` by `changes`, of which it has `records`.
    pub(crate) fn losses(self, key: Key, records: &[Record], changes: &[Change]) -> Losses {
        let mut losses = Losses::default();
        for change in changes.iter().filter(|change| change.key == key) {
            let in_flight = admitted_within(key, records, change.at_ms, change.at_ms);
            let permitted = match change.cause {
                // What was charged and not sent is lost unnoticed.
                _ if key.kind.is_divided() => change.lost,
                Cause::Isolation
                | Cause::Crash { is_only_fault: false, .. }
                | Cause::Failover { is_only_fault: false, .. } => change.lost,
                Cause::Handover | Cause::WentOn { .. } if self.may_fill_stores => change.lost,
                // Its windows begin anew.
                Cause::Crash { .. } | Cause::WentOn { .. } if key.kind.is_brief() => change.lost,
                // docs/guarantees.md, "a region is lost or cut off": what it had not sent.
                Cause::Failover { from_ms, .. } => {
                    let sent_ms = from_ms.saturating_sub(REPLICATION_LAG_MS + self.longest_ms);
                    admitted_within(key, records, sent_ms, change.at_ms)
                }
                Cause::Crash { at_ms, .. } if !key.kind.is_durable() => {
                    let from_ms = at_ms.saturating_sub(REPLICATION_LAG_MS);
                    // Grants were confirmed by a replica before they were sent.
                    decided_within(key, records, from_ms, change.at_ms)
                }
                // docs/guarantees.md, "Limits of the protocol".
                Cause::WentOn { at_ms } => {
                    in_flight + admitted_within(key, records, at_ms, at_ms + UNAWARE_MS)
                }
                Cause::Crash { .. } | Cause::Handover => in_flight,
            };
            let regained = if key.kind == Kind::Bucket { REGAINED_MAX } else { 0 };
            losses.hits += change.lost + in_flight;
            losses.unexplained += change.lost.saturating_sub(permitted + regained);
        }
        losses
    }
}

/// Hits of `key` that owners admitted or had granted between two times. A hit was decided between
/// its request and its answer.
fn admitted_within(key: Key, records: &[Record], from_ms: u64, to_ms: u64) -> u64 {
    within(key, records, from_ms, to_ms).map(Record::admitted_by_owner).sum()
}

/// Those that owners admitted.
fn decided_within(key: Key, records: &[Record], from_ms: u64, to_ms: u64) -> u64 {
    let decided = within(key, records, from_ms, to_ms).filter(|record| !record.is_of_grant());
    decided.map(Record::admitted_by_owner).sum()
}

fn within(key: Key, records: &[Record], from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Record> {
    records.iter().filter(move |record| {
        let answered = record.response.is_some_and(|response| response.at_ms >= from_ms);
        record.key == key && record.at_ms <= to_ms && answered
    })
}

#[cfg(test)]
mod tests {
    use tidegate::decide::VerdictSource;

    use super::*;
    use crate::history::{Asked, Response};

    const KEY: Key = Key { kind: Kind::Strict, number: 0, region: 0 };

    /// The losses of a key with hits at these times, of which an owner that took over at 2 s lacks
    /// some.
    fn losses(lost: u64, cause: Cause) -> Losses {
        let guarantee = Guarantee { is_exact: false, may_fill_stores: false, longest_ms: 100 };
        let record = |at_ms: u64| {
            let response =
                Response { at_ms, is_allowed: true, source: VerdictSource::Owner, remaining: 0 };
            Record {
                at_ms,
                node: 0,
                key: KEY,
                hits: 1,
                asked: Asked::Check,
                is_loosened: false,
                response: Some(response),
            }
        };
        let records = [100, 900, 990, 1_000, 2_100].map(record);
        guarantee.losses(KEY, &records, &[Change { key: KEY, at_ms: 2_000, lost, cause }])
    }

    #[test]
    fn a_crash_may_lose_what_was_not_replicated() {
        let alone = Cause::Crash { at_ms: 1_000, is_only_fault: true };
        assert_eq!(losses(2, alone), Losses { hits: 2, unexplained: 0 });
        assert_eq!(losses(3, alone), Losses { hits: 3, unexplained: 1 });
        let other = Cause::Crash { at_ms: 1_000, is_only_fault: false };
        assert_eq!(losses(4, other), Losses { hits: 4, unexplained: 0 });
    }

    #[test]
    fn a_failover_may_lose_what_was_not_sent_before_the_trouble() {
        let alone = Cause::Failover { from_ms: 1_040, is_only_fault: true };
        assert_eq!(losses(3, alone), Losses { hits: 3, unexplained: 0 });
        assert_eq!(losses(4, alone), Losses { hits: 4, unexplained: 1 });
        let other = Cause::Failover { from_ms: 1_040, is_only_fault: false };
        assert_eq!(losses(4, other), Losses { hits: 4, unexplained: 0 });
    }

    #[test]
    fn a_planned_change_may_lose_nothing() {
        assert_eq!(losses(0, Cause::Handover), Losses::default());
        assert_eq!(losses(1, Cause::Handover), Losses { hits: 1, unexplained: 1 });
        assert_eq!(losses(4, Cause::Isolation), Losses { hits: 4, unexplained: 0 });
    }
}
