//! The wire as it was released: one frame of every message, kept as hexadecimal digits.
//!
//! A frame that no longer decodes, or encodes to other bytes, means that old and new nodes cannot
//! stand in one cluster: then the frame version has to grow. A message that is new gets a file of
//! its own: the failure prints what to write into it.

use std::fs;
use std::path::PathBuf;

use bytes::BytesMut;
use crdts::VClock;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::{SmallVec, smallvec};
use tidegate_cluster::consensus::engine::Engine;
use tidegate_cluster::mesh::codec::{
    self, COMBINED_CHECKS, FRAME_BYTES_MAX, RESERVATIONS, VERSION,
};
use tidegate_cluster::mesh::wire::{
    Call, CarriedCall, Check, ClusterView, CombinedCheck, CombinedVerdicts, CommitCall, Digest,
    EdgeCall, End, GiveBack, GlobalPing, GlobalPong, Grant, GrantAsk, Group, Handoff, HandoffStep,
    Hello, HelloReply, InterventionCall, MapCall, Numbered, PingStatus, PongStatus, Refusal, Reply,
    ReserveCall, RevocationCall, SharedSettings, StateEntry, Sync, SyncEntry, SyncRole,
    TraceContext, TracedCheck,
};
use tidegate_cluster::pki::Revocation;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::delta::DeltaSlice;
use tidegate_limiter::engine::{
    ActorId, Behavior, Delta, Retry, State, Verdict, decide, decide_eventual,
};
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::interventions::Block;
use tidegate_limiter::store::{Carried, Counter, Intervention, KeyHash, KeyHasher, Made, Settled};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::autopilot::{Complaints, JoinRequest};
use tidegate_ownership::cluster_map::{
    ClusterId, Collection, HomeRegions, MapMember, MapState, Voters,
};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{Member, MemberState};
use tidegate_ownership::ranges::{Range, Ranges};
use tidegate_ownership::{
    ClusterMap, Epoch, HandoffReply, Identity, MemberId, Versions, VoteGrant,
};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
const KEY: KeyHash = KeyHash { token: 0x0123_4567_89ab_cdef, tag: 0xfedc_ba98_7654_3210 };

#[test]
fn every_message_is_written_and_read_as_it_was_released() {
    let mut golden = Golden::default();
    for (name, hello) in hellos() {
        golden.holds(&format!("hello_{name}"), &hello);
    }
    for (name, reply) in hello_replies() {
        golden.holds(&format!("hello_reply_{name}"), &reply);
    }
    for (name, body) in calls() {
        golden.holds(&format!("call_{name}"), &Numbered { id: 300, body });
    }
    for (name, body) in replies() {
        golden.holds(&format!("reply_{name}"), &Numbered { id: u64::MAX, body });
    }
    golden.end();
}

