//! A node that does not belong to the cluster is refused and changes nothing.
//!
//! Each intruder tries to join two honest nodes. Afterwards every view, every counter and every
//! stored key is unchanged, and the honest nodes still decide exactly.

use std::fs::{self, Permissions};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::config::Config;
use tidegate_cluster::mesh::wire::{
    Call, HelloReply, Numbered, Refusal, StateEntry, Sync, SyncEntry, SyncRole,
};
use tidegate_cluster::pki::{self, Authority, Bearer, Identity, Overwrite, Revocation, Validity};
use tidegate_cluster::revocations;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::{ActorId, State, decide, decide_eventual};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{KeyHash, Stats};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions, cluster_under};
use tidegate_testkit::mesh_peer::{self, RawPeer, exchange, send_hello};
use tidegate_testkit::wait::eventually;

use crate::TIDEGATE;

const RULES: &str = "
domain: test
descriptors:
  - key: strict
    rate_limit: {unit: day, requests_per_unit: 20}
  - key: eventual
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 100}
";

/// Far above what an honest node needs to refuse a peer.
const TIMEOUT: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_foreign_authority_is_refused() {
    let honest = Honest::start().await;
    let foreign = authority();
    honest.shuts_out(identity(&foreign, &foreign, "c", "eu"), |_| {}).await;
    // It may trust the honest authority: what counts is who signed it.
    honest.shuts_out(identity(&foreign, &honest.authority, "c", "eu"), |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_refused() {
    let honest = Honest::start().await;
    let change = |config: &mut Config| config.cluster.name = "staging".into();
    honest.shuts_out(honest.identity("c"), change).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_another_key_secret_is_refused() {
    let honest = Honest::start().await;
    let identity = Identity { secret: [8; 16], ..honest.identity("c") };
    honest.shuts_out(identity, |_| {}).await;
}

/// A hello that claims a node id which the certificate does not name, the receiver's, a living
/// member's or another, and one of another process of the receiver's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_under_another_name_is_refused() {
    let honest = Honest::start().await;
    let before = honest.state();
    let peer = RawPeer::with(&honest.identity("c"));
    for claimed in ["a", "b", "d"] {
        let connection = peer.dial(honest.target()).await.unwrap();
        let hello = peer.hello("tidegate", claimed, honest.secret());
        let answer = send_hello(&connection, &hello).await;
        let id = hello.node.clone();
        assert_eq!(answer, Some(HelloReply::Refused(Refusal::Name(id))), "claims {claimed}");
        closed(&connection).await;
    }
    let twin = RawPeer::with(&honest.identity("a"));
    let connection = twin.dial(honest.target()).await.unwrap();
    let hello = twin.hello("tidegate", "a", honest.secret());
    let answer = send_hello(&connection, &hello).await;
    assert!(
        matches!(answer, Some(HelloReply::Refused(Refusal::Generation(higher))) if higher > hello.generation),
        "it is to give way: {answer:?}"
    );
    closed(&connection).await;
    honest.is_unmoved(&before, 3).await;
}

/// A certificate is for one region: its holder cannot act as a node of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_region_is_refused() {
    let honest = Honest::start().await;
    let before = honest.state();
    let peer = RawPeer::with(&identity(&honest.authority, &honest.authority, "c", "us"));
    let connection = peer.dial(honest.target()).await.unwrap();
    let hello = peer.hello("tidegate", "c", honest.secret());
    let refusal = Refusal::Region { node: hello.node.clone(), region: "eu".to_owned() };
    assert_eq!(send_hello(&connection, &hello).await, Some(HelloReply::Refused(refusal)));
    closed(&connection).await;
    honest.is_unmoved(&before, 1).await;
    let identity = identity(&honest.authority, &honest.authority, "c", "us");
    honest.shuts_out(identity, |_| {}).await;
}

/// By the clock of the node that is asked, the certificate is of later than now. The others that
/// are connected with it do not confirm that it is revoked before it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_by_a_clock_that_is_behind_reaches_the_certificate_in_use() {
    let nodes = [("a", "eu"), ("b", "eu"), ("c", "eu")];
    let nodes = cluster_under(&authority(), &nodes, RULES, |_| {}).await;
    let mesh = |at: usize| &nodes[at].joined().mesh;
    for at in 0..3 {
        eventually("two peers each", TIMEOUT, || mesh(at).peers().len() == 2).await;
    }
    let revoked = NodeId::new("c").unwrap();
    let admitted = mesh(0).peer(&revoked).unwrap().admitted_at().unwrap();
    let at = admitted.minus(Span::from_secs(7_200));
    let revocation = Revocation { node: revoked.clone(), at };
    assert!(mesh(0).revocations.merge([revocation.clone()], at));
    let announced = revocations::announce(&revocation, mesh(0)).await;
    assert_eq!(announced.confirmed, [NodeId::new("b").unwrap()], "the revoked node need not");
    assert_eq!(announced.missed, []);
    for at in 0..2 {
        assert_eq!(mesh(at).revocations.until(&revoked), Some(admitted));
        let is_shut_out = || mesh(at).peer(&revoked).is_none();
        eventually("c is shut out", TIMEOUT, is_shut_out).await;
    }
}

