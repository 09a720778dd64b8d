//! Checks that are retried, late, or unconfirmed: counted once, or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::join_all;
use parking_lot::Mutex;
use quinn::{Connection, RecvStream, SendStream};
use smallvec::SmallVec;
use tidegate::config::Config;
use tidegate::decide::{CarriedCheck, DecideCarried, VerdictSource};
use tidegate_cluster::mesh::wire::{
    Call, CarriedCall, Check, CombinedCheck, CombinedVerdicts, Hello, HelloReply, Numbered,
    PongStatus, Reply,
};
use tidegate_cluster::mesh::{StreamClass, codec, running};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::engine::{Behavior, Retry, Verdict};
use tidegate_limiter::policy::{Durability, Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Carried, Counter, CounterKind};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::identity::Generation;
use tidegate_ownership::membership::{Member, MemberState, View};
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::route::Topology;
use tidegate_ownership::{Epoch, Versions};
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions, cluster, cluster_under, settled};
use tidegate_testkit::mesh_peer::{RawPeer, frame_of, send_hello};
use tidegate_testkit::relay::{Link, Relay};
use tidegate_testkit::wait::eventually;

use super::bench::{
    RULES, TIMEOUT, VNODES, check, count, holds, id, patient, remaining, source, value, value_of,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_comes_twice_counts_once_and_is_answered_alike() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let key = value_of(a, "bucket", "b");
    let mesh = &a.joined().mesh;
    let send = async |check_id| {
        let call = Call::Check(check(a, check_id, "bucket", &key, 3));
        mesh.call(&id("b"), StreamClass::Checks, call, TIMEOUT).await.unwrap()
    };
    let first = send(1 << 40).await;
    assert!(matches!(&first, Reply::Verdicts(verdicts) if verdicts[0].remaining == 17));
    let copies = join_all((0..10).map(|_| send(1 << 40))).await;
    assert!(copies.iter().all(|copy| *copy == first));
    assert_eq!(count(b, |counters| &counters.deduplicated), 10);
    assert_eq!(count(b, |counters| &counters.served), 1);
    let other = send((1 << 40) + 1).await;
    assert!(matches!(&other, Reply::Verdicts(verdicts) if verdicts[0].remaining == 14));

    // Copies that come at once are one check too.
    let copies = join_all((0..10).map(|_| send(1 << 41))).await;
    assert!(copies.iter().all(|copy| *copy == copies[0]));
    assert_eq!(remaining(&b.check_hits("bucket", &key, 0).await), 11);
}

/// Each check of a call has an id of its own, also those that a request carries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn carried_checks_that_come_twice_count_once_each_and_are_answered_alike() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let carried = carried_of(a, "b");
    let mesh = &a.joined().mesh;
    let send = async |id_of_first, checks: usize| {
        let checks = std::iter::repeat_n(carried, checks).collect();
        let call = Call::Carried(Box::new(carried_call(a, id_of_first, checks)));
        mesh.call(&id("b"), StreamClass::Checks, call, TIMEOUT).await.unwrap()
    };
    let left = |reply: &Reply| match reply {
        Reply::Carried { verdicts, .. } => {
            verdicts.iter().map(|verdict| verdict.unwrap().remaining).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let first = send(1 << 40, 3).await;
    assert_eq!(left(&first), [17, 14, 11]);
    let copies = join_all((0..10).map(|_| send(1 << 40, 3))).await;
    assert!(copies.iter().all(|copy| *copy == first), "{copies:?}");
    assert_eq!(count(b, |counters| &counters.served), 3);
    assert_eq!(count(b, |counters| &counters.deduplicated), 30);
    // The last one alone, as it is sent when its owner is looked for key by key.
    assert_eq!(left(&send((1 << 40) + 2, 1).await), [11]);
    assert_eq!(left(&send((1 << 40) + 3, 1).await), [8]);
}

/// A check may lie in the buffers of an overloaded owner until its sender has answered by fallback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_is_read_after_its_deadline_is_not_counted() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let key = value_of(a, "bucket", "b");
    let mesh = &a.joined().mesh;
    let send = async |check_id, deadline| {
        let call = Call::Check(Check { deadline, ..check(a, check_id, "bucket", &key, 3) });
        mesh.call(&id("b"), StreamClass::Checks, call, TIMEOUT).await.unwrap()
    };
    let soon = running(a.core.clock.monotonic().plus(Span::from_secs(20)));
    eventually("b has measured how long a runs", TIMEOUT, || {
        b.joined().mesh.peer(&id("a")).is_some_and(|peer| peer.rtt_ns() > 0)
    })
    .await;
    assert_eq!(send(1 << 40, Span::ZERO).await, Reply::Expired);
    let in_time = send((1 << 40) + 1, soon).await;
    assert!(matches!(&in_time, Reply::Verdicts(verdicts) if verdicts[0].remaining == 17));
    assert_eq!(count(b, |counters| &counters.expired), 1);
}

