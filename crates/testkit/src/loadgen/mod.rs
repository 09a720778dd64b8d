//! A single-threaded load generator with closed and open loops.
//!
//! It shares the cores with the server, so it is an `epoll` loop over prepared bytes and nothing
//! else. In an open loop every request has an intended time, independent of earlier replies, and
//! its latency counts from that time. A slow reply therefore delays the requests after it, as for
//! independent clients (no coordinated omission).

#![allow(clippy::disallowed_methods, reason = "latencies are measured by the machine's clock")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

mod connection;
pub mod grpc;
pub mod resp;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use connection::Connection;
use hdrhistogram::Histogram;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::Timespec;

/// Longer latencies are recorded as this.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Longest time of one `epoll_wait`.
const PAUSE: Duration = Duration::from_millis(100);
/// Requests of an open loop without a reply on one connection. Those that are due beyond it are
/// sent when there is room: servers refuse more than some hundred streams.
const IN_FLIGHT_MAX: usize = 100;
/// Time for outstanding replies after the last request.
const GRACE: Duration = Duration::from_secs(3);

/// The protocol of one connection.
pub trait Protocol {
    /// Appends what the client sends first.
    fn preface(&mut self, out: &mut Vec<u8>);
    /// Appends the next request, for key number `key`. Requests are numbered from 0.
    fn request(&mut self, key: u64, out: &mut Vec<u8>);
    /// Parses the complete replies at the front of `input`, calls `on_reply` with the number and
    /// status of each, and returns their length in bytes. Appends control frames to `out`.
    fn replies(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        on_reply: &mut dyn FnMut(u64, ReplyStatus),
    ) -> io::Result<usize>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStatus {
    Admitted,
    Refused,
    Failed,
}

/// The keys of the requests.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// This one.
    One(u64),
    /// Any below this number.
    Random(u64),
    /// Each once, starting with this number.
    From(u64),
}

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// `depth` requests are in flight on each connection.
    Closed { depth: u32 },
    /// `per_second` requests over all connections, in bursts of `burst` with the same time.
    Open { per_second: u64, burst: u64 },
}

/// When the load ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    After(Duration),
    AfterRequests(u64),
}

/// Which addresses the requests of an open loop go to.
#[derive(Clone, Copy, Debug)]
pub enum Spread {
    /// The connections in turn.
    Even,
    /// This many percent to one address and the rest to the others in turn. After each `turn` the
    /// next address is that one.
    Hot { percent: u64, turn: Option<Duration> },
}

/// A load with connections of its own. They go to `addrs` in round-robin order.
pub struct Load<'a> {
    pub addrs: &'a [SocketAddr],
    pub connections: usize,
    pub protocol: &'a dyn Fn() -> Box<dyn Protocol>,
    pub keys: Keys,
    pub pace: Pace,
    pub end: End,
}

/// Connections for several loads, one after the other. A new connection answers its first requests
/// late.
pub struct Clients {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// The number of their addresses.
    addrs: usize,
}

/// A load over connections that exist.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub keys: Keys,
    pub pace: Pace,
    pub end: End,
    /// Of an open loop.
    pub spread: Spread,
}

/// A reply, as it is received.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Index of the address that it came from.
    pub addr: usize,
    pub status: ReplyStatus,
    /// When its request was sent; in an open loop when it was to be sent.
    pub started: Instant,
    pub at: Instant,
}

#[derive(Debug)]
pub struct LoadResult {
    /// In nanoseconds, from the time a request was sent; in an open loop from its intended time.
    pub latencies: Histogram<u64>,
    pub admitted: u64,
    pub refused: u64,
    /// Invalid replies, error replies, and requests without a reply.
    pub failed: u64,
    pub took: Duration,
}

struct Loop<'a, F> {
    run: &'a Run,
    connections: &'a mut [Connection],
    addrs: usize,
    on_reply: F,
    start: Instant,
    sent: u64,
    random: u64,
    result: LoadResult,
}

impl Load<'_> {
    pub fn run(&self) -> io::Result<LoadResult> {
        let Self { addrs, connections, protocol, keys, pace, end } = *self;
        let run = Run { keys, pace, end, spread: Spread::Even };
        Clients::connect(addrs, connections, protocol)?.run(&run, |_| {})
    }
}

impl Clients {
    /// Opens `connections` to `addrs` in round-robin order.
    pub fn connect(
        addrs: &[SocketAddr],
        connections: usize,
        protocol: &dyn Fn() -> Box<dyn Protocol>,
    ) -> io::Result<Self> {
        // The default slack delays wake-ups by up to 50 us.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut opened = Vec::new();
        for (index, addr) in (0..connections).zip(addrs.iter().cycle()) {
            let connection = Connection::open(*addr, protocol())?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, connection.socket(), data, epoll::EventFlags::IN)?;
            opened.push(connection);
        }
        Ok(Self { epoll, connections: opened, addrs: addrs.len() })
    }

    /// Calls `on_reply` with each valid reply. In the thread that has connected them, which has
    /// precise timers.
    pub fn run(&mut self, run: &Run, on_reply: impl FnMut(Received)) -> io::Result<LoadResult> {
        let Self { epoll, connections, addrs } = self;
        Loop {
            run,
            connections,
            addrs: *addrs,
            on_reply,
            start: Instant::now(),
            sent: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            result: LoadResult::new(),
        }
        .run(epoll)
    }
}