/// Each list of each message may claim any length; none is believed before its bytes are there.
#[test]
fn a_claimed_length_reserves_no_memory() {
    // What follows the last byte of these is a length.
    let heads: [&[u8]; 27] = [
        &[0, 1, 7, 0],                               // Check, Region: counters
        &[0, 2, 0, 0],                               // Sync, Node, calm: entries
        &[0, 2, 0, 0, 1, 1, 1, 1, 2],                // … one entry: buckets
        &[0, 2, 0, 0, 1, 1, 1, 1, 2, 1, 5],          // … one bucket: per-actor hits
        &[0, 2, 0, 0, 1, 1, 1, 1, 2, 1, 5, 0],       // … per-actor refunds
        &[0, 3],                                     // States
        &[0, 3, 1, 1, 1, 4, 1, 1],                   // … a state of slices: counts
        &[0, 3, 1, 1, 1, 5],                         // … a log: entries
        &[0, 3, 1, 1, 1, 6, 1, 2],                   // … per-actor counters: buckets
        &[0, 18],                                    // reply: Revocations
        &[0, 19],                                    // Certificate, and its reply
        &[0, 4],                                     // Gossip; reply: Columns … Malformed
        &[0, 5, 1, 1, 1, 1],                         // Handoff, Release: ranges
        &[0, 9, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1], // Consensus: context
        &[0, 10, 1, 1],                              // Map: voters
        &[0, 6],                                     // Digests
        &[0, 8],                                     // Reply: Differing
        &[0, 1, 1],                                  // Reply: Verdicts
        &[0, 10, 7, 0, 0, 2, 0, 0],                  // CombinedCheck: further
        &[0, 13],                                    // Reply: CombinedVerdicts
        &[0, 14],                                    // Reply: Reserved
        &[0, 15, 0],                                 // Reply: Committed
        &[0, 16],                                    // Reply: Snapshot
        &[0, 20, 7, 0, 0, 2, 0, 0, 0, 0],            // TracedCheck: traces
        &[0, 21, 7, 0],                              // Carried: checks
        &[0, 20],                                    // Reply: Carried
        &[],                                         // Hello: cluster
    ];
    let before = peak_virtual_kib();
    for head in heads {
        for claim in [1_u64 << 20, 1 << 26, 1 << 32, 1 << 60, u64::MAX] {
            let mut frame = vec![VERSION];
            frame.extend_from_slice(head);
            frame.push(253);
            frame.extend_from_slice(&claim.to_le_bytes());
            read_as_anything(&frame);
            // And with something behind it to begin with.
            frame.extend_from_slice(&[1; 64]);
            read_as_anything(&frame);
        }
    }
    let grown = peak_virtual_kib() - before;
    // The allocator sets 64 MiB of addresses aside for each new thread of the other tests.
    assert!(grown < 256 * 1024, "claims reserved {grown} KiB");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..Default::default() })]

    #[test]
    fn random_frames_are_errors_or_messages(bytes: Vec<u8>) {
        let mut frame = vec![VERSION];
        frame.extend_from_slice(&bytes);
        read_as_anything(&frame);
    }

    /// What is read of a mutated frame can be written again: nothing out of bounds got in.
    #[test]
    fn mutated_frames_are_errors_or_messages(
        which: prop::sample::Index,
        at: prop::sample::Index,
        change in 0_u8..4,
        byte: u8,
    ) {
        let all: Vec<Vec<u8>> = calls().into_iter().map(|(_, body)| body_of(&Numbered { id: 1, body }))
            .chain(replies().into_iter().map(|(_, body)| body_of(&Numbered { id: 1, body })))
            .chain(hellos().into_iter().map(|(_, hello)| body_of(&hello)))
            .collect();
        let mut frame = which.get(&all).clone();
        let at = at.index(frame.len());
        match change {
            0 => frame[at] = byte,
            1 => frame.truncate(at),
            2 => frame.insert(at, byte),
            _ => drop(frame.remove(at)),
        }
        read_as_anything(&frame);
    }
}

fn read_as_anything(frame: &[u8]) {
    if let Ok(message) = codec::decode::<Numbered<Call>>(frame, VERSION) {
        body_of(&message);
    }
    if let Ok(message) = codec::decode::<Numbered<Reply>>(frame, VERSION) {
        body_of(&message);
    }
    let _ = codec::decode::<Hello>(frame, VERSION);
    let _ = codec::decode::<HelloReply>(frame, VERSION);
}

/// The most memory that this process ever had mapped. A reservation that is not written to counts.
fn peak_virtual_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

// === one of each ===

fn node(id: &str) -> NodeId {
    NodeId::new(id).expect("a valid id")
}

const SHARED: SharedSettings =
    SharedSettings { vnodes: 128, lease: Span::from_millis(600), global_lease: Span::from_secs(5) };
const EPOCH: Epoch = Epoch(70_000);
const CLUSTER: ClusterId = ClusterId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

fn cluster_view() -> ClusterView {
    let member = Member {
        id: node("n1"),
        generation: Generation(7),
        addr: ([127, 0, 0, 1], 7600).into(),
        region: "eu".into(),
        zone: "z1".into(),
        state: MemberState::Draining,
        rule_book: 9,
        http: Some(([127, 0, 0, 1], 8080).into()),
        has_lease: true,
    };
    ClusterView {
        revision: 7,
        region: map(),
        global: Some(map()),
        members: vec![member],
        edges: 64,
        has_lease: true,
    }
}

fn identity(id: &str) -> Identity {
    Identity { node: node(id), birth: 0xfeed_f00d_dead_beef }
}

