//! Which revocations a node accepts from its peers while it starts.
//!
//! A node that was off while another one was revoked has not received that, and the revoked one may
//! be the first that connects. Members trust each other, so it could have honest ones revoked
//! through the node that starts. So this accepts, of the sets that peers reply when compared with:
//!
//! ```text
//! at once          what two of them contain
//! after STARTUP    what one of them contains, unless another one revokes that peer
//! ```
//!
//! What more sets contain comes first, then what is of an earlier time; the set of a revoked peer
//! does not count. An order that a peer announces is accepted when two sets have been received, and
//! none of them revokes the sender. After [`STARTUP`] the set of each peer is accepted, as by all
//! nodes that run.
//!
//! **Example.** `n1` was stolen and is revoked. Then it has `n2` revoked, which no node accepts.
//! `n4` starts without its disk and receives `n2` from `n1`, and `n1` from `n2` and `n3`. Two sets
//! contain the latter, so `n4` closes its connection to `n1` and drops the set of that.
//!
//! **What it does not do.** A node that reaches only a revoked one and one other has one set
//! against one. It accepts the earlier revocation, and a time can be invented.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tidegate_ownership::identity::NodeId;

use super::revocation::Revocation;

/// How long a node that starts compares the sets of peers, from the first that it receives.
const STARTUP: Span = Span::from_secs(3);
/// In how many sets a revocation has to be to be accepted at once.
const TWO: usize = 2;

/// The sets of the peers since this node started.
#[derive(Debug, Default)]
pub(super) struct Startup {
    received: BTreeMap<NodeId, Received>,
    /// When the set of each peer is accepted.
    until: Option<Monotonic>,
    is_over: bool,
}

#[derive(Clone, Debug)]
struct Received {
    /// When the peer was admitted, by the certificate with which it is connected.
    admitted: Timestamp,
    set: Vec<Revocation>,
}

impl Startup {
    /// The set of a peer. Returns what is accepted of all that were received.
    pub(super) fn received(
        &mut self,
        peer: &NodeId,
        admitted: Timestamp,
        set: Vec<Revocation>,
        now: Monotonic,
    ) -> Vec<Revocation> {
        if self.is_over {
            return set;
        }
        self.until.get_or_insert_with(|| now.plus(STARTUP));
        self.received.insert(peer.clone(), Received { admitted, set });
        let mut taken = self.agreed(TWO);
        taken.extend(self.look(now));
        taken
    }

    /// What is accepted because time has passed.
    pub(super) fn look(&mut self, now: Monotonic) -> Vec<Revocation> {
        if self.is_over || self.until.is_none_or(|until| now < until) {
            return Vec::new();
        }
        self.is_over = true;
        let taken = self.agreed(1);
        self.received = BTreeMap::new();
        taken
    }

    /// Whether an order of this peer is accepted.
    pub(super) fn accepts_orders(&self, peer: &NodeId, admitted: Timestamp) -> bool {
        let revokes = |it: &Revocation| it.node == *peer && admitted <= it.at;
        let mut others = self.received.iter().filter(|(node, _)| *node != peer);
        self.is_over
            || self.received.len() >= TWO
                && !others.any(|(_, received)| received.set.iter().any(revokes))
    }