impl<F: FnMut(Received)> Loop<'_, F> {
    fn run(mut self, epoll: &impl AsFd) -> io::Result<LoadResult> {
        if let Pace::Closed { depth } = self.run.pace {
            for index in 0..self.connections.len() {
                (0..depth).for_each(|_| self.request(index, Instant::now()));
                self.connections[index].flush()?;
            }
        }
        let mut events = Vec::with_capacity(256);
        let mut finished = None;
        loop {
            let now = Instant::now();
            let next = self.send_due(now)?;
            if self.is_over(now) {
                let in_flight: usize = self.connections.iter().map(Connection::in_flight).sum();
                let finished = *finished.get_or_insert(now);
                if in_flight == 0 || now > finished + GRACE {
                    self.result.failed += in_flight as u64;
                    self.result.took = now - self.start;
                    return Ok(self.result);
                }
            }
            let end = match self.run.end {
                End::After(span) if !self.is_over(now) => self.start + span,
                End::After(_) | End::AfterRequests(_) => now + PAUSE,
            };
            let pause = next.unwrap_or(end).saturating_duration_since(now).min(PAUSE);
            let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(epoll, spare, Some(&pause)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let index = event.data.u64();
                self.read(usize::try_from(index).unwrap_or_default())?;
            }
        }
    }

    /// Sends the requests that are due in an open loop. Returns when the next one is due; without
    /// room for it, nothing.
    fn send_due(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        let Pace::Open { per_second, burst } = self.run.pace else {
            return Ok(None);
        };
        let (start, first) = (self.start, self.sent);
        let due = |n: u64| {
            let first_of_burst = n - n % burst;
            start + Duration::from_nanos(first_of_burst.saturating_mul(1_000_000_000) / per_second)
        };
        let mut next = due(first);
        let mut has_room = true;
        while next <= now && !self.is_over(next) {
            let index = self.connection_of(next);
            has_room = self.connections[index].in_flight() < IN_FLIGHT_MAX;
            if !has_room {
                break;
            }
            self.request(index, next);
            next = due(self.sent);
        }
        if self.sent > first {
            self.connections.iter_mut().try_for_each(Connection::flush)?;
        }
        Ok((has_room && !self.is_over(next)).then_some(next))
    }

    /// Reads the replies of a connection. In a closed loop each is followed by a new request.
    fn read(&mut self, index: usize) -> io::Result<()> {
        let Self { result, on_reply, addrs, .. } = self;
        let addr = index % *addrs;
        let replies = self.connections[index].read(|started, at, status| {
            let latency = u64::try_from((at - started).as_nanos()).unwrap_or(u64::MAX);
            result.latencies.saturating_record(latency);
            match status {
                ReplyStatus::Admitted => result.admitted += 1,
                ReplyStatus::Refused => result.refused += 1,
                ReplyStatus::Failed => result.failed += 1,
            }
            on_reply(Received { addr, status, started, at });
        })?;
        if matches!(self.run.pace, Pace::Closed { .. }) {
            let now = Instant::now();
            for _ in 0..replies {
                if !self.is_over(now) {
                    self.request(index, now);
                }
            }
        }
        self.connections[index].flush()
    }

    fn request(&mut self, index: usize, started: Instant) {
        let key = match self.run.keys {
            Keys::One(key) => key,
            Keys::From(first) => first + self.sent,
            Keys::Random(keys) => {
                // xorshift64: enough to spread the keys.
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                self.random % keys
            }
        };
        self.sent += 1;
        self.connections[index].request(key, started);
    }

    /// The connection of the next request in an open loop, which is due at `due`.
    fn connection_of(&self, due: Instant) -> usize {
        let (number, connections) = (self.sent, self.connections.len() as u64);
        let index = match self.run.spread {
            Spread::Even => number % connections,
            Spread::Hot { percent, turn } => {
                let addrs = self.addrs as u64;
                let turns = turn.map_or(0, |turn| {
                    let turns = (due - self.start).as_nanos() / turn.as_nanos();
                    u64::try_from(turns).unwrap_or_default()
                });
                let is_hot = number % 100 < percent || addrs == 1;
                let offset = if is_hot { 0 } else { 1 + number % (addrs - 1) };
                let addr = (turns + offset) % addrs;
                // Of this address each connection in turn.
                let of_addr = (connections - addr).div_ceil(addrs);
                addr + addrs * (number % of_addr)
            }
        };
        usize::try_from(index).unwrap_or_default()
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.run.end {
            End::After(span) => now >= self.start + span,
            End::AfterRequests(requests) => self.sent >= requests,
        }
    }
}

impl LoadResult {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        let latencies = latencies.expect("valid bounds");
        Self { latencies, admitted: 0, refused: 0, failed: 0, took: Duration::ZERO }
    }

    /// Valid replies per second.
    pub fn rate(&self) -> f64 {
        (self.admitted + self.refused) as f64 / self.took.as_secs_f64()
    }

    /// A percentile in milliseconds.
    pub fn ms(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1e6
    }
}