fn map() -> ClusterMap {
    let member = |id: &str, number, state| MapMember {
        id: MemberId(number),
        identity: identity(id),
        start: 70_001,
        generation: Generation(1_767_225_600_123),
        addr: ([10, 0, 0, 7], 7600).into(),
        zone: "a".into(),
        versions: Versions { lowest: 4, highest: 5 },
        state,
    };
    ClusterMap {
        cluster: CLUSTER,
        epoch: EPOCH,
        voters: Voters {
            current: vec![identity("a")],
            replaced: vec![identity("b")],
            changed_at: Epoch(69_999),
        },
        members: vec![
            member("a", 1, MapState::Up),
            member("b", 300, MapState::Draining),
            member("c", 7, MapState::Down),
        ],
        last_member: MemberId(300),
        homes: HomeRegions {
            names: vec!["eu".into(), "us".into()],
            changed_at: Epoch(69_000),
            replaced_at: Epoch(1),
        },
        version: 4,
        collection: Collection { members_at: Epoch(69_998), is_complete: true },
    }
}

/// A message of the consensus engine of a founder: it asks for votes.
fn consensus_message() -> tidegate_cluster::consensus::Message {
    let mut map = map();
    map.voters = Voters::of([identity("a"), identity("b"), identity("c")]);
    let mut engine = Engine::found(&identity("a"), &map, 1);
    for _ in 0..100 {
        engine.tick();
        let mut output = engine.take_output();
        if let Some((_, message)) = output.messages.pop() {
            return message;
        }
    }
    panic!("the engine asks for no votes");
}

fn ranges() -> Ranges {
    Ranges::of([Range { first: 5, last: 70_000 }, Range { first: 1 << 40, last: u64::MAX }])
}

fn of_map(call: MapCall) -> Call {
    Call::Map(Group::Region, call)
}

fn handoff(step: HandoffStep) -> Call {
    Call::Handoff(Handoff { member: MemberId(3), epoch: EPOCH, step })
}

fn hellos() -> Vec<(&'static str, Hello)> {
    let first = Hello {
        cluster: "prod".into(),
        node: node("edge-7"),
        birth: 0xfeed_f00d_dead_beef,
        generation: Generation(1_767_225_600_123),
        region: "eu".into(),
        versions: Versions { lowest: 4, highest: 5 },
        shared: SHARED,
        advertise: ([10, 0, 0, 7], 7600).into(),
        secret: 0x0123_4567_89ab_cdef,
        clock: NOW,
        highest_seen: None,
    };
    let again = Hello {
        advertise: "[2001:db8::7]:7600".parse().expect("an address"),
        highest_seen: Some(Generation(7)),
        ..first.clone()
    };
    vec![("first", first), ("again", again)]
}

fn hello_replies() -> Vec<(&'static str, HelloReply)> {
    let mut replies: Vec<_> = hellos()
        .into_iter()
        .take(1)
        .map(|(_, hello)| ("welcome", HelloReply::Welcome(hello)))
        .collect();
    let refusals = [
        ("cluster", Refusal::Cluster("staging".into())),
        ("name", Refusal::Name(node("n1"))),
        ("secret", Refusal::Secret),
        ("generation", Refusal::Generation(Generation(9))),
        ("version", Refusal::Version(Versions { lowest: 4, highest: 5 })),
        ("settings", Refusal::Settings(SHARED)),
        ("own", Refusal::Own),
        ("malformed", Refusal::Malformed),
        ("full", Refusal::Full),
        ("full_of_edges", Refusal::FullOfEdges),
        ("name_of_core", Refusal::NameOfCore),
        ("region", Refusal::Region { node: node("n1"), region: "eu".into() }),
        ("role", Refusal::Role),
        ("revoked", Refusal::Revoked(node("n1"))),
    ];
    replies.extend(refusals.map(|(name, refusal)| (name, HelloReply::Refused(refusal))));
    replies
}

fn quota(algorithm: Algorithm, sub_windows: u8) -> Quota {
    let queue = (algorithm == Algorithm::LeakyBucket).then_some(5);
    let parts = QuotaParts {
        algorithm,
        limit: 100,
        window: Span::from_secs(60),
        burst: 100,
        sub_windows,
        queue,
    };
    Quota::new(parts).expect("a valid quota")
}

