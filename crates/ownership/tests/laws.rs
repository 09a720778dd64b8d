//! Orders of events that once led to two owners of one token, or to the wrong one, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_limiter::units::Span;
use tidegate_ownership::cluster_map::{MapMember, MapState, Voters};
use tidegate_ownership::grants::Grants;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::lease::Lease;
use tidegate_ownership::ranges::{Range, Ranges};
use tidegate_ownership::{
    ClusterMap, Epoch, HandoffReply, Identity, MemberId, Monotonic, QuorumRule, RingMembers,
    RingOwnership, TransferStep, Versions,
};

const LEASE: Span = Span::from_millis(400);

fn id(id: &str) -> NodeId {
    NodeId::new(id).expect("a valid id")
}

fn voter(name: &str) -> Identity {
    Identity { node: id(name), birth: 1 }
}

fn ms(ms: u64) -> Monotonic {
    Monotonic::from_nanos(ms * 1_000_000)
}

fn arc(first: u64) -> Ranges {
    Ranges::of([Range { first, last: first + 9 }])
}

/// A map with these members, each under its own id, and these voters.
fn map(epoch: u64, members: &[&str], current: &[&str], replaced: &[&str]) -> ClusterMap {
    let of = |names: &[&str]| names.iter().map(|name| voter(name)).collect();
    let member = |name: &&str| MapMember {
        id: MemberId(u64::from(name.as_bytes()[0])),
        identity: voter(name),
        start: 1,
        generation: Generation(1),
        addr: ([127, 0, 0, 1], 1).into(),
        zone: String::new(),
        versions: Versions::default(),
        state: MapState::Up,
    };
    ClusterMap {
        epoch: Epoch(epoch),
        members: members.iter().map(member).collect(),
        voters: Voters { current: of(current), replaced: of(replaced), changed_at: Epoch(epoch) },
        ..ClusterMap::default()
    }
}

fn member(name: &str) -> MemberId {
    MemberId(u64::from(name.as_bytes()[0]))
}

/// A ring of these members, in which these own arcs; the voters are `a b c`.
fn ring(epoch: u64, members: &[&str], arcs: &[(&str, Ranges)]) -> RingMembers {
    let arcs: BTreeMap<NodeId, Ranges> =
        arcs.iter().map(|(name, ranges)| (id(name), ranges.clone())).collect();
    let map = map(epoch, members, &["a", "b", "c"], &[]);
    RingMembers::new(Arc::new(map), |name| arcs.get(name).cloned().unwrap_or_default())
}

fn node(name: &str) -> RingOwnership {
    RingOwnership::new(voter(name), 1, LEASE, QuorumRule::Majority)
}

/// `c` releases an arc to `a`, and the reply is lost. A refusal of the repeated release would let
/// `c` take back ranges that `a` holds.
#[test]
fn an_accepted_release_is_never_refused_afterwards() {
    let mut a = node("a");
    a.follow(ring(1, &["a", "b", "c"], &[("a", arc(0))]));
    let release =
        |a: &mut RingOwnership| a.release_received(&id("c"), member("c"), Epoch(1), 1, &arc(0));
    assert_eq!(release(&mut a), HandoffReply::Accepted);
    a.follow(ring(2, &["a", "b", "c"], &[("a", arc(0))]));
    assert_eq!(release(&mut a), HandoffReply::Accepted, "at a newer epoch");
    assert_eq!(*a.held(), arc(0));
}

/// `a` releases an arc to `b`, which accepts it and hands it on to `c`; the reply to `a` is lost.
/// When `b` is evicted, `a` must not take the arc back.
#[test]
fn ranges_released_to_an_evicted_member_are_not_taken_back() {
    let all = ["a", "b", "c"];
    let mut a = node("a");
    a.follow(ring(1, &all, &[("a", arc(0))]));
    assert_eq!(
        a.release_received(&id("c"), member("c"), Epoch(1), 1, &arc(0)),
        HandoffReply::Accepted
    );
    let grant =
        |epoch| tidegate_ownership::VoteGrant { member: member("a"), voters_since: Epoch(epoch) };
    a.pong_received(&voter("b"), ms(0), Epoch(2), Some(grant(1)));
    a.follow(ring(2, &all, &[("b", arc(0))]));
    assert_eq!(released_to(&mut a, "b").1, arc(0), "and no reply");
    a.follow(ring(3, &["a", "c"], &[("c", arc(0))]));
    a.report_received(&voter("a"), Epoch(3));
    a.report_received(&voter("c"), Epoch(3));
    a.tick(ms(2));
    assert!(a.held().is_empty());
}

