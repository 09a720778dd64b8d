//! Anti-entropy: owners compare digests with their replicas and send what differs.
//!
//! A round is a survey of this node's keys, one exchange a replica, and a walk that puts the keys
//! of the differing buckets in line again. From there they go the way of every change, within its
//! bounds. Rounds come every few seconds, and at once when somebody came, went, or is heard again.
//!
//! A bucket in which a key changes all the time always differs. **Bound:** a round sends at most
//! [`REPAIR_KEYS_MAX`] keys again; the next one goes on behind the last of them, so that busy keys
//! do not stand in the way of lost ones, and it begins as soon as a new survey may be made.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_limiter::store::{Cursor, KeyHash};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::NodeId;

use super::Replicator;
use super::counters::count;
use super::digest::{BUCKETS, bucket};
use super::digest_snapshot::SERVES;
use super::targets::Targets;
use crate::mesh::StreamClass;
use crate::mesh::wire::{Call, DIGESTS_MAX, Digest, Reply};

/// How long a round waits behind the last one while nothing happens.
const INTERVAL: Duration = Duration::from_secs(5);
/// Most keys that one round sends again.
const REPAIR_KEYS_MAX: usize = 65_536;
/// How long an answer may take: the peer walks over its store for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the next walk goes on.
type Resume = Mutex<Cursor>;

/// Whether a message of digests is within its bounds.
pub fn are_digests(told: &[Digest]) -> bool {
    told.len() <= DIGESTS_MAX && told.iter().all(|digest| digest.bucket < BUCKETS)
}

impl Replicator {
    /// Answers a replica's part of a round: in which of the buckets its copies differ.
    pub async fn digests(&self, from: &NodeId, told: Vec<Digest>) -> Reply {
        if !are_digests(&told) {
            return Reply::Malformed;
        }
        let digest_snapshot = self.digest_snapshot(Timestamp::EPOCH).await;
        let held = digest_snapshot.held.get(from).cloned().unwrap_or_default();
        Reply::Differing(held.differing(&told))
    }

    /// Runs rounds for ever; each begins when the one before it has ended.
    pub(super) async fn keep_repaired(&self) {
        let resume = Resume::default();
        // Nodes that start together do not walk together.
        tokio::time::sleep(self.spread()).await;
        loop {
            let is_whole = self.repair(&resume).await;
            tokio::time::sleep(SERVES).await;
            if is_whole {
                let regrouped = self.shared.regrouped.notified();
                let _ = tokio::time::timeout(INTERVAL, regrouped).await;
            }
        }
    }

    /// One round; whether everything that differs is in line.
    async fn repair(&self, resume: &Resume) -> bool {
        let targets = self.targets();
        if targets.is_alone() {
            return true;
        }
        let digest_snapshot = self.digest_snapshot(self.shared.clock.now()).await;
        let mut found = true;
        let mut differing: BTreeSet<(NodeId, u16)> = BTreeSet::new();
        for (replica, sums) in
            digest_snapshot.owned.iter().filter(|(id, _)| targets.is_reachable(id))
        {
            for told in sums.digests().chunks(DIGESTS_MAX) {
                let call = Call::Digests(told.to_vec());
                let mesh = &self.shared.mesh;
                match mesh.call(replica, StreamClass::Bulk, call, ANSWER_TIMEOUT).await {
                    Ok(Reply::Differing(buckets)) => {
                        differing.extend(buckets.into_iter().map(|b| (replica.clone(), b)));
                    }
                    // It is asked again in the next round.
                    Ok(_) | Err(_) => found = false,
                }
            }
        }
        if differing.is_empty() {
            return found;
        }
        self.send_again(&targets, &differing, resume).await && found
    }

    /// Puts this node's keys in the differing buckets in line; whether all of them.
    async fn send_again(
        &self,
        targets: &Targets,
        differing: &BTreeSet<(NodeId, u16)>,
        resume: &Resume,
    ) -> bool {
        let shared = &self.shared;
        let differs = |key: KeyHash| {
            let by_ring = targets.by_ring(key);
            by_ring.split_first().is_some_and(|(owner, replicas)| {
                owner == targets.me()
                    && replicas.iter().any(|id| differing.contains(&(id.clone(), bucket(key))))
            })
        };
        let begin = *resume.lock();
        let (mut keys, mut sent) = (Vec::new(), 0);
        let mut from = Some(begin);
        while let Some(cursor) = from.filter(|_| sent < REPAIR_KEYS_MAX) {
            let now = shared.clock.now();
            from = shared.store.visit(cursor, now, KeyHash::is_owned, |key, _, _| keys.push(key));
            for key in keys.drain(..).filter(|key| differs(*key)) {
                shared.store.enqueue_replication(key);
                sent += 1;
            }
            tokio::task::yield_now().await;
        }
        count(&shared.counters.repaired, sent as u64);
        *resume.lock() = from.unwrap_or_default();
        shared.hurried.notify_one();
        begin == Cursor::default() && from.is_none()
    }

    /// A part of the interval that is this node's own.
    fn spread(&self) -> Duration {
        let id = self.shared.topology.load().me.clone();
        let sum = id
            .as_str()
            .bytes()
            .fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        INTERVAL / 64 * (sum % 64)
    }
}
