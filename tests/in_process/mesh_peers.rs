//! Two meshes, or a mesh and a peer that misbehaves: connections, outcomes of calls, malformed
//! bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use quinn::{Connection, ReadError, ReadToEndError};
use tidegate::node::system_environment;
use tidegate_cluster::incarnation::Incarnation;
use tidegate_cluster::mesh::codec::{FRAME_BYTES_MAX, HELLO_VERSION, VERSION};
use tidegate_cluster::mesh::wire::{
    Call, Hello, HelloReply, Numbered, PingStatus, PongStatus, Refusal, Reply, SharedSettings,
};
use tidegate_cluster::mesh::{
    self, CallError, IN_FLIGHT_MAX, Mesh, PING_INTERVAL, Peer, Service, ServiceReply, StreamClass,
    UNREACHABLE_AFTER,
};
use tidegate_cluster::pki::Authority;
use tidegate_cluster::{agreed_time, agreed_time_without};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::standstill::ClockReading;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::mesh_peer::{RawPeer, exchange, frame, frame_of, send_hello, unframe};
use tidegate_testkit::wait::eventually;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(15);
const SECRET: u64 = 9;

fn ping() -> Call {
    Call::Ping { clock: Timestamp::EPOCH, status: PingStatus::default() }
}

/// Both dial at once: the connection dialed by the lower id stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dials_at_once_leave_the_connection_of_the_lower_id() {
    let authority = authority();
    for _ in 0..10 {
        let (a, b) = (Side::start(&authority, "a", 1).await, Side::start(&authority, "b", 1).await);
        a.mesh.request_dial(b.mesh.advertise);
        b.mesh.request_dial(a.mesh.advertise);
        eventually("both keep the one that a dialed", TIMEOUT, || {
            [&a, &b]
                .iter()
                .all(|side| matches!(&side.mesh.peers()[..], [peer] if peer.dialer.as_str() == "a"))
        })
        .await;
        a.calls(&b).await;
        b.calls(&a).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_start_replaces_the_older_one() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let old = Side::start(&authority, "b", 1_000).await;
    old.joins(&a).await;
    let new = Side::start(&authority, "b", 2_000).await;
    new.joins(&a).await;
    assert_eq!(a.generation_of("b"), Some(2_000));
    eventually("the old one is let go", TIMEOUT, || old.mesh.peers().is_empty()).await;
    new.calls(&a).await;
}

/// A node whose clock was set back starts with a lower generation than peers have seen: it is
/// refused once, and joins with a higher one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_under_an_old_number_is_refused_once_and_rises() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let before = Side::start(&authority, "b", 1_000).await;
    before.joins(&a).await;
    before.stop().await;
    eventually("a has no peer", TIMEOUT, || a.mesh.peers().is_empty()).await;
    let back = Side::start(&authority, "b", 500).await;
    back.joins(&a).await;
    assert_eq!(back.incarnation.generation(), Generation(1_001));
    assert_eq!(a.generation_of("b"), Some(1_001));
    assert_eq!(a.mesh.counters.refused.load(Ordering::Relaxed), 1);
}

/// Peers reject messages of another generation than that of the hello, so a node whose generation
/// is bumped sends a new hello.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bumped_generation_reaches_peers() {
    let authority = authority();
    let (a, b) = (Side::start(&authority, "a", 1).await, Side::start(&authority, "b", 1_000).await);
    b.joins(&a).await;
    b.incarnation.renew();
    eventually("a has the new incarnation", TIMEOUT, || {
        b.mesh.request_dial(a.mesh.advertise);
        a.generation_of("b") == Some(1_001)
    })
    .await;
    eventually("b is back", TIMEOUT, || b.mesh.peers().len() == 1).await;
    a.calls(&b).await;
}

