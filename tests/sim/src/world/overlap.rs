//! Whether two nodes decide one token.
//!
//! Keys of `scope: region` are compared among the nodes of one region, global keys among all nodes.
//! Two nodes of different regions share global tokens if their ranges overlap and some token there
//! is at home in both, each by the homes that it knows. With equal homes no token is; otherwise a
//! sample of tokens decides, as homes are spread evenly over each range.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_cluster::ownership::OwnedRanges;
use tidegate_ownership::homes::Homes;

use super::World;
use crate::node::Deciding;

/// What is known about pairs of nodes: it is the same for as long as both own the same.
#[derive(Debug, Default)]
pub(super) struct Overlaps(BTreeMap<(usize, usize), Pair>);

#[derive(Debug)]
struct Pair {
    one: Arc<OwnedRanges>,
    other: Arc<OwnedRanges>,
    overlaps: bool,
}

/// Tokens of a sample.
const SAMPLE: u64 = 256;

impl World<'_> {
    /// The pairs of nodes that decide one token.
    pub(super) fn overlaps(&mut self, deciding: &[(usize, Deciding)]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (rank, (one, own)) in deciding.iter().enumerate() {
            for (other, theirs) in &deciding[..rank] {
                let are_together = self.layout.are_together(*one, *other);
                let may_overlap = are_together || own.has_region_lease && theirs.has_region_lease;
                let has_global = self.layout.has_global_keys();
                if (are_together || has_global)
                    && may_overlap
                    && self.overlaps.of((*one, *other), own, theirs, are_together)
                {
                    found.push((*one, *other));
                }
            }
        }
        found
    }
}

impl Overlaps {
    /// Whether two nodes own one token, as far as their leases last.
    fn of(
        &mut self,
        nodes: (usize, usize),
        own: &Deciding,
        theirs: &Deciding,
        are_together: bool,
    ) -> bool {
        let (one, other) = (&own.owned, &theirs.owned);
        if let Some(known) = self.0.get(&nodes)
            && Arc::ptr_eq(&known.one, one)
            && Arc::ptr_eq(&known.other, other)
        {
            return known.overlaps;
        }
        let overlaps = (are_together || share_tokens(&one.homes, &other.homes))
            && !one.decides.shared_with(&other.decides).is_empty();
        self.0.insert(nodes, Pair { one: one.clone(), other: other.clone(), overlaps });
        overlaps
    }
}

/// Whether some token is at home in both regions, each by the homes that it knows.
fn share_tokens(one: &Homes, other: &Homes) -> bool {
    one.regions() != other.regions()
        && sample().any(|token| one.decides(token) && other.decides(token))
}

/// Tokens that are spread over the ring.
pub(super) fn sample() -> impl Iterator<Item = u64> {
    (0..SAMPLE).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
