//! Whose counts a file holds.
//!
//! Keys are hashes under the cluster's secret, so counts of another cluster or another secret mean
//! nothing here: they would lie in the store until they expire and answer nobody. A file says in
//! front where it comes from, and a foreign one is not read.

use std::fmt;

/// Where a file has to come from to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Name of the cluster.
    pub cluster: String,
    /// The node that writes it. For people: counts may be read by another node, which joins them to
    /// its own and hands them to their owners.
    pub node: String,
    /// What its keys are hashed under.
    pub secret: Secret,
}

/// What keys are hashed under.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// The cluster's secret, which the file only names: [`fingerprint`] of it.
    ///
    /// [`fingerprint`]: tidegate_limiter::store::KeyHasher::fingerprint
    Shared(u64),
    /// The secret of a node that stands alone. Nobody else keeps it, so it is in the file: else
    /// the counts in it would be under keys that no later start finds.
    Own([u8; 16]),
    /// What a lone node that just started would take, unless the file has a secret.
    Fresh([u8; 16]),
}

impl fmt::Debug for Secret {
    /// Never prints a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(fingerprint) => f.debug_tuple("Shared").field(fingerprint).finish(),
            Self::Own(_) => f.write_str("Own(..)"),
            Self::Fresh(_) => f.write_str("Fresh(..)"),
        }
    }
}

impl Secret {
    /// What the file says of it.
    pub(super) fn written(&self) -> Vec<u8> {
        match self {
            Self::Shared(fingerprint) => fingerprint.to_be_bytes().to_vec(),
            Self::Own(secret) | Self::Fresh(secret) => secret.to_vec(),
        }
    }

    /// The secret that holds for a file that was just begun with this one.
    pub(super) fn settled(self) -> Self {
        match self {
            Self::Fresh(secret) => Self::Own(secret),
            settled => settled,
        }
    }

    /// The secret that holds for a file that says `written`; `None` when it is another's.
    pub(super) fn agree(&self, written: &[u8]) -> Option<Self> {
        match self {
            Self::Shared(_) | Self::Own(_) => (self.written() == written).then_some(*self),
            Self::Fresh(_) => written.try_into().ok().map(Self::Own),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_is_known_has_to_be_the_files() {
        let (shared, own) = (Secret::Shared(7), Secret::Own([1; 16]));
        for secret in [shared, own] {
            assert_eq!(secret.agree(&secret.written()), Some(secret));
            for other in [Secret::Shared(8), Secret::Own([2; 16])] {
                assert_eq!(secret.agree(&other.written()), None);
            }
        }
    }

    #[test]
    fn a_lone_node_takes_over_the_secret_of_its_last_start() {
        let (fresh, before) = (Secret::Fresh([1; 16]), Secret::Own([2; 16]));
        assert_eq!(fresh.agree(&before.written()), Some(before));
        assert_eq!(fresh.settled().agree(&fresh.written()), Some(Secret::Own([1; 16])));
        assert_eq!(fresh.agree(&Secret::Shared(7).written()), None, "a cluster's file");
    }
}