/// With a good certificate but no hello, calls are not answered and not served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_hello_reach_nothing() {
    let honest = Honest::start().await;
    let before = honest.state();
    let peer = RawPeer::with(&honest.identity("c"));
    for call in honest.poison() {
        let connection = peer.dial(honest.target()).await.unwrap();
        let frame = mesh_peer::frame(&Numbered { id: 1, body: call });
        assert_eq!(exchange(&connection, &frame).await, None);
        closed(&connection).await;
    }
    honest.is_unmoved(&before, 2).await;
}

/// Calls sent behind a refused hello, on streams that are already open, are not served either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_behind_a_refused_hello_reach_nothing() {
    let honest = Honest::start().await;
    let before = honest.state();
    let peer = RawPeer::with(&honest.identity("c"));
    let connection = peer.dial(honest.target()).await.unwrap();
    let hello = peer.hello("staging", "c", honest.secret());
    let (mut hello_stream, _hello_answer) = connection.open_bi().await.unwrap();
    let mut streams = Vec::new();
    for call in honest.poison() {
        let (mut send, recv) = connection.open_bi().await.unwrap();
        send.write_all(&mesh_peer::frame(&Numbered { id: 1, body: call })).await.unwrap();
        streams.push((send, recv));
    }
    hello_stream.write_all(&mesh_peer::frame(&hello)).await.unwrap();
    hello_stream.finish().unwrap();
    for (_, mut recv) in streams {
        assert!(recv.read_to_end(1).await.is_err());
    }
    honest.is_unmoved(&before, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_is_refused() {
    let honest = Honest::start().await;
    let before = honest.state();
    let peer = RawPeer::without_certificate(&honest.identity("c").roots);
    if let Ok(connection) = peer.dial(honest.target()).await {
        let hello = peer.hello("tidegate", "c", honest.secret());
        assert_eq!(send_hello(&connection, &hello).await, None);
        closed(&connection).await;
    }
    honest.is_unmoved(&before, 1).await;
}

/// A connection without a hello is closed after a timeout; meanwhile others are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_hello_is_closed() {
    let honest = Honest::start().await;
    let before = honest.state();
    let peer = RawPeer::with(&honest.identity("c"));
    let mut connections = Vec::new();
    for _ in 0..20 {
        connections.push(peer.dial(honest.target()).await.unwrap());
    }
    honest.decides_exactly().await;
    for connection in &connections {
        closed(connection).await;
    }
    honest.is_unmoved(&before, 20).await;
}