fn delta() -> Delta {
    let clock = |actor_counters: &[(ActorId, u64)]| VClock {
        dots: actor_counters.iter().copied().collect(),
    };
    let node = ActorId::of_start(1, 1_767_225_600_123);
    let buckets = vec![
        DeltaSlice {
            index: 29_453_760,
            used: clock(&[(node, 5), (ActorId::new(1 << 63), 70_000)]),
            refunded: clock(&[(node, 2)]),
        },
        DeltaSlice { index: 29_453_759, used: clock(&[(node.total(), 1)]), refunded: clock(&[]) },
    ];
    Delta { slice_ns: 60_000_000_000, slices_kept: 2, slices: buckets }
}

fn states() -> Vec<State> {
    let strict = [
        (Algorithm::FixedWindow, 1),
        (Algorithm::SlidingWindowCounter, 1),
        (Algorithm::Gcra, 1),
        (Algorithm::SlidingWindowCounter, 3),
        (Algorithm::SlidingWindowLog, 1),
    ];
    let mut states: Vec<State> = strict
        .map(|(algorithm, sub_windows)| {
            let mut state = State::Absent;
            decide(&mut state, &quota(algorithm, sub_windows), Hits::new(3), NOW);
            state
        })
        .into();
    let mut actor_counters = State::Absent;
    let shape = quota(Algorithm::SlidingWindowCounter, 1);
    decide_eventual(&mut actor_counters, ActorId::new(7), &shape, Hits::new(3), NOW);
    states.extend([State::Absent, actor_counters]);
    states
}

/// A plain check, and one with everything that a request may ask for.
fn carried() -> CarriedCall {
    let plain = Carried {
        counter: Counter { key: KEY, quota: quota(Algorithm::FirstHitWindow, 1) },
        hits: Hits::ONE,
        behavior: Behavior::default(),
        at: None,
        resets: false,
    };
    let full = Carried {
        counter: Counter { key: KEY, quota: quota(Algorithm::TokenBucket, 1) },
        hits: Hits::new(-2),
        behavior: Behavior { drains: true, credits: true },
        at: Some(NOW),
        resets: true,
    };
    CarriedCall {
        id: 70_001,
        scope: Scope::Region,
        checks: smallvec![plain, full],
        durability: Durability::Replicated,
        is_leased: true,
        deadline: Span::from_millis(61_020),
    }
}

