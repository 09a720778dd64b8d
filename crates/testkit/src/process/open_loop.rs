//! An open loop: checks at a fixed rate, however long the responses take.
//!
//! A connection writes requests without waiting for the responses (pipelining), up to
//! [`IN_FLIGHT_MAX`]. What would be more is not sent, and counted: it is what a client sees whose
//! socket is full. So a node can be offered many times what it serves, at little cost for the
//! client.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::http_client::check_body;

/// Requests of a connection that wait for their responses.
pub const IN_FLIGHT_MAX: usize = 16;
/// How often a connection sends what is due.
const TICK: Duration = Duration::from_millis(10);
/// How long it waits for responses after its last request, and before it connects again.
const PATIENCE: Duration = Duration::from_secs(10);
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 16 * 1024;

/// What one loop sends.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    pub connections: u32,
    /// Requests a second over all connections.
    pub rate: f64,
    /// Domain and key of the descriptors; their values are those of `values`, in turn.
    pub domain: &'a str,
    pub key: &'a str,
    pub values: &'a [String],
}

/// What became of the requests.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Responses 200, by value.
    pub admitted: Vec<u64>,
    /// Responses 429.
    pub denied: u64,
    /// Other responses.
    pub refused: u64,
    /// Sent, and the connection ended or [`PATIENCE`] was over before the response.
    pub lost: u64,
    /// Not sent, because as many were in flight as may be.
    pub unsent: u64,
    /// From request to response, microseconds.
    pub micros: Histogram<u64>,
}

impl Outcome {
    fn of(values: usize) -> Self {
        let micros = Histogram::new_with_bounds(1, 60_000_000, 3).unwrap();
        let admitted = vec![0; values];
        Self { admitted, denied: 0, refused: 0, lost: 0, unsent: 0, micros }
    }

    pub fn add(&mut self, other: &Self) {
        for (sum, admitted) in self.admitted.iter_mut().zip(&other.admitted) {
            *sum += admitted;
        }
        self.denied += other.denied;
        self.refused += other.refused;
        self.lost += other.lost;
        self.unsent += other.unsent;
        self.micros.add(&other.micros).unwrap();
    }

    /// Responses of all kinds.
    pub fn responses(&self) -> u64 {
        self.micros.len()
    }

    /// How many responses took longer than `limit`.
    pub fn later_than(&self, limit: Duration) -> u64 {
        let micros = u64::try_from(limit.as_micros()).unwrap();
        self.micros.len() - self.micros.count_between(0, micros)
    }
}

/// Offers `offer` to `listener` until `stop`, and waits for the last responses.
pub async fn run(listener: SocketAddr, offer: &Offer<'_>, stop: &CancellationToken) -> Outcome {
    let Offer { connections, rate, domain, key, values } = *offer;
    let request = |value: &String| {
        let body = check_body(domain, key, value).to_string();
        let length = body.len();
        format!("POST /v1/check HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let requests: Vec<String> = values.iter().map(request).collect();
    let per_tick = rate * TICK.as_secs_f64() / f64::from(connections);
    let mut tasks = JoinSet::new();
    for number in 0..connections {
        let next = number as usize;
        let sender = Sender { listener, requests: requests.clone(), per_tick, next };
        tasks.spawn(sender.run(stop.clone()));
    }
    let mut sum = Outcome::of(values.len());
    for outcome in tasks.join_all().await {
        sum.add(&outcome);
    }
    sum
}

/// One connection after the other.
struct Sender {
    listener: SocketAddr,
    requests: Vec<String>,
    per_tick: f64,
    /// The next request: connections begin with different ones.
    next: usize,
}

type InFlight = VecDeque<(usize, Instant)>;

impl Sender {
    async fn run(mut self, stop: CancellationToken) -> Outcome {
        let mut outcome = Outcome::of(self.requests.len());
        while !stop.is_cancelled() {
            if let Ok(stream) = TcpStream::connect(self.listener).await {
                let mut in_flight = InFlight::new();
                self.converse(stream, &stop, &mut in_flight, &mut outcome).await;
                outcome.lost += in_flight.len() as u64;
            }
            let _ = stop.run_until_cancelled(tokio::time::sleep(RECONNECT_PAUSE)).await;
        }
        outcome
    }

    /// Until the connection ends, or all responses are there after `stop`.
    async fn converse(
        &mut self,
        mut stream: TcpStream,
        stop: &CancellationToken,
        in_flight: &mut InFlight,
        outcome: &mut Outcome,
    ) {
        let _ = stream.set_nodelay(true);
        let (mut read, mut write) = stream.split();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (mut sent, mut received) = (BytesMut::new(), BytesMut::with_capacity(BUFFER_BYTES));
        let mut due = 0.0;
        let mut ends = None;
        while ends.is_none_or(|at| Instant::now() < at) {
            tokio::select! {
                () = stop.cancelled(), if ends.is_none() => {
                    ends = Some(Instant::now() + PATIENCE);
                }
                _ = ticks.tick() => {
                    if ends.is_none() {
                        due += self.per_tick;
                        while due >= 1.0 {
                            due -= 1.0;
                            self.send(&mut sent, in_flight, outcome);
                        }
                    }
                }
                written = write.write_buf(&mut sent), if !sent.is_empty() => {
                    if written.is_err() {
                        return;
                    }
                }
                bytes = read.read_buf(&mut received) => {
                    if !matches!(bytes, Ok(1..)) {
                        return;
                    }
                    while let Some(status) = response(&mut received) {
                        let Some((value, at)) = in_flight.pop_front() else { return };
                        let micros = u64::try_from(at.elapsed().as_micros()).unwrap();
                        outcome.micros.saturating_record(micros);
                        match status {
                            200 => outcome.admitted[value] += 1,
                            429 => outcome.denied += 1,
                            _ => outcome.refused += 1,
                        }
                    }
                }
            }
            if ends.is_some() && in_flight.is_empty() {
                return;
            }
        }
    }

    fn send(&mut self, sent: &mut BytesMut, in_flight: &mut InFlight, outcome: &mut Outcome) {
        if in_flight.len() >= IN_FLIGHT_MAX {
            outcome.unsent += 1;
            return;
        }
        let value = self.next % self.requests.len();
        self.next += 1;
        sent.extend_from_slice(self.requests[value].as_bytes());
        in_flight.push_back((value, Instant::now()));
    }
}

/// Removes one whole response from `received`; its status.
fn response(received: &mut BytesMut) -> Option<u16> {
    const LENGTH: &[u8] = b"\r\ncontent-length: ";
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|at| at == what);
    let header = find(received, b"\r\n\r\n")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let length = find(&received[..header], LENGTH).map_or(0, |at| {
        let digits = received[at + LENGTH.len()..].split(|byte| *byte == b'\r').next();
        text(digits.unwrap_or_default()).parse().unwrap()
    });
    let whole = header + 4 + length;
    if received.len() < whole {
        return None;
    }
    let status = text(&received["HTTP/1.1 ".len()..][..3]).parse().unwrap();
    received.advance(whole);
    Some(status)
}
