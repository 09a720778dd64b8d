//! Gossip restarts when chitchat ends: its task ends on a message that it cannot reconcile, without
//! an error. The most nodes that there may be fit into its messages.

use std::time::Duration;

use bytes::BytesMut;
use quinn::{Connection, RecvStream, SendStream};
use tidegate_cluster::mesh::wire::{Call, HelloReply, Numbered};
use tidegate_cluster::mesh::{PEERS_MAX, codec};
use tidegate_cluster::pki::Authority;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, cluster_under};
use tidegate_testkit::mesh_peer::{RawPeer, frame, send_hello};
use tidegate_testkit::wait::eventually;
use tokio::sync::{mpsc, watch};

const RULES: &str = "
domain: test
descriptors:
  - key: strict
    rate_limit: {unit: day, requests_per_unit: 20}
";

const TIMEOUT: Duration = Duration::from_secs(20);

/// A member (its certificate and hello are good) gossips a state that contradicts itself. The
/// node's gossip ends, is started anew under the next generation, and all see all again; meanwhile
/// answers go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_that_ended_is_started_anew() {
    let authority = authority();
    let nodes = cluster_under(&authority, &[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let parts = &nodes[0].core;
    let gossip = &nodes[0].joined().gossip;
    let mut running = gossip.running();
    let generation = parts.incarnation.generation();

    let (_member, connection) = connected_member(&nodes[0], &authority).await;
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    let call = Numbered { id: 0, body: Call::Gossip(contradiction(&nodes[1])) };
    send.write_all(&frame(&call)).await.unwrap();

    becomes(&mut running, false).await;
    assert!(nodes[0].check("strict", "x").await.allowed, "answers go on");
    becomes(&mut running, true).await;
    assert!(parts.incarnation.generation() > generation);
    let newer = parts.incarnation.generation();
    nodes[1]
        .wait_for_view("the newer start of a", |view| {
            let starts: Vec<_> = view.owners().map(|member| member.generation).collect();
            starts.len() == 2 && starts[0] == newer
        })
        .await;
    nodes[0].wait_for_view("both again", |view| view.owners().count() == 2).await;
    eventually("a and b are connected", TIMEOUT, || {
        nodes.iter().all(|node| {
            let peers = node.joined().mesh.peers();
            peers.iter().any(|peer| peer.id.as_str() != "x")
        })
    })
    .await;
    let mut allowed = 0;
    for turn in 0..60 {
        allowed += usize::from(nodes[turn % 2].check("strict", "y").await.allowed);
    }
    assert_eq!(allowed, 20);
}

/// As many nodes as a node connects to, all with ids of the greatest length and IPv6 addresses.
/// With some 50 more the answer would have no room, and end the gossip of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_most_nodes_that_there_may_be_fit_into_a_message() {
    let authority = authority();
    let nodes = cluster_under(&authority, &[("a", "eu")], RULES, |_| {}).await;
    let parts = &nodes[0].core;
    let running = nodes[0].joined().gossip.running();
    let generation = parts.incarnation.generation();

    let (_member, connection) = connected_member(&nodes[0], &authority).await;
    let (mut send, _recv) = connection.open_bi().await.unwrap();
    let call = Numbered { id: 0, body: Call::Gossip(digest_of(PEERS_MAX)) };
    send.write_all(&frame(&call)).await.unwrap();

    let (found, mut lengths) = mpsc::channel(1);
    let streams = tokio::spawn(async move {
        while let Ok(stream) = connection.accept_bi().await {
            tokio::spawn(find_digest(stream, found.clone()));
        }
    });
    let answer = tokio::time::timeout(TIMEOUT, lengths.recv());
    let length = answer.await.expect("an answer with all of them").unwrap();
    streams.abort();
    assert!(length <= 65_507, "{length}");
    assert!(*running.borrow());
    assert_eq!(parts.incarnation.generation(), generation);
}

/// A peer whose certificate and hello are good.
async fn connected_member(node: &Node, authority: &Authority) -> (RawPeer, Connection) {
    let member = RawPeer::with(&identity(authority, authority, "x", "eu"));
    let connection = member.dial(node.addr()).await.unwrap();
    let hello = member.hello("tidegate", "x", node.core.hasher.fingerprint());
    assert!(matches!(send_hello(&connection, &hello).await, Some(HelloReply::Welcome(_))));
    (member, connection)
}

/// Sends the length of each digest of [`PEERS_MAX`] nodes and more that a node sends.
async fn find_digest((_send, mut recv): (SendStream, RecvStream), found: mpsc::Sender<usize>) {
    let mut buffer = BytesMut::new();
    while let Ok(Some(chunk)) = recv.read_chunk(65_536, true).await {
        buffer.extend_from_slice(&chunk.bytes);
        while let Some(whole) = codec::split(&mut buffer).unwrap() {
            let call: Numbered<Call> = codec::decode(&whole, codec::VERSION).unwrap();
            if let Call::Gossip(message) = call.body
                && message.len() > PEERS_MAX * 116
            {
                let _ = found.send(message.len()).await;
            }
        }
    }
}

/// A digest of this many nodes, in chitchat's own format.
fn digest_of(nodes: usize) -> Vec<u8> {
    let addr = [&[6][..], &[0xfd; 16], &7600_u16.to_le_bytes()].concat();
    let node = |at: usize| {
        let numbers = [number(1), number(0), number(0)].concat();
        [text(&format!("{at:0>63}")), number(1), addr.clone(), numbers].concat()
    };
    let (magic, version, syn) = (45_139_u16.to_le_bytes(), 0, 0);
    let count = u16::try_from(nodes).unwrap().to_le_bytes();
    let all: Vec<u8> = (0..nodes).flat_map(node).collect();
    [&magic[..], &[version, syn], &count, &all, &text("tidegate")].concat()
}

async fn becomes(running: &mut watch::Receiver<bool>, wanted: bool) {
    let seen = async { running.wait_for(|running| *running == wanted).await.is_ok() };
    let seen = tokio::time::timeout(TIMEOUT, seen).await;
    assert_eq!(seen, Ok(true), "gossip never became running = {wanted}");
}

/// An acknowledgement in chitchat's own format: `node` has a fact of version 20,000, and 10,000 is
/// the highest version that it has.
fn contradiction(node: &Node) -> Vec<u8> {
    let incarnation = &node.core.incarnation;
    let (id, generation) = (incarnation.node(), incarnation.generation());
    let addr = [&[4, 127, 0, 0, 1], &node.addr().port().to_le_bytes()[..]].concat();
    let about = [vec![0], text(id.as_str()), number(generation.0), addr, number(0), number(0)];
    let fact = [vec![1], text("key"), text("value"), number(20_000), vec![0]];
    let highest = [vec![2], number(10_000)];
    let states = [about.concat(), fact.concat(), highest.concat()].concat();
    let length = u16::try_from(states.len()).unwrap().to_le_bytes();
    let (magic, version, ack) = (45_139_u16.to_le_bytes(), 0, 2);
    let (uncompressed, end) = (2, 0);
    [&magic[..], &[version, ack, uncompressed], &length, &states, &[end]].concat()
}

/// As chitchat writes a text.
fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap().to_le_bytes();
    [&length[..], text.as_bytes()].concat()
}

/// As chitchat writes a number.
fn number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}