fn calls() -> Vec<(&'static str, Call)> {
    let algorithms = [
        (Algorithm::FixedWindow, 1),
        (Algorithm::SlidingWindowLog, 1),
        (Algorithm::SlidingWindowCounter, 6),
        (Algorithm::TokenBucket, 1),
        (Algorithm::LeakyBucket, 1),
        (Algorithm::Gcra, 1),
    ];
    let counters = algorithms.iter().map(|&(algorithm, sub_windows)| Counter {
        key: KEY,
        quota: quota(algorithm, sub_windows),
    });
    let sync = |role, urgent| {
        Call::Sync(Sync {
            role,
            urgent,
            entries: vec![SyncEntry { key: KEY, actor_counters: delta() }],
        })
    };
    let entry = |state| StateEntry { key: KEY, state, expires: NOW };
    let one = smallvec![Counter { key: KEY, quota: quota(Algorithm::Gcra, 1) }];
    let first = Check {
        id: 70_001,
        scope: Scope::Region,
        counters: smallvec![Counter { key: KEY, quota: quota(Algorithm::FixedWindow, 1) }],
        hits: Hits::ONE,
        durability: Durability::Async,
        deadline: Span::from_millis(61_020),
    };
    let further = smallvec![Hits::new(3), Hits::PEEK, Hits::new(-2)];
    vec![
        (
            "combined_check",
            Call::CombinedCheck(CombinedCheck { first: first.clone(), further, ask: None }),
        ),
        (
            "combined_check_that_asks",
            Call::CombinedCheck(CombinedCheck {
                first: first.clone(),
                further: smallvec![],
                ask: Some(GrantAsk { wanted: 300, held: 7, shortest: Span::from_millis(4) }),
            }),
        ),
        (
            "traced_check",
            Call::TracedCheck(Box::new(TracedCheck {
                check: CombinedCheck { first: first.clone(), further: smallvec![], ask: None },
                traces: smallvec![TraceContext {
                    trace: [0xab; 16],
                    span: [0xcd; 8],
                    state: "vendor=1".to_owned(),
                }],
            })),
        ),
        (
            "combined_give_back",
            Call::GiveBack(GiveBack {
                scope: Scope::Region,
                counters: first.counters,
                grant: 70_001,
                unspent: 12,
            }),
        ),
        ("combined_recall", Call::Recall(KEY)),
        ("edge_follow", Call::Edge(EdgeCall::Follow { revision: 7 })),
        ("edge_cluster", Call::Edge(EdgeCall::Cluster(Box::new(cluster_view())))),
        ("intervention_tell", Call::Interventions(InterventionCall::Announce(intervention()))),
        ("intervention_compare", Call::Interventions(InterventionCall::Compare { digest: 70_000 })),
        ("snapshot", Call::Snapshot),
        ("revocation_announce", Call::Revocations(RevocationCall::Announce(revocation()))),
        ("revocation_compare", Call::Revocations(RevocationCall::Compare { digest: 70_000 })),
        ("certificate", Call::Certificate(vec![0x30, 0x00])),
        ("carried", Call::Carried(Box::new(carried()))),
        (
            "reserve",
            Call::Reserve(ReserveCall {
                scope: Scope::Region,
                counters: one.clone(),
                reservation: KeyHash { token: KEY.token, tag: 70_000 },
                amount: 4_000,
                ttl: Span::from_secs(61),
                durability: Durability::Replicated,
                deadline: Span::from_millis(61_020),
            }),
        ),
        (
            "commit",
            Call::Commit(CommitCall {
                scope: Scope::Global,
                counters: one.clone(),
                reservation: KeyHash { token: KEY.token, tag: 70_000 },
                end: End::Settled { cost: Hits::new(350), remembered: Span::from_secs(60) },
                durability: Durability::Async,
            }),
        ),
        (
            "commit_undone",
            Call::Commit(CommitCall {
                scope: Scope::Global,
                counters: one.clone(),
                reservation: KeyHash { token: KEY.token, tag: 70_000 },
                end: End::Undone(MADE),
                durability: Durability::Async,
            }),
        ),
        (
            "ping",
            Call::Ping {
                clock: NOW,
                status: PingStatus {
                    cluster: CLUSTER,
                    epoch: EPOCH,
                    member: Some(MemberId(3)),
                    has_lease: true,
                    unanswered: 3,
                    complaints: Complaints {
                        silent: vec![MemberId(1), MemberId(300)],
                        waits_for: vec![MemberId(7)],
                        is_copying: true,
                        pushed: Epoch(69_998),
                    },
                },
            },
        ),
        (
            "check_region",
            Call::Check(Check {
                id: 70_000,
                scope: Scope::Region,
                counters: counters.collect(),
                hits: Hits::new(-3),
                durability: Durability::Async,
                deadline: Span::from_secs(61),
            }),
        ),
        (
            "check_global",
            Call::Check(Check {
                id: 8,
                scope: Scope::Global,
                counters: one,
                hits: Hits::ONE,
                durability: Durability::Replicated,
                deadline: Span::from_millis(61_020),
            }),
        ),
        ("sync_node", sync(SyncRole::Node, false)),
        ("sync_owner", sync(SyncRole::Owner, true)),
        ("sync_region", sync(SyncRole::Region, false)),
        ("states", Call::States(states().into_iter().map(entry).collect())),
        (
            "states_of_reservations",
            Call::States([false, true].map(reservation).map(entry).to_vec()),
        ),
        (
            "states_of_first_hit_windows",
            Call::States([0, 70_000].map(first_hit_window).map(entry).to_vec()),
        ),
        (
            "check_first_hit_window",
            Call::Check(Check {
                id: 9,
                scope: Scope::Region,
                counters: smallvec![Counter {
                    key: KEY,
                    quota: quota(Algorithm::FirstHitWindow, 1)
                }],
                hits: Hits::ONE,
                durability: Durability::Async,
                deadline: Span::from_secs(61),
            }),
        ),
        ("gossip", Call::Gossip(vec![0, 1, 2, 255])),
        ("handoff_offer", handoff(HandoffStep::Offer)),
        ("handoff_release", handoff(HandoffStep::Release { number: 300, ranges: ranges() })),
        ("digests", Call::Digests(vec![Digest { segment: 4_095, sum: 0x0123_4567_89ab_cdef }])),
        ("refunded", Call::Refunded { token: KEY.token }),
        ("consensus", of_map(MapCall::Consensus(Box::new(consensus_message())))),
        ("map", of_map(MapCall::Newer(Box::new(map())))),
        ("fetch_map", of_map(MapCall::Fetch { cluster: CLUSTER, epoch: EPOCH })),
        (
            "join",
            of_map(MapCall::Join(JoinRequest {
                identity: identity("a"),
                start: 70_001,
                generation: Generation(1_767_225_600_123),
                addr: ([10, 0, 0, 7], 7600).into(),
                zone: "a".into(),
                versions: Versions { lowest: 4, highest: 5 },
            })),
        ),
        ("leave", of_map(MapCall::Leave { member: MemberId(3), is_empty: true })),
        ("found", of_map(MapCall::Found(Box::new(map())))),
        ("global_map", Call::Map(Group::Global, MapCall::Newer(Box::new(map())))),
        (
            "global_ping",
            Call::GlobalPing(GlobalPing {
                cluster: CLUSTER,
                epoch: EPOCH,
                member: Some(MemberId(3)),
                complaints: Complaints { silent: vec![MemberId(1)], ..Complaints::default() },
                copied: vec!["eu".into()],
                homes_changed_at: EPOCH,
            }),
        ),
    ]
}

