//! Sets of ring tokens, stored as ranges.
//!
//! What a node owns, holds, freezes and hands over are unions of arcs of the ring: some hundred
//! ranges, whatever the number of keys. They are kept sorted, disjoint and merged, so equal sets
//! are equal values and a lookup is a binary search.
//!
//! Example: `{10..=19, 40..=49}` less `{15..=44}` is `{10..=14, 45..=49}`.

use serde::{Deserialize, Serialize};

/// A set of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Range>", into = "Vec<Range>")]
pub struct Ranges {
    /// Ascending; between two ranges lies at least one token that is in neither.
    ranges: Vec<Range>,
}

/// The tokens `first..=last`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Range {
    pub first: u64,
    pub last: u64,
}

/// The most ranges that are accepted from a peer: more than the vnodes of the largest cluster.
pub const RANGES_MAX: usize = 16_384;

/// A list that is not a valid set of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// More than [`RANGES_MAX`].
    #[error("{0} ranges are more than {RANGES_MAX}; the sender is broken")]
    TooMany(usize),
    /// Out of order, overlapping or adjacent, or one has `first > last`.
    #[error("the ranges do not ascend; the sender is broken")]
    Order,
}

impl Ranges {
    pub const EMPTY: Self = Self { ranges: Vec::new() };

    /// The whole ring.
    pub fn all() -> Self {
        Self { ranges: vec![Range { first: 0, last: u64::MAX }] }
    }

    /// The union of `ranges`, in any order.
    pub fn of(ranges: impl IntoIterator<Item = Range>) -> Self {
        let mut sorted: Vec<Range> =
            ranges.into_iter().filter(|range| range.first <= range.last).collect();
        sorted.sort_unstable();
        let mut ranges: Vec<Range> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match ranges.last_mut() {
                Some(before) if before.last == u64::MAX || before.last + 1 >= range.first => {
                    before.last = before.last.max(range.last);
                }
                _ => ranges.push(range),
            }
        }
        Self { ranges }
    }

    pub fn contains(&self, token: u64) -> bool {
        let at = self.ranges.partition_point(|range| range.last < token);
        self.ranges.get(at).is_some_and(|range| range.first <= token)
    }

    /// Whether all tokens of `other` are in it.
    pub fn includes(&self, other: &Self) -> bool {
        let mut mine = self.iter().peekable();
        other.iter().all(|range| {
            while mine.next_if(|own| own.last < range.first).is_some() {}
            mine.peek().is_some_and(|own| own.first <= range.first && range.last <= own.last)
        })
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// In ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range> + '_ {
        self.ranges.iter().copied()
    }

    /// The union.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self::of(self.iter().chain(other.iter()))
    }

    /// The intersection.
    #[must_use]
    pub fn shared_with(&self, other: &Self) -> Self {
        let (mut mine, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        let mut ranges = Vec::new();
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            let shared = Range { first: a.first.max(b.first), last: a.last.min(b.last) };
            if shared.first <= shared.last {
                ranges.push(shared);
            }
            if a.last <= b.last {
                mine.next()
            } else {
                theirs.next()
            };
        }
        Self { ranges }
    }

    /// The tokens of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.shared_with(&other.complement())
    }

    /// The share of the ring in parts per million.
    pub fn share_ppm(&self) -> u32 {
        let tokens: u128 = self.iter().map(|range| u128::from(range.last - range.first) + 1).sum();
        u32::try_from((tokens * 1_000_000) >> 64).unwrap_or(1_000_000)
    }

    fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        let mut next = Some(0);
        for range in self.iter() {
            if let Some(first) = next
                && first < range.first
            {
                ranges.push(Range { first, last: range.first - 1 });
            }
            next = range.last.checked_add(1);
        }
        ranges.extend(next.map(|first| Range { first, last: u64::MAX }));
        Self { ranges }
    }
}

impl TryFrom<Vec<Range>> for Ranges {
    type Error = Invalid;

    fn try_from(ranges: Vec<Range>) -> Result<Self, Invalid> {
        if ranges.len() > RANGES_MAX {
            return Err(Invalid::TooMany(ranges.len()));
        }
        let is_valid = |range: &Range| range.first <= range.last;
        let is_ascending = ranges
            .windows(2)
            .all(|two| two[0].last.checked_add(1).is_some_and(|next| next < two[1].first));
        if is_ascending && ranges.iter().all(is_valid) {
            Ok(Self { ranges })
        } else {
            Err(Invalid::Order)
        }
    }
}

impl From<Ranges> for Vec<Range> {
    fn from(ranges: Ranges) -> Self {
        ranges.ranges
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few distinct ends, so that ranges overlap; the ends of the whole ring are among them.
    fn ranges() -> impl Strategy<Value = Ranges> {
        let end = prop_oneof![0_u64..12, Just(u64::MAX - 1), Just(u64::MAX)];
        let range = (end.clone(), end).prop_map(|(a, b)| Range { first: a.min(b), last: a.max(b) });
        prop::collection::vec(range, 0..5).prop_map(Ranges::of)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn set_operations_are_those_of_sets_of_tokens(a in ranges(), b in ranges()) {
            for token in (0..16).chain(u64::MAX - 3..=u64::MAX) {
                let (in_a, in_b) = (a.contains(token), b.contains(token));
                prop_assert_eq!(a.with(&b).contains(token), in_a || in_b);
                prop_assert_eq!(a.shared_with(&b).contains(token), in_a && in_b);
                prop_assert_eq!(a.without(&b).contains(token), in_a && !in_b);
            }
            prop_assert_eq!(a.includes(&b), b.without(&a).is_empty());
            prop_assert_eq!(a.without(&b).with(&a.shared_with(&b)), a.clone());
            prop_assert_eq!(Ranges::try_from(Vec::from(a.clone())), Ok(a));
        }
    }

    #[test]
    fn invalid_lists_of_ranges_are_refused() {
        let range = |first, last| Range { first, last };
        for wrong in [
            vec![range(2, 1)],
            vec![range(5, 9), range(1, 2)],
            vec![range(1, 5), range(5, 9)],
            vec![range(1, 5), range(6, 9)],
            vec![range(1, u64::MAX), range(0, 0)],
        ] {
            assert_eq!(Ranges::try_from(wrong), Err(Invalid::Order));
        }
        let many = vec![range(0, 0); RANGES_MAX + 1];
        assert_eq!(Ranges::try_from(many), Err(Invalid::TooMany(RANGES_MAX + 1)));
    }

    #[test]
    fn shares_are_parts_per_million() {
        assert_eq!((Ranges::all().share_ppm(), Ranges::EMPTY.share_ppm()), (1_000_000, 0));
    }
}