/// What is in flight when a connection is replaced ends on it, and both ends have the new one
/// before the old one is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_without_a_call_that_fails() {
    let authority = authority();
    let (a, b) = (Side::start(&authority, "a", 1).await, Side::start(&authority, "b", 1).await);
    b.joins(&a).await;
    for _ in 0..3 {
        // Connections that follow each other faster than this are closed at once.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let admitted = a.mesh.counters.admitted.load(Ordering::Relaxed);
        b.mesh.replace_identity(identity(&authority, &authority, "b", "eu")).unwrap();
        let replaced = || a.mesh.counters.admitted.load(Ordering::Relaxed) > admitted;
        tokio::time::timeout(TIMEOUT, async {
            while !replaced() || b.mesh.connections_to_renew() > 0 {
                tokio::join!(a.calls(&b), b.calls(&a));
            }
        })
        .await
        .expect("the connection is replaced");
        tokio::join!(a.calls(&b), b.calls(&a));
        assert_eq!((a.mesh.peers().len(), b.mesh.peers().len()), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_connection_answers_what_is_in_flight_and_is_closed() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let (peer, old) = mute_peer(&authority, &a).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let new = peer.dial(a.mesh.advertise).await.unwrap();
    let answer = send_hello(&new, &peer.hello("test", "mute", SECRET)).await;
    assert!(matches!(answer, Some(HelloReply::Welcome(_))), "{answer:?}");
    let answer = exchange(&old, &frame(&Numbered { id: 5, body: ping() })).await;
    assert!(answer.is_some(), "it is closed already");
    assert!(tokio::time::timeout(TIMEOUT, old.closed()).await.is_ok(), "it is never closed");
    assert!(new.close_reason().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_leaves_is_gone_at_once() {
    let authority = authority();
    let (a, b) = (Side::start(&authority, "a", 1).await, Side::start(&authority, "b", 1).await);
    b.joins(&a).await;
    b.stop().await;
    // Below the idle timeout of four seconds: b closed the connection.
    eventually("a has no peer", Duration::from_secs(3), || a.mesh.peers().is_empty()).await;
    let to = NodeId::new("b").unwrap();
    let answer = a.mesh.call(&to, StreamClass::Checks, ping(), TIMEOUT).await;
    assert_eq!(answer, Err(CallError::NotConnected));
}

/// A call to a peer that never replies ends at its deadline, and after a while at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_replies_times_out_and_then_gets_no_calls() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let (_stranger, connection) = mute_peer(&authority, &a).await;
    let to = NodeId::new("mute").unwrap();
    let deadline = Duration::from_millis(20);
    let answer = a.mesh.call(&to, StreamClass::Checks, ping(), deadline).await;
    assert!(matches!(answer, Err(CallError::Timeout | CallError::Unreachable)), "{answer:?}");
    eventually("it is silent", TIMEOUT, || a.mesh.peers()[0].is_unreachable()).await;
    let calls = || a.mesh.counters.calls.load(Ordering::Relaxed);
    let before = calls();
    let answer = a.mesh.call(&to, StreamClass::Checks, ping(), TIMEOUT).await;
    assert_eq!((answer, calls()), (Err(CallError::Unreachable), before));

    // One message makes it reachable again.
    let answer = exchange(&connection, &frame(&Numbered { id: 5, body: ping() })).await.unwrap();
    assert_eq!(unframe::<Numbered<Reply>>(&answer).id, 5);
    assert!(!a.mesh.peers()[0].is_unreachable());
}

/// A peer that neither votes nor is in use is pinged seldom, and is not taken for silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_peer_is_pinged_only_while_it_is_called() {
    let authority = authority();
    let (a, b) = (Side::start(&authority, "a", 1).await, Side::start(&authority, "b", 1).await);
    for side in [&a, &b] {
        side.service.is_idle.store(true, Ordering::Relaxed);
    }
    a.joins(&b).await;
    let answered = || b.service.answered.load(Ordering::Relaxed);
    // Longer than any time in which bytes of before would count.
    let until_quiet = async || {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let before = answered();
            tokio::time::sleep(2 * UNREACHABLE_AFTER).await;
            if answered() == before {
                return before;
            }
            assert!(tokio::time::Instant::now() < deadline, "pinged without end");
        }
    };
    let before = until_quiet().await;
    assert!(!a.mesh.peers()[0].is_unreachable());
    a.calls(&b).await;
    eventually("it is pinged while it is in use", TIMEOUT, || answered() >= before + 5).await;
    until_quiet().await;
    assert!(!a.mesh.peers()[0].is_unreachable());
}

