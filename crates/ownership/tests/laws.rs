//! Orders of events that once led to two owners of one token, step by step.

use tidegate_limiter::units::Span;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ranges::{Range, Ranges};
use tidegate_ownership::{Epoch, HandoffReply, Quorum, RingMember, RingMembers, RingOwnership};

const LEASE: Span = Span::from_millis(400);

fn id(id: &str) -> NodeId {
    NodeId::new(id).expect("a valid id")
}

fn arc(first: u64) -> Ranges {
    Ranges::of([Range { first, last: first + 9 }])
}

/// A ring of these members, each with its own arc; the voters are `a b c`.
fn members(ids: &[&str]) -> RingMembers {
    let member = |at: usize| RingMember { generation: Generation(1), arcs: arc(100 * at as u64) };
    let entries = ids.iter().enumerate().map(|(at, one)| (id(one), member(at))).collect();
    RingMembers { entries, quorum: Quorum::Of(["a", "b", "c"].map(id).into()) }
}

/// `c` releases an arc to `a`, and the reply is lost. Before `c` repeats the release, `a` alone
/// evicts `c` and recognises it again. A refusal would let `c` roll back ranges that `a` holds.
#[test]
fn an_accepted_release_is_never_refused_afterwards() {
    let mut a = RingOwnership::new(id("a"), LEASE);
    a.follow(members(&["a", "b", "c"]));
    let epoch = a.epoch();
    let release =
        |a: &mut RingOwnership| a.release_received(&id("c"), Generation(1), epoch, 1, &arc(0));
    assert_eq!(release(&mut a), HandoffReply::Accepted);
    a.follow(members(&["a", "b"]));
    assert_eq!(release(&mut a), HandoffReply::Accepted, "while it is evicted");
    a.follow(members(&["a", "b", "c"]));
    assert_eq!(release(&mut a), HandoffReply::Accepted, "when it is recognised again");
    assert_eq!(*a.held(), arc(0));
}

/// A broken peer reports the highest possible number, with another name and with `a`'s own.
/// Accepting it would leave no number for the next membership change.
#[test]
fn an_impossible_epoch_number_is_ignored() {
    let mut a = RingOwnership::new(id("a"), LEASE);
    a.follow(members(&["a", "b"]));
    for name in [7, a.epoch().name] {
        for number in [u64::MAX, Epoch::NUMBER_MAX + 1] {
            let before = a.epoch();
            a.observe_epoch(Epoch { number, name });
            assert_eq!(a.epoch(), before);
        }
    }
    for number in [9, Epoch::NUMBER_MAX] {
        a.observe_epoch(Epoch { number, name: 7 });
        a.follow(members(&["a", "b", "c"]));
        a.follow(members(&["a", "b"]));
        assert_eq!(a.epoch().number, number + 2, "the highest accepted number is exceeded");
    }
}
