//! The tasks of one connection: serving the peer's calls, writing ours, pings; and what a node does
//! for its peers, implemented by the product.
//!
//! Calls are handled in order, and the replies to all calls of one read leave in one write. A reply
//! that depends on another node ([`ServiceReply::Deferred`]) does not delay those behind it:
//! replies carry the number of their call, so their order does not matter.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quinn::{RecvStream, SendStream};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::standstill::ClockReading;
use tokio::task::JoinSet;

use super::codec;
use super::peer::{IN_USE_TICKS, Peer, UNREACHABLE_AFTER, halfway};
use super::rpc_stream::{CallQueue, READ_BYTES_MAX, StreamClass};
use super::silence::PING_INTERVAL;
use super::traffic::{Kind, Traffic};
use super::wire::{Call, Numbered, PingStatus, PongStatus, Reply, close_code};
use crate::environment::Clock;
use crate::pki::Role;
use crate::ticks::Ticks;

/// In how many intervals a connection in use between an edge and a core is pinged at least once,
/// while bytes of the other side show that it is there: there are many such connections.
const EDGE_TICKS_MAX: u32 = 10;
/// Pings in flight to one peer. At the bound no further ping is sent.
const PINGS_MAX: usize = 8;
/// Deferred replies of one stream. At the bound a call is answered [`Reply::Unconfirmed`] at once:
/// its hits are counted, but it does not wait for a replica.
const DEFERRED_MAX: usize = 1_024;
/// By [`StreamClass`]; the highest is sent first.
const PRIORITIES: [i32; StreamClass::COUNT] = [2, 1, 0];

/// Handles the calls of established peers. The methods run on the task that reads the peer's
/// stream, so they must not block.
pub trait Service: Send + Sync + 'static {
    fn handle_call(&self, from: &Peer, call: Call) -> ServiceReply;

    /// A peer sent bytes that are not a valid frame; its stream was closed.
    fn malformed(&self, from: &NodeId);

    /// How long to wait before the next ping of `peer` while no calls are sent to it. In use it is
    /// pinged every [`PING_INTERVAL`].
    fn ping_interval(&self, peer: &Peer) -> Duration;

    /// The status for the ping that is about to be sent to `peer`.
    fn ping_status(&self, peer: &Peer) -> PingStatus;

    /// A peer answered a ping.
    fn pong_received(&self, from: &Peer, reading: ClockReading, status: PongStatus);
}

/// The result of [`Service::handle_call`].
pub enum ServiceReply {
    Ready(Reply),
    /// The reply depends on another node and takes a bounded time. It does not delay the replies to
    /// later calls. At most 1,024 per stream are in progress; beyond it the caller gets
    /// [`Reply::Unconfirmed`] at once.
    Deferred(BoxFuture<'static, Reply>),
}

/// Runs the connection to `peer` until it closes; `role` is that of this node.
pub(super) async fn run(
    peer: Arc<Peer>,
    queues: [CallQueue; StreamClass::COUNT],
    (role, service): (Role, Arc<dyn Service>),
    clock: Arc<dyn Clock>,
    ticks: Ticks,
    traffic: Arc<Traffic>,
) {
    // Dropping the set ends every task of this connection.
    let mut tasks = JoinSet::new();
    let streams = peer.streams.iter().cloned().zip(queues);
    for ((stream, queue), priority) in streams.zip(PRIORITIES) {
        let (connection, last_seen) = (peer.connection.clone(), peer.last_seen.clone());
        let (version, traffic) = (peer.version, traffic.clone());
        tasks.spawn(async move {
            if let Ok((send, recv)) = connection.open_bi().await {
                let _ = send.set_priority(priority);
                stream.run(queue, (send, recv), last_seen, version, &traffic).await;
            }
            // With a stream less the peer would seem reachable and miss some of the calls. A new
            // connection has all streams.
            connection.close(close_code::STREAM_FAILED, b"a stream failed");
        });
    }
    let is_between_cores = role == Role::Core && peer.role == Role::Core;
    tasks.spawn(send_pings(peer.clone(), is_between_cores, clock, ticks, service.clone()));
    while let Ok((send, recv)) = peer.connection.accept_bi().await {
        tasks.spawn(serve(peer.clone(), service.clone(), (send, recv), traffic.clone()));
        // Reaps finished streams; quinn bounds how many are open.
        while tasks.try_join_next().is_some() {}
    }
}

// === pings ===

/// Pings when one is due and on request. A ping does not wait for the answer to the previous one,
/// because the next answer may renew a lease.
async fn send_pings(
    peer: Arc<Peer>,
    is_between_cores: bool,
    clock: Arc<dyn Clock>,
    ticks: Ticks,
    service: Arc<dyn Service>,
) {
    let mut ticks = ticks.every(PING_INTERVAL);
    // Ticks since the last ping.
    let mut idle = 0_u32;
    let mut in_flight = FuturesUnordered::from_iter([ping(&peer, &*clock, &*service)]);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                idle = idle.saturating_add(1);
                let unused = peer.tick_passed();
                let is_heard = !is_between_cores && peer.last_seen.is_fresh();
                let is_in_use = (unused < IN_USE_TICKS || !in_flight.is_empty())
                    && (!is_heard || idle >= EDGE_TICKS_MAX);
                let is_due = || PING_INTERVAL.saturating_mul(idle) >= service.ping_interval(&peer);
                if !is_in_use && !is_due() {
                    continue;
                }
            }
            () = peer.ping_requested() => {}
            Some(()) = in_flight.next() => continue,
        }
        if in_flight.len() < PINGS_MAX {
            idle = 0;
            in_flight.push(ping(&peer, &*clock, &*service));
        }
    }
}

