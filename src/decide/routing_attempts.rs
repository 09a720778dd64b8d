//! Whom to ask for a verdict next, from what was heard so far. Pure.
//!
//! Rings say who *should* decide a key; only a node itself knows whether it *does*. While ranges
//! change hands the two differ for a moment, and an ask goes round, in this order:
//!
//! 1. whoever the last node that was asked named: it handed the key over;
//! 2. the owner by the ring in force, looked up anew each time;
//! 3. the owners by the rings before it: one of them may not have handed over yet;
//! 4. the nodes behind the owner on the ring: if it just came, the first of them held the key;
//! 5. nobody is left: the range is on its way. Wait a little and begin again.
//!
//! **Worked example.** The ring moved a key from `a` to `b`. Node `c` asks `b`, which has not got
//! the range yet and names nobody; then `a`, the owner before, which has just handed it over and
//! names `b`; then `b`, which decides. Three asks, no wait.
//!
//! It ends with *nobody* when the owner by the ring is there but does not take asks (silent or
//! full: no wait within a deadline helps), when nobody that was asked is alive, when this node is
//! recognised by no quorum (what it waits for will not reach it), and after [`ATTEMPTS_MAX`] asks.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_limiter::policy::Scope;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::route::Topology;

/// Most asks for one verdict; beyond them the policy answers.
pub(super) const ATTEMPTS_MAX: u32 = 64;
/// Most names that are followed in one round: two nodes that name each other must not keep an ask
/// busy.
const FOLLOWED_MAX: u32 = 4;
/// The first wait, doubled each round up to [`PAUSE_MAX`]. A handover takes a flush and a round
/// trip; an ask with a long deadline waits for a second and more in its [`ATTEMPTS_MAX`] asks.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask this node, which may be this one.
    CheckRequest(NodeId),
    /// Wait so long, then ask for the next step again.
    Wait(Duration),
    /// There is nobody to ask: answer by policy.
    Nobody,
}

/// Who was asked for one verdict, and what was heard.
#[derive(Debug)]
pub(super) struct RoutingAttempts {
    scope: Scope,
    token: u64,
    /// Asked in this round.
    asked: SmallVec<[NodeId; 4]>,
    /// Of those, who is there but takes no asks.
    deaf: SmallVec<[NodeId; 2]>,
    /// Named by the last that refused.
    named: Option<NodeId>,
    /// Names followed in this round.
    followed: u32,
    /// Whether somebody in this round was there and did not hold the key.
    was_refused: bool,
    /// Asks in all rounds.
    attempts: u32,
    pause: Duration,
}

impl RoutingAttempts {
    /// For the key at `token`; nobody was asked yet.
    pub(super) fn new(scope: Scope, token: u64) -> Self {
        Self {
            scope,
            token,
            asked: SmallVec::new(),
            deaf: SmallVec::new(),
            named: None,
            followed: 0,
            was_refused: false,
            attempts: 0,
            pause: PAUSE_MIN,
        }
    }

    /// The next step by the rings as they are now. `has_lease` is whether a quorum recognises this
    /// node.
    pub(super) fn next(&mut self, topology: &Topology, has_lease: bool) -> Next {
        if self.attempts >= ATTEMPTS_MAX {
            return Next::Nobody;
        }
        if let Some(named) = self.named.take()
            && self.followed < FOLLOWED_MAX
        {
            self.followed += 1;
            return self.ask(&named);
        }
        let owner = topology.owner(self.scope, self.token);
        let before = topology.previous_owners(self.scope, self.token);
        let behind = topology.successors(self.scope, self.token);
        let mut all = owner.into_iter().chain(before).chain(behind);
        if let Some(id) = all.find(|id| !self.asked.contains(id)) {
            return self.ask(id);
        }
        let is_deaf = owner.is_some_and(|owner| self.deaf.contains(owner));
        if is_deaf || !self.was_refused || !has_lease {
            return Next::Nobody;
        }
        self.asked.clear();
        self.deaf.clear();
        self.followed = 0;
        self.was_refused = false;
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        Next::Wait(pause)
    }

    /// This node found before the first step that it does not hold the key, and handed it to
    /// `holder` if it did hold it.
    pub(super) fn not_here(&mut self, topology: &Topology, holder: Option<NodeId>) {
        self.named = holder;
        if topology.owner(self.scope, self.token) == Some(&topology.me) {
            self.asked.push(topology.me.clone());
            self.was_refused = true;
        }
    }

    /// The node that was asked last does not hold the key; it handed it to `holder` if it did.
    pub(super) fn refused(&mut self, holder: Option<NodeId>) {
        self.was_refused = true;
        self.named = holder;
    }

    /// The node that was asked last is there but takes no asks, so it was sent none.
    pub(super) fn deaf(&mut self) {
        self.deaf.extend(self.asked.last().cloned());
    }

    /// Asks so far.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    fn ask(&mut self, id: &NodeId) -> Next {
        self.attempts += 1;
        self.asked.push(id.clone());
        Next::CheckRequest(id.clone())
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::VoterSet;
    use tidegate_ownership::identity::Generation;
    use tidegate_ownership::membership::{Member, MemberState, View};

