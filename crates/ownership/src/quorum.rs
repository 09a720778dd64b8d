//! How many are enough.
//!
//! More than half of the known members, or exactly half if the lowest id is among them. Two quorums
//! of the same members always meet: two halves of one split cannot both have the lowest id, and
//! more than half meets any half.
//!
//! Example: of `a b c d`, `{b c d}` and `{a b}` are quorums, `{c d}` is none. Of `a b`, `{a}` is
//! one: a pair survives the death of its higher id.

use serde::Deserialize;

use crate::identity::NodeId;

/// Who counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Quorum {
    /// A majority of these, sorted by id.
    Of(Vec<NodeId>),
    /// Nobody needs anybody: `cluster.quorum = "none"`.
    Everyone,
}

impl Quorum {
    /// Whether those for whom `votes` is true are enough. Of nobody, nobody is enough.
    pub fn is_met(&self, votes: impl Fn(&NodeId) -> bool) -> bool {
        let Self::Of(known) = self else { return true };
        let for_it = known.iter().filter(|id| votes(id)).count();
        match (2 * for_it).cmp(&known.len()) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => known.first().is_none_or(votes),
            std::cmp::Ordering::Less => false,
        }
    }

    /// Whether `id` is asked at all.
    pub fn counts(&self, id: &NodeId) -> bool {
        matches!(self, Self::Of(known) if known.binary_search(id).is_ok())
    }

    /// The same without those that `counts` leaves out.
    #[must_use]
    pub fn only(&self, counts: impl Fn(&NodeId) -> bool) -> Self {
        match self {
            Self::Of(known) => Self::Of(known.iter().filter(|id| counts(id)).cloned().collect()),
            Self::Everyone => Self::Everyone,
        }
    }
}

/// Who may own keys while the cluster is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuorumRule {
    /// The side with more than half of the known members, or half with the lowest id among them.
    #[default]
    Majority,
    /// Every side.
    None,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(count: usize) -> Vec<NodeId> {
        let ids = ["a", "b", "c", "d", "e", "f"];
        ids[..count].iter().map(|id| NodeId::new(id).expect("a valid id")).collect()
    }

    /// The members whose bit is set in `votes`.
    fn is_met(count: usize, votes: u8) -> bool {
        let known = known(count);
        let bit = |id: &NodeId| known.iter().position(|known| known == id).expect("known");
        Quorum::Of(known.clone()).is_met(|id| votes & 1 << bit(id) != 0)
    }

    #[test]
    fn half_is_enough_with_the_lowest_id() {
        assert!(is_met(2, 0b01) && !is_met(2, 0b10));
        assert!(is_met(4, 0b0011) && !is_met(4, 0b1100) && is_met(4, 0b1110));
        assert!(is_met(3, 0b110) && !is_met(3, 0b001));
        assert!(is_met(1, 0b1) && !is_met(1, 0));
        assert!(Quorum::Of(Vec::new()).is_met(|_| false));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn two_quorums_always_meet(count in 1_usize..=6, one: u8, other: u8) {
            let all = (1 << count) - 1;
            if is_met(count, one) && is_met(count, other) {
                prop_assert_ne!(one & other & all, 0);
            }
        }
    }
}
