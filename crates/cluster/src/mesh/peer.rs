//! An established peer: its identity, its streams, and what its pings measured.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use quinn::Connection;
use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::standstill::ClockReading;
use tidegate_ownership::{Identity, Versions};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::codec;
use super::rpc_stream::{CallQueue, RpcStream, StreamClass};
use super::silence::{LastSeen, PING_INTERVAL};
use super::wire::{Hello, close_code};
use crate::environment::Clock;
use crate::pki::Role;

/// A peer that is pinged and sends nothing for so long gets no calls: a check fails over at once
/// instead of waiting for its deadline. Up to three pings may be lost before that.
pub const UNREACHABLE_AFTER: Duration = Duration::from_millis(350);
/// One that sends nothing for so long is dialed again. QUIC retries an old connection at growing
/// intervals, and its two ends may give it up seconds apart: a healed link must not wait for that.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// How many [`PING_INTERVAL`]s after a call a peer is in use: one second.
pub(super) const IN_USE_TICKS: u32 = 10;

/// An established peer.
#[derive(Debug)]
pub struct Peer {
    pub id: NodeId,
    pub identity: Identity,
    pub generation: Generation,
    pub role: Role,
    pub region: String,
    /// The version of the wire format that both sides use.
    pub version: u8,
    /// Its advertised mesh address.
    pub advertise: SocketAddr,
    /// The node that dialed this connection. Of two connections the one that the lower id dialed is
    /// kept.
    pub dialer: NodeId,
    pub(super) connection: Connection,
    /// The number of the [`Credentials`](super::credentials::Credentials) that it began with.
    pub(super) credentials: u64,
    established: Instant,
    /// By [`StreamClass`].
    pub(super) streams: [RpcStream; StreamClass::COUNT],
    pub(super) last_seen: LastSeen,
    rtt_ns: AtomicU64,
    /// Its system clock minus the time that this node has run, nanoseconds. Not minus this node's
    /// system clock, which may be set.
    system_clock_ns: AtomicI64,
    /// Its decision clock minus the time that this node has run, nanoseconds; [`UNKNOWN`] until
    /// decisions may have used it.
    decision_clock_ns: AtomicI64,
    /// How much longer it has run than this node, nanoseconds; [`UNKNOWN`] before the first ping.
    running_offset_ns: AtomicI64,
    /// When that was measured, by this node's clock.
    running_offset_at_ns: AtomicU64,
    is_used: AtomicBool,
    /// How many [`PING_INTERVAL`]s ago it was called.
    unused: AtomicU32,
    ping_request: Notify,
}

const UNKNOWN: i64 = i64::MIN;

/// How long a node has run at `now`: what its pongs contain.
pub fn running(now: Monotonic) -> Span {
    now.since(Monotonic::START)
}

/// A clock of the peer at `now`: it goes on as ours. `None` if `minus_run` is [`UNKNOWN`].
fn goes_on(minus_run: &AtomicI64, now: Monotonic) -> Option<Timestamp> {
    let minus_run = minus_run.load(Ordering::Relaxed);
    let time = running(now).as_nanos().checked_add_signed(minus_run);
    time.filter(|_| minus_run != UNKNOWN).map(Timestamp::from_nanos)
}

/// When the peer is assumed to have answered.
pub(super) fn halfway(reading: &ClockReading) -> Monotonic {
    let round_trip = reading.received.since(reading.sent);
    reading.sent.plus(Span::from_nanos(round_trip.as_nanos() / 2))
}

impl Peer {
    /// The peer, and the calls that wait to be written to its streams.
    pub(super) fn new(
        connection: Connection,
        (hello, role): (&Hello, Role),
        versions: Versions,
        dialer: NodeId,
        credentials: u64,
    ) -> (Self, [CallQueue; StreamClass::COUNT]) {
        let [(control, control_queue), (checks, checks_queue), (bulk, bulk_queue)] =
            [RpcStream::new(), RpcStream::new(), RpcStream::new()];
        let peer = Self {
            id: hello.node.clone(),
            identity: Identity { node: hello.node.clone(), birth: hello.birth },
            generation: hello.generation,
            role,
            region: hello.region.clone(),
            version: versions.agreed(hello.versions).unwrap_or(codec::HELLO_VERSION),
            advertise: hello.advertise,
            dialer,
            connection,
            credentials,
            established: Instant::now(),
            streams: [control, checks, bulk],
            last_seen: LastSeen::now(),
            rtt_ns: AtomicU64::new(0),
            system_clock_ns: AtomicI64::new(UNKNOWN),
            decision_clock_ns: AtomicI64::new(UNKNOWN),
            running_offset_ns: AtomicI64::new(UNKNOWN),
            running_offset_at_ns: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
            unused: AtomicU32::new(IN_USE_TICKS),
            ping_request: Notify::new(),
        };
        (peer, [control_queue, checks_queue, bulk_queue])
    }

