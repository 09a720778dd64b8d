//! One connection to one peer: its lanes, its pings, and the streams on which it asks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::Connection;
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::{Generation, NodeId};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::rpc_stream::{Outbox, RpcStream};
use super::serve::serve;
use super::wire::{Call, Hello, Reply};
use super::{CODE_LANE_BROKEN, Service, StreamClass};
use crate::environment::Clock;

/// How often a peer is pinged.
pub const PING_INTERVAL: Duration = Duration::from_millis(100);
/// A peer that was not heard for so long gets no forwarded check: its callers are answered by the
/// rule's policy at once and do not wait for the deadline. Three pings may be lost before it.
pub const UNREACHABLE_AFTER: Duration = Duration::from_millis(350);
/// A peer that was not heard for so long is dialed anew. QUIC tries an old connection ever more
/// seldom, and the two ends may give it up seconds apart: a healed link must not wait for that.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// An established peer.
#[derive(Debug)]
pub struct Peer {
    /// Its id.
    pub id: NodeId,
    /// Which start of it.
    pub generation: Generation,
    /// Its region.
    pub region: String,
    /// Where its mesh is reached.
    pub advertise: SocketAddr,
    /// Who dialed this connection; of two, the lower id's stays.
    pub dialer: NodeId,
    pub(super) connection: Connection,
    pub(super) checks: RpcStream,
    pub(super) bulk: RpcStream,
    pub(super) last_seen: LastSeen,
    /// Round trip of the last ping.
    rtt_ns: AtomicU64,
    /// Its system clock minus ours.
    offset_ns: AtomicI64,
    /// Wakes the pinger.
    nudge: Notify,
}

/// When something was last heard from a peer; shared with the tasks that read from it.
#[derive(Clone, Debug)]
pub(super) struct LastSeen {
    start: Instant,
    last_ns: Arc<AtomicU64>,
}

/// What is to be written to a new peer's streams.
pub(super) struct Outboxes {
    checks: Outbox,
    bulk: Outbox,
}

impl Peer {
    pub(super) fn new(connection: Connection, hello: &Hello, dialer: NodeId) -> (Self, Outboxes) {
        let (checks, checks_out) = RpcStream::new();
        let (bulk, bulk_out) = RpcStream::new();
        let peer = Self {
            id: hello.node.clone(),
            generation: hello.generation,
            region: hello.region.clone(),
            advertise: hello.advertise,
            dialer,
            connection,
            checks,
            bulk,
            last_seen: LastSeen { start: Instant::now(), last_ns: Arc::default() },
            rtt_ns: AtomicU64::new(0),
            offset_ns: AtomicI64::new(0),
            nudge: Notify::new(),
        };
        (peer, Outboxes { checks: checks_out, bulk: bulk_out })
    }

    /// Whether nothing was heard from it for [`UNREACHABLE_AFTER`].
    pub fn is_unreachable(&self) -> bool {
        self.last_seen.silence() > UNREACHABLE_AFTER
    }

    /// Whether its connection is to be replaced by a new one, if there is one to be had.
    pub(super) fn is_lost(&self) -> bool {
        self.connection.close_reason().is_some() || self.last_seen.silence() > LOST_AFTER
    }

    /// Round trip of the last ping, nanoseconds; 0 before the first.
    pub fn rtt_ns(&self) -> u64 {
        self.rtt_ns.load(Ordering::Relaxed)
    }

    /// Its system clock minus ours, nanoseconds, as measured by the ping before.
    pub fn offset_ns(&self) -> i64 {
        self.offset_ns.load(Ordering::Relaxed)
    }

    pub(super) fn stream(&self, kind: StreamClass) -> &RpcStream {
        match kind {
            StreamClass::Checks => &self.checks,
            StreamClass::Bulk => &self.bulk,
        }
    }

    /// Records the clocks of one exchange: sent and received by our clock, answered by the peer's.
    ///
    /// As in NTP the peer is taken to have read its clock halfway: `offset = answered − (sent +
    /// received) / 2`. The error is at most half the round trip.
    pub(super) fn note_clock(&self, sent: Timestamp, answered: Timestamp, received: Timestamp) {
        let halfway = sent.as_nanos() / 2 + received.as_nanos() / 2;
        let offset = i128::from(answered.as_nanos()) - i128::from(halfway);
        let bounded = offset.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        self.offset_ns.store(i64::try_from(bounded).unwrap_or(0), Ordering::Relaxed);
    }

    /// Runs the connection until it closes: serves the peer's streams, writes ours, pings.
    pub(super) async fn run(
        self: Arc<Self>,
        outboxes: Outboxes,
        service: Arc<dyn Service>,
        clock: Arc<dyn Clock>,
    ) {
        // Dropping the set at the end ends every task of this connection.
        let mut tasks = JoinSet::new();
        let lanes = [
            (self.checks.clone(), outboxes.checks, CHECKS_PRIORITY),
            (self.bulk.clone(), outboxes.bulk, BULK_PRIORITY),
        ];
        for (stream, outbox, priority) in lanes {
            let (connection, last_seen) = (self.connection.clone(), self.last_seen.clone());
            tasks.spawn(async move {
                if let Ok((send, recv)) = connection.open_bi().await {
                    let _ = send.set_priority(priority);
                    stream.run(outbox, (send, recv), last_seen).await;
                }
                // A peer with one lane would look alive and hear half of what it is told; a new
                // connection has both.
                connection.close(CODE_LANE_BROKEN, b"a lane broke");
            });
        }
        tasks.spawn(self.clone().ping(clock, service.clone()));
        let accept = async {
            while let Ok((send, recv)) = self.connection.accept_bi().await {
                tasks.spawn(serve(self.clone(), service.clone(), send, recv));
                // Streams that ended are reaped here; quinn bounds how many may be open.
                while tasks.try_join_next().is_some() {}
            }
        };
        accept.await;
    }

    /// Pings it now, beside the regular pings.
    pub(super) fn ping_now(&self) {
        self.nudge.notify_one();
    }

    /// Pings at regular times, whatever became of the pings before: one that is late must not hold
    /// back the next, which may renew a lease.
    async fn ping(self: Arc<Self>, clock: Arc<dyn Clock>, service: Arc<dyn Service>) {
        let mut ticks = tokio::time::interval(PING_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut under_way = FuturesUnordered::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.nudge.notified() => {}
                Some(()) = under_way.next() => continue,
            }
            if under_way.len() < PINGS_MAX {
                under_way.push(self.ping_once(&*clock, &*service));
            }
        }
    }

    async fn ping_once(&self, clock: &dyn Clock, service: &dyn Service) {
        let (sent, started) = (clock.system(), Instant::now());
        let ping = Call::Ping { clock: sent, ownership_status: service.ownership_status(self) };
        let answer = self.checks.call(ping, UNREACHABLE_AFTER).await;
        if let Ok(Reply::Pong { clock: answered, epochs, grant }) = answer {
            let rtt = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.rtt_ns.store(rtt, Ordering::Relaxed);
            self.note_clock(sent, answered, clock.system());
            service.ponged(self, started, epochs, grant);
        }
    }
}

/// Pings under way to one peer; more are not sent.
const PINGS_MAX: usize = 8;
const CHECKS_PRIORITY: i32 = 1;
const BULK_PRIORITY: i32 = 0;

// === impl Heard ===

impl LastSeen {
    pub(super) fn now(&self) {
        let since_start = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.store(since_start, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        self.start
            .elapsed()
            .saturating_sub(Duration::from_nanos(self.last_ns.load(Ordering::Relaxed)))
    }
}