    use super::*;

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    fn ask(name: &str) -> Next {
        Next::CheckRequest(id(name))
    }

    fn wait(millis: u64) -> Next {
        Next::Wait(Duration::from_millis(millis))
    }

    /// What `me` sees when these own keys.
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
            voter_set: VoterSet::default(),
        };
        Topology::new(id(me), "eu".into(), View::new(owners.iter().map(member)), 64)
    }

    /// As `me` sees it: `b` joined `a`, and the key at [`PLACE`] moved to it.
    fn moved(me: &str) -> Topology {
        let (before, now) = (topology(me, &["a"]), topology(me, &["a", "b"]));
        let now = now.after(&before);
        assert_eq!(now.owner(Scope::Region, token()), Some(&id("b")));
        now
    }

    /// A place that is `b`'s when `a` and `b` are there, and `c`'s when it is there too.
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
    fn the_owner_by_the_ring_is_asked_first() {
        assert_eq!(routing_attempts().next(&moved("c"), true), ask("b"));
    }

    #[test]
    fn whoever_is_named_is_asked_next() {
        let mut asks = routing_attempts();
        asks.next(&moved("c"), true);
        asks.refused(Some(id("x")));
        assert_eq!(asks.next(&moved("c"), true), ask("x"));
    }

    /// The worked example of the module.
    #[test]
    fn a_range_that_is_handed_over_meanwhile_is_found_without_a_wait() {
        let (mut asks, topology) = (routing_attempts(), moved("c"));
        assert_eq!(asks.next(&topology, true), ask("b"));
        asks.refused(None);
        assert_eq!(asks.next(&topology, true), ask("a"));
        asks.refused(Some(id("b")));
        assert_eq!(asks.next(&topology, true), ask("b"));
        assert_eq!(asks.attempts(), 3);
    }

    #[test]
    fn a_newer_ring_is_seen_between_two_asks() {
        let (mut asks, topology) = (routing_attempts(), moved("x"));
        assert_eq!(asks.next(&topology, true), ask("b"));
        asks.refused(None);
        let newer = self::topology("x", &["a", "b", "c"]).after(&topology);
        assert_eq!(asks.next(&newer, true), ask("c"));
    }

    #[test]
    fn a_range_on_its_way_is_waited_for_in_growing_steps() {
        let (mut asks, topology) = (routing_attempts(), moved("c"));
        for millis in [1, 2, 4, 8, 16, 32, 64, 64] {
            for name in ["b", "a"] {
                assert_eq!(asks.next(&topology, true), ask(name));
                asks.refused(None);
            }
            assert_eq!(asks.next(&topology, true), wait(millis));
        }
    }

    #[test]
    fn this_node_is_a_candidate_like_others() {
        let (mut asks, topology) = (routing_attempts(), moved("b"));
        asks.not_here(&topology, None);
        assert_eq!(asks.next(&topology, true), ask("a"), "it has just looked here");
        asks.refused(Some(id("b")));
        assert_eq!(asks.next(&topology, true), ask("b"), "the range came meanwhile");
        let mut asks = routing_attempts();
        asks.not_here(&topology, Some(id("c")));
        assert_eq!(asks.next(&topology, true), ask("c"), "this node handed it over");
    }

    #[test]
    fn a_deaf_owner_is_not_waited_for() {
        let (mut asks, topology) = (routing_attempts(), moved("c"));
        asks.next(&topology, true);
        asks.deaf();
        assert_eq!(asks.next(&topology, true), ask("a"), "it may not have handed over yet");
        asks.refused(Some(id("b")));
        asks.next(&topology, true);
        asks.deaf();
        assert_eq!(asks.next(&topology, true), Next::Nobody);
    }

    #[test]
    fn when_nobody_is_connected_nobody_is_waited_for() {
        let (mut asks, topology) = (routing_attempts(), moved("c"));
        assert_eq!(asks.next(&topology, true), ask("b"));
        assert_eq!(asks.next(&topology, true), ask("a"));
        assert_eq!(asks.next(&topology, true), Next::Nobody);
        assert_eq!(routing_attempts().next(&self::topology("a", &[]), true), Next::Nobody);
    }

    #[test]
    fn without_a_quorum_nobody_is_waited_for() {
        let (mut asks, topology) = (routing_attempts(), moved("b"));
        asks.not_here(&topology, None);
        assert_eq!(asks.next(&topology, false), ask("a"));
        asks.refused(None);
        assert_eq!(asks.next(&topology, false), Next::Nobody);
    }

    #[test]
    fn nodes_that_name_each_other_are_left() {
        let (mut asks, topology) = (routing_attempts(), moved("c"));
        let mut names = 0;
        loop {
            match asks.next(&topology, true) {
                Next::CheckRequest(asked) => {
                    asks.refused(Some(if asked == id("a") { id("b") } else { id("a") }));
                    names += 1;
                }
                Next::Wait(_) => {}
                Next::Nobody => break,
            }
            assert!(names <= ATTEMPTS_MAX, "asks are bounded");
        }
        assert_eq!(asks.attempts(), ATTEMPTS_MAX);
    }
}
