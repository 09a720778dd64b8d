//! Certificates that are refused although they are valid: those of a node that was stolen, say.
//!
//! A revocation names a node and a time. Every node refuses certificates of that node whose
//! admission is until then ([`admitted_at`]), and closes connections that use one; one of a later
//! admission is accepted, so the node may join again under its name. A node without connections
//! loses its lease and is evicted from the cluster map, and its keys move, as after a crash.
//!
//! ```text
//! refused(cert) = ∃ (node, at):  cert names node  ∧  cert's admission ≤ at
//! ```
//!
//! *Example*: `n4` is revoked at 10:00. Its certificate of last week is refused from then on, and
//! so is what it is renewed to at 10:05; one that a token of 10:05 is shown for and that begins at
//! 10:00:01 is not ([`Revocations::issued_after`]).
//!
//! All nodes have the same set: of one node the latest time. How it reaches them:
//! [`revocations`](crate::revocations); what a node that starts accepts: `startup.rs`. It needs
//! no majority, and what a node knows it keeps on its disk. It confirms a revocation when that is
//! there ([`Revocations::are_kept`]), so that all nodes may die at once.
//!
//! **Bound.** At [`REVOCATIONS_MAX`] a further node is not revoked ([`RevokeError::Full`]): replace
//! the authority instead, then everything that it signed is refused. Nodes that are asked at the
//! same time may exceed it together; then the latest are kept, and the log says which is forgotten.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use siphasher::sip::SipHasher13;
use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tokio::sync::watch;

use super::revocation::Revocation;
use super::startup::Startup;
use super::verify::{admitted_at, names_node};

/// Most revoked nodes.
pub const REVOCATIONS_MAX: usize = 1_024;

/// Why a node was not revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevokeError {
    /// Its certificate begins later than any revocation may.
    #[error("its certificate begins more than an hour after the time of most nodes")]
    Future,
    /// Another one would be forgotten.
    #[error("{REVOCATIONS_MAX} nodes are revoked")]
    Full,
}

/// The revocations that this node knows.
#[derive(Debug, Default)]
pub struct Revocations {
    /// Changed under this lock alone.
    changing: Mutex<()>,
    known: ArcSwap<Set>,
    /// Counts the changes.
    changes: watch::Sender<u64>,
    /// How many of them are on the disk; `None` on a node without one.
    kept: watch::Sender<Option<u64>>,
    startup: Mutex<Startup>,
}

type Set = BTreeMap<NodeId, Timestamp>;

impl Revocations {
    /// The revoked node that `certificate` is for. A certificate that cannot be read is refused for
    /// any node that is revoked.
    pub fn refuse(&self, certificate: &CertificateDer<'_>) -> Option<NodeId> {
        let known = self.known.load();
        if known.is_empty() {
            return None;
        }
        let admitted = admitted_at(certificate).unwrap_or(Timestamp::EPOCH);
        let mut until = known.iter().filter(|(_, at)| admitted <= **at);
        until.find(|(node, _)| names_node(certificate, node.as_str())).map(|(node, _)| node.clone())
    }

