//! The checks on a history. Pure functions.
//!
//! - **Seconds without an exact answer**: the longest time for which one key had no owner's answer,
//!   from the first other answer to the next one of an owner, at nodes that could reach an owner.
//! - **Admitted over limit**: in each group, the admitted hits of the key with the most.
//! - **Lost**: hits that an owner acknowledged and does not count at the end.
//! - **Refused early**: hits below the limit that a key refused. A hit without an owner's answer
//!   may have been counted.
//! - **Admitted by a minority**: hits that two owners may have decided at the same time.
//! - **Double**: hits that an owner counts although no client sent them. A hit without an owner's
//!   answer may have been counted once or not at all.
//!
//! *Example*: of 10 hits on a key 7 were acknowledged, 2 answered by the fallback, 1 not answered.
//! If the owner counts 6 at the end, one is lost. If it counts 11, one is double.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::group::{Group, Key};
use super::history::{Answer, Event};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) requests: usize,
    pub(crate) without_exact_answer: Duration,
    pub(crate) fallbacks: usize,
    /// Errors of nodes that were available.
    pub(crate) errors: Vec<String>,
    /// Largest number of hits admitted by one key, by group.
    pub(crate) admitted_max: BTreeMap<Group, u64>,
    /// Hits refused below the limit, by group, all keys.
    pub(crate) refused_early: BTreeMap<Group, u64>,
    /// Hits admitted beyond the limits, by group, all keys.
    pub(crate) admitted_beyond: BTreeMap<Group, u64>,
    pub(crate) lost: u64,
    pub(crate) double: u64,
    /// Hits that the fault may have lost, by group: acknowledged within [`Observations::lag`]
    /// before a crash, or by an owner of a minority before its lease ended.
    pub(crate) may_be_lost: BTreeMap<Group, u64>,
    /// Hits that a node of a minority admitted as their owner after its lease should have ended.
    pub(crate) admitted_by_minority: usize,
}

/// `cluster.lease`, and time for a ping in flight.
pub(crate) const LEASES_END_AFTER: Duration = Duration::from_secs(1);

/// Input of the checks beside the history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations {
    /// The owners' counts for each key of [`Group::Count`] at the end.
    pub(crate) counted: BTreeMap<Key, u64>,
    /// Times at which nodes were killed.
    pub(crate) crashes: Vec<Duration>,
    /// Longest time until an acknowledged hit survives a crash.
    pub(crate) lag: Duration,
    /// Period in which a minority was cut off and had no lease from before: it starts
    /// [`LEASES_END_AFTER`] after the cut.
    pub(crate) cut: Option<Range<Duration>>,
}

pub(crate) fn check(history: &[Event], observations: &Observations) -> Findings {
    let mut findings = Findings {
        requests: history.len(),
        without_exact_answer: without_exact_answer(history),
        fallbacks: history.iter().filter(|event| event.answer.is_fallback()).count(),
        errors: errors(history),
        ..Findings::default()
    };
    for (key, (admitted, unknown)) in admitted(history) {
        if !key.group.reaches_limit() {
            continue;
        }
        let most = findings.admitted_max.entry(key.group).or_default();
        *most = (*most).max(admitted);
        let limit = key.group.limit();
        *findings.admitted_beyond.entry(key.group).or_default() += admitted.saturating_sub(limit);
        let taken = admitted + unknown;
        *findings.refused_early.entry(key.group).or_default() += limit.saturating_sub(taken);
    }
    for (key, counted) in &observations.counted {
        let hits = || history.iter().filter(|event| event.key == *key);
        let acknowledged = hits().filter(|event| event.answer.is_counted()).count() as u64;
        let sent = hits().count() as u64;
        findings.lost += acknowledged.saturating_sub(*counted);
        findings.double += counted.saturating_sub(sent);
    }
    findings.may_be_lost = may_be_lost(history, observations);
    let is_of_minority = |event: &&Event| {
        let is_cut = observations.cut.as_ref().is_some_and(|cut| cut.contains(&event.sent));
        is_cut && !event.in_majority && event.answer.is_counted()
    };
    findings.admitted_by_minority = history.iter().filter(is_of_minority).count();
    findings
}

/// For each key, the hits admitted, and the hits that may have been counted.
fn admitted(history: &[Event]) -> BTreeMap<Key, (u64, u64)> {
    let mut keys: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
    for event in history {
        let (admitted, unknown) = keys.entry(event.key).or_default();
        match &event.answer {
            answer if answer.is_allowed() => *admitted += 1,
            Answer::Owner { .. } => {}
            Answer::Fallback { .. } | Answer::Error(_) => *unknown += 1,
        }
    }
    keys
}

fn errors(history: &[Event]) -> Vec<String> {
    let available = history.iter().filter(|event| event.is_available);
    available
        .filter_map(|event| match &event.answer {
            Answer::Error(text) => {
                Some(format!("node {} at {:.1?}: {text}", event.node_index + 1, event.sent))
            }
            Answer::Owner { .. } | Answer::Fallback { .. } => None,
        })
        .collect()
}

/// The longest time in which the answers for one key were not exact: from the first of them to the
/// last, because a key is asked about once in a second and the next exact answer would measure
/// that; to the end of the history if none follows.
fn without_exact_answer(history: &[Event]) -> Duration {
    let end = history.iter().map(|event| event.answered).max().unwrap_or_default();
    let mut events: Vec<&Event> =
        history.iter().filter(|event| event.is_available && event.in_majority).collect();
    events.sort_by_key(|event| event.answered);
    // Since when, and the last.
    let mut outages: BTreeMap<Key, (Duration, Duration)> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for event in events {
        if matches!(event.answer, Answer::Owner { .. }) {
            if let Some((since, last)) = outages.remove(&event.key) {
                longest = longest.max(last.saturating_sub(since));
            }
        } else {
            let outage = outages.entry(event.key).or_insert((event.sent, event.answered));
            outage.1 = event.answered;
        }
    }
    let unended = outages.into_values().map(|(since, _)| end.saturating_sub(since)).max();
    longest.max(unended.unwrap_or_default())
}

fn may_be_lost(history: &[Event], observations: &Observations) -> BTreeMap<Group, u64> {
    let is_late = |event: &&Event| {
        event.answer.is_counted()
            && observations.crashes.iter().any(|crash| {
                (crash.saturating_sub(observations.lag)..=*crash).contains(&event.answered)
            })
    };
    let is_cut_off = |event: &&Event| {
        let is_before = observations.cut.as_ref().is_some_and(|cut| {
            let leases_end = cut.start;
            let injected = leases_end.saturating_sub(LEASES_END_AFTER);
            (injected.saturating_sub(observations.lag)..=leases_end).contains(&event.answered)
        });
        is_before && event.answer.is_counted()
    };
    let mut may_be_lost = BTreeMap::new();
    for event in history.iter().filter(|event| is_late(event) || is_cut_off(event)) {
        *may_be_lost.entry(event.key.group).or_default() += 1;
    }
    may_be_lost
}
