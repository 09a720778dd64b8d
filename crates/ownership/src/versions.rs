//! Versions of the wire format: which ones a node speaks, and which one two nodes use.
//!
//! A release speaks its own version and the one before it, so that a cluster is upgraded node by
//! node. Two peers use the highest version that both speak. What needs a newer version than some
//! member speaks is not used before
//! [`ClusterMap::version`](crate::cluster_map::ClusterMap::version) says so.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The versions that a node speaks, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Versions {
    pub lowest: u8,
    pub highest: u8,
}

impl Versions {
    /// The version to use between nodes of these two ranges; `None` when they share none.
    ///
    /// Example: of 4 to 5 and 5 to 6 it is 5.
    pub fn agreed(self, other: Self) -> Option<u8> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lowest == self.highest {
            write!(f, "version {}", self.lowest)
        } else {
            write!(f, "versions {} to {}", self.lowest, self.highest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_use_the_highest_version_that_both_speak() {
        let cases = [
            ((4, 4), (4, 4), Some(4)),
            ((4, 5), (4, 4), Some(4)),
            ((4, 5), (5, 6), Some(5)),
            ((4, 5), (6, 6), None),
        ];
        for ((lowest, highest), (a, b), agreed) in cases {
            let (one, other) = (Versions { lowest, highest }, Versions { lowest: a, highest: b });
            assert_eq!((one.agreed(other), other.agreed(one)), (agreed, agreed));
        }
    }
}
