//! Handoff messages: arbitrary bytes, and arbitrary sequences of events at the ownership state
//! machine, with false messages from peers.
//!
//! `crates/ownership/tests/model.rs` checks that a key has one owner among correct nodes. Here all
//! peers are Byzantine. Invariants of this node:
//!
//! - no panic, and the epoch never decreases;
//! - it only owns ranges that were released to it, that it claimed, or that it released earlier;
//! - it only claims in an epoch in which every other member has released;
//! - under another admission it holds nothing of what it held before.

#![no_main]

use std::collections::BTreeSet;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use tidegate_cluster::mesh::wire::{Call, Handoff, HandoffStep};
use tidegate_fuzz::frames;
use tidegate_limiter::units::Span;
use tidegate_ownership::cluster_map::{MapMember, MapState, Voters};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ranges::{RANGES_MAX, Range, Ranges};
use tidegate_ownership::{
    ClusterMap, Epoch, HandoffReply, Identity, MemberId, Monotonic, QuorumRule, RingMembers,
    RingOwnership, TransferStep, Versions, VoteGrant,
};

/// This node is `b`, one in the middle.
const LOCAL: usize = 1;
const NODES: [&str; 4] = ["a", "b", "c", "d"];
const LEASE: Span = Span::from_millis(400);
/// The run of every process.
const START: u64 = 1;

fuzz_target!(|bytes: &[u8]| {
    if let Some(Call::Handoff(handoff)) = frames::call(bytes) {
        assert_normalized(&handoff);
    }
    let mut input = Unstructured::new(bytes);
    let mut node = Node::new();
    while let Ok(event) = Event::arbitrary(&mut input) {
        node.handle(event);
        if input.is_empty() {
            break;
        }
    }
});

/// Asserts that decoded ranges are sorted and not adjacent.
fn assert_normalized(handoff: &Handoff) {
    frames::assert_round_trip(handoff);
    let HandoffStep::Release { ranges, .. } = &handoff.step else { return };
    let all: Vec<Range> = ranges.iter().collect();
    assert!(all.len() <= RANGES_MAX);
    assert!(all.iter().all(|range| range.first <= range.last));
    for pair in all.windows(2) {
        let next = pair[0].last.checked_add(1).expect("not the last token");
        assert!(next < pair[1].first, "{pair:?}");
    }
    assert_eq!(Ranges::of(all), *ranges);
    assert!(ranges.without(ranges).is_empty());
    assert_eq!(ranges.with(ranges), *ranges);
    assert!(ranges.share_ppm() <= 1_000_000);
}

// === events ===

#[derive(Arbitrary, Debug)]
enum Event {
    TimePasses {
        quarters: u8,
    },
    MapChanged(Map),
    PongReceived {
        peer: Peer,
        quarters_ago: u8,
        report: ReportedEpoch,
        grant: Option<(Small, ReportedEpoch)>,
    },
    OfferReceived {
        peer: Peer,
        epoch: ReportedEpoch,
    },
    ReleaseReceived {
        peer: Peer,
        member: Small,
        epoch: ReportedEpoch,
        number: Number,
        arcs: u16,
    },
    NextStep {
        peer: Peer,
    },
    OfferReplied {
        peer: Peer,
        epoch: ReportedEpoch,
        reply: Reply,
    },
    Copied {
        peer: Peer,
        epoch: ReportedEpoch,
    },
    Flushed {
        peer: Peer,
        epoch: ReportedEpoch,
        is_done: bool,
    },
    ReleaseReplied {
        peer: Peer,
        number: Number,
        reply: Reply,
    },
}

/// A map, with a ring of sixteen arcs.
#[derive(Arbitrary, Debug)]
struct Map {
    epoch: ReportedEpoch,
    /// Admission of each member.
    members: [Option<Small>; NODES.len()],
    drains: [bool; NODES.len()],
    /// Owner of each arc.
    owners: [Peer; 16],
    voters: [bool; NODES.len()],
    /// The voters before, in a joint phase.
    replaced: [bool; NODES.len()],
}

