//! Which node to try next for a verdict, given the results so far. Pure.
//!
//! Rings define which node owns a key. While ranges are handed over, another node may still decide
//! it, and nodes are tried in this order:
//!
//! 1. the node that the last `NotOwner` reply named: the key was handed over to it;
//! 2. the owner by the current ring, looked up anew each time;
//! 3. the owners by previous rings: one of them may not have handed over yet;
//! 4. the successors of the owner on the ring: if the owner has just joined, the first of them had
//!    the key;
//! 5. none is left: the range is in transfer. Wait a little and start again.
//!
//! **Worked example.** The ring moved a key from `a` to `b`. Node `c` tries `b`, which has not
//! received the range yet and names no node; then `a`, the previous owner, which has just handed it
//! over and names `b`; then `b`, which decides. Three attempts, no wait.
//!
//! It gives up when the owner by the ring is connected but unresponsive or overloaded (no wait
//! within a deadline helps), when no node that was tried is connected, when this node has no lease
//! (a range in transfer would not be announced to it), or its region has none for a global key at
//! home in it, and after [`ATTEMPTS_MAX`] attempts.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff};
use smallvec::SmallVec;
use tidegate_cluster::backoff::exponential;
use tidegate_limiter::policy::Scope;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::route::Topology;

/// Most attempts for one verdict: with some eight a round, as in two regions whose nodes name each
/// other, a check with a long deadline waits for more than a second.
pub(super) const ATTEMPTS_MAX: u32 = 256;
/// Most named nodes that are tried in one round: two nodes that name each other must not keep a
/// check busy.
const REFERRALS_MAX: u32 = 4;
/// The first wait, doubled each round up to [`PAUSE_MAX`]. A handoff takes a flush and a round
/// trip.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Try this node, which may be this one.
    Try(NodeId),
    /// Wait so long, then call [`RoutingAttempts::next`] again.
    Wait(Duration),
    GiveUp,
}

/// The nodes tried for one verdict, and their results.
#[derive(Debug)]
pub(super) struct RoutingAttempts {
    scope: Scope,
    token: u64,
    /// Tried in this round.
    tried: SmallVec<[NodeId; 4]>,
    /// Of those, the ones that are connected but did not take the check.
    overloaded: SmallVec<[NodeId; 2]>,
    /// Named by the last `NotOwner`.
    referral: Option<NodeId>,
    /// Referrals followed in this round.
    referrals: u32,
    /// Whether a node replied `NotOwner` in this round.
    was_refused: bool,
    /// Attempts in all rounds so far.
    pub(super) count: u32,
    pauses: ExponentialBackoff,
}

impl RoutingAttempts {
    pub(super) fn new(scope: Scope, token: u64) -> Self {
        Self {
            scope,
            token,
            tried: SmallVec::new(),
            overloaded: SmallVec::new(),
            referral: None,
            referrals: 0,
            was_refused: false,
            count: 0,
            pauses: exponential(PAUSE_MIN, PAUSE_MAX).build(),
        }
    }

    /// The next step by the current rings. `has_leases` tells whether this node has its ownership
    /// lease, and that of its region if the key is decided there and global.
    pub(super) fn next(&mut self, topology: &Topology, has_leases: impl FnOnce() -> bool) -> Next {
        if self.count >= ATTEMPTS_MAX {
            return Next::GiveUp;
        }
        if let Some(node) = self.referral.take()
            && self.referrals < REFERRALS_MAX
        {
            self.referrals += 1;
            return self.attempt(&node);
        }
        let owner = topology.owner(self.scope, self.token);
        let previous = topology.previous_owners(self.scope, self.token);
        let successors = topology.successors(self.scope, self.token);
        let mut all = owner.into_iter().chain(previous).chain(successors);
        if let Some(node) = all.find(|node| !self.tried.contains(node)) {
            return self.attempt(node);
        }
        let is_overloaded = owner.is_some_and(|owner| self.overloaded.contains(owner));
        if is_overloaded || !self.was_refused || !has_leases() {
            return Next::GiveUp;
        }
        self.tried.clear();
        self.overloaded.clear();
        self.referrals = 0;
        self.was_refused = false;
        Next::Wait(self.pauses.next().unwrap_or(PAUSE_MAX))
    }