/// A host that holds as many handshakes as one may is refused, and another one is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_host_leaves_room_for_others() {
    let honest = Honest::start().await;
    let identity = honest.identity("c");
    let silent = RawPeer::with(&identity);
    let dials = join_all((0..40).map(|_| silent.dial(honest.target()))).await;
    let held: Vec<_> = dials.into_iter().flatten().collect();
    // The honest nodes have the same address and may be in a handshake too.
    assert!((20..=24).contains(&held.len()), "{} handshakes of one host", held.len());
    let other = RawPeer::at([127, 0, 0, 2], &identity);
    let connection = other.dial(honest.target()).await.unwrap();
    let hello = other.hello("staging", "c", honest.secret());
    let answer = send_hello(&connection, &hello).await;
    assert!(matches!(answer, Some(HelloReply::Refused(_))), "{answer:?}");
    drop(held);
}

/// 10,000 datagrams that are nothing or look like QUIC: random bytes, first packets of version 1
/// with random contents, of unknown versions, of short headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_noise_moves_nothing() {
    let honest = Honest::start().await;
    let before = honest.state();
    let target = honest.target();
    let noise = tokio::task::spawn_blocking(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut state = 0x7469_6465_u64;
        for n in 0..10_000 {
            let datagram = noise(n, &mut state);
            let _ = socket.send_to(&datagram, target);
        }
    });
    // While it lasts the nodes go on.
    honest.decides_exactly().await;
    noise.await.unwrap();
    honest.is_unmoved(&before, 0).await;
}

fn noise(n: u32, state: &mut u64) -> Vec<u8> {
    let mut draw = || {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        state.to_le_bytes()
    };
    let length = usize::from(u16::from_le_bytes([draw()[0], draw()[1]])) % 1_400;
    let looks_like_quic = !n.is_multiple_of(4);
    let length = if looks_like_quic { 1_200 + length % 200 } else { length };
    let mut bytes: Vec<u8> = std::iter::repeat_with(draw).flatten().take(length).collect();
    if looks_like_quic {
        let (first, version): (u8, u32) = match n % 4 {
            1 => (0xc0 | bytes[0] & 0x3f, 1),
            2 => (0xc0 | bytes[0] & 0x3f, u32::from(bytes[1]) << 8 | 0x1a),
            _ => (0x40 | bytes[0] & 0x3f, 1),
        };
        bytes[0] = first;
        bytes[1..5].copy_from_slice(&version.to_be_bytes());
        bytes[5] = 8;
        bytes[14] = 8;
        // No token, and a length that fits.
        bytes[23] = 0;
        bytes[24..26].copy_from_slice(&(0x444c_u16).to_be_bytes());
    }
    bytes
}

// === files ===

/// What a node must not start with: exit code 2 and one line that names the file and the fix.
#[test]
fn a_process_does_not_start_with_files_that_peers_would_refuse() {
    type Spoil = fn(&Path);
    let spoilt: [(&str, &str, &str, Spoil); 8] = [
        ("n1.key", "others can read it", "chmod 600", |dir| {
            fs::set_permissions(dir.join("n1.key"), Permissions::from_mode(0o644)).unwrap();
        }),
        ("cluster.secret", "others can read it", "chmod 600", |dir| {
            fs::set_permissions(dir.join("cluster.secret"), Permissions::from_mode(0o604)).unwrap();
        }),
        ("n1.pem", "expired on", "tidegate ca issue", |dir| issue(dir, "n1", -2, -1)),
        ("n1.pem", "is not valid before", "tidegate ca issue", |dir| issue(dir, "n1", 1, 2)),
        ("n1.pem", "no such file", "tidegate ca issue", |dir| {
            fs::remove_file(dir.join("n1.pem")).unwrap();
        }),
        ("cluster.secret", "no such file", "tidegate ca init", |dir| {
            fs::remove_file(dir.join("cluster.secret")).unwrap();
        }),
        ("n1.pem", "does not carry the name local.region.tidegate", "--region local", |dir| {
            let bearer = Bearer::core("n1", "eu");
            pki::issue(dir, bearer, days(-1, 1), Overwrite::Renew).unwrap();
        }),
        ("n1.pem", "does not carry the name n1", "tidegate ca issue", |dir| {
            issue(dir, "n2", -1, 1);
            for kind in ["pem", "key"] {
                fs::rename(dir.join(format!("n2.{kind}")), dir.join(format!("n1.{kind}"))).unwrap();
            }
        }),
    ];
    for (file, wrong, fix, spoil) in spoilt {
        let dir = tempfile::tempdir().unwrap();
        let pki_dir = dir.path().join("pki");
        pki::init(&pki_dir, days(-3, 3), [7; 16]).unwrap();
        issue(&pki_dir, "n1", -1, 1);
        spoil(&pki_dir);
        let config = dir.path().join("cluster.toml");
        fs::write(&config, CONFIG).unwrap();
        fs::create_dir(dir.path().join("rules")).unwrap();
        fs::write(dir.path().join("rules/test.yaml"), RULES).unwrap();
        let run = Command::new(TIDEGATE)
            .args(["serve", "--config"])
            .arg(&config)
            .env_clear()
            .output()
            .unwrap();
        let line = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2), "{file} {wrong}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        for part in [file, wrong, fix] {
            assert!(line.contains(part), "{part:?} is missing in {line:?}");
        }
    }
}