/// The network of the owner is cut while 20 checks are sent, which time out. What it received
/// arrives when the network is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_checks_count_at_most_once() {
    let authority = authority();
    let listen = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let relay = Relay::start(listen, Link::new(1, 0, 0, Duration::ZERO)).await;
    let options = |id, seeds| NodeOptions {
        id,
        region: "eu",
        seeds,
        identity: identity(&authority, &authority, id, "eu"),
        rules: RULES,
        change: |config| config.cluster.deadline = Span::from_millis(100),
    };
    let b = Node::start_behind(options("b", &[]), listen, relay.front).await;
    let a = Node::start(options("a", &[relay.front])).await;
    for node in [&a, &b] {
        node.wait_for_view("both", |view| view.owners().count() == 2).await;
    }
    settled(&[&a, &b]).await;
    let key = value_of(&a, "window", "b");
    let answer = a.check_hits("window", &key, 0).await;
    assert_eq!((source(&answer), remaining(&answer)), (VerdictSource::Owner, 100));

    relay.link.cut(true);
    let answers = join_all((0..20).map(|_| a.check("window", &key))).await;
    assert!(answers.iter().all(|answer| source(answer) == VerdictSource::Fallback));
    relay.link.cut(false);

    // When a read arrives, everything before it on the stream has arrived.
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut read = a.check_hits("window", &key, 0).await;
    while source(&read) != VerdictSource::Owner {
        assert!(tokio::time::Instant::now() < deadline, "the way never was free again");
        read = a.check_hits("window", &key, 0).await;
    }
    let left = remaining(&read);
    assert!((80..=100).contains(&left), "20 hits counted as {}", 100 - left);
    assert_eq!(remaining(&b.check_hits("window", &key, 0).await), left);
}

/// The connection breaks behind the check, which is retried at the same incarnation under the same
/// id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_whose_connection_broke_is_sent_again_to_the_same_start() {
    let authority = authority();
    let (a, _y, key) = beside_an_owner_by_hand(&authority).await;
    let owner = PeerByHand::new(&authority);
    let broken = owner.joins(&a, 5).await;
    let breaks = async {
        owner.serve(&broken, None).await;
        let again = owner.joins(&a, 5).await;
        owner.serve(&again, Some(Reply::Verdicts([verdict()].into_iter().collect()))).await;
    };
    let answer = tokio::select! {
        answer = a.check("bucket", &key) => answer,
        () = breaks => unreachable!("the second connection stays"),
    };
    assert_eq!((source(&answer), remaining(&answer)), (VerdictSource::Owner, 7));
    let received = owner.received.lock();
    assert!(
        received.len() >= 2 && received.iter().all(|check| *check == received[0]),
        "{received:?}"
    );
    assert_ne!(received[0].id, 0);
    assert!(count(&a, |counters| &counters.retried) >= 1);
}

