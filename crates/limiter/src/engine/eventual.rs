//! Deciding over per-actor counters: every node locally, on the counts it has received so far.
//!
//! The formulae are those of `fixed_window` and of `sliding_window_counter`, over the sums of the
//! slices. Denied hits are not counted, also not those of a `fixed_window`: a flood of them would
//! be a flood of messages. A G-counter holds how many hits fell into a slice, not when. Rules whose
//! algorithm needs the times are rejected when they are loaded; a quota of such an algorithm is
//! counted as a sliding window counter.
//!
//! **Invariant:** `decide_eventual` only writes the counters of `me`.

use smallvec::SmallVec;

use super::actor_counters::ActorCounters;
use super::delta::ActorId;
use super::fixed_window;
use super::slices::{Slices, take_refund};
use super::state::State;
use super::verdict::Verdict;
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Timestamp};

/// Decides one request on the counts that this node holds, and counts it for `me`.
pub fn decide_eventual(
    state: &mut State,
    me: ActorId,
    quota: &Quota,
    hits: Hits,
    now: Timestamp,
) -> Verdict {
    let (verdict, index) = evaluate(state, quota, hits, now);
    if hits.refund() > 0 {
        if let State::ActorCounters(actor_counters) = state
            && actor_counters.fits(quota)
        {
            actor_counters.refund(me, hits.refund(), index, depth(quota));
        }
    } else if hits.charge() > 0 && verdict.allowed {
        ensure_actor_counters(state, quota);
        if let State::ActorCounters(actor_counters) = state {
            actor_counters.charge(me, hits.charge(), index);
        }
    }
    verdict
}

/// Returns the verdict that [`decide_eventual`] would give, without counting.
pub fn preview_eventual(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    evaluate(state, quota, hits, now).0
}

/// The verdict, and the number of the slice that it was given for.
fn evaluate(state: &State, quota: &Quota, hits: Hits, now: Timestamp) -> (Verdict, u64) {
    let empty = ActorCounters::new(quota);
    let actor_counters = state
        .actor_counters()
        .filter(|actor_counters| actor_counters.fits(quota))
        .unwrap_or(&empty);
    let index = actor_counters.index_at(now);
    let mut counts: SmallVec<[u64; 16]> =
        actor_counters.newest_first(index).take(depth(quota)).collect();
    take_refund(&mut counts, hits.refund());
    let slices = Slices { slice_ns: actor_counters.slice_ns(), index, counts: &counts, now };
    let verdict = if quota.algorithm() == Algorithm::FixedWindow {
        let used = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        let with_hits = used.saturating_add(hits.charge());
        let verdict = fixed_window::verdict(with_hits, quota, hits, now, slices.expires_at(0));
        let remaining = u64::from(quota.limit()).saturating_sub(used);
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        if verdict.allowed { verdict } else { Verdict { remaining, ..verdict } }
    } else {
        slices.verdict(quota, hits)
    };
    (verdict, index)
}

/// The number of slices that a request looks at.
fn depth(quota: &Quota) -> usize {
    let slices = usize::from(quota.sub_windows());
    if quota.algorithm() == Algorithm::FixedWindow { slices } else { slices + 1 }
}