const CONFIG: &str = r#"
[node]
id = "n1"
[cluster]
listen = "127.0.0.1:7600"
[http]
listen = "127.0.0.1:0"
[tls]
ca = "pki/ca.pem"
cert = "pki/n1.pem"
key = "pki/n1.key"
secret = "pki/cluster.secret"
"#;

fn issue(dir: &Path, node: &str, from: i64, to: i64) {
    pki::issue(dir, Bearer::core(node, "local"), days(from, to), Overwrite::Renew).unwrap();
}

/// Days from now.
fn days(from: i64, to: i64) -> Validity {
    let now = tidegate::node::system_environment().0.clock.system().as_secs();
    let at = |days: i64| Timestamp::from_secs(now.saturating_add_signed(days * 86_400));
    Validity { not_before: at(from), not_after: at(to) }
}

// === two honest nodes ===

struct Honest {
    authority: Authority,
    nodes: Vec<Node>,
    /// Keys that were used to see whether it decides exactly.
    keys: AtomicU64,
}

/// What an intruder could have changed on one node.
#[derive(Debug, PartialEq, Eq)]
struct NodeState {
    members: Vec<String>,
    epoch: u64,
    admitted: u64,
    served: u64,
    columns_received: u64,
    columns_rejected: u64,
    store: Stats,
}