/// Calls at the bound are refused at once and leave the others alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_rpc_stream_refuses_and_drops() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let (peer, connection) = mute_peer(&authority, &a).await;
    let to = NodeId::new("mute").unwrap();
    // The writer of the stream must not make room meanwhile; a pending call keeps its slot either
    // way.
    let call = || a.mesh.call(&to, StreamClass::Bulk, ping(), UNREACHABLE_AFTER);
    let answers = join_all((0..IN_FLIGHT_MAX + 10).map(|_| call())).await;
    let count = |wanted| answers.iter().filter(|answer| **answer == Err(wanted)).count();
    assert_eq!((count(CallError::Busy), count(CallError::Timeout)), (10, IN_FLIGHT_MAX));

    // Gossip is dropped once the stream takes no more: what waits is bounded by the queue.
    let dropped = || a.mesh.counters.dropped.load(Ordering::Relaxed);
    for _ in 0..IN_FLIGHT_MAX + 10 {
        a.mesh.send_gossip(peer.addr(), vec![0; 60_000]);
    }
    eventually("gossip is dropped", TIMEOUT, || {
        a.mesh.send_gossip(peer.addr(), vec![0; 60_000]);
        dropped() > 0
    })
    .await;
    drop(connection);
}

/// Malformed bytes reset their stream with a code and are counted; the connection stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_frame_ends_its_stream_alone() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let (_stranger, connection) = mute_peer(&authority, &a).await;
    for (number, (name, bytes)) in malformed().into_iter().enumerate() {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&bytes).await.unwrap();
        send.finish().unwrap();
        let answer = tokio::time::timeout(TIMEOUT, recv.read_to_end(1_000)).await.unwrap();
        let is_reset = matches!(
            answer,
            Err(ReadToEndError::Read(ReadError::Reset(code))) if code.into_inner() == 1
        );
        assert!(is_reset, "{name}: {answer:?}");
        let counted = u64::try_from(number).unwrap() + 1;
        eventually(name, TIMEOUT, || a.service.malformed.load(Ordering::Relaxed) == counted).await;
        let answer =
            exchange(&connection, &frame(&Numbered { id: 5, body: ping() })).await.unwrap();
        assert_eq!(unframe::<Numbered<Reply>>(&answer).id, 5, "after {name}");
    }
}

/// What came before a malformed frame on the same stream was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_frame_takes_no_earlier_call_with_it() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let (_stranger, connection) = mute_peer(&authority, &a).await;
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let good = frame(&Numbered { id: 5, body: ping() });
    send.write_all(&good).await.unwrap();
    let mut answer = vec![0; frame(&Numbered { id: 5, body: a.service.pong() }).len()];
    recv.read_exact(&mut answer).await.unwrap();
    assert_eq!(unframe::<Numbered<Reply>>(&answer), Numbered { id: 5, body: a.service.pong() });
    send.write_all(&[9; 64]).await.unwrap();
    assert!(recv.read_to_end(1).await.is_err());
    assert_eq!(a.service.malformed.load(Ordering::Relaxed), 1);
}

/// In place of the hello the same bytes close the connection, and no peer is admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bytes_are_no_hello() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let peer = RawPeer::with(&identity(&authority, &authority, "mute", "eu"));
    let hello = frame_of(HELLO_VERSION, &peer.hello("test", "mute", SECRET));
    let mut attempts = malformed();
    attempts.push(("half a hello", hello[..hello.len() / 2].to_vec()));
    attempts.push(("two hellos", [hello.clone(), hello].concat()));
    attempts.push(("a call", frame(&Numbered { id: 1, body: ping() })));
    attempts.push(("nothing", Vec::new()));
    let count = u64::try_from(attempts.len()).unwrap();
    for (name, bytes) in attempts {
        let connection = peer.dial(a.mesh.advertise).await.unwrap();
        assert_eq!(exchange(&connection, &bytes).await, None, "{name}");
        let reason = tokio::time::timeout(TIMEOUT, connection.closed()).await.unwrap();
        let quinn::ConnectionError::ApplicationClosed(close) = reason else {
            panic!("{name}: {reason:?}");
        };
        assert_eq!(close.error_code.into_inner(), 2, "{name}");
    }
    eventually("all are counted", TIMEOUT, || {
        a.mesh.counters.refused.load(Ordering::Relaxed) == count
    })
    .await;
    assert_eq!(a.mesh.counters.admitted.load(Ordering::Relaxed), 0);
    assert_eq!(a.service.answered.load(Ordering::Relaxed), 0);
}