/// As [`a_check_whose_connection_broke_is_sent_again_to_the_same_start`], for checks that a request
/// carries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn carried_checks_whose_connection_broke_are_sent_again_to_the_same_start() {
    let authority = authority();
    let (a, _y, _key) = beside_an_owner_by_hand(&authority).await;
    let owner = PeerByHand::new(&authority);
    let broken = owner.joins(&a, 5).await;
    let both = || [Some(verdict()), Some(verdict())].into_iter().collect();
    let breaks = async {
        owner.serve(&broken, None).await;
        let again = owner.joins(&a, 5).await;
        let answer = Reply::Carried { verdicts: both(), is_confirmed: true };
        owner.serve(&again, Some(answer)).await;
    };
    let unique_key = carried_key(&a, "z");
    let check = carried_check(&unique_key, 3);
    let checks = [check, check];
    let answers = tokio::select! {
        answers = a.core.decider.decide_carried(&checks) => answers,
        () = breaks => unreachable!("the second connection stays"),
    };
    let seen: Vec<_> =
        answers.iter().map(|answer| (answer.source, answer.verdict.remaining)).collect();
    assert_eq!(seen, [(VerdictSource::Owner, 7); 2]);
    let received = owner.carried.lock();
    assert!(received.len() >= 2 && received.iter().all(|call| *call == received[0]));
    assert_eq!(received[0].checks.len(), 2);
}

/// The first check waits until its deadline; a hundred of them do not wait for a hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn carried_checks_of_one_key_wait_once_for_an_owner_that_is_not_there() {
    let authority = authority();
    let (a, y, _key) = beside_an_owner_by_hand(&authority).await;
    // Only z owns the key, which a does not reach.
    holds(&y, Ranges::EMPTY, None);
    let unique_key = carried_key(&a, "z");
    let attempts = async |checks: usize| {
        let before = count(&a, |counters| &counters.retried);
        let checks = vec![carried_check(&unique_key, 1); checks];
        let answers = a.core.decider.decide_carried(&checks).await;
        assert!(answers.iter().all(|answer| answer.source == VerdictSource::Fallback));
        count(&a, |counters| &counters.retried) - before
    };
    let (two, many) = (attempts(2).await, attempts(100).await);
    assert!(two > 0 && many < 10 * two, "{two} attempts for two checks, {many} for a hundred");
}

/// What a has been granted stays counted when b, the owner, begins the window anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_takes_nothing_of_what_other_nodes_hold() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let unique_key = carried_key(a, "b");
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000, Span::from_secs(600)).unwrap();
    let check = CarriedCheck { quota, is_leased: true, ..carried_check(&unique_key, 1) };
    let is_admitted = async |node: &Node, check| {
        let answers = node.core.decider.decide_carried(&[check]).await;
        assert_ne!(answers[0].source, VerdictSource::Fallback);
        answers[0].verdict.allowed
    };
    let is_granted = || count(a, |counters| &counters.granted) > 0;
    while !is_granted() {
        assert!(is_admitted(a, check).await, "nothing was granted");
    }
    is_admitted(b, CarriedCheck { resets: true, ..check }).await;
    let mut admitted = 0;
    let mut refused = 0;
    while refused < 20 {
        for node in [b, b, b, a] {
            if is_admitted(node, check).await {
                admitted += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(admitted <= 1_000, "{admitted} hits of 1,000 passed after the reset");
}

/// A new incarnation of the owner cannot tell whether the old one counted the check: it gets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_may_be_counted_is_not_sent_to_a_new_incarnation() {
    let authority = authority();
    let (a, _y, key) = beside_an_owner_by_hand(&authority).await;
    let owner = PeerByHand::new(&authority);
    let broken = owner.joins(&a, 5).await;
    let restarts = async {
        owner.serve(&broken, None).await;
        let again = owner.joins(&a, 6).await;
        owner.serve(&again, Some(Reply::Verdicts([verdict()].into_iter().collect()))).await;
    };
    let answer = tokio::select! {
        answer = a.check("bucket", &key) => answer,
        () = restarts => unreachable!("the second connection stays"),
    };
    assert_eq!(source(&answer), VerdictSource::Fallback);
    assert_eq!(owner.received.lock().len(), 1);
}

/// Counted by the owner, confirmed by no replica: the fallback answers, and a metric of its own
/// counts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unconfirmed_check_is_answered_by_the_fallback() {
    let authority = authority();
    let (a, _y, key) = beside_an_owner_by_hand(&authority).await;
    let owner = PeerByHand::new(&authority);
    let connection = owner.joins(&a, 5).await;
    let answer = tokio::select! {
        answer = a.check("bucket", &key) => answer,
        () = owner.serve(&connection, Some(Reply::Unconfirmed)) => unreachable!("it stays"),
    };
    assert_eq!(source(&answer), VerdictSource::Fallback);
    assert_eq!(count(&a, |counters| &counters.unconfirmed), 1);
    assert_eq!(owner.received.lock().len(), 1, "it was counted: no other node gets it");
}