fn replies() -> Vec<(&'static str, Reply)> {
    let verdict = |allowed, retry| Verdict {
        allowed,
        limit: 100,
        remaining: 7,
        reset: Span::from_secs(60),
        retry,
        delay: Span::from_millis(250),
        excess: if allowed { 0 } else { 300 },
    };
    let two: SmallVec<[Verdict; 1]> =
        smallvec![verdict(true, Retry::Now), verdict(false, Retry::Never)];
    vec![
        (
            "combined_verdicts",
            Reply::CombinedVerdicts(CombinedVerdicts {
                verdicts: two.clone(),
                is_confirmed: true,
                grant: None,
                may_end_early: true,
            }),
        ),
        (
            "combined_verdicts_with_grant",
            Reply::CombinedVerdicts(CombinedVerdicts {
                verdicts: two.clone(),
                is_confirmed: true,
                grant: Some(Grant { hits: 16, term: Span::from_secs(1) }),
                may_end_early: false,
            }),
        ),
        ("interventions", Reply::Interventions(vec![intervention()])),
        (
            "reserved",
            Reply::Reserved { verdicts: two.clone(), ttl: Span::from_secs(60), made: Some(MADE) },
        ),
        ("committed", Reply::Committed { settled: Settled::Committed, verdicts: two.clone() }),
        ("committed_again", Reply::Committed { settled: Settled::Again, verdicts: two.clone() }),
        ("snapshot", Reply::Snapshot(b"{}".to_vec())),
        ("revocations", Reply::Revocations(vec![revocation()])),
        ("certificate", Reply::Certificate(b"-----BEGIN".to_vec())),
        (
            "carried",
            Reply::Carried { verdicts: smallvec![two.first().copied(), None], is_confirmed: false },
        ),
        ("committed_report", Reply::Committed { settled: Settled::Reported, verdicts: two }),
        (
            "pong",
            Reply::Pong {
                clock: NOW,
                decision_clock: Some(NOW.minus(Span::from_secs(7))),
                status: PongStatus {
                    cluster: CLUSTER,
                    epoch: EPOCH,
                    report: Epoch(69_999),
                    grant: Some(VoteGrant { member: MemberId(3), voters_since: EPOCH }),
                    running: Span::from_secs(60),
                },
            },
        ),
        (
            "verdicts",
            Reply::Verdicts(smallvec![
                verdict(true, Retry::Now),
                verdict(false, Retry::After(Span::from_millis(1_500))),
                verdict(false, Retry::Never),
            ]),
        ),
        ("not_owner", Reply::NotOwner { epoch: EPOCH, holder: None }),
        ("not_owner_any_more", Reply::NotOwner { epoch: EPOCH, holder: Some(node("b")) }),
        ("unconfirmed", Reply::Unconfirmed),
        ("handoff_ready", Reply::Handoff(HandoffReply::Ready)),
        ("handoff_later", Reply::Handoff(HandoffReply::Later)),
        ("handoff_taken", Reply::Handoff(HandoffReply::Accepted)),
        ("handoff_refused", Reply::Handoff(HandoffReply::Refused)),
        ("differing", Reply::Differing(vec![0, 4_095])),
        (
            "columns",
            Reply::ActorCounters {
                members: Epoch(69_998),
                entries: vec![SyncEntry { key: KEY, actor_counters: delta() }],
            },
        ),
        ("map", Reply::Map(Some(Box::new(map())))),
        ("not_leader", Reply::NotLeader(Some(node("b")))),
        ("expired", Reply::Expired),
        (
            "global_pong",
            Reply::GlobalPong(GlobalPong {
                cluster: CLUSTER,
                epoch: EPOCH,
                report: Epoch(69_999),
                granted: Some(EPOCH),
            }),
        ),
        ("done", Reply::Done),
        ("malformed", Reply::Malformed),
    ]
}

