//! A single-threaded load generator with closed and open loops.
//!
//! It shares the cores with the server, so it is an `epoll` loop over prepared bytes and nothing
//! else. In an open loop every request has an intended time, independent of earlier replies, and
//! its latency counts from that time. A slow reply therefore delays the requests after it, as for
//! independent clients (no coordinated omission).

mod connection;
pub mod grpc;
pub mod resp;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
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

/// A load. Connections go to `addrs` in round-robin order.
pub struct Load<'a> {
    pub addrs: &'a [SocketAddr],
    pub connections: usize,
    pub protocol: &'a dyn Fn() -> Box<dyn Protocol>,
    pub keys: Keys,
    pub pace: Pace,
    pub end: End,
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

struct Loop<'a> {
    load: &'a Load<'a>,
    connections: Vec<Connection>,
    start: Instant,
    sent: u64,
    random: u64,
    result: LoadResult,
}

impl Load<'_> {
    pub fn run(&self) -> io::Result<LoadResult> {
        // The default slack delays wake-ups by up to 50 us.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::new();
        for (index, addr) in (0..self.connections).zip(self.addrs.iter().cycle()) {
            let connection = Connection::open(*addr, (self.protocol)())?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, connection.socket(), data, epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        let now = Instant::now();
        let result = LoadResult::new();
        let random = 0x9e37_79b9_7f4a_7c15;
        Loop { load: self, connections, start: now, sent: 0, random, result }.run(&epoll)
    }
}

impl Loop<'_> {
    fn run(mut self, epoll: &impl std::os::fd::AsFd) -> io::Result<LoadResult> {
        if let Pace::Closed { depth } = self.load.pace {
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
            let end = match self.load.end {
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

    /// Sends the requests that are due in an open loop. Returns when the next one is due.
    fn send_due(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        let Pace::Open { per_second, burst } = self.load.pace else {
            return Ok(None);
        };
        let (start, first, count) = (self.start, self.sent, self.connections.len());
        let due = |n: u64| {
            let first_of_burst = n - n % burst;
            start + Duration::from_nanos(first_of_burst.saturating_mul(1_000_000_000) / per_second)
        };
        let mut next = due(first);
        while next <= now && !self.is_over(next) {
            self.request(connection_index(self.sent, count), next);
            next = due(self.sent);
        }
        // The connections with new requests are consecutive.
        for number in first..self.sent.min(first + count as u64) {
            self.connections[connection_index(number, count)].flush()?;
        }
        Ok((!self.is_over(next)).then_some(next))
    }

    /// Reads the replies of a connection. In a closed loop each is followed by a new request.
    fn read(&mut self, index: usize) -> io::Result<()> {
        let result = &mut self.result;
        let replies = self.connections[index].read(|started, now, status| {
            let latency = u64::try_from((now - started).as_nanos()).unwrap_or(u64::MAX);
            result.latencies.saturating_record(latency);
            match status {
                ReplyStatus::Admitted => result.admitted += 1,
                ReplyStatus::Refused => result.refused += 1,
                ReplyStatus::Failed => result.failed += 1,
            }
        })?;
        if matches!(self.load.pace, Pace::Closed { .. }) {
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
        let key = match self.load.keys {
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

    fn is_over(&self, now: Instant) -> bool {
        match self.load.end {
            End::After(span) => now >= self.start + span,
            End::AfterRequests(requests) => self.sent >= requests,
        }
    }
}

/// The connection of a request in an open loop.
fn connection_index(number: u64, connections: usize) -> usize {
    usize::try_from(number).unwrap_or_default() % connections
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
