//! Deciding over columns: every node on the spot, on what it knows.
//!
//! The formulae are those of `fixed_window` (refused hits count there, in the own column) and of
//! `sliding_window_counter`, over the sums of the buckets. A G-counter tells how many hits came in
//! a bucket, not when: rules that would need that are refused when they are loaded, and a quota of
//! such an algorithm that comes here all the same is counted as a sliding window counter.
//!
//! **Invariant:** `decide_eventual` only ever writes the columns of `me`.

use smallvec::SmallVec;

use super::actor_counters::{ActorCounters, Merged};
use super::slots::{Slots, give_back};
use super::{ActorId, Delta, State, Verdict, fixed_window};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Timestamp};

/// Decides one ask on what this node knows and counts it in `me`'s column.
pub fn decide_eventual(
    state: &mut State,
    me: ActorId,
    quota: &Quota,
    hits: Hits,
    now: Timestamp,
) -> Verdict {
    let (verdict, index) = judge(state, quota, hits, now);
    let counts_refusals = quota.algorithm() == Algorithm::FixedWindow;
    if hits.refund() > 0 {
        if let State::ActorCounters(actor_counters) = state
            && actor_counters.is_of(quota)
        {
            actor_counters.give_back(me, hits.refund(), index, depth(quota));
        }
    } else if hits.charge() > 0 && (verdict.allowed || counts_refusals) {
        make_columns(state, quota);
        if let State::ActorCounters(actor_counters) = state {
            actor_counters.charge(me, hits.charge(), index);
        }
    }
    verdict
}

/// The verdict that [`decide_eventual`] would give, counting nothing.
pub fn preview_eventual(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    judge(state, quota, hits, now).0
}

impl State {
    /// Takes in the columns that a peer has sent for this counter. Give it only what
    /// [`Delta::validate`] has let through; a delta of another rule's shape changes nothing.
    pub fn merge_delta(&mut self, delta: &Delta, quota: &Quota) -> Merged {
        if !delta.is_of(quota) || delta.is_empty() {
            return Merged::default();
        }
        make_columns(self, quota);
        if let Self::ActorCounters(actor_counters) = self {
            actor_counters.merge(delta)
        } else {
            Merged::default()
        }
    }
}