/// Two nodes that dial each other at once keep one of the two connections, and the other may carry
/// a copy just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_connection_broke_is_sent_again() {
    fn slow_stream(config: &mut Config) {
        config.cluster.replication_interval = Span::from_secs(3_600);
    }
    let authority = authority();
    let (a, _y) = beside_a_peer_by_hand(&authority, slow_stream).await;
    let topology = a.core.topology.load_full();
    let ring = topology.ring().unwrap();
    let key = value(&a, "kept", |token| ring.replicas(token, 1) == [&id("a"), &id("z")]);
    let replica = PeerByHand::new(&authority);
    let broken = replica.joins(&a, 5).await;
    let breaks = async {
        replica.serve(&broken, None).await;
        let again = replica.joins(&a, 5).await;
        replica.serve(&again, Some(Reply::Done)).await;
    };
    let checks = async {
        // The first go to the other node, until z is found to be reachable.
        for remaining in (0..20).rev() {
            let answer = a.check("kept", &key).await;
            assert_eq!(
                (source(&answer), self::remaining(&answer)),
                (VerdictSource::Local, remaining)
            );
            if replica.copies.load(Ordering::Relaxed) > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it was sent no copy");
    };
    tokio::select! {
        () = checks => {}
        () = breaks => unreachable!("the second connection stays"),
    }
    assert_eq!(count(&a, |counters| &counters.unconfirmed), 0);
}

/// It names itself: its range is on its way, and does not come in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_is_retried_until_the_deadline_at_an_owner_without_the_key() {
    let authority = authority();
    let (a, y, key) = beside_an_owner_by_hand(&authority).await;
    holds(&y, Ranges::EMPTY, None);
    let owner = PeerByHand::new(&authority);
    let connection = owner.joins(&a, 5).await;
    let epoch = Epoch(9);
    let refusal = Reply::NotOwner { epoch, holder: Some(id("z")) };
    let answer = tokio::select! {
        answer = a.check("bucket", &key) => answer,
        () = owner.serve(&connection, Some(refusal)) => unreachable!("it stays"),
    };
    assert_eq!(source(&answer), VerdictSource::Fallback);
    let checks = owner.received.lock().len();
    assert!((2..=256).contains(&checks), "{checks} checks for one verdict");
}

/// Checks that would leave together leave one by one for a node of the release before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_knows_no_combined_checks_gets_single_ones() {
    let authority = authority();
    let (a, _y) = beside_a_peer_by_hand(&authority, patient).await;
    let key = value_of(&a, "bucket", "z");
    let before = codec::COMBINED_CHECKS - 1;
    a.joined().mesh.require_version(before);
    let owner = PeerByHand { version: before, ..PeerByHand::new(&authority) };
    let connection = owner.joins(&a, 5).await;
    let reply = Reply::Verdicts([verdict()].into_iter().collect());
    let answers = tokio::select! {
        answers = join_all((0..5).map(|_| a.check("bucket", &key))) => answers,
        () = owner.serve(&connection, Some(reply)) => unreachable!("it stays"),
    };
    assert!(answers.iter().all(|answer| source(answer) == VerdictSource::Owner));
    let received = owner.received.lock();
    let ids: BTreeSet<u64> = received.iter().map(|check| check.id).collect();
    assert_eq!((received.len(), ids.len()), (5, 5), "{received:?}");
}

