//! The offset of this node's clock from the other members', and its correction.
//!
//! Windows are numbered by wall time. A node with a wrong clock counts in other windows than its
//! peers, and sends them counts that they must reject. No single clock of a cluster is known to be
//! correct, but the median is wrong only if half of them are.
//!
//! ```text
//! median      of the peers' offsets (theirs minus ours) and 0, our own
//! correction  0                while |median| ≤ max_skew
//!             median           beyond it: the decision clock follows system + median
//! ```
//!
//! An even number has two middle values, and which one is right is not known. A node that joins
//! uses the lower one, so that all nodes that start together find the same clock: all measure
//! system clocks, which no correction changes. A node in use keeps the one that its clock follows
//! already, so that no newcomer moves it. While the two are further apart than `max_skew`, the
//! clocks are *split*, which is reported and not corrected.
//!
//! Example: `max_skew` 500 ms, four peers at +30.0, +30.1, +29.9 and −200 s: sorted with our 0 that
//! is −200, 0, 29.9, 30.0, 30.1. The median is 29.9 s, so this node is half a minute late; the
//! clock at −200 s has no influence.

use tidegate_limiter::units::Span;
use tidegate_ownership::clock_offsets;

/// How far a node is from the members' median.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    /// The median clock minus ours, nanoseconds.
    pub median_ns: i64,
    /// Whether its magnitude exceeds `cluster.max_skew`.
    pub is_beyond: bool,
    /// Whether one half of the clocks differs from the other by more than `cluster.max_skew`.
    pub is_split: bool,
    /// Whether the members of the region decide by a time so far from that of this node that
    /// neither follows: they refuse each other's counts.
    pub is_apart: bool,
}

impl Skew {
    /// The skew of a node whose peers' clocks are at `offsets`, theirs minus ours. `followed` is
    /// the correction that its clock follows; none while it joins.
    pub fn of(offsets: &[i64], max: Span, followed: Option<i64>) -> Self {
        let (below, above) = clock_offsets::middle(offsets);
        let is_above = followed.is_some_and(|at| above.abs_diff(at) < below.abs_diff(at));
        let median_ns = if is_above { above } else { below };
        Self {
            median_ns,
            is_beyond: median_ns.unsigned_abs() > max.as_nanos(),
            is_split: above.abs_diff(below) > max.as_nanos(),
            is_apart: false,
        }
    }

    /// Whether an operator has to correct a clock, this one or one of a half that differs, or to
    /// restart this node.
    pub fn is_reported(self) -> bool {
        self.is_beyond || self.is_split || self.is_apart
    }

    /// What the decision clock adds to the system's.
    pub fn correction_ns(self) -> i64 {
        if self.is_beyond { self.median_ns } else { 0 }
    }
}

/// The lower middle one of `offsets`: the median of clocks that this node's own is not counted
/// with.
pub(super) fn lower_median(offsets: &[i64]) -> Option<i64> {
    let mut all = offsets.to_vec();
    all.sort_unstable();
    all.get(all.len().saturating_sub(1) / 2).copied()
}

/// What is corrected of `offset`: all of it beyond `max`, nothing within.
pub(super) fn beyond(offset: i64, max: Span) -> i64 {
    if offset.unsigned_abs() > max.as_nanos() { offset } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const MAX: Span = Span::from_millis(500);

    fn median(peers: &[i64], followed: Option<i64>) -> i64 {
        Skew::of(peers, MAX, followed).median_ns
    }

    #[test]
    fn most_clocks_decide_and_a_single_wrong_one_does_not() {
        for followed in [None, Some(0), Some(-9 * S)] {
            assert_eq!(median(&[], followed), 0);
            assert_eq!(median(&[30 * S, 31 * S], followed), 30 * S);
            assert_eq!(median(&[5, 3_600 * S], followed), 5);
            assert_eq!(median(&[30 * S, -200 * S, 31 * S, 29 * S], followed), 29 * S);
            assert_eq!(median(&[i64::MIN, i64::MAX], followed), 0);
        }
    }

    #[test]
    fn nodes_that_start_together_find_the_same_clock() {
        for clocks in [&[0, 60][..], &[7, 7, 9], &[-5, 0, 3, 60], &[0, 0, 30, 30], &[60, 0, -60, 4]]
        {
            let found = |own: &i64| {
                let mut others: Vec<i64> = clocks.iter().map(|other| other - own).collect();
                others.remove(others.iter().position(|offset| *offset == 0).expect("its own"));
                own + median(&others, None)
            };
            let found: Vec<i64> = clocks.iter().map(found).collect();
            assert!(found.iter().all(|clock| *clock == found[0]), "{clocks:?}: {found:?}");
        }
    }

    /// Whichever of the two is in use: the newcomer is early, or it is late.
    #[test]
    fn no_newcomer_moves_a_clock_in_use() {
        for offset in [-60 * S, 60 * S] {
            let in_use = Skew::of(&[offset], MAX, Some(0));
            assert_eq!(in_use, Skew { is_split: true, ..Skew::default() });
        }
        // One that joined 60 s ahead followed the other, and goes on to.
        let joined = Skew::of(&[-60 * S], MAX, None).correction_ns();
        assert_eq!(joined, -60 * S);
        assert_eq!(Skew::of(&[-61 * S], MAX, Some(joined)).correction_ns(), -61 * S);
    }

    #[test]
    fn only_what_is_beyond_the_bound_is_corrected() {
        let skew = |offset| Skew::of(&[offset, offset], MAX, Some(0));
        for within in [0, S / 2, -S / 2] {
            assert_eq!(skew(within).correction_ns(), 0);
        }
        for beyond in [S / 2 + 1, -S / 2 - 1, 30 * S, i64::MIN] {
            assert_eq!(skew(beyond).correction_ns(), beyond);
            assert!(!skew(beyond).is_split);
        }
    }
}
