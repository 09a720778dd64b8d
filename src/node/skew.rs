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
//! Of an even number the middle value nearer to zero is used: otherwise two nodes that differ would
//! adopt each other's time forever.
//!
//! Example: `max_skew` 500 ms, four peers at +30.0, +30.1, +29.9 and −200 s: sorted with our 0 that
//! is −200, 0, 29.9, 30.0, 30.1. The median is 29.9 s, so this node is half a minute late; the
//! clock at −200 s has no influence.

use tidegate_limiter::units::Span;

/// How far a node is from the members' median.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    /// The median clock minus ours, nanoseconds.
    pub median_ns: i64,
    /// Whether its magnitude exceeds `cluster.max_skew`.
    pub is_beyond: bool,
}

impl Skew {
    /// The skew of a node whose peers' clocks are at `offsets`, theirs minus ours.
    pub fn of(offsets: &[i64], max: Span) -> Self {
        let median_ns = median_offset(offsets);
        Self { median_ns, is_beyond: median_ns.unsigned_abs() > max.as_nanos() }
    }

    /// What the decision clock adds to the system's.
    pub fn correction_ns(self) -> i64 {
        if self.is_beyond { self.median_ns } else { 0 }
    }
}

/// The median of the peers' offsets and our own, which is 0.
pub fn median_offset(peers: &[i64]) -> i64 {
    let mut all: Vec<i64> = peers.iter().copied().chain([0]).collect();
    all.sort_unstable();
    let (below, above) = (all[(all.len() - 1) / 2], all[all.len() / 2]);
    if below.unsigned_abs() <= above.unsigned_abs() { below } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const MAX: Span = Span::from_millis(500);

    #[test]
    fn a_node_alone_or_in_a_pair_keeps_its_own_time() {
        assert_eq!(median_offset(&[]), 0);
        assert_eq!((median_offset(&[30 * S]), median_offset(&[-30 * S])), (0, 0));
    }

    #[test]
    fn most_clocks_decide_and_a_single_wrong_one_does_not() {
        assert_eq!(median_offset(&[30 * S, 31 * S]), 30 * S);
        assert_eq!(median_offset(&[5, 3_600 * S]), 5);
        assert_eq!(median_offset(&[30 * S, -200 * S, 31 * S, 29 * S]), 29 * S);
        assert_eq!(median_offset(&[i64::MIN, i64::MIN, i64::MAX]), 0);
    }

    #[test]
    fn halves_that_differ_do_not_chase_each_other() {
        // Two nodes here, two that are 30 s ahead, as either side sees it.
        assert_eq!(median_offset(&[0, 30 * S, 30 * S]), 0);
        assert_eq!(median_offset(&[0, -30 * S, -30 * S]), 0);
    }

    #[test]
    fn only_what_is_beyond_the_bound_is_corrected() {
        let skew = |offset| Skew::of(&[offset, offset], MAX);
        for within in [0, S / 2, -S / 2] {
            assert_eq!(skew(within).correction_ns(), 0);
        }
        for beyond in [S / 2 + 1, -S / 2 - 1, 30 * S, i64::MIN] {
            assert_eq!(skew(beyond).correction_ns(), beyond);
        }
    }
}
