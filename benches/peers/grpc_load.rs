//! A closed loop of `ShouldRateLimit` calls over random keys, as light as a client can be: it shares
//! the cores with what it measures.
//!
//! ```text
//! cargo bench --bench grpc_load -- ADDRESS connections=64 streams=1 seconds=10 keys=100000
//! ```
//!
//! Each connection keeps `streams` calls under way. One thread writes HTTP/2 frames by hand: the
//! header block is the same bytes for every call but the first, and of an answer only the first
//! bytes of its message are looked at. Prints one line: rate, latency, and what was answered.

#![allow(clippy::disallowed_methods, reason = "a benchmark has to read a clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use prost::Message;
use tidegate::front::rls::message::{Entry, RateLimitDescriptor, RateLimitRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What is asked, and how much at once.
#[derive(Clone, Copy, Debug)]
struct Load {
    addr: SocketAddr,
    connections: u32,
    streams: u32,
    keys: u64,
    seconds: u64,
    until: Instant,
}

/// One connection and what came of it.
struct Connection {
    stream: TcpStream,
    keys: Keys,
    next_stream: u32,
    /// When the calls under way were sent; few, so searched in order.
    under_way: Vec<(u32, Instant)>,
    /// The verdict of the calls under way, as far as it came: the stream and its code.
    told: Vec<(u32, u8)>,
    out: Vec<u8>,
    result: Outcome,
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    latencies: Histogram<u64>,
    /// Answered `OK`, `OVER_LIMIT`, and without a message.
    ok: u64,
    over: u64,
    errors: u64,
}

/// Keys drawn by xorshift.
struct Keys {
    state: u64,
    count: u64,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// `:method: POST`, `:scheme: http`.
const STATIC: [u8; 2] = [0x83, 0x86];
/// Those that the first header block put into the table, the oldest first.
const INDEXED: [u8; 4] = [0xc1, 0xc0, 0xbf, 0xbe];
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// All that answers of one run may hold; the server is told so once.
const WINDOW: u32 = i32::MAX.cast_unsigned() - 65_535;
const LATENCY_MAX_NS: u64 = 60_000_000_000;
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = |name: &str, default: u64| {
        let value = arguments.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
        value.map_or(Ok(default), |value| value.parse().map_err(io::Error::other))
    };
    let Some(addr) = arguments.iter().find_map(|it| it.parse().ok()) else {
        println!("grpc_load: give an address to ask, 127.0.0.1:8081 say");
        return Ok(());
    };
    let small = |value: u64| u32::try_from(value).map_err(io::Error::other);
    let seconds = named("seconds", 10)?;
    let load = Load {
        addr,
        connections: small(named("connections", 64)?)?,
        streams: small(named("streams", 1)?)?,
        keys: named("keys", 100_000)?,
        seconds,
        until: Instant::now() + WARM_UP + Duration::from_secs(seconds),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(load.run())?;
    let at = |quantile| outcome.latencies.value_at_quantile(quantile) as f64 / 1e6;
    println!(
        "{:.0} checks/s, p50 {:.2} p99 {:.2} p99.9 {:.2} max {:.2} ms, ok {} over {} errors {}",
        outcome.latencies.len() as f64 / load.seconds as f64,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        outcome.ok,
        outcome.over,
        outcome.errors
    );
    Ok(())
}

impl Load {
    async fn run(self) -> io::Result<Outcome> {
        let mut connections = JoinSet::new();
        for number in 0..self.connections {
            let connection = Connection::open(self, number).await?;
            connections.spawn(connection.run(self));
        }
        let mut all = Outcome::new();
        while let Some(one) = connections.join_next().await {
            let one = one.map_err(io::Error::other)??;
            all.latencies.add(&one.latencies).map_err(io::Error::other)?;
            all.ok += one.ok;
            all.over += one.over;
            all.errors += one.errors;
        }
        Ok(all)
    }
}

impl Connection {
    async fn open(load: Load, number: u32) -> io::Result<Self> {
        let stream = TcpStream::connect(load.addr).await?;
        stream.set_nodelay(true)?;
        let mut out = PREFACE.to_vec();
        frame(&mut out, SETTINGS, 0, 0, &[]);
        frame(&mut out, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        Ok(Self {
            stream,
            keys: Keys::new(u64::from(number), load.keys),
            next_stream: 1,
            under_way: Vec::new(),
            told: Vec::new(),
            out,
            result: Outcome::new(),
        })
    }

    async fn run(mut self, load: Load) -> io::Result<Outcome> {
        let counted_from = load.until - Duration::from_secs(load.seconds);
        for _ in 0..load.streams {
            self.ask();
        }
        let mut buffer = Vec::with_capacity(64 * 1024);
        loop {
            self.stream.write_all(&self.out).await?;
            self.out.clear();
            if self.stream.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let now = Instant::now();
            let mut rest = &buffer[..];
            while let Some((head, body, behind)) = split(rest) {
                self.hear(head, body, now, counted_from)?;
                rest = behind;
            }
            let left = rest.len();
            buffer.drain(..buffer.len() - left);
            if now >= load.until {
                return Ok(self.result);
            }
        }
    }

    fn hear(
        &mut self,
        head: &[u8; HEAD_BYTES],
        body: &[u8],
        now: Instant,
        from: Instant,
    ) -> io::Result<()> {
        let [_, _, _, kind, flags, id @ ..] = *head;
        let id = u32::from_be_bytes(id);
        match kind {
            // A message without its frame of 5 bytes begins with field 1, the overall code.
            DATA if body.len() > 6 => self.told.push((id, body[6])),
            SETTINGS if flags & ACK == 0 => frame(&mut self.out, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(&mut self.out, PING, ACK, 0, body),
            RST_STREAM | GOAWAY => return Err(io::ErrorKind::ConnectionAborted.into()),
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            let sent = self.under_way.iter().position(|(stream, _)| *stream == id);
            let sent = sent.ok_or(io::ErrorKind::InvalidData)?;
            let (_, sent) = self.under_way.swap_remove(sent);
            let told = self.told.iter().position(|(stream, _)| *stream == id);
            let code = told.map(|told| self.told.swap_remove(told).1);
            if sent >= from {
                let result = &mut self.result;
                let took = u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX);
                result.latencies.saturating_record(took);
                match code {
                    Some(1) => result.ok += 1,
                    Some(2) => result.over += 1,
                    _ => result.errors += 1,
                }
            }
            self.ask();
        }
        Ok(())
    }

    fn ask(&mut self) {
        let id = self.next_stream;
        self.next_stream += 2;
        let mut block = STATIC.to_vec();
        if id == 1 {
            for (name, value) in
                [(0x44, PATH), (0x41, "bench"), (0x5f, "application/grpc"), (0x40, "trailers")]
            {
                block.push(name);
                if name == 0x40 {
                    block.extend_from_slice(b"\x02te");
                }
                block.push(u8::try_from(value.len()).unwrap_or(0));
                block.extend_from_slice(value.as_bytes());
            }
        } else {
            block.extend_from_slice(&INDEXED);
        }
        frame(&mut self.out, HEADERS, END_HEADERS, id, &block);

        let entry = Entry { key: "user".into(), value: format!("user-{}", self.keys.next()) };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let domain = "bench".into();
        let request = RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 1 };
        let mut body = vec![0];
        let length = u32::try_from(request.encoded_len()).unwrap_or(0);
        body.extend_from_slice(&length.to_be_bytes());
        body.extend(request.encode_to_vec());
        frame(&mut self.out, DATA, END_STREAM, id, &body);
        self.under_way.push((id, Instant::now()));
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap_or(0).to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(body);
}

/// The first frame, if it is all there: its head, its body, and what is behind it.
fn split(bytes: &[u8]) -> Option<(&[u8; HEAD_BYTES], &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let (body, behind) = rest.split_at_checked(length)?;
    Some((head, body, behind))
}

impl Outcome {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        Self { latencies: latencies.expect("valid bounds"), ok: 0, over: 0, errors: 0 }
    }
}

impl Keys {
    fn new(seed: u64, count: u64) -> Self {
        Self { state: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), count: count.max(1) }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.count
    }
}
