//! Messages of handovers: their bytes, and any order of whatever happens to the machine that reads
//! them, the answers of peers that lie among it.
//!
//! One owner per key among honest nodes is checked by `crates/ownership/tests/model.rs`. Here
//! nobody is honest but this node, and it must hold that
//!
//! - nothing panics, and its epoch never goes back;
//! - it never holds a place that it was neither given, nor claimed, nor had released itself;
//! - it claims only under an epoch under which every other member has released.

#![no_main]

use std::collections::BTreeSet;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_cluster::mesh::wire::{Call, Handoff, HandoffStep};
use tidegate_ownership::ranges::{RANGES_MAX, Range, Ranges};
use tidegate_ownership::{
    Epoch, HandoffReply, LeaseState, Monotonic, Quorum, RecordedGrant, RingMember, RingMembers,
    RingOwnership, TransferStep,
};
use tidegate_limiter::units::Span;
use tidegate_fuzz::wire;

/// This node is `b`, so that the lowest id is another's.
const ME: usize = 1;
const NODES: [&str; 4] = ["a", "b", "c", "d"];
const LEASE: Span = Span::from_millis(400);

fuzz_target!(|bytes: &[u8]| {
    if let Some(Call::Handoff(handoff)) = wire::call(bytes) {
        are_a_set(&handoff);
    }
    let mut input = Unstructured::new(bytes);
    let mut node = Node::new();
    while let Ok(event) = Event::arbitrary(&mut input) {
        node.meets(event);
        if input.is_empty() {
            break;
        }
    }
});

/// Ranges that were read ascend, and no two of them touch.
fn are_a_set(handoff: &Handoff) {
    wire::can_be_told(handoff);
    let HandoffStep::Release { ranges, .. } = &handoff.step else { return };
    let all: Vec<Range> = ranges.iter().collect();
    assert!(all.len() <= RANGES_MAX);
    assert!(all.iter().all(|range| range.first <= range.last));
    for two in all.windows(2) {
        let next = two[0].last.checked_add(1).expect("something is above it");
        assert!(next < two[1].first, "{two:?}");
    }
    assert_eq!(Ranges::of(all), *ranges);
    assert!(ranges.without(ranges).is_empty());
    assert_eq!(ranges.with(ranges), *ranges);
    assert!(ranges.share_ppm() <= 1_000_000);
}

// === what happens ===

#[derive(Arbitrary, Debug)]
enum Event {
    Passes { quarters: u8 },
    Follow(Circle),
    Met(Told),
    Ponged { peer: Peer, quarters_ago: u8, epoch: Option<Told>, serial: Option<Small> },
    Offered { peer: Peer, epoch: Told },
    Released { peer: Peer, generation: Small, epoch: Told, number: Number, arcs: u16 },
    Works { peer: Peer },
    OfferAnswered { peer: Peer, epoch: Told, reply: Answer },
    Copied { peer: Peer, epoch: Told },
    Flushed { peer: Peer, epoch: Told, is_done: bool },
    ReleaseAnswered { peer: Peer, number: Number, reply: Answer },
}

/// The members of an epoch, on a circle of sixteen arcs.
#[derive(Arbitrary, Debug)]
struct Circle {
    /// Who is on the roll, and which start of it.
    entries: [Option<Small>; NODES.len()],
    /// Whose each arc is.
    owners: [Peer; 16],
    /// Who counts; nobody needs anybody without it.
    known: Option<[bool; NODES.len()]>,
}

/// An epoch as a peer tells it: mostly that of this node.
#[derive(Arbitrary, Debug)]
enum Told {
    Ours,
    OurNameAt(u64),
    Other { number: u64, name: u64 },
}

/// Numbers that two events have a chance to share.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Small(bool);

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Peer {
    A,
    B,
    C,
    D,
}

#[derive(Arbitrary, Debug)]
enum Number {
    Low(u8),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
enum Answer {
    Ready,
    Later,
    Accepted,
    Refused,
}

// === to whom ===

struct Node {
    ring: RingOwnership,
    now: Monotonic,
    /// What it released at any time.
    let_go: Ranges,
    /// Who released to it under its present epoch.
    released: BTreeSet<NodeId>,
}

impl Node {
    fn new() -> Self {
        let (let_go, released) = (Ranges::EMPTY, BTreeSet::new());
        Self { ring: RingOwnership::new(id(ME), LEASE), now: Monotonic::START, let_go, released }
    }

    fn meets(&mut self, event: Event) {
        let (before, epoch) = (self.ring.held().clone(), self.ring.epoch());
        let may_gain = self.happens(event);
        let now_at = self.ring.epoch();
        assert!(now_at.number >= epoch.number, "{epoch:?} before {now_at:?}");
        if now_at != epoch {
            self.released.clear();
        }
        let gained = self.ring.held().without(&before);
        assert!(gained.without(&may_gain).is_empty(), "{gained:?} of {may_gain:?}");
        assert!(self.ring.decides().without(self.ring.held()).is_empty());
    }

