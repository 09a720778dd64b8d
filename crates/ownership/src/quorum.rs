//! Majorities of voters.
//!
//! A quorum is more than half of the voters, or exactly half including the lowest id. Any two
//! quorums of the same voters intersect: of two disjoint halves only one has the lowest id, and
//! more than half intersects any half.
//!
//! Example: of `a b c d`, `{b c d}` and `{a b}` are quorums, `{c d}` is not. Of `a b`, `{a}` is
//! one: a pair survives the crash of its higher id.

use serde::Deserialize;

use crate::identity::NodeId;

/// The voters of which a majority is needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Quorum {
    /// A majority of these nodes, sorted by id.
    Of(Vec<NodeId>),
    /// Always met: `cluster.quorum = "none"`.
    NotRequired,
}

impl Quorum {
    /// Whether the voters for which `votes` is true are a quorum.
    pub fn is_met(&self, votes: impl Fn(&NodeId) -> bool) -> bool {
        self.is_met_among(|_| true, votes)
    }

    /// The same, if only the voters for which `counts` is true are asked.
    pub fn is_met_among(
        &self,
        counts: impl Fn(&NodeId) -> bool,
        votes: impl Fn(&NodeId) -> bool,
    ) -> bool {
        let Self::Of(voters) = self else { return true };
        is_majority(voters.iter().filter(|id| counts(id)).map(votes))
    }

    /// Whether `id` is a voter.
    pub fn has_voter(&self, id: &NodeId) -> bool {
        matches!(self, Self::Of(voters) if voters.binary_search(id).is_ok())
    }
}

/// Whether these votes, in the order of the voters' ids, are a quorum. True without any voter.
pub(crate) fn is_majority(votes: impl Iterator<Item = bool>) -> bool {
    let (mut voters, mut in_favour, mut lowest) = (0, 0, None);
    for vote in votes {
        voters += 1;
        in_favour += usize::from(vote);
        lowest.get_or_insert(vote);
    }
    2 * in_favour > voters || (2 * in_favour == voters && lowest.unwrap_or(true))
}

/// Which side of a split cluster may own keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuorumRule {
    /// The side with more than half of the voters, or half including the lowest id.
    #[default]
    Majority,
    /// Every side.
    None,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn voters(count: usize) -> Vec<NodeId> {
        let ids = ["a", "b", "c", "d", "e", "f"];
        ids[..count].iter().map(|id| NodeId::new(id).expect("a valid id")).collect()
    }

    /// Bit n of `votes` is the vote of voter n.
    fn is_met(count: usize, votes: u8) -> bool {
        let voters = voters(count);
        let bit = |id: &NodeId| voters.iter().position(|voter| voter == id).expect("a voter");
        Quorum::Of(voters.clone()).is_met(|id| votes & 1 << bit(id) != 0)
    }

    #[test]
    fn half_is_a_quorum_with_the_lowest_id_only() {
        assert!(is_met(2, 0b01) && !is_met(2, 0b10));
        assert!(is_met(4, 0b0011) && !is_met(4, 0b1100) && is_met(4, 0b1110));
        assert!(is_met(3, 0b110) && !is_met(3, 0b001));
        assert!(is_met(1, 0b1) && !is_met(1, 0));
        assert!(Quorum::Of(Vec::new()).is_met(|_| false));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn two_quorums_always_intersect(count in 1_usize..=6, one: u8, other: u8) {
            let all = (1 << count) - 1;
            if is_met(count, one) && is_met(count, other) {
                prop_assert_ne!(one & other & all, 0);
            }
        }
    }
}