async fn ping(peer: &Peer, clock: &dyn Clock, service: &dyn Service) {
    let (clock_sent, sent) = (clock.system(), clock.monotonic());
    peer.last_seen.pinged();
    let call = Call::Ping { clock: clock_sent, status: service.ping_status(peer) };
    let reply = peer.stream(StreamClass::Control).call(call, UNREACHABLE_AFTER).await;
    if let Ok(Reply::Pong { clock: clock_answered, decision_clock, status }) = reply {
        let (received, answered) = (clock.monotonic(), status.running);
        peer.record_round_trip(received.since(sent).to_std());
        let reading = ClockReading { sent, received, answered };
        peer.record_clocks(clock_answered, decision_clock, halfway(&reading));
        peer.record_running(reading);
        service.pong_received(peer, reading, status);
    }
}

// === serving ===

type DeferredReplies = FuturesUnordered<BoxFuture<'static, (Kind, Numbered<Reply>)>>;

/// Replies that are not sent yet.
struct Replies<'a> {
    bytes: BytesMut,
    version: u8,
    traffic: &'a Traffic,
}

impl Replies<'_> {
    fn add(&mut self, kind: Kind, reply: &Numbered<Reply>) -> Result<(), codec::Error> {
        let before = self.bytes.len();
        codec::encode(reply, self.version, &mut self.bytes)?;
        self.traffic.sent(kind, self.bytes.len() - before);
        Ok(())
    }
}

/// Handles the calls of `peer` on one stream, until the stream ends.
async fn serve(
    peer: Arc<Peer>,
    service: Arc<dyn Service>,
    (mut send, mut recv): (SendStream, RecvStream),
    traffic: Arc<Traffic>,
) {
    let mut calls = BytesMut::new();
    let (version, bytes) = (peer.version, BytesMut::new());
    let mut replies = Replies { bytes, version, traffic: &traffic };
    let mut deferred = DeferredReplies::new();
    loop {
        // Both branches are cancel-safe.
        let served = tokio::select! {
            chunk = recv.read_chunk(READ_BYTES_MAX, true) => match chunk {
                Ok(Some(chunk)) => {
                    peer.last_seen.touch();
                    calls.extend_from_slice(&chunk.bytes);
                    handle_whole_frames(&peer, &*service, &mut calls, &mut replies, &mut deferred)
                }
                Ok(None) if !calls.is_empty() => Err(codec::Error::Truncated(calls.len())),
                Ok(None) | Err(_) => return,
            },
            Some((kind, reply)) = deferred.next() => replies.add(kind, &reply),
        };
        if let Err(error) = served {
            tracing::warn!(peer = %peer.id, %error, "malformed frame; closed the stream");
            service.malformed(&peer.id);
            let _ = send.reset(close_code::MALFORMED);
            let _ = recv.stop(close_code::MALFORMED);
            return;
        }
        if !replies.bytes.is_empty() && send.write_all(&replies.bytes).await.is_err() {
            return;
        }
        replies.bytes.clear();
    }
}

fn handle_whole_frames(
    peer: &Peer,
    service: &dyn Service,
    calls: &mut BytesMut,
    replies: &mut Replies<'_>,
    deferred: &mut DeferredReplies,
) -> Result<(), codec::Error> {
    while let Some(frame) = codec::split(calls)? {
        let Numbered { id, body } = codec::decode::<Numbered<Call>>(&frame, peer.version)?;
        let kind = Kind::of(&body);
        // Its pongs say whether the deadlines of its checks have passed.
        if matches!(body, Call::Check(_) | Call::TracedCheck(_) | Call::Carried(_)) {
            peer.used();
        }
        let reply = match service.handle_call(peer, body) {
            ServiceReply::Ready(reply) => reply,
            ServiceReply::Deferred(_) if deferred.len() >= DEFERRED_MAX => Reply::Unconfirmed,
            ServiceReply::Deferred(reply) => {
                if id != 0 {
                    deferred
                        .push(Box::pin(async move { (kind, Numbered { id, body: reply.await }) }));
                }
                continue;
            }
        };
        if id != 0 {
            replies.add(kind, &Numbered { id, body: reply })?;
        }
    }
    Ok(())
}