    /// Returns what the node may hold from then on that it did not hold before.
    fn happens(&mut self, event: Event) -> Ranges {
        let (now, ring) = (self.now, &mut self.ring);
        match event {
            Event::Passes { quarters } => {
                self.now = now.plus(quarter(quarters));
                return self.tick();
            }
            Event::Follow(circle) => ring.follow(circle.members()),
            Event::Met(told) => ring.observe_epoch(told.of(ring)),
            Event::Ponged { peer, quarters_ago, epoch, serial } => {
                let epoch = epoch.map(|told| told.of(ring));
                let recognised = serial.map(|serial| RecordedGrant {
                    generation: Generation(1),
                    serial: serial.number(),
                });
                ring.pong_received(&peer.id(), now.minus(quarter(quarters_ago)), epoch, recognised);
            }
            Event::Offered { peer, epoch } => {
                ring.offer_received(&peer.id(), epoch.of(ring));
            }
            Event::Released { peer, generation, epoch, number, arcs } => {
                let (peer, ranges) = (peer.id(), of_arcs(|arc| arcs & 1 << arc != 0));
                let (generation, epoch) = (Generation(generation.number()), epoch.of(ring));
                let reply = ring.release_received(&peer, generation, epoch, number.of(), &ranges);
                let again = ring.release_received(&peer, generation, epoch, number.of(), &ranges);
                assert_eq!(reply, again, "a doubled release is answered alike");
                if reply == HandoffReply::Accepted {
                    self.released.insert(peer);
                    return ranges.shared_with(&ring.members().arcs(&id(ME)));
                }
            }
            Event::Works { peer } => self.works(&peer.id()),
            Event::OfferAnswered { peer, epoch, reply } => {
                ring.offer_replied(&peer.id(), epoch.of(ring), reply.of());
            }
            Event::Copied { peer, epoch } => ring.copied(&peer.id(), epoch.of(ring)),
            Event::Flushed { peer, epoch, is_done } => {
                ring.flushed(&peer.id(), epoch.of(ring), is_done);
            }
            Event::ReleaseAnswered { peer, number, reply } => {
                ring.release_replied(&peer.id(), number.of(), reply.of());
                return self.let_go.clone();
            }
        }
        Ranges::EMPTY
    }

    /// What it takes in a tick thaws, or is its own and claimed.
    fn tick(&mut self) -> Ranges {
        self.ring.tick(self.now);
        let others = self.ring.members().entries.keys().filter(|peer| **peer != id(ME));
        let all_released = { others }.all(|peer| self.released.contains(peer));
        let has_lease = self.ring.lease_state() != LeaseState::None;
        if all_released && has_lease && self.ring.is_agreed(self.now) {
            self.let_go.with(&self.ring.members().arcs(&id(ME)))
        } else {
            self.let_go.clone()
        }
    }

    fn works(&mut self, peer: &NodeId) {
        let before = self.ring.held().clone();
        let step = self.ring.next_step(peer, self.now);
        if let Some(TransferStep::Release { ranges, .. }) = step {
            assert!(before.without(self.ring.held()).without(&ranges).is_empty());
            self.let_go = self.let_go.with(&ranges);
        }
    }
}

impl Circle {
    fn members(&self) -> RingMembers {
        let token = |(at, seat): (usize, &Option<Small>)| {
            let generation = Generation(seat.as_ref()?.number());
            let arcs = of_arcs(|arc| self.owners[arc] as usize == at);
            Some((id(at), RingMember { generation, arcs }))
        };
        let quorum = match &self.known {
            Some(known) => Quorum::Of((0..NODES.len()).filter(|at| known[*at]).map(id).collect()),
            None => Quorum::NotRequired,
        };
        RingMembers { entries: self.entries.iter().enumerate().filter_map(token).collect(), quorum }
    }
}

impl Told {
    fn of(&self, ring: &RingOwnership) -> Epoch {
        match *self {
            Self::Ours => ring.epoch(),
            Self::OurNameAt(number) => Epoch { number, ..ring.epoch() },
            Self::Other { number, name } => Epoch { number, name },
        }
    }
}

impl Small {
    fn number(self) -> u64 {
        1 + u64::from(self.0)
    }
}

impl Peer {
    fn id(self) -> NodeId {
        id(self as usize)
    }
}

impl Number {
    fn of(&self) -> u64 {
        match *self {
            Self::Low(number) => number.into(),
            Self::Any(number) => number,
        }
    }
}

impl Answer {
    fn of(&self) -> HandoffReply {
        match self {
            Self::Ready => HandoffReply::Ready,
            Self::Later => HandoffReply::Later,
            Self::Accepted => HandoffReply::Accepted,
            Self::Refused => HandoffReply::Refused,
        }
    }
}

fn id(at: usize) -> NodeId {
    NodeId::new(NODES[at]).expect("a valid id")
}

fn quarter(quarters: u8) -> Span {
    Span::from_nanos(LEASE.as_nanos() / 4 * u64::from(quarters))
}

/// Those of sixteen equal arcs that `is_in` names.
fn of_arcs(is_in: impl Fn(usize) -> bool) -> Ranges {
    let arc = |at: usize| {
        let first = (at as u64) << 60;
        Range { first, last: first | ((1 << 60) - 1) }
    };
    Ranges::of((0..16).filter(|at| is_in(*at)).map(arc))
}
