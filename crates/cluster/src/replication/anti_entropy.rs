//! Anti-entropy: owners compare digests with their replicas and send the keys that differ. Where
//! regions fail over, the owner of a global key in its second home is one of them: a region that
//! was lost and returns has no copies of the keys at home elsewhere, and some keys change seldom.
//!
//! **New replicas.** A node that becomes a replica, because another one has left or was evicted,
//! has no copies, which takes no digest to know: an owner sends it all of its keys at once, and
//! compares digests only then. Until it has them, one more crash would lose counts. A node that
//! stands in for a replica out of reach gets only the changes: otherwise each short pause of a node
//! would leave one more copy of all of its keys.
//!
//! A round takes a digest snapshot, exchanges digests with each replica, and scans the store for
//! this node's keys in the differing segments, which it puts into the replication queue. From there
//! they are sent like every change, within the same bounds. A round begins every few seconds, and
//! after new replicas were sent their keys.
//!
//! A segment with a key that changes all the time always differs. **Bound:** a round sends at most
//! [`REPAIR_KEYS_MAX`] keys. The next one resumes the scan after the last of them, so that busy
//! keys do not starve lost ones, and begins as soon as a new snapshot may be taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::store::{Cursor, KeyHash};
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::identity::NodeId;

use super::digest::{DigestSnapshot, are_valid_digests, fingerprint, segment};
use super::replicator::Replicator;
use super::targets::Targets;
use crate::count;
use crate::mesh::StreamClass;
use crate::mesh::wire::{Call, DIGESTS_MAX, Digest, Reply};

/// The pause after a round that sent every key that differed.
const INTERVAL: Duration = Duration::from_secs(5);
/// Most keys that one round sends again, or that new replicas are sent before a pause.
const REPAIR_KEYS_MAX: usize = 65_536;
/// So that present changes are not sent after a long queue of old ones.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a peer may take for its reply: it may have to scan its store.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a snapshot is reused, so that the digests of all peers cost one scan. A peer can cause
/// one scan in that time.
const SNAPSHOT_MAX_AGE: Duration = Duration::from_secs(2);

impl Replicator {
    /// Replies to a peer's digests with the segments in which this node's copies of its keys
    /// differ.
    pub async fn compare_digests(&self, from: &NodeId, digests: Vec<Digest>) -> Reply {
        if !are_valid_digests(&digests) {
            return Reply::Malformed;
        }
        let snapshot = self.digest_snapshot(Monotonic::START).await;
        let held = snapshot.held.get(from).cloned().unwrap_or_default();
        Reply::Differing(held.differing(&digests))
    }

    /// Sends new replicas the keys of this node whenever there are some. Never returns.
    pub(super) async fn run_new_replicas(&self) {
        let mut before = self.targets();
        loop {
            self.targets_changed.notified().await;
            let targets = self.targets();
            // Without a change of the ring a peer is only out of reach, or no longer.
            let has_moved = !Arc::ptr_eq(&before.topology, &targets.topology);
            let (mut queued, mut from) = (0, has_moved.then(Cursor::default));
            let mut keys = Vec::new();
            while let Some(cursor) = from {
                let is_new = |key: KeyHash| key.is_owned() && targets.has_new_replica(&before, key);
                let now = self.clock.now();
                from = self.store.visit(cursor, now, is_new, |key, _, _| keys.push(key));
                queued += keys.len();
                for key in keys.drain(..) {
                    self.store.enqueue_replication(key);
                }
                if queued >= REPAIR_KEYS_MAX {
                    queued = 0;
                    tokio::time::sleep(PAUSE).await;
                }
                tokio::task::yield_now().await;
            }
            before = targets;
            self.digests_due.notify_one();
        }
    }

    /// Runs rounds, one at a time. Never returns.
    pub(super) async fn run_anti_entropy(&self) {
        let mut resume = Cursor::default();
        // Nodes that start at the same time do not scan at the same time.
        tokio::time::sleep(self.initial_delay()).await;
        loop {
            let is_complete = self.repair(&mut resume).await;
            tokio::time::sleep(SNAPSHOT_MAX_AGE).await;
            if is_complete {
                let _ = tokio::time::timeout(INTERVAL, self.digests_due.notified()).await;
            }
        }
    }

