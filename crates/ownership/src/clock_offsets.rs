//! How far the clocks of most machines are from this node's.
//!
//! No single clock of a cluster is known to be right, but the middle one is wrong only if half of
//! them are. An even number of clocks has two middle ones; which of them is used, the caller says.
//!
//! **Example.** Two peers are two hours ahead: sorted with our 0 that is 0, 2 h, 2 h, so both
//! middle values are 2 h. With a single peer they are 0 and 2 h.

/// The two middle values of the offsets of peers (theirs minus ours) and our own, which is 0, in
/// their order; twice the same if their number is odd.
pub fn middle(peers: &[i64]) -> (i64, i64) {
    let mut all: Vec<i64> = peers.iter().copied().chain([0]).collect();
    all.sort_unstable();
    (all[(all.len() - 1) / 2], all[all.len() / 2])
}