/// A peer that resets one of our streams would look alive and receive half of our messages: the
/// connection is closed, so that the next one has both streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_rpc_stream_closes_its_connection() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    for breaks in [break_by_reset, break_by_malformed_reply] as [fn(_, _); 2] {
        let (_stranger, connection) = mute_peer(&authority, &a).await;
        let (send, recv) = connection.accept_bi().await.unwrap();
        breaks(send, recv);
        let ended = tokio::time::timeout(TIMEOUT, connection.closed()).await;
        assert!(ended.is_ok(), "the connection goes on with one lane");
        eventually("it is gone", TIMEOUT, || a.mesh.peers().is_empty()).await;
    }
}

fn break_by_reset(mut send: quinn::SendStream, mut recv: quinn::RecvStream) {
    send.reset(1_u32.into()).unwrap();
    recv.stop(1_u32.into()).unwrap();
}

fn break_by_malformed_reply(mut send: quinn::SendStream, recv: quinn::RecvStream) {
    tokio::spawn(async move {
        send.write_all(&[9; 64]).await.unwrap();
        // Held open: the malformed bytes close it.
        send.stopped().await.ok();
        drop(recv);
    });
}

fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let whole = frame(&Numbered { id: 1, body: ping() });
    let mut cut = whole.clone();
    cut.pop();
    let mut trailing = whole.clone();
    trailing[0] += 1;
    trailing.push(0);
    let mut version = whole.clone();
    version[4] = VERSION + 1;
    let over = u32::try_from(FRAME_BYTES_MAX + 1).unwrap();
    let random: Vec<u8> = (0..255).map(|n: u8| n.wrapping_mul(151) | 0x80).collect();
    vec![
        ("a cut frame", cut),
        ("a cut length", vec![7, 0]),
        ("a frame over the bound", [&over.to_le_bytes()[..], &whole].concat()),
        ("a huge length", vec![255; 8]),
        ("an empty frame", vec![0, 0, 0, 0]),
        ("another version", version),
        ("trailing bytes", trailing),
        ("an unknown call", vec![3, 0, 0, 0, VERSION, 1, 200]),
        ("random bytes", random),
    ]
}

/// A peer `mute` that `side` admitted, which answers nothing.
async fn mute_peer(authority: &Authority, side: &Side) -> (RawPeer, Connection) {
    let peer = RawPeer::with(&identity(authority, authority, "mute", "eu"));
    let connection = peer.dial(side.mesh.advertise).await.unwrap();
    let hello: Hello = peer.hello("test", "mute", SECRET);
    match send_hello(&connection, &hello).await {
        Some(HelloReply::Welcome(_)) => {}
        answer => panic!("{answer:?}"),
    }
    eventually("it is admitted", TIMEOUT, || side.generation_of("mute") == Some(5)).await;
    (peer, connection)
}

// === one mesh ===

/// A mesh with a service that counts.
struct Side {
    mesh: Arc<Mesh>,
    incarnation: Arc<Incarnation>,
    service: Arc<Counting>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

#[derive(Default)]
struct Counting {
    answered: AtomicU64,
    malformed: AtomicU64,
    /// Its peers are pinged only while they are in use.
    is_idle: AtomicBool,
}

impl Side {
    async fn start(authority: &Authority, id: &str, generation: u64) -> Self {
        let node = NodeId::new(id).unwrap();
        let started = Timestamp::from_nanos(generation * 1_000_000);
        let incarnation = Arc::new(Incarnation::new(node, started));
        let options = mesh::Options {
            cluster: "test".into(),
            incarnation: incarnation.clone(),
            birth: 1,
            region: "eu".into(),
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            secret: SECRET,
            names_domains: false,
            shared: SharedSettings {
                vnodes: 128,
                lease: Span::from_millis(600),
                global_lease: Span::from_secs(5),
            },
        };
        let identity = identity(authority, authority, id, "eu");
        let (mesh, tasks) = Mesh::bind(options, &identity, &system_environment().0).await.unwrap();
        let (service, stop) = (Arc::new(Counting::default()), CancellationToken::new());
        let running = tokio::spawn({
            let (mesh, service, stop) = (mesh.clone(), service.clone(), stop.clone());
            async move { mesh.run(tasks, service, stop).await }
        });
        Self { mesh, incarnation, service, stop, running }
    }