fn intervention() -> Intervention {
    let entry = Entry { key: "user", value: "ann" };
    let block = Block { set_at: NOW, until: NOW.plus(Span::from_secs(600)) };
    let descriptor = KeyHasher::new([7; 16]).descriptor("shop", &[entry]);
    Intervention { descriptor, begun_anew: NOW.minus(Span::from_secs(7)), block }
}

fn revocation() -> Revocation {
    Revocation { node: node("n1"), at: NOW }
}

fn first_hit_window(used: u32) -> State {
    State::FirstHitWindow { opened: NOW, used, credit: 300 }
}

const MADE: Made = Made { amount: 70_000, until: NOW.plus(Span::from_secs(60)), before: 400 };

fn reservation(is_settled: bool) -> State {
    State::Reservation { until: NOW.plus(Span::from_secs(60)), amount: 70_000, is_settled }
}

// === frames as files ===

#[derive(Default)]
struct Golden {
    names: Vec<String>,
    wrong: Vec<String>,
}

impl Golden {
    fn holds<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
        &mut self,
        name: &str,
        message: &T,
    ) {
        let version = released_with(name);
        let mut bytes = BytesMut::new();
        codec::encode(message, version, &mut bytes).expect("fits a frame");
        let file = format!("{name}.hex");
        let released = fs::read_to_string(folder().join(&file)).unwrap_or_default();
        self.names.push(file.clone());
        let written = hex(&bytes);
        if released.trim() != written {
            self.wrong.push(format!("{file}: is {:?}, encodes as {written}", released.trim()));
            return;
        }
        let mut buffer = BytesMut::from(&unhex(released.trim())[..]);
        let frame = codec::split(&mut buffer).expect("valid").expect("whole");
        assert!(buffer.is_empty() && frame.len() < FRAME_BYTES_MAX, "{file}");
        assert_eq!(codec::decode::<T>(&frame, version).expect("decodes"), *message, "{file}");
    }

    /// No file is left without its message.
    fn end(mut self) {
        for entry in fs::read_dir(folder()).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if !self.names.contains(&name) {
                self.wrong.push(format!("{name}: no message has this name any more"));
            }
        }
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

/// The version of the protocol in which edges came.
const EDGES: u8 = 5;

/// The version of the protocol in which a message came. Later ones write it in the same way.
fn released_with(name: &str) -> u8 {
    match name {
        _ if name.contains("combined") => COMBINED_CHECKS,
        _ if name.contains("call_edge") => EDGES,
        _ if [
            "reserve",
            "commit",
            "reservation",
            "intervention",
            "snapshot",
            "revocation",
            "certificate",
            "traced",
            "carried",
            "first_hit_window",
        ]
        .iter()
        .any(|it| name.contains(it)) =>
        {
            RESERVATIONS
        }
        _ => 4,
    }
}

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden_frames"].iter().collect()
}

fn body_of<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    codec::encode(message, VERSION, &mut bytes).expect("what was read can be written");
    bytes[4..].to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
}

fn unhex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}