    /// Revokes the certificates that a node has at `now`, the time of most machines, at this node.
    /// To be announced ([`announce`](crate::revocations::announce)).
    ///
    /// `connected` is when it was admitted by the certificate with which it is connected. That may
    /// be later than `now` by the clock here, and so may one that was issued after an earlier
    /// revocation: both are revoked.
    ///
    /// # Errors
    ///
    /// [`RevokeError`]; nothing has changed then.
    pub fn revoke(
        &self,
        node: NodeId,
        connected: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Revocation, RevokeError> {
        let is_full = self.known.load().len() >= REVOCATIONS_MAX;
        if is_full && self.until(&node).is_none() {
            return Err(RevokeError::Full);
        }
        let issued_after = self.issued_after(node.as_str());
        let at = [connected, issued_after].into_iter().flatten().fold(now, Timestamp::max);
        let revocation = Revocation { node, at };
        let is_merged = self.merge([revocation.clone()], now);
        is_merged.then_some(revocation).ok_or(RevokeError::Future)
    }

    /// Until when this node may have been admitted to be refused.
    pub fn until(&self, node: &NodeId) -> Option<Timestamp> {
        self.known.load().get(node).copied()
    }

    /// When a certificate of this node has to begin at the earliest to be accepted.
    pub fn issued_after(&self, node: &str) -> Option<Timestamp> {
        let known = self.known.load();
        known.iter().find(|(revoked, _)| revoked.as_str() == node).map(|(_, at)| Self::after(*at))
    }

    /// When a certificate begins at the earliest that a revocation until then does not refuse.
    pub fn after(at: Timestamp) -> Timestamp {
        // Certificates count in seconds.
        Timestamp::from_secs(at.as_secs() + 1)
    }

    /// In the order of the nodes' names.
    pub fn all(&self) -> Vec<Revocation> {
        let known = self.known.load();
        known.iter().map(|(node, at)| Revocation { node: node.clone(), at: *at }).collect()
    }

    /// Changes with every change of the set.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The first `changes` changes are on the disk. Called first with 0 by a node that writes them
    /// at all, and then after each write.
    pub fn set_kept(&self, changes: u64) {
        self.kept.send_replace(Some(changes));
    }

    /// Whether all that is known is on the disk; `None` on a node without one.
    pub fn is_kept(&self) -> Option<bool> {
        let changes = *self.changes.borrow();
        self.kept.borrow().map(|kept| kept >= changes)
    }

    /// How many nodes are revoked.
    pub fn count(&self) -> usize {
        self.known.load().len()
    }

    /// Waits until all that is known now is on the disk, for so long at most; returns whether it
    /// is. True at once on a node without a disk.
    pub async fn are_kept(&self, patience: Duration) -> bool {
        let changes = *self.changes.borrow();
        let mut kept = self.kept.subscribe();
        let written = kept.wait_for(|kept| kept.is_none_or(|kept| kept >= changes));
        matches!(tokio::time::timeout(patience, written).await, Ok(Ok(_)))
    }

    /// The set of a peer that was admitted then. Merges what is accepted of it.
    pub(crate) fn received(
        &self,
        (peer, admitted): (&NodeId, Timestamp),
        set: Vec<Revocation>,
        now: Timestamp,
        monotonic: Monotonic,
    ) {
        let accepted = self.startup.lock().received(peer, admitted, set, monotonic);
        self.merge(accepted, now);
    }

    /// Merges what is accepted because time has passed.
    pub(crate) fn look(&self, now: Timestamp, monotonic: Monotonic) {
        let accepted = self.startup.lock().look(monotonic);
        if !accepted.is_empty() {
            self.merge(accepted, now);
        }
    }

    /// Whether an order of a peer that was admitted then is accepted.
    pub(crate) fn accepts_orders(&self, (peer, admitted): (&NodeId, Timestamp)) -> bool {
        self.startup.lock().accepts_orders(peer, admitted)
    }

    /// Merges those of other nodes. False if one of them is of the future by `now`, the time of
    /// most machines, and was left out: one of the far future would refuse every later certificate
    /// of the node.
    pub fn merge(&self, entries: impl IntoIterator<Item = Revocation>, now: Timestamp) -> bool {
        let latest = now.plus(AHEAD_MAX);
        let entries = entries.into_iter();
        let (accepted, later): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.at <= latest);
        self.insert(accepted);
        later.is_empty()
    }

    /// Merges what this node has kept on its disk, also if it is of the future: then the clock here
    /// is behind, and no peer is connected yet whose clock shows it.
    pub fn restore(&self, kept: impl IntoIterator<Item = Revocation>) {
        self.insert(kept);
    }