    /// Whether it is pinged and has sent nothing for [`UNREACHABLE_AFTER`].
    pub fn is_unreachable(&self) -> bool {
        self.last_seen.silence() > UNREACHABLE_AFTER
    }

    /// It is called.
    pub(super) fn used(&self) {
        // Mostly it was a moment ago: no write to a line that other threads read.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// A [`PING_INTERVAL`] has passed. Returns how many ago it was called.
    pub(super) fn tick_passed(&self) -> u32 {
        let is_used = self.is_used.swap(false, Ordering::Relaxed);
        let unused = self.unused.load(Ordering::Relaxed).saturating_add(1);
        let unused = if is_used { 0 } else { unused };
        self.unused.store(unused, Ordering::Relaxed);
        unused
    }

    /// For how long it was not called.
    pub fn unused_for(&self) -> Duration {
        PING_INTERVAL.saturating_mul(self.unused.load(Ordering::Relaxed))
    }

    /// How long ago both sides accepted the hello.
    pub(super) fn age(&self) -> Duration {
        self.established.elapsed()
    }

    /// The address that its packets come from.
    pub fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Whether a new connection should replace this one.
    pub(super) fn is_lost(&self) -> bool {
        self.connection.close_reason().is_some() || self.last_seen.silence() > LOST_AFTER
    }

    /// Round trip of the last ping, nanoseconds; 0 before the first.
    pub fn rtt_ns(&self) -> u64 {
        self.rtt_ns.load(Ordering::Relaxed)
    }

    /// Its system clock minus ours, nanoseconds; 0 before the first exchange.
    ///
    /// As in NTP the peer is assumed to have read its clock halfway between ping and pong, so the
    /// error is at most half the round trip. What the peer's clock was set by since then is not
    /// seen; what ours was is.
    pub fn offset_ns(&self, clock: &dyn Clock) -> i64 {
        let (now, ours) = (clock.monotonic(), clock.system());
        let offset = goes_on(&self.system_clock_ns, now)
            .map(|theirs| i128::from(theirs.as_nanos()) - i128::from(ours.as_nanos()));
        offset.and_then(|offset| i64::try_from(offset).ok()).unwrap_or(0)
    }

    /// What its decision clock shows at `now` by this node's clock; `None` until decisions may have
    /// used it. Measured like [`Peer::offset_ns`].
    pub fn decision_clock(&self, now: Monotonic) -> Option<Timestamp> {
        goes_on(&self.decision_clock_ns, now)
    }

    pub(super) fn stream(&self, class: StreamClass) -> &RpcStream {
        &self.streams[class as usize]
    }

    pub(super) fn record_round_trip(&self, round_trip: Duration) {
        let rtt = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        self.rtt_ns.store(rtt, Ordering::Relaxed);
    }

    /// Records what its clocks showed when it answered.
    pub(super) fn record_clocks(
        &self,
        system: Timestamp,
        decision: Option<Timestamp>,
        answered_at: Monotonic,
    ) {
        let minus_run = |time: Timestamp| {
            let ran = i128::from(running(answered_at).as_nanos());
            i64::try_from(i128::from(time.as_nanos()) - ran).unwrap_or(UNKNOWN)
        };
        self.system_clock_ns.store(minus_run(system), Ordering::Relaxed);
        self.decision_clock_ns.store(decision.map_or(UNKNOWN, minus_run), Ordering::Relaxed);
    }

    /// Records how long it has run, by clocks that are never set.
    pub(super) fn record_running(&self, reading: ClockReading) {
        let (theirs, ours) = (reading.answered.as_nanos(), running(halfway(&reading)).as_nanos());
        let offset = i128::from(theirs) - i128::from(ours);
        self.running_offset_ns.store(i64::try_from(offset).unwrap_or(UNKNOWN), Ordering::Relaxed);
        let at = running(reading.received).as_nanos();
        self.running_offset_at_ns.store(at, Ordering::Relaxed);
    }

    /// Whether it has run for longer than `deadline` at `now` by this node's clock. In doubt it has
    /// not: within half a round trip, and within a quarter of the time since the last ping, which
    /// covers clocks whose speeds differ by that.
    pub fn has_run_for(&self, deadline: Span, now: Monotonic) -> bool {
        let offset = self.running_offset_ns.load(Ordering::Relaxed);
        let now = running(now).as_nanos();
        let age = now.saturating_sub(self.running_offset_at_ns.load(Ordering::Relaxed));
        let doubt = i128::from(self.rtt_ns() / 2) + i128::from(age / 4);
        let runs = i128::from(now) + i128::from(offset);
        offset != UNKNOWN && runs > i128::from(deadline.as_nanos()) + doubt
    }

    /// Closes the connection, which the edge does not use. It opens another one when it does.
    pub fn let_go(&self) {
        self.connection.close(close_code::IDLE, b"idle");
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
