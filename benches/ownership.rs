//! The time of the state machines of membership, by the number of members:
//! `cargo bench --bench ownership`.
//!
//! It prints and asserts nothing: the numbers depend on the machine. The minimum of some rounds is
//! printed, in nanoseconds.
//!
//! | row | what is done | how often a node does it |
//! |---|---|---|
//! | renewal | a pong with a grant, and a tick | ten times a second per voter; ticks 50 times |
//! | no change | `Autopilot::next`, with a ping of every member since the last | the leader |
//! | following a map | the ring of the new map, and the ranges that it means | once per change |

#![allow(clippy::disallowed_methods, reason = "a benchmark has to read a clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]

use std::collections::BTreeSet;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::autopilot::{Autopilot, Complaints, Settings};
use tidegate_ownership::cluster_map::{Collection, MapMember, MapState, Voters};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::lease::VoteGrant;
use tidegate_ownership::membership::{Member, MemberState};
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::ring::Ring;
use tidegate_ownership::{
    ClusterMap, Epoch, Identity, MemberId, QuorumRule, RingMembers, RingOwnership, Versions,
};

/// The second is more than a region has: it shows how the time grows.
const SIZES: [usize; 2] = [100, 1_000];
const VOTERS: usize = 5;
const VNODES: u32 = 128;
const LEASE: Span = Span::from_millis(600);
const ROUNDS: usize = 5;

fn main() {
    println!("tidegate ownership: {VOTERS} voters, {VNODES} virtual nodes per member");
    for size in SIZES {
        let map = Arc::new(map(size, Epoch(1)));
        println!("{size:>5} members, renewal           {:>12.0} ns", renewal(&map));
        println!("{size:>5} members, no change         {:>12.0} ns", no_change(&map));
        println!("{size:>5} members, following a map   {:>12.0} ns", follow(&map));
    }
}

/// A pong of each voter in turn, and the tick after it.
fn renewal(map: &Arc<ClusterMap>) -> f64 {
    const PONGS: u64 = 10_000;
    let me = &map.members[VOTERS];
    let mut ring = RingOwnership::new(me.identity.clone(), me.start, LEASE, QuorumRule::Majority);
    ring.follow(ring_members(map));
    // Settled, as it nearly always is: all others have released what they held.
    for other in map.members.iter().filter(|other| other.id != me.id) {
        let (node, epoch) = (&other.identity.node, map.epoch);
        ring.release_received(node, other.id, epoch, 1, &Ranges::EMPTY);
    }
    let voters = &map.voters.current;
    let mut now = Monotonic::START.plus(Span::from_secs(60));
    time(PONGS, || {
        for pong in 0..PONGS {
            let voter = &voters[usize::try_from(pong).unwrap_or_default() % VOTERS];
            now = now.plus(Span::from_millis(1));
            let grant = VoteGrant { member: me.id, voters_since: map.epoch };
            black_box(ring.pong_received(voter, now, map.epoch, Some(grant)));
            ring.tick(now);
        }
        assert!(!ring.held().is_empty(), "it holds its ranges");
    })
}

fn no_change(map: &Arc<ClusterMap>) -> f64 {
    const CALLS: u64 = 20;
    let mut autopilot = Autopilot::new(Settings {
        voters: VOTERS,
        pinned_voters: BTreeSet::new(),
        lease: LEASE,
        settle_after: Span::from_secs(30),
        replace_after: Span::from_secs(10),
        forget_after: Span::from_secs(3_600),
        complaint_age: Span::from_millis(350),
        homes: None,
    });
    let mut now = Monotonic::START.plus(Span::from_secs(60));
    time(CALLS, || {
        for _ in 0..CALLS {
            now = now.plus(Span::from_millis(100));
            for member in &map.members {
                autopilot.complained(now, member.id, Complaints::default());
            }
            assert!(black_box(autopilot.next(now, map, |_| map.epoch)).is_none(), "a change");
        }
    })
}

/// A member leaves and comes back.
fn follow(map: &Arc<ClusterMap>) -> f64 {
    const CHANGES: u64 = 4;
    let me = &map.members[VOTERS];
    let mut ring = RingOwnership::new(me.identity.clone(), me.start, LEASE, QuorumRule::Majority);
    let mut epoch = Epoch(1);
    ring.follow(ring_members(map));
    time(CHANGES, || {
        for change in 0..CHANGES {
            epoch = epoch.next();
            let mut next = ClusterMap::clone(map);
            next.epoch = epoch;
            if change % 2 == 0 {
                next.members.pop();
            }
            ring.follow(ring_members(&Arc::new(next)));
        }
    })
}

/// Nanoseconds for one of `count`.
fn time(count: u64, mut run: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos() as f64 / count as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

/// What a node derives from a map: the ring, and the ranges of all members.
fn ring_members(map: &Arc<ClusterMap>) -> RingMembers {
    let addr = SocketAddr::from(([127, 0, 0, 1], 7600));
    let members: Vec<Member> = map
        .present()
        .map(|member| Member {
            id: member.identity.node.clone(),
            generation: member.generation,
            addr,
            region: "local".to_owned(),
            zone: member.zone.clone(),
            state: MemberState::Up,
            rule_book: 0,
            http: None,
            has_lease: true,
        })
        .collect();
    let ring = Ring::new(&members, VNODES);
    let arcs = ring.all_arcs();
    RingMembers::new(map.clone(), |node| arcs.get(node).cloned().unwrap_or_default())
}

fn map(size: usize, epoch: Epoch) -> ClusterMap {
    let member = |number: usize| MapMember {
        id: MemberId(number as u64 + 1),
        identity: Identity {
            node: NodeId::new(&format!("n{number:04}")).expect("a valid name"),
            birth: 1,
        },
        start: 1,
        generation: Generation(1),
        addr: SocketAddr::from(([127, 0, 0, 1], 7600)),
        zone: "local".to_owned(),
        versions: Versions::default(),
        state: MapState::Up,
    };
    let members: Vec<MapMember> = (0..size).map(member).collect();
    let voters = Voters::of(members[..VOTERS].iter().map(|member| member.identity.clone()));
    let last_member = MemberId(size as u64);
    let collection = Collection { members_at: epoch, is_complete: true };
    ClusterMap { epoch, voters, members, last_member, collection, ..ClusterMap::default() }
}