/// Of checks that came together, counted by the owner and confirmed by no replica, those have
/// their verdict that need no replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_needs_no_replica() {
    let authority = authority();
    let (a, _y) = beside_a_peer_by_hand(&authority, patient).await;
    let topology = a.core.topology.load_full();
    let key = value(&a, "kept", |token| {
        let is_owned_here = a.core.ownership.decides(Scope::Region, token);
        !is_owned_here && topology.owner(Scope::Region, token) == Some(&id("z"))
    });
    let owner = PeerByHand::new(&authority);
    let connection = owner.joins(&a, 5).await;
    let retry = Retry::After(Span::from_secs(9));
    let refused = Verdict { allowed: false, retry, ..verdict() };
    let verdicts = [verdict(), refused].into_iter().collect();
    let reply = Reply::CombinedVerdicts(CombinedVerdicts {
        verdicts,
        is_confirmed: false,
        grant: None,
        may_end_early: false,
    });
    let answers = tokio::select! {
        answers = join_all((0..3).map(|_| a.check("kept", &key))) => answers,
        () = owner.serve(&connection, Some(reply)) => unreachable!("it stays"),
    };
    // To the first, which was sent alone, this is no reply.
    let sources: Vec<_> = answers.iter().map(source).collect();
    let [fallback, owner] = [VerdictSource::Fallback, VerdictSource::Owner];
    assert_eq!(sources, [fallback, fallback, owner]);
    assert_eq!(count(&a, |counters| &counters.unconfirmed), 1);
}

// === a peer that is driven by hand ===

/// A peer `z` that replies as scripted, or breaks its connection.
struct PeerByHand {
    peer: RawPeer,
    /// The newest of the protocol that it speaks.
    version: u8,
    /// Every check that came; of those that came together the first.
    received: Mutex<Vec<Check>>,
    /// Every call of checks that requests carry.
    carried: Mutex<Vec<CarriedCall>>,
    /// Copies that it confirmed.
    copies: AtomicU64,
}

/// Node a, which believes that z owns the key that is returned with it; and another node, because
/// a node that sees another has taken its view, and does not take it again over the ring set here.
async fn beside_an_owner_by_hand(authority: &Authority) -> (Node, Node, String) {
    let (a, y) = beside_a_peer_by_hand(authority, |_| {}).await;
    let key = value_of(&a, "bucket", "z");
    (a, y, key)
}

/// As [`beside_an_owner_by_hand`].
async fn beside_a_peer_by_hand(authority: &Authority, configure: fn(&mut Config)) -> (Node, Node) {
    let mut nodes = cluster_under(authority, &[("y", "eu"), ("a", "eu")], RULES, configure).await;
    let (a, y) = (nodes.pop().unwrap(), nodes.pop().unwrap());
    let now = a.core.topology.load_full();
    let mut z: Member = now.view.members()[0].clone();
    (z.id, z.generation, z.state) = (id("z"), Generation(5), MemberState::Up);
    let members = now.view.members().iter().cloned().chain([z]);
    let with_z = Topology::new(now.me.clone(), now.region.clone(), View::new(members), VNODES);
    a.core.topology.store(Arc::new(with_z));
    // It has handed nothing over that it would refer to.
    holds(&a, a.core.ownership.owned_ranges().decides.clone(), None);
    (a, y)
}

const NAME: &str = "requests";

fn carried_quota() -> Quota {
    Quota::simple(Algorithm::FirstHitWindow, 20, Span::from_secs(60)).unwrap()
}

/// A key of [`NAME`] that `owner` owns, by what `node` knows.
fn carried_key(node: &Node, owner: &str) -> String {
    let topology = node.core.topology.load_full();
    let is_owned = |key: &String| {
        let token = node.core.hasher.carried(NAME, key, [0; 3]).token();
        topology.owner(Scope::Region, token) == Some(&id(owner))
    };
    (0..10_000).map(|number| format!("account-{number}")).find(is_owned).unwrap()
}

fn carried_check(unique_key: &str, hits: i64) -> CarriedCheck<'_> {
    CarriedCheck {
        name: NAME,
        unique_key,
        part: [0; 3],
        quota: carried_quota(),
        hits: Hits::new(hits),
        behavior: Behavior::default(),
        at: None,
        resets: false,
        is_leased: false,
    }
}

/// Three hits of a key that `owner` owns.
fn carried_of(node: &Node, owner: &str) -> Carried {
    let quota = carried_quota();
    let hash = node.core.hasher.carried(NAME, &carried_key(node, owner), [0; 3]);
    let kind = CounterKind::of_any_window(&quota, Mode::Strict, Scope::Region);
    let counter = Counter { key: hash.counter_of(kind), quota };
    let behavior = Behavior::default();
    Carried { counter, hits: Hits::new(3), behavior, at: None, resets: false }
}