/// Starts counters of the shape of `quota`, unless `state` holds such.
fn ensure_actor_counters(state: &mut State, quota: &Quota) {
    if !state.actor_counters().is_some_and(|actor_counters| actor_counters.fits(quota)) {
        *state = State::ActorCounters(Box::new(ActorCounters::new(quota)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::delta::Delta;
    use super::super::{Retry, decide};
    use super::*;
    use crate::units::Span;

    const ME: ActorId = ActorId::new(1);
    const PEER: ActorId = ActorId::new(2);

    fn quota(algorithm: Algorithm) -> Quota {
        Quota::simple(algorithm, 10, Span::from_secs(60)).expect("a valid quota")
    }

    #[test]
    fn a_single_node_answers_like_a_strict_counter() {
        const SLIDING: [(u64, i64); 9] =
            [(0, 4), (10, 7), (20, 6), (59, 0), (61, -3), (70, 3), (90, 9), (130, 11), (400, 10)];
        // A strict fixed window counts what it denies.
        const FIXED: [(u64, i64); 6] = [(0, 4), (20, 6), (59, 0), (61, -3), (70, 3), (400, 10)];
        for (algorithm, requests) in [
            (Algorithm::FixedWindow, FIXED.as_slice()),
            (Algorithm::SlidingWindowCounter, SLIDING.as_slice()),
        ] {
            let quota = quota(algorithm);
            let (mut strict, mut eventual) = (State::Absent, State::Absent);
            for &(secs, hits) in requests {
                let (hits, now) = (Hits::new(hits), Timestamp::from_secs(secs));
                let expected = decide(&mut strict, &quota, hits, now);
                let verdict = decide_eventual(&mut eventual, ME, &quota, hits, now);
                assert_eq!(verdict, expected, "{algorithm:?} at {secs} s");
            }
        }
    }

    /// Merges the counters of a peer as the store does. Returns whether any counter grew.
    fn merge(state: &mut State, delta: &Delta) -> bool {
        if let State::ActorCounters(actor_counters) = state {
            return actor_counters.merge(delta).changed;
        }
        let theirs = ActorCounters::try_from(delta.clone()).expect("a valid delta");
        *state = State::ActorCounters(Box::new(theirs));
        true
    }

    /// The number of requests that three nodes admit. They exchange counters after every
    /// `sync_every` requests.
    fn admitted_by_three(sync_every: usize) -> (usize, [State; 3]) {
        let quota = quota(Algorithm::SlidingWindowCounter);
        let mut nodes = [const { State::Absent }; 3];
        let mut admitted = 0;
        for request in 0..90 {
            let (node, me) = (request % 3, ActorId::new(request as u64 % 3));
            let verdict =
                decide_eventual(&mut nodes[node], me, &quota, Hits::ONE, Timestamp::EPOCH);
            admitted += usize::from(verdict.allowed);
            if (request + 1) % sync_every == 0 {
                let sent =
                    nodes.each_ref().map(|node| node.actor_counters().map(ActorCounters::to_delta));
                for node in &mut nodes {
                    for delta in sent.iter().flatten() {
                        merge(node, delta);
                    }
                }
            }
        }
        (admitted, nodes)
    }

    #[test]
    fn over_admission_ends_with_staleness() {
        let (fresh, _) = admitted_by_three(1);
        let (stale, _) = admitted_by_three(9);
        let (partitioned, nodes) = admitted_by_three(90);
        assert_eq!((fresh, stale, partitioned), (10, 12, 30));
        for node in &nodes {
            assert_eq!(node.actor_counters().map(|actor_counters| actor_counters.sum(0)), Some(30));
        }
    }

    #[test]
    fn counts_of_peers_are_respected_and_never_written() {
        let quota = quota(Algorithm::SlidingWindowCounter);
        let mut theirs = State::Absent;
        decide_eventual(&mut theirs, PEER, &quota, Hits::new(8), Timestamp::EPOCH);
        let sent = theirs.actor_counters().expect("per-actor counters").to_delta();

        let mut mine = State::Absent;
        assert!(merge(&mut mine, &sent));
        let full = decide_eventual(&mut mine, ME, &quota, Hits::new(3), Timestamp::EPOCH);
        assert_eq!((full.allowed, full.remaining), (false, 2));
        assert!(decide_eventual(&mut mine, ME, &quota, Hits::new(2), Timestamp::EPOCH).allowed);
        decide_eventual(&mut mine, ME, &quota, Hits::new(-5), Timestamp::EPOCH);
        let actor_counters = mine.actor_counters().expect("per-actor counters");
        assert_eq!(actor_counters.delta_of(|actor| actor == PEER), sent);
        assert_eq!(actor_counters.sum(0), 5);
    }

    #[test]
    fn denied_hits_of_a_fixed_window_are_free() {
        let quota = quota(Algorithm::FixedWindow);
        let mut state = State::Absent;
        let denied = decide_eventual(&mut state, ME, &quota, Hits::new(11), Timestamp::EPOCH);
        assert_eq!(denied.retry, Retry::Never);
        assert_eq!(state, State::Absent);
        assert!(decide_eventual(&mut state, ME, &quota, Hits::new(8), Timestamp::EPOCH).allowed);
        let denied = decide_eventual(&mut state, ME, &quota, Hits::new(3), Timestamp::EPOCH);
        assert_eq!((denied.allowed, denied.remaining), (false, 2));
        assert!(decide_eventual(&mut state, ME, &quota, Hits::new(2), Timestamp::EPOCH).allowed);
    }

    #[test]
    fn a_delta_of_another_shape_changes_nothing() {
        let wider = Quota::simple(Algorithm::FixedWindow, 10, Span::from_secs(61)).expect("valid");
        let mut theirs = State::Absent;
        decide_eventual(&mut theirs, PEER, &wider, Hits::ONE, Timestamp::EPOCH);
        let sent = theirs.actor_counters().expect("per-actor counters").to_delta();
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
            let mut mine = State::Absent;
            decide_eventual(&mut mine, ME, &quota(algorithm), Hits::ONE, Timestamp::EPOCH);
            let before = mine.clone();
            assert!(!merge(&mut mine, &sent));
            assert_eq!(mine, before);
            // Where nothing was counted yet, a decision sees nothing of it either.
            let (mut new, mut absent) = (State::Absent, State::Absent);
            merge(&mut new, &sent);
            let decide =
                |state| decide_eventual(state, ME, &quota(algorithm), Hits::ONE, Timestamp::EPOCH);
            assert_eq!(decide(&mut new), decide(&mut absent));
            assert_eq!(new, absent);
        }
    }
}
