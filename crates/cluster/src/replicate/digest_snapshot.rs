//! One walk over the store that sums up what this node's replicas should hold of its keys, and what
//! it holds of others' keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::store::{Cursor, KeyHash};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tokio::sync::Mutex;

use super::Replicator;
use super::digest::{Sums, fingerprint};
use super::targets::Targets;

/// How long a survey may serve, so that peers' digests cost one walk and not one each. A peer can
/// make a node walk once in that time.
pub(super) const SERVES: Duration = Duration::from_secs(2);

/// The last survey; who wants one while it is made waits for it.
#[derive(Debug, Default)]
pub(super) struct DigestSnapshots {
    last: Mutex<Option<Arc<DigestSnapshot>>>,
}

/// Sums over the store at one time, give or take the time of the walk.
///
/// **Bound:** 64 KiB a peer that shares keys with this node.
#[derive(Debug)]
pub(super) struct DigestSnapshot {
    taken: Timestamp,
    /// By replica: what it should hold of this node's keys.
    pub(super) owned: BTreeMap<NodeId, Sums>,
    /// By owner: what this node holds of its keys.
    pub(super) held: BTreeMap<NodeId, Sums>,
}

impl Replicator {
    /// A survey that is at most [`SERVES`] old, and not older than `since`.
    pub(super) async fn digest_snapshot(&self, since: Timestamp) -> Arc<DigestSnapshot> {
        let mut last = self.shared.digest_snapshots.last.lock().await;
        let now = self.shared.clock.now();
        let serves = |digest_snapshot: &&Arc<DigestSnapshot>| {
            digest_snapshot.taken >= since && now.since(digest_snapshot.taken) < Span::from(SERVES)
        };
        if let Some(digest_snapshot) = last.as_ref().filter(serves) {
            return digest_snapshot.clone();
        }
        let digest_snapshot = Arc::new(self.take_survey(now).await);
        *last = Some(digest_snapshot.clone());
        digest_snapshot
    }

    async fn take_survey(&self, now: Timestamp) -> DigestSnapshot {
        let store = &self.shared.store;
        let targets = self.targets();
        let mut digest_snapshot =
            DigestSnapshot { taken: now, owned: BTreeMap::new(), held: BTreeMap::new() };
        let (mut found, mut from) = (Vec::new(), Some(Cursor::default()));
        while let Some(cursor) = from {
            from = store.visit(cursor, now, KeyHash::is_owned, |key, state, expires| {
                found.push((key, fingerprint(key, state, expires)));
            });
            for (key, fingerprint) in found.drain(..) {
                digest_snapshot.add(&targets, key, fingerprint);
            }
            tokio::task::yield_now().await;
        }
        digest_snapshot
    }
}

impl DigestSnapshot {
    fn add(&mut self, targets: &Targets, key: KeyHash, fingerprint: u64) {
        let by_ring = targets.by_ring(key);
        let Some((owner, replicas)) = by_ring.split_first() else { return };
        if owner == targets.me() {
            for replica in replicas {
                sums(&mut self.owned, replica).add(key, fingerprint);
            }
        } else if replicas.contains(targets.me()) {
            sums(&mut self.held, owner).add(key, fingerprint);
        }
    }
}

fn sums<'a>(all: &'a mut BTreeMap<NodeId, Sums>, of: &NodeId) -> &'a mut Sums {
    all.entry(of.clone()).or_default()
}