/// An epoch in a message or a map, mostly close to that of this node.
#[derive(Arbitrary, Debug)]
enum ReportedEpoch {
    Current,
    Next,
    Other(u64),
}

/// One of two numbers, so that events often have the same.
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
enum Reply {
    Ready,
    Later,
    Accepted,
    Refused,
}

// === the node ===

struct Node {
    ring: RingOwnership,
    now: Monotonic,
    /// All ranges it has released.
    released: Ranges,
    /// The peers that released to it in the current epoch.
    releasers: BTreeSet<NodeId>,
}

impl Node {
    fn new() -> Self {
        let (released, releasers) = (Ranges::EMPTY, BTreeSet::new());
        Self {
            ring: RingOwnership::new(identity(LOCAL), START, LEASE, QuorumRule::Majority),
            now: Monotonic::START,
            released,
            releasers,
        }
    }

    fn handle(&mut self, event: Event) {
        let (before, epoch, admission) =
            (self.ring.held().clone(), self.ring.epoch(), self.ring.own_id());
        let may_gain = self.apply(event);
        let epoch_after = self.ring.epoch();
        assert!(epoch_after >= epoch, "{epoch:?} before {epoch_after:?}");
        if epoch_after != epoch {
            self.releasers.clear();
        }
        if self.ring.own_id() != admission {
            assert!(self.ring.held().is_empty() && self.ring.lease_until() == Monotonic::START);
            self.released = Ranges::EMPTY;
        }
        let gained = self.ring.held().without(&before);
        assert!(gained.without(&may_gain).is_empty(), "{gained:?} of {may_gain:?}");
        assert!(self.ring.decides().without(self.ring.held()).is_empty());
    }

    /// Applies an event. Returns the ranges that the node may own after it and did not own before.
    fn apply(&mut self, event: Event) -> Ranges {
        let (now, ring) = (self.now, &mut self.ring);
        match event {
            Event::TimePasses { quarters } => {
                self.now = now.plus(quarter(quarters));
                return self.tick();
            }
            Event::MapChanged(map) => ring.follow(map.members(ring)),
            Event::PongReceived { peer, quarters_ago, report, grant } => {
                let sent = now.minus(quarter(quarters_ago));
                let report = report.resolve(ring);
                let grant = grant.map(|(member, epoch)| {
                    let voters_since = epoch.resolve(ring);
                    VoteGrant { member: member.admission(LOCAL), voters_since }
                });
                ring.pong_received(&identity(peer as usize), sent, report, grant);
            }
            Event::OfferReceived { peer, epoch } => {
                ring.offer_received(&peer.id(), epoch.resolve(ring));
            }
            Event::ReleaseReceived { peer, member, epoch, number, arcs } => {
                let (member, peer) = (member.admission(peer as usize), peer.id());
                let ranges = of_arcs(|arc| arcs & 1 << arc != 0);
                let (epoch, number) = (epoch.resolve(ring), number.value());
                let reply = ring.release_received(&peer, member, epoch, number, &ranges);
                let again = ring.release_received(&peer, member, epoch, number, &ranges);
                assert_eq!(reply, again, "a duplicate release has the same reply");
                if reply == HandoffReply::Accepted {
                    self.releasers.insert(peer);
                    return ranges.shared_with(&ring.members().arcs(&id(LOCAL)));
                }
            }
            Event::NextStep { peer } => self.next_step(&peer.id()),
            Event::OfferReplied { peer, epoch, reply } => {
                ring.offer_replied(&peer.id(), epoch.resolve(ring), reply.value());
            }
            Event::Copied { peer, epoch } => ring.copied(&peer.id(), epoch.resolve(ring)),
            Event::Flushed { peer, epoch, is_done } => {
                ring.flushed(&peer.id(), epoch.resolve(ring), is_done);
            }
            Event::ReleaseReplied { peer, number, reply } => {
                ring.release_replied(&peer.id(), number.value(), reply.value());
                return self.released.clone();
            }
        }
        Ranges::EMPTY
    }