    /// The revocations that at least `least` sets contain. The set of a peer that one of them
    /// revokes is not counted.
    fn agreed(&self, least: usize) -> Vec<Revocation> {
        let mut received = self.received.clone();
        let mut agreed: BTreeSet<(NodeId, Timestamp)> = BTreeSet::new();
        loop {
            let mut counts: BTreeMap<(NodeId, Timestamp), usize> = BTreeMap::new();
            for revocation in received.values().flat_map(|received| &received.set) {
                *counts.entry((revocation.node.clone(), revocation.at)).or_default() += 1;
            }
            let open = |(entry, count): &(_, usize)| *count >= least && !agreed.contains(entry);
            let mut open: Vec<_> = counts.into_iter().filter(open).collect();
            open.sort_by_key(|((_, at), count)| (Reverse(*count), *at));
            let before = received.len();
            for (entry, _) in open {
                received.retain(|node, received| *node != entry.0 || received.admitted > entry.1);
                agreed.insert(entry);
                if received.len() < before {
                    break;
                }
            }
            if received.len() == before {
                return agreed.into_iter().map(|(node, at)| Revocation { node, at }).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When all peers were admitted.
    const ADMITTED: Timestamp = Timestamp::from_secs(50);

    fn id(node: &str) -> NodeId {
        NodeId::new(node).expect("an id")
    }

    fn revoked(node: &str, at: u64) -> Revocation {
        Revocation { node: id(node), at: Timestamp::from_secs(at) }
    }

    /// What is taken as these are received, a second apart, and when the time is over.
    fn taken(received: &[(&str, &[Revocation])]) -> (Vec<Revocation>, Vec<Revocation>) {
        let mut startup = Startup::default();
        let receive = |(node, set): &(&str, &[Revocation])| {
            startup.received(&id(node), ADMITTED, set.to_vec(), Monotonic::from_secs(1))
        };
        let mut at_once: Vec<Revocation> = received.iter().flat_map(receive).collect();
        at_once.dedup();
        assert_eq!(startup.look(Monotonic::from_secs(3)), []);
        (at_once, startup.look(Monotonic::from_secs(4)))
    }

    #[test]
    fn a_revoked_node_revokes_nobody_through_one_that_starts() {
        let (theirs, its) = ([revoked("n1", 100)], [revoked("n2", 101)]);
        let said: [(&str, &[Revocation]); 3] = [("n1", &its), ("n2", &theirs), ("n3", &theirs)];
        for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 0, 1]] {
            let (at_once, later) = taken(&order.map(|at| said[at]));
            assert_eq!((&at_once[..], &later[..]), (&theirs[..], &theirs[..]), "{order:?}");
        }
        // Of one against one, the first.
        assert_eq!(taken(&said[..2]), (vec![], theirs.to_vec()));
        // It has revoked all others, each of which set so of it.
        let its = [revoked("n2", 60), revoked("n3", 60)];
        assert_eq!(taken(&[("n1", &its), said[1], said[2]]).1, theirs);
    }

    #[test]
    fn what_one_says_is_taken_later_and_what_two_say_at_once() {
        let (one, both) = (revoked("n8", 100), revoked("n9", 100));
        let first = [one.clone(), both.clone()];
        let second = [both.clone()];
        let (at_once, later) = taken(&[("n2", &first), ("n3", &second)]);
        assert_eq!((at_once, later), (vec![both.clone()], vec![one, both]));
    }

    #[test]
    fn a_node_that_joined_again_after_it_was_revoked_is_believed() {
        let old = [revoked("n1", 49)];
        let its = [revoked("n9", 100), old[0].clone()];
        let (_, later) = taken(&[("n1", &its), ("n2", &old), ("n3", &old)]);
        assert_eq!(later, [old[0].clone(), its[0].clone()]);
    }

    #[test]
    fn orders_are_taken_of_a_peer_that_none_of_two_has_revoked() {
        let mut startup = Startup::default();
        let now = Monotonic::from_secs(1);
        let may = |startup: &Startup, node| startup.accepts_orders(&id(node), ADMITTED);
        assert!(!may(&startup, "n1"));
        startup.received(&id("n1"), ADMITTED, vec![revoked("n2", 101)], now);
        assert!(!may(&startup, "n1"), "no other was received");
        startup.received(&id("n3"), ADMITTED, vec![revoked("n1", 100)], now);
        assert!(!may(&startup, "n1") && !may(&startup, "n2") && may(&startup, "n3"));
        startup.look(Monotonic::from_secs(4));
        assert!(may(&startup, "n1"), "it is refused as any revoked node is");
        let said = vec![revoked("n5", 1)];
        assert_eq!(startup.received(&id("n3"), ADMITTED, said.clone(), now), said);
    }
}