    /// One round. Returns whether every replica replied and every differing key was queued.
    async fn repair(&self, resume: &mut Cursor) -> bool {
        let targets = self.targets();
        if targets.reachable.is_empty() {
            return true;
        }
        let snapshot = self.digest_snapshot(self.clock.monotonic()).await;
        let mut is_complete = true;
        let mut differing: BTreeSet<(NodeId, u16)> = BTreeSet::new();
        for (replica, sums) in
            snapshot.owned.iter().filter(|(id, _)| targets.reachable.contains(*id))
        {
            for digests in sums.digests().chunks(DIGESTS_MAX) {
                let call = Call::Digests(digests.to_vec());
                let mesh = &self.mesh;
                match mesh.call(replica, StreamClass::Bulk, call, REPLY_TIMEOUT).await {
                    Ok(Reply::Differing(segments)) => {
                        differing.extend(segments.into_iter().map(|s| (replica.clone(), s)));
                    }
                    // The next round compares them again.
                    Ok(_) | Err(_) => is_complete = false,
                }
            }
        }
        if differing.is_empty() {
            return is_complete;
        }
        self.enqueue_differing(&targets, &differing, resume).await && is_complete
    }

    /// Queues this node's keys in the differing segments. Returns whether one scan, from the first
    /// key to the last, queued all of them.
    async fn enqueue_differing(
        &self,
        targets: &Targets,
        differing: &BTreeSet<(NodeId, u16)>,
        resume: &mut Cursor,
    ) -> bool {
        let differs = |key: KeyHash| {
            let by_ring = targets.by_ring(key);
            by_ring.split_first().is_some_and(|(owner, replicas)| {
                let mut copies = replicas.iter().chain(targets.second_owner(key));
                *owner == targets.topology.me
                    && copies.any(|id| differing.contains(&(id.clone(), segment(key))))
            })
        };
        let begin = *resume;
        let (mut keys, mut queued) = (Vec::new(), 0);
        let mut from = Some(begin);
        while let Some(cursor) = from.filter(|_| queued < REPAIR_KEYS_MAX) {
            let now = self.clock.now();
            from = self.store.visit(cursor, now, KeyHash::is_owned, |key, _, _| keys.push(key));
            for key in keys.drain(..).filter(|key| differs(*key)) {
                self.store.enqueue_replication(key);
                queued += 1;
            }
            tokio::task::yield_now().await;
        }
        count(&self.counters.repaired, queued as u64);
        *resume = from.unwrap_or_default();
        self.wake.notify_one();
        begin == Cursor::default() && from.is_none()
    }

    /// A snapshot that is at most [`SNAPSHOT_MAX_AGE`] old and not older than `since`.
    async fn digest_snapshot(&self, since: Monotonic) -> Arc<DigestSnapshot> {
        let mut latest = self.digest_snapshot.lock().await;
        let now = self.clock.monotonic();
        let is_current = |snapshot: &&Arc<DigestSnapshot>| {
            snapshot.taken >= since && now.since(snapshot.taken) < Span::from(SNAPSHOT_MAX_AGE)
        };
        if let Some(snapshot) = latest.as_ref().filter(is_current) {
            return snapshot.clone();
        }
        let snapshot = Arc::new(self.take_digest_snapshot().await);
        *latest = Some(snapshot.clone());
        snapshot
    }

    async fn take_digest_snapshot(&self) -> DigestSnapshot {
        let (store, now, taken) = (&self.store, self.clock.now(), self.clock.monotonic());
        let targets = self.targets();
        let mut snapshot = DigestSnapshot { taken, owned: BTreeMap::new(), held: BTreeMap::new() };
        let (mut found, mut from) = (Vec::new(), Some(Cursor::default()));
        while let Some(cursor) = from {
            from = store.visit(cursor, now, KeyHash::is_owned, |key, state, expires| {
                found.push((key, fingerprint(key, state, expires)));
            });
            for (key, fingerprint) in found.drain(..) {
                snapshot.add(&targets, key, fingerprint);
            }
            tokio::task::yield_now().await;
        }
        snapshot
    }

    /// A part of the interval that depends on the node id alone.
    fn initial_delay(&self) -> Duration {
        let id = self.topology.load().me.clone();
        let sum = id
            .as_str()
            .bytes()
            .fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        INTERVAL / 64 * (sum % 64)
    }
}