    /// Before the first step, this node found that it does not own the key; it handed the key to
    /// `holder` if it ever did.
    pub(super) fn not_owned_here(&mut self, topology: &Topology, holder: Option<NodeId>) {
        self.referral = holder;
        if topology.owner(self.scope, self.token) == Some(&topology.me) {
            self.tried.push(topology.me.clone());
            self.was_refused = true;
        }
    }

    /// The last node does not own the key; it handed the key to `holder` if it ever did.
    pub(super) fn not_owner(&mut self, holder: Option<NodeId>) {
        self.was_refused = true;
        self.referral = holder;
    }

    /// The last node is connected but unresponsive or overloaded, so nothing was sent.
    pub(super) fn overloaded(&mut self) {
        self.overloaded.extend(self.tried.last().cloned());
    }

    fn attempt(&mut self, node: &NodeId) -> Next {
        self.count += 1;
        self.tried.push(node.clone());
        Next::Try(node.clone())
    }
}

#[cfg(test)]
mod tests {

    use tidegate_ownership::identity::Generation;
    use tidegate_ownership::membership::{Member, MemberState, View};

    use super::*;

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    fn attempt(name: &str) -> Next {
        Next::Try(id(name))
    }

    /// The topology of `me` when `owners` are members.
    fn topology(me: &str, owners: &[&str]) -> Topology {
        let member = |name: &&str| Member {
            id: id(name),
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 1).into(),
            region: "eu".into(),
            zone: "z".into(),
            state: MemberState::Up,
            rule_book: 0,
            http: None,
            has_lease: true,
        };
        Topology::new(id(me), "eu".into(), View::new(owners.iter().map(member)), 64)
    }

    /// The topology of `me` after `b` joined `a` and the key at [`token`] moved to `b`.
    fn moved(me: &str) -> Topology {
        let (before, now) = (topology(me, &["a"]), topology(me, &["a", "b"]));
        let now = now.after(&before);
        assert_eq!(now.owner(Scope::Region, token()), Some(&id("b")));
        now
    }

    /// A token that belongs to `b` in a ring of `a` and `b`, and to `c` when it joins.
    fn token() -> u64 {
        let (two, three) = (topology("a", &["a", "b"]), topology("a", &["a", "b", "c"]));
        let is_right = |token: &u64| {
            two.owner(Scope::Region, *token) == Some(&id("b"))
                && three.owner(Scope::Region, *token) == Some(&id("c"))
        };
        (0..1_000u64).map(|n| n << 54).find(is_right).expect("one of a thousand")
    }

    fn routing_attempts() -> RoutingAttempts {
        RoutingAttempts::new(Scope::Region, token())
    }

    #[test]
    fn a_range_that_nodes_of_two_regions_pass_on_is_waited_for() {
        let topology = topology("a", &["a", "b", "c", "d"]);
        let (mut attempts, mut waited) = (routing_attempts(), Duration::ZERO);
        loop {
            match attempts.next(&topology, || true) {
                Next::Try(_) => attempts.not_owner(Some(id("e"))),
                Next::Wait(pause) => waited += pause,
                Next::GiveUp => break,
            }
        }
        assert!((1..3).contains(&waited.as_secs()), "{waited:?}");
    }

    #[test]
    fn the_owner_by_the_ring_is_tried_first() {
        assert_eq!(routing_attempts().next(&moved("c"), || true), attempt("b"));
    }

    #[test]
    fn a_referral_is_tried_next() {
        let mut attempts = routing_attempts();
        attempts.next(&moved("c"), || true);
        attempts.not_owner(Some(id("x")));
        assert_eq!(attempts.next(&moved("c"), || true), attempt("x"));
    }

    /// The worked example of the module.
    #[test]
    fn a_range_that_is_handed_over_meanwhile_is_found_without_a_wait() {
        let (mut attempts, topology) = (routing_attempts(), moved("c"));
        assert_eq!(attempts.next(&topology, || true), attempt("b"));
        attempts.not_owner(None);
        assert_eq!(attempts.next(&topology, || true), attempt("a"));
        attempts.not_owner(Some(id("b")));
        assert_eq!(attempts.next(&topology, || true), attempt("b"));
        assert_eq!(attempts.count, 3);
    }

    #[test]
    fn a_newer_ring_applies_to_the_next_attempt() {
        let (mut attempts, topology) = (routing_attempts(), moved("x"));
        assert_eq!(attempts.next(&topology, || true), attempt("b"));
        attempts.not_owner(None);
        let newer = self::topology("x", &["a", "b", "c"]).after(&topology);
        assert_eq!(attempts.next(&newer, || true), attempt("c"));
    }

    #[test]
    fn a_range_in_transfer_is_waited_for_in_growing_steps() {
        let (mut attempts, topology) = (routing_attempts(), moved("c"));
        for millis in [1, 2, 4, 8, 16, 32, 64, 64] {
            for name in ["b", "a"] {
                assert_eq!(attempts.next(&topology, || true), attempt(name));
                attempts.not_owner(None);
            }
            let Next::Wait(pause) = attempts.next(&topology, || true) else {
                panic!("both refused")
            };
            assert_eq!(pause.as_millis(), millis);
        }
    }

    #[test]
    fn this_node_is_tried_like_others() {
        let (mut attempts, topology) = (routing_attempts(), moved("b"));
        attempts.not_owned_here(&topology, None);
        assert_eq!(attempts.next(&topology, || true), attempt("a"), "this node was tried first");
        attempts.not_owner(Some(id("b")));
        assert_eq!(attempts.next(&topology, || true), attempt("b"), "the range arrived meanwhile");
        let mut attempts = routing_attempts();
        attempts.not_owned_here(&topology, Some(id("c")));
        assert_eq!(attempts.next(&topology, || true), attempt("c"), "this node handed it over");
    }

    #[test]
    fn an_overloaded_owner_is_not_waited_for() {
        let (mut attempts, topology) = (routing_attempts(), moved("c"));
        attempts.next(&topology, || true);
        attempts.overloaded();
        assert_eq!(
            attempts.next(&topology, || true),
            attempt("a"),
            "it may not have handed over yet"
        );
        attempts.not_owner(Some(id("b")));
        attempts.next(&topology, || true);
        attempts.overloaded();
        assert_eq!(attempts.next(&topology, || true), Next::GiveUp);
    }

    #[test]
    fn without_a_connected_node_it_gives_up() {
        let (mut attempts, topology) = (routing_attempts(), moved("c"));
        assert_eq!(attempts.next(&topology, || true), attempt("b"));
        assert_eq!(attempts.next(&topology, || true), attempt("a"));
        assert_eq!(attempts.next(&topology, || true), Next::GiveUp);
        assert_eq!(routing_attempts().next(&self::topology("a", &[]), || true), Next::GiveUp);
    }

    #[test]
    fn without_a_lease_it_gives_up() {
        let (mut attempts, topology) = (routing_attempts(), moved("b"));
        attempts.not_owned_here(&topology, None);
        assert_eq!(attempts.next(&topology, || false), attempt("a"));
        attempts.not_owner(None);
        assert_eq!(attempts.next(&topology, || false), Next::GiveUp);
    }

    #[test]
    fn nodes_that_name_each_other_end_at_the_bound() {
        let (mut attempts, topology) = (routing_attempts(), moved("c"));
        let mut referrals = 0;
        loop {
            match attempts.next(&topology, || true) {
                Next::Try(node) => {
                    attempts.not_owner(Some(if node == id("a") { id("b") } else { id("a") }));
                    referrals += 1;
                }
                Next::Wait(_) => {}
                Next::GiveUp => break,
            }
            assert!(referrals <= ATTEMPTS_MAX, "attempts are bounded");
        }
        assert_eq!(attempts.count, ATTEMPTS_MAX);
    }
}
