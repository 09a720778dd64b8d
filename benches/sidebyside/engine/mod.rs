//! One thread that asks servers as fast as they answer, or at fixed times.
//!
//! What the client takes of the two cores is missing to the server, so this is an `epoll` loop over
//! prepared bytes and nothing else. In an open loop every ask has a time at which it is due,
//! whatever became of those before, and its latency counts from then: a slow answer makes those
//! behind it slow, as it would for clients who do not know of each other.

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

/// Longer than any answer may take.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// How long it waits at once when nothing comes.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers are waited for after the last ask.
const GRACE: Duration = Duration::from_secs(3);

/// How one connection speaks.
pub trait Wire {
    /// Bytes that open the conversation.
    fn hello(&mut self, out: &mut Vec<u8>);
    /// Appends the next ask, about key number `key`. Asks are numbered from 0.
    fn ask(&mut self, key: u64, out: &mut Vec<u8>);
    /// Reads whole answers from the front of `input` and says how many bytes they took. What the
    /// protocol wants to be replied goes to `out`.
    fn answers(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(u64, Said),
    ) -> io::Result<usize>;
}

/// What an answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Admitted,
    Refused,
    Failed,
}

/// Which keys are asked about.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// Any below this number.
    Random(u64),
    /// Each once, from this number on.
    From(u64),
}

/// When asks are sent.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// So many wait for their answer on each connection.
    Closed { depth: u32 },
    /// So many a second over all connections, of which so many are due at one instant.
    Open { per_second: u64, all_or_nothing: u64 },
}

/// When no more is asked.
#[derive(Clone, Copy, Debug)]
pub enum End {
    After(Duration),
    AfterAsks(u64),
}

/// A load. Connections are dealt to `addrs` in turn.
pub struct Load<'a> {
    pub addrs: &'a [SocketAddr],
    pub connections: usize,
    pub wire: &'a dyn Fn() -> Box<dyn Wire>,
    pub keys: Keys,
    pub pace: Pace,
    pub end: End,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Nanoseconds from when an ask was sent, in an open loop from when it was due.
    pub latencies: Histogram<u64>,
    pub admitted: u64,
    pub refused: u64,
    /// Answers that were none, and asks without an answer.
    pub failed: u64,
    pub took: Duration,
}

struct Loop<'a> {
    load: &'a Load<'a>,
    connections: Vec<Connection>,
    start: Instant,
    asked: u64,
    random: u64,
    outcome: Outcome,
}

impl Load<'_> {
    pub fn run(&self) -> io::Result<Outcome> {
        // A wait for the next ask should not last 50 us longer than it was told to.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::new();
        for (index, addr) in (0..self.connections).zip(self.addrs.iter().cycle()) {
            let connection = Connection::open(*addr, (self.wire)())?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, connection.socket(), data, epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        let now = Instant::now();
        let outcome = Outcome::new();
        let random = 0x9e37_79b9_7f4a_7c15;
        Loop { load: self, connections, start: now, asked: 0, random, outcome }.run(&epoll)
    }
}

impl Loop<'_> {
    fn run(mut self, epoll: &impl std::os::fd::AsFd) -> io::Result<Outcome> {
        if let Pace::Closed { depth } = self.load.pace {
            for index in 0..self.connections.len() {
                (0..depth).for_each(|_| self.ask(index, Instant::now()));
                self.connections[index].flush()?;
            }
        }
        let mut events = Vec::with_capacity(256);
        let mut finished = None;
        loop {
            let now = Instant::now();
            let next = self.ask_what_is_due(now)?;
            if self.is_over(now) {
                let waiting: usize = self.connections.iter().map(Connection::waiting).sum();
                let finished = *finished.get_or_insert(now);
                if waiting == 0 || now > finished + GRACE {
                    self.outcome.failed += waiting as u64;
                    self.outcome.took = now - self.start;
                    return Ok(self.outcome);
                }
            }
            let end = match self.load.end {
                End::After(span) if !self.is_over(now) => self.start + span,
                End::After(_) | End::AfterAsks(_) => now + PAUSE,
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
                self.hear(usize::try_from(index).unwrap_or_default())?;
            }
        }
    }

    /// Sends what is due in an open loop and says when the next is.
    fn ask_what_is_due(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        let Pace::Open { per_second, all_or_nothing } = self.load.pace else {
            return Ok(None);
        };
        let (start, first, count) = (self.start, self.asked, self.connections.len());
        let due = |n: u64| {
            let before = n - n % all_or_nothing;
            start + Duration::from_nanos(before.saturating_mul(1_000_000_000) / per_second)
        };
        let mut next = due(first);
        while next <= now && !self.is_over(next) {
            self.ask(token(self.asked, count), next);
            next = due(self.asked);
        }
        // Those that were asked stand side by side.
        for number in first..self.asked.min(first + count as u64) {
            self.connections[token(number, count)].flush()?;
        }
        Ok((!self.is_over(next)).then_some(next))
    }

    /// Reads what a connection has and, in a closed loop, asks again for each answer.
    fn hear(&mut self, index: usize) -> io::Result<()> {
        let outcome = &mut self.outcome;
        let answered = self.connections[index].read(|since, now, said| {
            let latency = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            outcome.latencies.saturating_record(latency);
            match said {
                Said::Admitted => outcome.admitted += 1,
                Said::Refused => outcome.refused += 1,
                Said::Failed => outcome.failed += 1,
            }
        })?;
        if matches!(self.load.pace, Pace::Closed { .. }) {
            let now = Instant::now();
            for _ in 0..answered {
                if !self.is_over(now) {
                    self.ask(index, now);
                }
            }
        }
        self.connections[index].flush()
    }

    fn ask(&mut self, index: usize, since: Instant) {
        let key = match self.load.keys {
            Keys::From(first) => first + self.asked,
            Keys::Random(keys) => {
                // xorshift64: keys need to be spread, not secret.
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                self.random % keys
            }
        };
        self.asked += 1;
        self.connections[index].ask(key, since);
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.load.end {
            End::After(span) => now >= self.start + span,
            End::AfterAsks(asks) => self.asked >= asks,
        }
    }
}

/// The connection that an ask goes to in an open loop.
fn token(number: u64, connections: usize) -> usize {
    usize::try_from(number).unwrap_or_default() % connections
}

impl Outcome {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        let latencies = latencies.expect("valid bounds");
        Self { latencies, admitted: 0, refused: 0, failed: 0, took: Duration::ZERO }
    }

    /// Answers a second.
    pub fn rate(&self) -> f64 {
        (self.admitted + self.refused) as f64 / self.took.as_secs_f64()
    }

    /// A percentile in milliseconds.
    pub fn ms(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1e6
    }
}