impl Honest {
    async fn start() -> Self {
        let authority = authority();
        let nodes = cluster_under(&authority, &[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
        for node in &nodes {
            let mesh = &node.joined().mesh;
            eventually("one peer each", TIMEOUT, || mesh.peers().len() == 1).await;
        }
        Self { authority, nodes, keys: AtomicU64::new(0) }
    }

    fn identity(&self, node: &str) -> Identity {
        identity(&self.authority, &self.authority, node, "eu")
    }

    fn secret(&self) -> u64 {
        self.nodes[0].core.hasher.fingerprint()
    }

    fn target(&self) -> std::net::SocketAddr {
        self.nodes[0].addr()
    }

    fn refused(&self) -> u64 {
        let meshes = self.nodes.iter().map(|node| &node.joined().mesh);
        meshes.map(|mesh| mesh.counters.refused.load(Ordering::Relaxed)).sum()
    }

    fn state(&self) -> Vec<NodeState> {
        let state = |node: &Node| {
            let joined = node.joined();
            let view = node.core.topology.load().view.clone();
            NodeState {
                members: view.members().iter().map(|member| member.id.to_string()).collect(),
                epoch: view.fingerprint(),
                admitted: joined.mesh.counters.admitted.load(Ordering::Relaxed),
                served: node.core.decider.counters().served.load(Ordering::Relaxed),
                columns_received: joined.synchroniser.counters.received.load(Ordering::Relaxed),
                columns_rejected: joined.synchroniser.counters.rejected.load(Ordering::Relaxed),
                store: Stats { bytes: 0, ..node.core.store.stats() },
            }
        };
        self.nodes.iter().map(state).collect()
    }

    /// A real node with that identity, with the honest nodes as seeds and dialed by one of them, is
    /// refused every time and has an empty view.
    async fn shuts_out(&self, identity: Identity, change: fn(&mut Config)) {
        let before = self.state();
        let refused = self.refused();
        let seeds: Vec<_> = self.nodes.iter().map(Node::addr).collect();
        let shape =
            NodeOptions { id: "c", region: "eu", seeds: &seeds, identity, rules: RULES, change };
        let peer = Node::start(shape).await;
        self.nodes[1].joined().mesh.request_dial(peer.addr());
        for turn in 0..40 {
            peer.check("eventual", &format!("mine-{turn}")).await;
        }
        // Its own authority may keep it from even showing its certificate; then it fails by itself.
        let dials = &peer.joined().mesh.counters.dials_failed;
        eventually("four dials fail", TIMEOUT, || dials.load(Ordering::Relaxed) >= 4).await;
        eventually("a refusal", TIMEOUT, || self.refused() > refused).await;
        let view = peer.core.topology.load().view.clone();
        assert!(view.members().iter().all(|one| one.id.as_str() == "c"), "it sees no other");
        assert!(peer.joined().mesh.peers().is_empty());
        drop(peer);
        self.is_unmoved(&before, 1).await;
    }

    /// Nothing is other than `before`, at least `refusals` were counted, and it still decides.
    async fn is_unmoved(&self, before: &[NodeState], refusals: u64) {
        eventually("the refusals are counted", TIMEOUT, || self.refused() >= refusals).await;
        let used = self.keys.load(Ordering::Relaxed);
        if used == 0 {
            assert_eq!(self.state(), before);
        } else {
            let members = |states: &[NodeState]| -> Vec<(Vec<String>, u64, u64)> {
                let one = |state: &NodeState| (state.members.clone(), state.epoch, state.admitted);
                states.iter().map(one).collect()
            };
            assert_eq!(members(&self.state()), members(before));
        }
        self.decides_exactly().await;
    }

    /// Of 60 checks of a new key over both nodes 20 pass.
    async fn decides_exactly(&self) {
        let key = format!("fresh-{}", self.keys.fetch_add(1, Ordering::Relaxed));
        let mut allowed = 0;
        for turn in 0..60 {
            let answer = self.nodes[turn % 2].check("strict", &key).await;
            allowed += usize::from(answer.allowed);
        }
        assert_eq!(allowed, 20);
    }

    /// Calls that would change the state of a node which served them.
    fn poison(&self) -> [Call; 2] {
        let quota = |algorithm| Quota::simple(algorithm, 20, Span::from_secs(86_400)).unwrap();
        let now = self.nodes[0].core.clock.now();
        let mut state = State::Absent;
        decide(&mut state, &quota(Algorithm::Gcra), Hits::new(20), now);
        let expires = state.expires_at(&quota(Algorithm::Gcra));
        let mut actor_counters = State::Absent;
        let shape = quota(Algorithm::FixedWindow);
        decide_eventual(&mut actor_counters, ActorId::new(7), &shape, Hits::new(20), now);
        let actor_counters = actor_counters.actor_counters().unwrap().to_delta();
        let entries = vec![SyncEntry { key: self.key("eventual"), actor_counters }];
        [
            Call::States(vec![StateEntry { key: self.key("strict"), state, expires }]),
            Call::Sync(Sync { role: SyncRole::Node, urgent: true, entries }),
        ]
    }

    fn key(&self, key: &str) -> KeyHash {
        let entries = [Entry { key, value: "poisoned" }];
        let hash = self.nodes[0].core.hasher.descriptor("test", &entries);
        let day = Span::from_secs(86_400);
        hash.counter(
            &Quota::simple(Algorithm::FixedWindow, 20, day).unwrap(),
            Mode::Strict,
            Scope::Region,
        )
    }
}

async fn closed(connection: &quinn::Connection) {
    let ended = tokio::time::timeout(TIMEOUT, connection.closed()).await;
    assert!(ended.is_ok(), "the connection is still open");
}
