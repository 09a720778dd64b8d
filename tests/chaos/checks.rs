//! What a history must and must not show. Pure: history in, numbers out.
//!
//! - **Seconds without a right answer**: the longest time that one key had none from its owner,
//!   from the first wrong answer to the next right one, at nodes that were meant to reach an owner.
//! - **Admitted over limit**: of the keys of a group, the one with the most admitted hits.
//! - **Lost**: hits that an owner acknowledged and that it does not count at the end.
//! - **Refused early**: hits that a key with more requests than its limit admitted too few. A hit
//!   without an owner's answer may have taken a place.
//! - **Admitted by a minority**: hits that two owners may have decided at the same time.
//! - **Double**: hits that it counts although no client sent them. A hit without an owner's answer
//!   may have been counted once, or not.
//!
//! *Example*: of 10 hits on a key 7 were acknowledged, 2 answered by the fallback, 1 not answered.
//! At the end the owner counts 6: one is lost. Were it 11: 10 are explained, one counts double.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::group::{Group, Key};
use super::history::{Answer, Event};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) requests: usize,
    pub(crate) without_right_answer: Duration,
    pub(crate) by_policy: usize,
    /// Of nodes that were meant to answer.
    pub(crate) errors: Vec<String>,
    /// The most that one key admitted, by group.
    pub(crate) admitted_max: BTreeMap<Group, u64>,
    /// Hits that were refused although their limit had room, by group, all keys.
    pub(crate) refused_early: BTreeMap<Group, u64>,
    /// Hits admitted beyond the limits, by group, all keys.
    pub(crate) admitted_beyond: BTreeMap<Group, u64>,
    pub(crate) lost: u64,
    pub(crate) double: u64,
    /// Acknowledged within [`NodeMetadata::lag`] before a crash, or by an owner on the smaller side
    /// of a cut while its lease still ran, by group: what the fault may have cost.
    pub(crate) may_be_lost: BTreeMap<Group, u64>,
    /// Hits that a node of a minority admitted as if it were their owner, while it was cut off.
    pub(crate) admitted_by_minority: usize,
}

/// `cluster.lease`, and time for a ping that was under way.
pub(crate) const LEASES_END_AFTER: Duration = Duration::from_secs(1);

/// Facts beside the history.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeMetadata {
    /// What owners count for each key of [`Group::Count`] in the end.
    pub(crate) counted: BTreeMap<Key, u64>,
    /// When nodes were killed.
    pub(crate) crashes: Vec<Duration>,
    /// What an acknowledged count takes at most to where a crash does not reach.
    pub(crate) lag: Duration,
    /// From when to when a minority was cut off for certain: no lease from before is left, because
    /// the cut is [`LEASES_END_AFTER`] old.
    pub(crate) cut: Option<Range<Duration>>,
}

pub(crate) fn check(history: &[Event], node_metadata: &NodeMetadata) -> Findings {
    let mut findings = Findings {
        requests: history.len(),
        without_right_answer: without_right_answer(history),
        by_policy: history.iter().filter(|event| event.answer.is_by_policy()).count(),
        errors: errors(history),
        ..Findings::default()
    };
    for (key, (admitted, unknown)) in admitted(history) {
        if !key.group.has_limit_reached() {
            continue;
        }
        let most = findings.admitted_max.entry(key.group).or_default();
        *most = (*most).max(admitted);
        let limit = key.group.limit();
        *findings.admitted_beyond.entry(key.group).or_default() += admitted.saturating_sub(limit);
        let taken = admitted + unknown;
        *findings.refused_early.entry(key.group).or_default() += limit.saturating_sub(taken);
    }
    for (key, counted) in &node_metadata.counted {
        let hits = || history.iter().filter(|event| event.key == *key);
        let acknowledged = hits().filter(|event| event.answer.is_counted()).count() as u64;
        let sent = hits().count() as u64;
        findings.lost += acknowledged.saturating_sub(*counted);
        findings.double += counted.saturating_sub(sent);
    }
    findings.may_be_lost = may_be_lost(history, node_metadata);
    let is_of_minority = |event: &&Event| {
        let is_cut = node_metadata.cut.as_ref().is_some_and(|cut| cut.contains(&event.sent));
        is_cut && !event.is_in_majority && event.answer.is_counted()
    };
    findings.admitted_by_minority = history.iter().filter(is_of_minority).count();
    findings
}

/// How many hits each key admitted, and how many may have been counted.
fn admitted(history: &[Event]) -> BTreeMap<Key, (u64, u64)> {
    let mut keys: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
    for event in history {
        let (admitted, unknown) = keys.entry(event.key).or_default();
        match &event.answer {
            answer if answer.is_allowed() => *admitted += 1,
            Answer::Owner { .. } => {}
            Answer::Policy { .. } | Answer::Error(_) => *unknown += 1,
        }
    }
    keys
}

fn errors(history: &[Event]) -> Vec<String> {
    let meant = history.iter().filter(|event| event.is_meant_to_answer);
    meant
        .filter_map(|event| match &event.answer {
            Answer::Error(text) => {
                Some(format!("node {} at {:.1?}: {text}", event.token + 1, event.sent))
            }
            Answer::Owner { .. } | Answer::Policy { .. } => None,
        })
        .collect()
}

/// A wrong answer that no right one follows lasts until the end of the history.
fn without_right_answer(history: &[Event]) -> Duration {
    let end = history.iter().map(|event| event.answered).max().unwrap_or_default();
    let mut events: Vec<&Event> =
        history.iter().filter(|event| event.is_meant_to_answer && event.is_in_majority).collect();
    events.sort_by_key(|event| event.answered);
    let mut wrong_since: BTreeMap<Key, Duration> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for event in events {
        if matches!(event.answer, Answer::Owner { .. }) {
            if let Some(since) = wrong_since.remove(&event.key) {
                longest = longest.max(event.answered.saturating_sub(since));
            }
        } else {
            wrong_since.entry(event.key).or_insert(event.sent);
        }
    }
    let unended = wrong_since.into_values().map(|since| end.saturating_sub(since)).max();
    longest.max(unended.unwrap_or_default())
}

fn may_be_lost(history: &[Event], node_metadata: &NodeMetadata) -> BTreeMap<Group, u64> {
    let is_late = |event: &&Event| {
        event.answer.is_counted()
            && node_metadata.crashes.iter().any(|crash| {
                (crash.saturating_sub(node_metadata.lag)..=*crash).contains(&event.answered)
            })
    };
    let is_cut_off = |event: &&Event| {
        let is_before = node_metadata.cut.as_ref().is_some_and(|cut| {
            let leases_end = cut.start;
            let struck = leases_end.saturating_sub(LEASES_END_AFTER);
            (struck.saturating_sub(node_metadata.lag)..=leases_end).contains(&event.answered)
        });
        is_before && event.answer.is_counted()
    };
    let mut may_be_lost = BTreeMap::new();
    for event in history.iter().filter(|event| is_late(event) || is_cut_off(event)) {
        *may_be_lost.entry(event.key.group).or_default() += 1;
    }
    may_be_lost
}
