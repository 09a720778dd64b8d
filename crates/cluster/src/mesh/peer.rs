//! An established peer: its identity, its streams, and what its pings measured.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use quinn::Connection;
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::Identity;
use tidegate_ownership::identity::{Generation, NodeId};
use tokio::sync::Notify;

use super::codec;
use super::rpc_stream::{CallQueue, LastSeen, RpcStream, StreamClass};
use super::wire::Hello;

/// A peer that sent nothing for so long gets no calls: a check fails over at once instead of
/// waiting for its deadline. Up to three pings may be lost before that.
pub const UNREACHABLE_AFTER: Duration = Duration::from_millis(350);
/// A peer that sent nothing for so long is dialed again. QUIC retries an old connection at growing
/// intervals, and its two ends may give it up seconds apart: a healed link must not wait for that.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// An established peer.
#[derive(Debug)]
pub struct Peer {
    pub id: NodeId,
    pub identity: Identity,
    pub generation: Generation,
    pub region: String,
    /// The version of the wire format that both sides use.
    pub version: u8,
    /// Its advertised mesh address.
    pub advertise: SocketAddr,
    /// The node that dialed this connection. Of two connections the one that the lower id dialed is
    /// kept.
    pub dialer: NodeId,
    pub(super) connection: Connection,
    /// By [`StreamClass`].
    pub(super) streams: [RpcStream; StreamClass::COUNT],
    pub(super) last_seen: LastSeen,
    rtt_ns: AtomicU64,
    offset_ns: AtomicI64,
    ping_request: Notify,
}

impl Peer {
    /// The peer, and the calls that wait to be written to its streams.
    pub(super) fn new(
        connection: Connection,
        hello: &Hello,
        dialer: NodeId,
    ) -> (Self, [CallQueue; StreamClass::COUNT]) {
        let [(control, control_queue), (checks, checks_queue), (bulk, bulk_queue)] =
            [RpcStream::new(), RpcStream::new(), RpcStream::new()];
        let peer = Self {
            id: hello.node.clone(),
            identity: Identity { node: hello.node.clone(), birth: hello.birth },
            generation: hello.generation,
            region: hello.region.clone(),
            version: codec::VERSIONS.agreed(hello.versions).unwrap_or(codec::HELLO_VERSION),
            advertise: hello.advertise,
            dialer,
            connection,
            streams: [control, checks, bulk],
            last_seen: LastSeen::now(),
            rtt_ns: AtomicU64::new(0),
            offset_ns: AtomicI64::new(0),
            ping_request: Notify::new(),
        };
        (peer, [control_queue, checks_queue, bulk_queue])
    }

    /// Whether nothing was received from it for [`UNREACHABLE_AFTER`].
    pub fn is_unreachable(&self) -> bool {
        self.last_seen.elapsed() > UNREACHABLE_AFTER
    }

    /// Whether a new connection should replace this one.
    pub(super) fn is_lost(&self) -> bool {
        self.connection.close_reason().is_some() || self.last_seen.elapsed() > LOST_AFTER
    }

    /// Round trip of the last ping, nanoseconds; 0 before the first.
    pub fn rtt_ns(&self) -> u64 {
        self.rtt_ns.load(Ordering::Relaxed)
    }

    /// Its system clock minus ours, nanoseconds, as of the last exchange.
    pub fn offset_ns(&self) -> i64 {
        self.offset_ns.load(Ordering::Relaxed)
    }

    pub(super) fn stream(&self, class: StreamClass) -> &RpcStream {
        &self.streams[class as usize]
    }

    pub(super) fn record_round_trip(&self, round_trip: Duration) {
        let rtt = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        self.rtt_ns.store(rtt, Ordering::Relaxed);
    }

    /// Computes the offset from one exchange: sent and received by our clock, answered by the
    /// peer's.
    ///
    /// As in NTP the peer is assumed to have read its clock halfway: `offset = answered − (sent +
    /// received) / 2`. The error is at most half the round trip.
    pub(super) fn record_clock_offset(
        &self,
        sent: Timestamp,
        answered: Timestamp,
        received: Timestamp,
    ) {
        let halfway = sent.as_nanos() / 2 + received.as_nanos() / 2;
        let offset = i128::from(answered.as_nanos()) - i128::from(halfway);
        let bounded = offset.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        self.offset_ns.store(i64::try_from(bounded).unwrap_or(0), Ordering::Relaxed);
    }

    /// Requests a ping in addition to the regular ones.
    pub(super) fn ping_now(&self) {
        self.ping_request.notify_one();
    }

    /// Completes after [`Peer::ping_now`]. Cancel-safe.
    pub(super) async fn ping_requested(&self) {
        self.ping_request.notified().await;
    }
}