    /// Returns the ranges that a tick may return to the node or let it claim.
    fn tick(&mut self) -> Ranges {
        self.ring.tick(self.now);
        let others = self.ring.members().names().filter(|peer| **peer != id(LOCAL));
        let all_released = { others }.all(|peer| self.releasers.contains(peer));
        let has_lease = self.now < self.ring.lease_until();
        if all_released && has_lease && self.ring.is_agreed() {
            self.released.with(&self.ring.members().arcs(&id(LOCAL)))
        } else {
            self.released.clone()
        }
    }

    fn next_step(&mut self, peer: &NodeId) {
        let before = self.ring.held().clone();
        let step = self.ring.next_step(peer, self.now);
        if let Some(TransferStep::Release { ranges, .. }) = step {
            assert!(before.without(self.ring.held()).without(&ranges).is_empty());
            self.released = self.released.with(&ranges);
        }
    }
}

impl Map {
    fn members(&self, ring: &RingOwnership) -> RingMembers {
        let member = |(at, admission): (usize, &Option<Small>)| {
            Some(MapMember {
                id: admission.as_ref()?.admission(at),
                identity: identity(at),
                start: START,
                generation: Generation(1),
                addr: ([127, 0, 0, 1], 1).into(),
                zone: String::new(),
                versions: Versions::default(),
                state: if self.drains[at] { MapState::Draining } else { MapState::Up },
            })
        };
        let of = |voters: &[bool; NODES.len()]| {
            (0..NODES.len()).filter(|at| voters[*at]).map(identity).collect()
        };
        let epoch = self.epoch.resolve(ring);
        let (current, replaced) = (of(&self.voters), of(&self.replaced));
        let map = ClusterMap {
            epoch,
            voters: Voters { current, replaced, changed_at: epoch },
            members: self.members.iter().enumerate().filter_map(member).collect(),
            ..ClusterMap::default()
        };
        RingMembers::new(Arc::new(map), |node| of_arcs(|arc| self.owners[arc].id() == *node))
    }
}

impl ReportedEpoch {
    fn resolve(&self, ring: &RingOwnership) -> Epoch {
        match *self {
            Self::Current => ring.epoch(),
            Self::Next => ring.epoch().next(),
            Self::Other(epoch) => Epoch(epoch),
        }
    }
}

impl Small {
    /// One of two admissions of a node.
    fn admission(self, node: usize) -> MemberId {
        MemberId(1 + 2 * node as u64 + u64::from(self.0))
    }
}

impl Peer {
    fn id(self) -> NodeId {
        id(self as usize)
    }
}

impl Number {
    fn value(&self) -> u64 {
        match *self {
            Self::Low(number) => number.into(),
            Self::Any(number) => number,
        }
    }
}

impl Reply {
    fn value(&self) -> HandoffReply {
        match self {
            Self::Ready => HandoffReply::Ready,
            Self::Later => HandoffReply::Later,
            Self::Accepted => HandoffReply::Accepted,
            Self::Refused => HandoffReply::Refused,
        }
    }
}

fn identity(at: usize) -> Identity {
    Identity { node: id(at), birth: 1 }
}

fn id(at: usize) -> NodeId {
    NodeId::new(NODES[at]).expect("a valid id")
}

fn quarter(quarters: u8) -> Span {
    Span::from_nanos(LEASE.as_nanos() / 4 * u64::from(quarters))
}

/// The ranges of those of sixteen equal arcs for which `is_in` is true.
fn of_arcs(is_in: impl Fn(usize) -> bool) -> Ranges {
    let arc = |at: usize| {
        let first = (at as u64) << 60;
        Range { first, last: first | ((1 << 60) - 1) }
    };
    Ranges::of((0..16).filter(|at| is_in(*at)).map(arc))
}