/// The verdict, and the number of the bucket that it was given for.
fn judge(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> (Verdict, u64) {
    let empty = ActorCounters::new(quota);
    let actor_counters = state
        .actor_counters()
        .filter(|actor_counters| actor_counters.is_of(quota))
        .unwrap_or(&empty);
    let index = actor_counters.index_at(now);
    let mut counts: SmallVec<[u64; 16]> =
        actor_counters.newest_first(index).take(depth(quota)).collect();
    give_back(&mut counts, hits.refund());
    let slots = Slots { span: actor_counters.bucket_ns(), index, counts: &counts, now };
    let verdict = if quota.algorithm() == Algorithm::FixedWindow {
        let used = counts.iter().fold(hits.charge(), |sum, count| sum.saturating_add(*count));
        fixed_window::answer(used, quota, hits, now, slots.empty_at(0))
    } else {
        slots.judge(quota, hits)
    };
    (verdict, index)
}

/// How many buckets an ask looks at.
fn depth(quota: &Quota) -> usize {
    let windows = usize::from(quota.sub_windows());
    if quota.algorithm() == Algorithm::FixedWindow { windows } else { windows + 1 }
}

/// Starts columns of `quota`'s shape, unless `state` holds such already.
fn make_columns(state: &mut State, quota: &Quota) {
    if !state.actor_counters().is_some_and(|actor_counters| actor_counters.is_of(quota)) {
        *state = State::ActorCounters(Box::new(ActorCounters::new(quota)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Retry, decide};
    use super::*;
    use crate::units::Span;

    const ME: ActorId = ActorId::new(1);
    const PEER: ActorId = ActorId::new(2);

    fn quota(algorithm: Algorithm) -> Quota {
        Quota::simple(algorithm, 10, Span::from_secs(60)).expect("a valid quota")
    }

    #[test]
    fn a_node_alone_answers_as_a_strict_counter_does() {
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
            let quota = quota(algorithm);
            let (mut strict, mut eventual) = (State::Absent, State::Absent);
            for (secs, hits) in [
                (0, 4),
                (10, 7),
                (20, 6),
                (59, 0),
                (61, -3),
                (70, 3),
                (90, 9),
                (130, 11),
                (400, 10),
            ] {
                let (hits, now) = (Hits::new(hits), Timestamp::from_secs(secs));
                let expected = decide(&mut strict, &quota, hits, now);
                let verdict = decide_eventual(&mut eventual, ME, &quota, hits, now);
                assert_eq!(verdict, expected, "{algorithm:?} at {secs} s");
            }
        }
    }

    /// Three nodes, which hear of each other after every `sync_every` asks; how many they admit.
    fn admitted_by_three(sync_every: usize) -> (usize, [State; 3]) {
        let quota = quota(Algorithm::SlidingWindowCounter);
        let mut nodes = [const { State::Absent }; 3];
        let mut admitted = 0;
        for ask in 0..90 {
            let (node, me) = (ask % 3, ActorId::new(ask as u64 % 3));
            let verdict =
                decide_eventual(&mut nodes[node], me, &quota, Hits::ONE, Timestamp::EPOCH);
            admitted += usize::from(verdict.allowed);
            if (ask + 1) % sync_every == 0 {
                let said =
                    nodes.each_ref().map(|node| node.actor_counters().map(ActorCounters::wire));
                for node in &mut nodes {
                    for delta in said.iter().flatten() {
                        node.merge_delta(delta, &quota);
                    }
                }
            }
        }
        (admitted, nodes)
    }

    #[test]
    fn over_admission_ends_with_staleness() {
        let (in_touch, _) = admitted_by_three(1);
        let (late, _) = admitted_by_three(9);
        let (apart, nodes) = admitted_by_three(90);
        assert_eq!((in_touch, late, apart), (10, 12, 30));
        for node in &nodes {
            assert_eq!(node.actor_counters().map(|actor_counters| actor_counters.sum(0)), Some(30));
        }
    }

    #[test]
    fn what_peers_counted_is_respected_and_never_written() {
        let quota = quota(Algorithm::SlidingWindowCounter);
        let mut theirs = State::Absent;
        decide_eventual(&mut theirs, PEER, &quota, Hits::new(8), Timestamp::EPOCH);
        let said = theirs.actor_counters().expect("columns").wire();

        let mut mine = State::Absent;
        assert!(mine.merge_delta(&said, &quota).changed);
        let full = decide_eventual(&mut mine, ME, &quota, Hits::new(3), Timestamp::EPOCH);
        assert_eq!((full.allowed, full.remaining), (false, 2));
        assert!(decide_eventual(&mut mine, ME, &quota, Hits::new(2), Timestamp::EPOCH).allowed);
        decide_eventual(&mut mine, ME, &quota, Hits::new(-5), Timestamp::EPOCH);
        let actor_counters = mine.actor_counters().expect("columns");
        assert_eq!(actor_counters.own(PEER), said);
        assert_eq!(actor_counters.sum(0), 5);
    }

    #[test]
    fn hits_of_a_fixed_window_count_even_when_refused() {
        let quota = quota(Algorithm::FixedWindow);
        let mut state = State::Absent;
        let refused = decide_eventual(&mut state, ME, &quota, Hits::new(11), Timestamp::EPOCH);
        assert_eq!(refused.retry, Retry::Never);
        let refused = decide_eventual(&mut state, ME, &quota, Hits::ONE, Timestamp::EPOCH);
        assert_eq!(refused.retry, Retry::After(Span::from_secs(60)));
    }

    #[test]
    fn a_delta_of_another_shape_changes_nothing() {
        let (mine, other) = (quota(Algorithm::FixedWindow), quota(Algorithm::SlidingWindowCounter));
        let wider = Quota::simple(Algorithm::FixedWindow, 10, Span::from_secs(61)).expect("valid");
        let mut theirs = State::Absent;
        decide_eventual(&mut theirs, PEER, &wider, Hits::ONE, Timestamp::EPOCH);
        let said = theirs.actor_counters().expect("columns").wire();
        let mut state = State::Absent;
        assert_eq!(state.merge_delta(&said, &mine), Merged::default());
        assert_eq!(state.merge_delta(&said, &other), Merged::default());
        assert_eq!(state, State::Absent);
    }
}
