//! The origin of a file's counters.
//!
//! Keys are hashed under the cluster's secret, so counters of another secret would fill the store
//! until they expire and never match a request. A file names its origin, and is not read if that is
//! another one.

use std::fmt;

/// The origin that a file must have to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The name of the cluster.
    pub cluster: String,
    /// The node that writes the file. Informative: another node may read it, which merges the
    /// counters and hands them off to their owners.
    pub node: String,
    pub secret: Secret,
}

/// The secret under which keys are hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// The cluster's secret. The file contains its [`fingerprint`] alone.
    ///
    /// [`fingerprint`]: tidegate_limiter::store::KeyHasher::fingerprint
    Shared(u64),
    /// The secret of a standalone node. Stored in the file, because it exists nowhere else and a
    /// later start would not find the file's keys without it.
    Own([u8; 16]),
    /// The secret that a standalone node uses unless the file contains one.
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
    /// The bytes stored in the file.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Shared(fingerprint) => fingerprint.to_be_bytes().to_vec(),
            Self::Own(secret) | Self::Fresh(secret) => secret.to_vec(),
        }
    }

    /// The secret in use after a file was created with this one.
    pub(super) fn after_create(self) -> Self {
        match self {
            Self::Fresh(secret) => Self::Own(secret),
            other => other,
        }
    }

    /// The secret in use with a file that contains `stored`; `None` if it is another one.
    pub(super) fn after_open(&self, stored: &[u8]) -> Option<Self> {
        match self {
            Self::Shared(_) | Self::Own(_) => (self.to_bytes() == stored).then_some(*self),
            Self::Fresh(_) => stored.try_into().ok().map(Self::Own),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_secret_must_match_the_file() {
        let (shared, own) = (Secret::Shared(7), Secret::Own([1; 16]));
        for secret in [shared, own] {
            assert_eq!(secret.after_open(&secret.to_bytes()), Some(secret));
            for other in [Secret::Shared(8), Secret::Own([2; 16])] {
                assert_eq!(secret.after_open(&other.to_bytes()), None);
            }
        }
    }

    #[test]
    fn a_standalone_node_uses_the_secret_of_its_last_start() {
        let (fresh, before) = (Secret::Fresh([1; 16]), Secret::Own([2; 16]));
        assert_eq!(fresh.after_open(&before.to_bytes()), Some(before));
        assert_eq!(fresh.after_create().after_open(&fresh.to_bytes()), Some(Secret::Own([1; 16])));
        assert_eq!(fresh.after_open(&Secret::Shared(7).to_bytes()), None, "a cluster's file");
    }
}