/// `a` hands an arc over to `b`, and a later map gives it to `c`. If `a` still named `b` to its
/// checks, each would go through `b` for ever.
#[test]
fn a_range_that_was_given_on_is_not_looked_for_where_it_was_given_first() {
    let all = ["a", "b", "c"];
    let mut a = node("a");
    a.follow(ring(1, &all, &[("a", arc(0))]));
    a.release_received(&id("c"), member("c"), Epoch(1), 1, &arc(0));
    let grant =
        |epoch| tidegate_ownership::VoteGrant { member: member("a"), voters_since: Epoch(epoch) };
    a.pong_received(&voter("b"), ms(0), Epoch(2), Some(grant(1)));
    a.follow(ring(2, &all, &[("b", arc(0))]));
    let (number, _) = released_to(&mut a, "b");
    a.release_replied(&id("b"), number, HandoffReply::Accepted);
    assert_eq!(a.transferred().get(&id("b")), Some(&arc(0)));
    a.follow(ring(3, &all, &[("b", arc(0))]));
    assert_eq!(a.transferred().get(&id("b")), Some(&arc(0)), "b still owns it");
    a.follow(ring(4, &all, &[("c", arc(0))]));
    assert!(a.transferred().is_empty());
}

/// `a` drains while nothing of it reaches `n`, so it goes on deciding what `n` gained. `x` has
/// copied and released to `n` when it confirms hits of `a`. When `a` is gone, only `x` has them,
/// and `n` did not gain these ranges anew.
#[test]
fn hits_that_a_member_decided_before_it_was_gone_are_copied_again() {
    let (all, left) = (["a", "b", "n", "x"], ["b", "n", "x"]);
    let before = [("a", arc(0)), ("b", arc(20)), ("n", arc(40)), ("x", arc(60))];
    let after = [("b", arc(20)), ("n", arc(0).with(&arc(40))), ("x", arc(60))];
    let mut x = node("x");
    x.follow(ring(1, &all, &before));
    accepted_by_all(&mut x, &["a", "b", "n"]);
    for peer in ["a", "b", "n"] {
        x.peer_waits_for_none(&id(peer), member(peer), Epoch(1));
    }
    x.follow(ring(2, &all, &after));
    assert_eq!(copied_to(&x, "n"), arc(0), "what it gained");
    accepted_by_all(&mut x, &["a", "b", "n"]);
    x.peer_waits_for_none(&id("b"), member("b"), Epoch(2));
    x.peer_waits_for_none(&id("n"), member("n"), Epoch(1));
    let copied_at_3 = |mut x: RingOwnership, members: &[&str], to: &str| {
        x.follow(ring(3, members, &after));
        copied_to(&x, to)
    };
    assert_eq!(copied_at_3(x.clone(), &left, "n"), arc(0), "a decided it after x had released");
    assert_eq!(copied_at_3(x.clone(), &left, "b"), Ranges::EMPTY, "b holds what it owns");
    assert_eq!(copied_at_3(x.clone(), &all, "n"), Ranges::EMPTY, "a is there and copies itself");
    x.peer_waits_for_none(&id("n"), member("n"), Epoch(2));
    assert_eq!(copied_at_3(x, &left, "n"), Ranges::EMPTY, "a had released it");
}

/// `x` misses the map in which `a` was a member and took over an arc of `n`.
#[test]
fn hits_of_a_member_that_was_never_seen_are_copied() {
    let left = ["n", "x"];
    let arcs = [("n", arc(0)), ("x", arc(60))];
    let of = |epoch, last_member| {
        let arcs: BTreeMap<NodeId, Ranges> =
            arcs.iter().map(|(name, ranges)| (id(name), ranges.clone())).collect();
        let map = map(epoch, &left, &["n", "x"], &[]);
        let map = ClusterMap { last_member: MemberId(last_member), ..map };
        RingMembers::new(Arc::new(map), |name| arcs.get(name).cloned().unwrap_or_default())
    };
    let mut x = node("x");
    x.follow(of(1, 200));
    accepted_by_all(&mut x, &["n"]);
    x.peer_waits_for_none(&id("n"), member("n"), Epoch(1));
    x.follow(of(2, 200));
    assert_eq!(copied_to(&x, "n"), Ranges::EMPTY);
    accepted_by_all(&mut x, &["n"]);
    x.follow(of(4, 201));
    assert_eq!(copied_to(&x, "n"), arc(0));
}