fn carried_call(node: &Node, id: u64, checks: SmallVec<[Carried; 1]>) -> CarriedCall {
    CarriedCall {
        id,
        scope: Scope::Region,
        checks,
        durability: Durability::Async,
        is_leased: false,
        deadline: running(node.core.clock.monotonic().plus(Span::from_secs(20))),
    }
}

fn verdict() -> Verdict {
    Verdict {
        allowed: true,
        limit: 20,
        remaining: 7,
        reset: Span::ZERO,
        retry: Retry::Now,
        delay: Span::ZERO,
        excess: 0,
    }
}

impl PeerByHand {
    fn new(authority: &Authority) -> Self {
        let peer = RawPeer::with(&identity(authority, authority, "z", "eu"));
        let version = codec::VERSION;
        let (received, carried) = (Mutex::default(), Mutex::default());
        Self { peer, version, received, carried, copies: AtomicU64::new(0) }
    }

    /// Connects to `a` as the start `generation` of z.
    async fn joins(&self, a: &Node, generation: u64) -> Connection {
        let mesh = &a.joined().mesh;
        eventually("the last connection is gone", TIMEOUT, || mesh.peer(&id("z")).is_none()).await;
        let connection = self.peer.dial(a.addr()).await.unwrap();
        let secret = a.core.hasher.fingerprint();
        let generation = Generation(generation);
        let versions = Versions { highest: self.version, ..codec::VERSIONS };
        let hello = Hello { generation, versions, ..self.peer.hello("tidegate", "z", secret) };
        let answer = send_hello(&connection, &hello).await;
        assert!(matches!(answer, Some(HelloReply::Welcome(_))), "{answer:?}");
        eventually("it is admitted", TIMEOUT, || mesh.peer(&id("z")).is_some()).await;
        connection
    }

    /// Serves a connection until it closes; closes it at the first check or copy if there is no
    /// `answer`.
    async fn serve(&self, connection: &Connection, answer: Option<Reply>) {
        let mut streams = futures_util::stream::FuturesUnordered::new();
        loop {
            use futures_util::StreamExt;
            tokio::select! {
                stream = connection.accept_bi() => {
                    let Ok((send, recv)) = stream else { return };
                    streams.push(self.serve_stream(connection, answer.as_ref(), send, recv));
                }
                Some(()) = streams.next() => {}
            }
        }
    }

    async fn serve_stream(
        &self,
        connection: &Connection,
        answer: Option<&Reply>,
        mut send: SendStream,
        mut recv: RecvStream,
    ) {
        let mut buffer = BytesMut::new();
        while let Ok(Some(chunk)) = recv.read_chunk(64 * 1024, true).await {
            buffer.extend_from_slice(&chunk.bytes);
            while let Some(whole) = codec::split(&mut buffer).unwrap() {
                let Numbered { id, body } =
                    codec::decode::<Numbered<Call>>(&whole, self.version).unwrap();
                let reply = match body {
                    Call::Check(_)
                    | Call::CombinedCheck(_)
                    | Call::Carried(_)
                    | Call::States(_) => {
                        let is_copy = matches!(body, Call::States(_));
                        match body {
                            Call::Check(first)
                            | Call::CombinedCheck(CombinedCheck { first, .. }) => {
                                self.received.lock().push(first);
                            }
                            Call::Carried(call) => self.carried.lock().push(*call),
                            _ => {}
                        }
                        let Some(answer) = answer else {
                            connection.close(9_u32.into(), b"broken");
                            return;
                        };
                        self.copies.fetch_add(is_copy.into(), Ordering::Relaxed);
                        answer.clone()
                    }
                    Call::Ping { .. } => Reply::Pong {
                        clock: Timestamp::EPOCH,
                        decision_clock: None,
                        status: PongStatus::default(),
                    },
                    _ => continue,
                };
                if send
                    .write_all(&frame_of(self.version, &Numbered { id, body: reply }))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        }
    }
}