    /// Dials `other` until both have the other in their tables.
    async fn joins(&self, other: &Self) {
        let (me, them) = (self.incarnation.node(), other.incarnation.node());
        eventually("both are up", TIMEOUT, || {
            self.mesh.request_dial(other.mesh.advertise);
            let is_there = other.generation_of(me.as_str());
            self.generation_of(them.as_str()).is_some()
                && is_there == Some(self.incarnation.generation().0)
        })
        .await;
    }

    async fn calls(&self, other: &Self) {
        let to = other.incarnation.node();
        let answer = self.mesh.call(to, StreamClass::Bulk, ping(), TIMEOUT).await;
        assert_eq!(answer, Ok(other.service.pong()));
    }

    fn generation_of(&self, id: &str) -> Option<u64> {
        let peers: Vec<Arc<Peer>> = self.mesh.peers();
        peers.iter().find(|peer| peer.id.as_str() == id).map(|peer| peer.generation.0)
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

impl Counting {
    #[allow(clippy::unused_self, reason = "reads as a method of the service")]
    fn pong(&self) -> Reply {
        Reply::Pong { clock: Timestamp::EPOCH, decision_clock: None, status: PongStatus::default() }
    }
}

impl Service for Counting {
    fn ping_interval(&self, _: &Peer) -> Duration {
        if self.is_idle.load(Ordering::Relaxed) { TIMEOUT } else { PING_INTERVAL }
    }

    fn ping_status(&self, _: &Peer) -> PingStatus {
        PingStatus::default()
    }

    fn pong_received(&self, _: &Peer, _: ClockReading, _: PongStatus) {}

    fn handle_call(&self, _: &Peer, _: Call) -> ServiceReply {
        self.answered.fetch_add(1, Ordering::Relaxed);
        ServiceReply::Ready(self.pong())
    }

    fn malformed(&self, _: &NodeId) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A thief may set the clock of the node that it has: the order to revoke that node goes by the
/// clocks of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_revocation_is_that_of_the_other_machines() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let (environment, _) = system_environment();
    let own = environment.clock.system();
    let mut connections = Vec::new();
    for name in ["b", "thief"] {
        let peer = RawPeer::with(&identity(&authority, &authority, name, "eu"));
        let connection = peer.dial(a.mesh.advertise).await.unwrap();
        let clock = own.minus(Span::from_secs(120));
        let hello = Hello { clock, ..peer.hello("test", name, SECRET) };
        let answer = send_hello(&connection, &hello).await;
        assert!(matches!(answer, Some(HelloReply::Welcome(_))), "{answer:?}");
        connections.push((peer, connection));
    }
    eventually("both are admitted", TIMEOUT, || a.mesh.peers().len() == 2).await;
    let thief = NodeId::new("thief").unwrap();
    let behind = |time: Timestamp| environment.clock.system().since(time);
    assert!(behind(agreed_time(&a.mesh)) > Span::from_secs(110), "most are behind");
    let without = behind(agreed_time_without(&a.mesh, &thief));
    assert!(without < Span::from_secs(10), "of two a node takes its own: {without}");
}

/// The refusal names the generation that the peer has to exceed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_refusal_of_an_old_start_names_the_newer() {
    let authority = authority();
    let a = Side::start(&authority, "a", 1).await;
    let (peer, _connection) = mute_peer(&authority, &a).await;
    let again = peer.dial(a.mesh.advertise).await.unwrap();
    let hello = Hello { generation: Generation(4), ..peer.hello("test", "mute", SECRET) };
    let answer = send_hello(&again, &hello).await;
    assert_eq!(answer, Some(HelloReply::Refused(Refusal::Generation(Generation(5)))));
    assert_eq!(a.generation_of("mute"), Some(5));
}
