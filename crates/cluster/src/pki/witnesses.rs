//! What peers say is revoked while a node starts.
//!
//! A node that was off while another one was revoked does not know that, and the revoked one may be
//! the first that connects. Members trust each other, so it could have honest ones revoked through
//! the node that starts. So this takes, of what peers say when they are compared with:
//!
//! ```text
//! at once          what two of them say
//! after HEARING    what one of them says, and no other has it revoked
//! ```
//!
//! What more peers say comes first, then what is of an earlier time; what a revoked peer says
//! counts no more. An order that a peer announces is taken when two have been heard, and none of
//! them has the sender revoked. After [`HEARING`] each peer is believed, as by all that run.
//!
//! **Example.** `n1` was stolen and is revoked. Then it has `n2` revoked, which nobody takes. `n4`
//! starts without its disk and hears `n1`: `n2` is revoked; `n2` and `n3`: `n1` is. Two say the
//! latter, so `n4` closes its connection to `n1`, and what that said is dropped.
//!
//! **What it does not do.** A node that reaches only a revoked one and one other hears one say
//! against one. It believes the earlier, and a time can be invented.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tidegate_ownership::identity::NodeId;

use super::revocation::Revocation;

/// How long a node that starts compares what peers say, from the first that it hears.
const HEARING: Span = Span::from_secs(3);
/// So many agree at once.
const TWO: usize = 2;

/// The sets of the peers that were heard since this node started.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    heard: BTreeMap<NodeId, Heard>,
    /// When each peer is believed.
    until: Option<Monotonic>,
    is_over: bool,
}

#[derive(Clone, Debug)]
struct Heard {
    /// The certificate with which the peer is connected begins then.
    begins: Timestamp,
    says: Vec<Revocation>,
}

impl Witnesses {
    /// A peer said what it knows. Returns what is to be taken of all that was said.
    pub(super) fn heard(
        &mut self,
        peer: &NodeId,
        begins: Timestamp,
        says: Vec<Revocation>,
        now: Monotonic,
    ) -> Vec<Revocation> {
        if self.is_over {
            return says;
        }
        self.until.get_or_insert_with(|| now.plus(HEARING));
        self.heard.insert(peer.clone(), Heard { begins, says });
        let mut taken = self.agreed(TWO);
        taken.extend(self.look(now));
        taken
    }

    /// What is to be taken because time has passed.
    pub(super) fn look(&mut self, now: Monotonic) -> Vec<Revocation> {
        if self.is_over || self.until.is_none_or(|until| now < until) {
            return Vec::new();
        }
        self.is_over = true;
        let taken = self.agreed(1);
        self.heard = BTreeMap::new();
        taken
    }

    /// Whether an order of this peer is taken.
    pub(super) fn may_order(&self, peer: &NodeId, begins: Timestamp) -> bool {
        let revokes = |it: &Revocation| it.node == *peer && begins <= it.at;
        let mut others = self.heard.iter().filter(|(node, _)| *node != peer);
        self.is_over
            || self.heard.len() >= TWO && !others.any(|(_, heard)| heard.says.iter().any(revokes))
    }

    /// What at least so many say, without what a peer says that is revoked thereby.
    fn agreed(&self, least: usize) -> Vec<Revocation> {
        let mut heard = self.heard.clone();
        let mut agreed: BTreeSet<(NodeId, Timestamp)> = BTreeSet::new();
        loop {
            let mut counts: BTreeMap<(NodeId, Timestamp), usize> = BTreeMap::new();
            for said in heard.values().flat_map(|heard| &heard.says) {
                *counts.entry((said.node.clone(), said.at)).or_default() += 1;
            }
            let open = |(said, count): &(_, usize)| *count >= least && !agreed.contains(said);
            let mut open: Vec<_> = counts.into_iter().filter(open).collect();
            open.sort_by_key(|((_, at), count)| (Reverse(*count), *at));
            let before = heard.len();
            for (said, _) in open {
                heard.retain(|node, heard| *node != said.0 || heard.begins > said.1);
                agreed.insert(said);
                if heard.len() < before {
                    break;
                }
            }
            if heard.len() == before {
                return agreed.into_iter().map(|(node, at)| Revocation { node, at }).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When all certificates begin.
    const BEGINS: Timestamp = Timestamp::from_secs(50);

    fn id(node: &str) -> NodeId {
        NodeId::new(node).expect("an id")
    }

    fn revoked(node: &str, at: u64) -> Revocation {
        Revocation { node: id(node), at: Timestamp::from_secs(at) }
    }

    /// What is taken as these are heard, a second apart, and when the time is over.
    fn taken(heard: &[(&str, &[Revocation])]) -> (Vec<Revocation>, Vec<Revocation>) {
        let mut witnesses = Witnesses::default();
        let hear = |(node, says): &(&str, &[Revocation])| {
            witnesses.heard(&id(node), BEGINS, says.to_vec(), Monotonic::from_secs(1))
        };
        let mut at_once: Vec<Revocation> = heard.iter().flat_map(hear).collect();
        at_once.dedup();
        assert_eq!(witnesses.look(Monotonic::from_secs(3)), []);
        (at_once, witnesses.look(Monotonic::from_secs(4)))
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
        // It has revoked all others, each of which says so of it.
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
        let mut witnesses = Witnesses::default();
        let now = Monotonic::from_secs(1);
        let may = |witnesses: &Witnesses, node| witnesses.may_order(&id(node), BEGINS);
        assert!(!may(&witnesses, "n1"));
        witnesses.heard(&id("n1"), BEGINS, vec![revoked("n2", 101)], now);
        assert!(!may(&witnesses, "n1"), "no other was heard");
        witnesses.heard(&id("n3"), BEGINS, vec![revoked("n1", 100)], now);
        assert!(!may(&witnesses, "n1") && !may(&witnesses, "n2") && may(&witnesses, "n3"));
        witnesses.look(Monotonic::from_secs(4));
        assert!(may(&witnesses, "n1"), "it is refused as any revoked node is");
        let said = vec![revoked("n5", 1)];
        assert_eq!(witnesses.heard(&id("n3"), BEGINS, said.clone(), now), said);
    }
}