/// The ranges whose states are to be copied to `to` although `from` does not hold them.
fn copied_to(from: &RingOwnership, to: &str) -> Ranges {
    let mut from = from.clone();
    from.offer_replied(&id(to), from.epoch(), HandoffReply::Ready);
    match from.next_step(&id(to), ms(1)) {
        Some(TransferStep::Copy { copies, .. }) => copies,
        step => panic!("no copy, but {step:?}"),
    }
}

fn accepted_by_all(from: &mut RingOwnership, peers: &[&str]) {
    for peer in peers {
        let (number, _) = released_to(from, peer);
        from.release_replied(&id(peer), number, HandoffReply::Accepted);
    }
}

/// Takes the steps of a transfer up to the release, with its number and ranges.
fn released_to(from: &mut RingOwnership, to: &str) -> (u64, Ranges) {
    from.tick(ms(1));
    for _ in 0..6 {
        match from.next_step(&id(to), ms(1)) {
            Some(TransferStep::Offer(epoch)) => {
                from.offer_replied(&id(to), epoch, HandoffReply::Ready);
            }
            Some(TransferStep::Copy { .. }) => from.copied(&id(to), from.epoch()),
            Some(TransferStep::Flush) => from.flushed(&id(to), from.epoch(), true),
            Some(TransferStep::Release { number, ranges, .. }) => return (number, ranges),
            None => {}
        }
    }
    panic!("no release");
}

/// The voters `a b c` become `a b d`; then `p` is evicted. `a` and `d` never granted `p` anything,
/// so they report the map without it at once, while `b` and `c`, which have learned neither change,
/// go on granting. The joint phase is what prevents this: it ends only when a majority of the old
/// voters has reported it for longer than a grant lasts.
#[test]
fn a_joint_phase_that_ends_too_early_would_give_two_leases() {
    let before = map(1, &["p", "q"], &["a", "b", "c"], &[]);
    let joint = map(2, &["p", "q"], &["a", "b", "d"], &["a", "b", "c"]);
    let without_p = map(3, &["q"], &["a", "b", "d"], &[]);
    let now = ms(1_000);
    let mut p = Lease::new(voter("p"), LEASE, QuorumRule::Majority);
    let mut grants = |name: &str, map: &ClusterMap| {
        let mut voter_grants = Grants::new(ms(0), LEASE);
        let grant = voter_grants.grant(now, member("p"), map).expect("a member");
        p.grant_received(&voter(name), now, grant, before.epoch);
        p.end(&before, member("p"))
    };
    grants("b", &before);
    assert_eq!(grants("c", &before), ms(1_400), "as if nothing had changed");
    let is_claimable = |reports: &[(&str, Epoch)], map: &ClusterMap| {
        map.voters.is_majority(|voter| {
            reports.iter().any(|(name, epoch)| voter.node == id(name) && *epoch >= map.epoch)
        })
    };
    let report = |map: &ClusterMap| Grants::new(ms(0), LEASE).report(now, map, map.epoch);
    let both = [("a", report(&without_p)), ("d", report(&without_p))];
    assert!(is_claimable(&both, &without_p), "ended at once: p and its successor both decide");
    let joint_without_p = ClusterMap { members: without_p.members.clone(), ..joint.clone() };
    assert!(!is_claimable(&both, &joint_without_p), "in the joint phase a b or a c is needed");
    // Once b knows the joint map, its grants do not count for p until p knows it too.
    let mut informed = Lease::new(voter("p"), LEASE, QuorumRule::Majority);
    for (name, map) in [("b", &joint), ("c", &before)] {
        let grant = Grants::new(ms(0), LEASE).grant(now, member("p"), map).expect("a member");
        informed.grant_received(&voter(name), now, grant, before.epoch);
    }
    assert_eq!(informed.end(&before, member("p")), Monotonic::START);
    assert_eq!(informed.end(&joint, member("p")), Monotonic::START, "no majority of a b d");
}