    fn insert(&self, entries: impl IntoIterator<Item = Revocation>) {
        let _changing = self.changing.lock();
        let mut known = Set::clone(&self.known.load());
        let mut is_changed = false;
        for Revocation { node, at } in entries {
            let entry = known.entry(node).or_default();
            is_changed |= *entry < at;
            *entry = at.max(*entry);
        }
        while known.len() > REVOCATIONS_MAX {
            let Some((node, _)) = known.iter().min_by_key(|(node, at)| (**at, *node)) else {
                break;
            };
            let node = node.clone();
            known.remove(&node);
            tracing::error!(
                %node, most = REVOCATIONS_MAX,
                "forgot the earliest revocation, because there are too many: a certificate of this \
                 node is accepted again; replace the authority (docs/operations.md)"
            );
        }
        if is_changed {
            self.known.store(Arc::new(known));
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Equal for equal sets.
    pub fn digest(&self) -> u64 {
        let mut sip = SipHasher13::new();
        for (node, at) in &**self.known.load() {
            // A node id is no longer than a label and has no byte 0.
            sip.write(node.as_str().as_bytes());
            sip.write(&[0]);
            sip.write(&at.as_nanos().to_le_bytes());
        }
        sip.finish()
    }
}

/// How far ahead of the time of most machines a revocation may be: these are wall clocks, which
/// nothing corrects.
const AHEAD_MAX: Span = Span::from_secs(3_600);

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::super::{Authority, Bearer, Validity};
    use super::*;

    /// When all of these are merged.
    const NOW: Timestamp = Timestamp::from_secs(10_000);

    fn revoked(node: &str, at: u64) -> Revocation {
        Revocation { node: NodeId::new(node).expect("an id"), at: Timestamp::from_secs(at) }
    }

    fn certificate(node: &str, not_before: u64) -> CertificateDer<'static> {
        let validity = Validity {
            not_before: Timestamp::from_secs(not_before),
            not_after: Timestamp::from_secs(not_before + 100),
        };
        let authority = Authority::generate(validity).expect("an authority");
        let issued = authority.issue(Bearer::core(node, "eu"), validity).expect("a certificate");
        CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).expect("pem")
    }

    #[test]
    fn certificates_of_a_revoked_node_that_began_until_then_are_refused() {
        let revocations = Revocations::default();
        let refused = |node, begins| revocations.refuse(&certificate(node, begins)).is_some();
        assert!(!refused("n4", 100));
        revocations.merge([revoked("n4", 100)], NOW);
        for (node, begins, is_refused) in
            [("n4", 99, true), ("n4", 100, true), ("n4", 101, false), ("n5", 99, false)]
        {
            assert_eq!(refused(node, begins), is_refused, "{node} {begins}");
        }
        assert_eq!(revocations.issued_after("n4"), Some(Timestamp::from_secs(101)));
        assert_eq!(revocations.issued_after("n5"), None);
        let garbage = CertificateDer::from(vec![0; 40]);
        assert_eq!(revocations.refuse(&garbage), None, "it names no node");
    }

    /// It joined again after it was revoked: in the same second, or where the clock is ahead.
    #[test]
    fn a_node_that_joined_again_is_revoked_again() {
        for (now, begins) in [(100, 101), (40, 101), (40, 3_000)] {
            let revocations = Revocations::default();
            revocations.merge([revoked("n4", 100)], NOW);
            let node = || NodeId::new("n4").expect("an id");
            assert_eq!(revocations.refuse(&certificate("n4", begins)), None);
            let connected = Some(begins).filter(|begins| *begins > 101);
            let connected = connected.map(Timestamp::from_secs);
            let at = revocations.revoke(node(), connected, Timestamp::from_secs(now));
            assert!(at.is_ok_and(|it| it.at >= Timestamp::from_secs(begins)), "{now} {begins}");
            assert_eq!(revocations.refuse(&certificate("n4", begins)), Some(node()), "{now}");
        }
        let revocations = Revocations::default();
        let far = Some(Timestamp::from_secs(4_000));
        let node = NodeId::new("n4").expect("an id");
        let revoked = revocations.revoke(node, far, Timestamp::from_secs(1));
        assert_eq!(revoked, Err(RevokeError::Future));
    }

    #[test]
    fn what_is_on_the_disk_is_refused_whatever_the_clock_shows() {
        let revocations = Revocations::default();
        let behind = Timestamp::from_secs(1_000);
        assert!(!revocations.merge([revoked("n4", 9_000)], behind), "it is of the future");
        assert_eq!(revocations.refuse(&certificate("n4", 100)), None);
        revocations.restore([revoked("n4", 9_000)]);
        assert!(revocations.refuse(&certificate("n4", 100)).is_some());
        assert_eq!(revocations.all(), [revoked("n4", 9_000)], "what is written to the disk next");
    }

    #[test]
    fn nodes_that_merged_the_same_in_any_order_have_the_same() {
        let entries = [revoked("n1", 5), revoked("n2", 7), revoked("n1", 3), revoked("n1", 6)];
        let merged = |order: [usize; 4]| {
            let revocations = Revocations::default();
            for at in order {
                revocations.merge([entries[at].clone()], NOW);
            }
            (revocations.all(), revocations.digest())
        };
        let first = merged([0, 1, 2, 3]);
        assert_eq!(first.0, [revoked("n1", 6), revoked("n2", 7)]);
        for order in [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            assert_eq!(merged(order), first);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_revocation_is_confirmed_when_it_is_on_the_disk() {
        let (revocations, patience) = (Revocations::default(), Duration::from_secs(1));
        revocations.merge([revoked("n1", 1)], NOW);
        assert!(revocations.are_kept(patience).await, "there is no disk");
        assert_eq!(revocations.is_kept(), None);
        revocations.set_kept(0);
        assert!(!revocations.are_kept(patience).await);
        assert_eq!(revocations.is_kept(), Some(false));
        revocations.set_kept(*revocations.changes().borrow());
        assert!(revocations.are_kept(patience).await);
        assert_eq!(revocations.is_kept(), Some(true));
        revocations.merge([revoked("n2", 2)], NOW);
        assert!(!revocations.are_kept(patience).await);
    }

    #[test]
    fn one_of_the_far_future_is_left_out() {
        let revocations = Revocations::default();
        assert!(!revocations.merge([revoked("n1", 1_000_000), revoked("n2", 5)], NOW));
        assert_eq!(revocations.all(), [revoked("n2", 5)]);
    }

    #[test]
    fn at_the_bound_no_further_node_is_revoked() {
        let revocations = Revocations::default();
        let entry = |number: usize| revoked(&format!("n{number}"), 5);
        revocations.merge((1..=REVOCATIONS_MAX).map(entry), NOW);
        let revoke = |node: &str| {
            let node = NodeId::new(node).expect("an id");
            revocations.revoke(node, None, Timestamp::from_secs(9)).map(|it| it.at)
        };
        assert_eq!(revoke("other"), Err(RevokeError::Full));
        assert_eq!(revocations.count(), REVOCATIONS_MAX);
        assert_eq!(revoke("n7"), Ok(Timestamp::from_secs(9)), "it is revoked already");
    }

    #[test]
    fn at_the_bound_the_latest_are_kept() {
        let revocations = Revocations::default();
        let entry = |number: usize| revoked(&format!("n{number}"), number as u64);
        revocations.merge((1..=REVOCATIONS_MAX + 3).map(entry), NOW);
        let all = revocations.all();
        assert_eq!(all.len(), REVOCATIONS_MAX);
        assert!((1..=3).all(|number| !all.contains(&entry(number))));
    }
}
