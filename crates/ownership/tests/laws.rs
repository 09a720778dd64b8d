//! Orders of events that would lead to two owners of one place, told step by step.

use tidegate_limiter::units::Span;
use tidegate_ownership::HandoffReply;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ranges::{Range, Ranges};
use tidegate_ownership::{Epoch, Members, Place, Quorum, Ring};

const LEASE: Span = Span::from_millis(400);

fn id(id: &str) -> NodeId {
    NodeId::new(id).expect("a valid id")
}

fn arc(first: u64) -> Ranges {
    Ranges::of([Range { first, last: first + 9 }])
}

/// A ring of these, each with an arc of its own; `a b c` are known.
fn members(entries: &[&str]) -> Members {
    let token = |at: usize| Place { generation: Generation(1), arcs: arc(100 * at as u64) };
    let entries = entries.iter().enumerate().map(|(at, seat)| (id(seat), token(at))).collect();
    Members { entries, quorum: Quorum::Of(["a", "b", "c"].map(id).into()) }
}

/// `c` released an arc to `a` and missed the answer. Before it asks again, `a` alone strikes it off
/// and finds it back. A refusal would let `c` thaw what `a` holds.
#[test]
fn a_release_that_was_taken_is_never_refused_afterwards() {
    let mut a = Ring::new(id("a"), LEASE);
    a.follow(members(&["a", "b", "c"]));
    let epoch = a.epoch();
    let release = |a: &mut Ring| a.released(&id("c"), Generation(1), epoch, 1, &arc(0));
    assert_eq!(release(&mut a), HandoffReply::Taken);
    a.follow(members(&["a", "b"]));
    assert_eq!(release(&mut a), HandoffReply::Taken, "while it is off the roll");
    a.follow(members(&["a", "b", "c"]));
    assert_eq!(release(&mut a), HandoffReply::Taken, "when it is back");
    assert_eq!(*a.holds(), arc(0));
}

/// A broken peer tells the last number there is, with another's name and with `a`'s own. There
/// would be no epoch after it, and the next change of the roll would be no change.
#[test]
fn an_epoch_that_no_honest_peer_tells_leaves_room_for_the_next() {
    let mut a = Ring::new(id("a"), LEASE);
    a.follow(members(&["a", "b"]));
    for name in [7, a.epoch().name] {
        for number in [u64::MAX, Epoch::NUMBER_MAX + 1] {
            let before = a.epoch();
            a.met(Epoch { number, name });
            assert_eq!(a.epoch(), before);
        }
    }
    for number in [9, Epoch::NUMBER_MAX] {
        a.met(Epoch { number, name: 7 });
        a.follow(members(&["a", "b", "c"]));
        a.follow(members(&["a", "b"]));
        assert_eq!(a.epoch().number, number + 2, "an honest number, or one hardly so, is outgrown");
    }
}
