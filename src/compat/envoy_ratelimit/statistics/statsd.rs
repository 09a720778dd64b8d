//! Statistics in statsd's protocol: lines of `name:value|type`, counters as the increase since the
//! last flush.
//!
//! ```text
//! ratelimit.service.rate_limit.mongo_cps.database_users.total_hits:12|c
//! ratelimit.service.rate_limit.mongo_cps.database_users.over_limit:2|c
//! ratelimit_server.ShouldRateLimit.response_time:0|ms|@0.090909090
//! ```
//!
//! An unchanged counter is not sent. A value counts as sent once its bytes were written to the
//! connection ([`Sent::note`]); until then it stays pending, so a server that was unavailable
//! receives the sum later and nothing is queued meanwhile. If a counter decreases, the difference
//! is negative, which statsd accepts.
//!
//! Thousands of calls a second are timed, and a line for each would cost more than the calls. The
//! calls of one bucket are one line: the bucket's lower bound in whole milliseconds, with a
//! sampling rate of one in the number of calls, which servers multiply out.
//!
//! A client library does not fit: cadence sends one line a metric through its own queue, has
//! neither TCP nor tags in names, and does not track what was delivered.
//!
//! Over UDP a write succeeds although no server listens, and the next one reports that. So an empty
//! datagram goes first, which servers ignore: if the host of the server answers it with an error
//! within [`PROBE_PAUSE`], nothing else is sent. A host that is gone does not answer, and what is
//! sent to it is lost.
//!
//! The exporter sends every `stats.flush_interval` and once at the end. A server that is
//! unavailable, slow or full costs one second of its task and nothing else: no other task waits for
//! it, and nothing is queued.
//!
//! Source: lyft/gostats, `net_sink.go` and `internal/tags/tags.go`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Source, Statistics};
use crate::config::{Stats, StatsdProtocol};
use crate::observe::latency::BOUNDS;

/// Timeout of name resolution, connect and write together. An unresponsive server delays the
/// shutdown of the node by it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an error may take that answers an empty datagram.
const PROBE_PAUSE: Duration = Duration::from_millis(100);

/// Exports to one statsd server.
#[derive(Debug)]
pub struct StatsdExporter {
    stats: Stats,
    dialect: Dialect,
    source: Source,
    sent: Sent,
    connection: Option<Connection>,
    /// Whether the last flush succeeded; changes are logged.
    is_healthy: bool,
}

#[derive(Debug)]
enum Connection {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

impl StatsdExporter {
    pub fn new(stats: Stats, source: Source) -> Self {
        let dialect = Dialect::new(stats.statsd_protocol, &stats.tags());
        let sent = Sent::default();
        Self { stats, dialect, source, sent, connection: None, is_healthy: true }
    }

    /// Sends until `stop`, then flushes once more. Without a server it returns at `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let Some(server) = self.stats.statsd.take() else {
            stop.cancelled().await;
            return;
        };
        let mut ticks = tokio::time::interval(self.stats.flush_interval.to_std());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_last = tokio::select! {
                () = stop.cancelled() => true,
                _ = ticks.tick() => false,
            };
            self.flush(&server).await;
            if is_last {
                return;
            }
        }
    }

    async fn flush(&mut self, server: &str) {
        let outcome = match tokio::time::timeout(FLUSH_TIMEOUT, self.send(server)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match outcome {
            Ok(()) if !self.is_healthy => {
                tracing::info!(server, "sending statistics to the statsd server again");
                self.is_healthy = true;
            }
            Ok(()) => {}
            Err(error) => {
                // Half a line may have been sent; the next line must not be appended to it.
                self.connection = None;
                if self.is_healthy {
                    tracing::warn!(
                        server,
                        %error,
                        "failed to send statistics to the statsd server; they are sent as one sum \
                         when it is back"
                    );
                    self.is_healthy = false;
                }
            }
        }
    }

    /// Sends pending values. Not cancel-safe: drop the connection after a cancellation.
    async fn send(&mut self, server: &str) -> io::Result<()> {
        let pending = self.sent.pending(&self.source.read(), &self.dialect);
        if pending.is_empty() {
            return Ok(());
        }
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(server, self.stats.statsd_protocol).await?,
        };
        connection.probe().await?;
        for chunk in pending {
            connection.write(&chunk.bytes).await?;
            self.sent.note(chunk);
        }
        self.connection = Some(connection);
        Ok(())
    }
}

impl Connection {
    async fn open(server: &str, protocol: StatsdProtocol) -> io::Result<Self> {
        if protocol == StatsdProtocol::Tcp {
            return TcpStream::connect(server).await.map(Self::Stream);
        }
        let addr = lookup_host(server).await?.next().ok_or(io::ErrorKind::NotFound)?;
        let any: SocketAddr = match addr {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(addr).await?;
        Ok(Self::Datagrams(socket))
    }

    /// Whether the server has not closed the connection: the first write afterwards would be lost
    /// without an error. Data from the server, which statsd does not define, is ignored.
    fn is_open(&self) -> bool {
        match self {
            Self::Stream(stream) => match stream.try_read(&mut [0; 1_024]) {
                Ok(read) => read > 0,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            },
            Self::Datagrams(_) => true,
        }
    }

    /// Whether datagrams are refused.
    async fn probe(&self) -> io::Result<()> {
        let Self::Datagrams(socket) = self else { return Ok(()) };
        socket.send(&[]).await?;
        tokio::time::sleep(PROBE_PAUSE).await;
        socket.take_error()?.map_or(Ok(()), Err)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.write_all(bytes).await,
            Self::Datagrams(socket) => socket.send(bytes).await.map(drop),
        }
    }
}

// === the lines ===

/// The format of lines.
#[derive(Clone, Debug)]
pub struct Dialect {
    /// Appended to the name: `.__env=prod.__zone=a`, the tags of gostats.
    in_name: String,
    /// Appended to the line: `|#env:prod,zone:a`, the tags of `DogStatsD`.
    at_end: String,
    /// Most bytes of one write.
    bytes_max: usize,
}

/// Whole lines for one write, and the values they contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    pub bytes: Vec<u8>,
    counters: Vec<(String, u64)>,
    times: Vec<(usize, u64)>,
}

/// The values last sent. It grows with the names of the tallies, which are bounded.
#[derive(Debug, Default)]
pub struct Sent {
    counters: HashMap<String, u64>,
    times: [u64; BOUNDS.len() + 1],
}

/// A datagram that Ethernet carries in one frame.
const DATAGRAM_BYTES: usize = 1_432;
const STREAM_BYTES: usize = 1 << 16;

impl Dialect {
    pub fn new(protocol: StatsdProtocol, tags: &[(&str, &str)]) -> Self {
        let (mut in_name, mut at_end) = (String::new(), String::new());
        for (key, value) in in_order(tags) {
            // A tag's value without separators of the protocol.
            let value = value.replace(['.', ':', '|'], "_");
            // Writing to a `String` cannot fail.
            let _ = if protocol == StatsdProtocol::Dogstatsd {
                let before = if at_end.is_empty() { "|#" } else { "," };
                write!(at_end, "{before}{key}:{value}")
            } else {
                write!(in_name, ".__{key}={value}")
            };
        }
        let is_stream = protocol == StatsdProtocol::Tcp;
        let bytes_max = if is_stream { STREAM_BYTES } else { DATAGRAM_BYTES };
        Self { in_name, at_end, bytes_max }
    }
}

/// Tags sorted by key, without those whose key or value is empty.
fn in_order<'a>(tags: &[(&'a str, &'a str)]) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut tags: Vec<_> =
        tags.iter().copied().filter(|(key, value)| !key.is_empty() && !value.is_empty()).collect();
    tags.sort_unstable();
    tags.into_iter()
}

impl Sent {
    /// The changes since the last flush, in order.
    pub fn pending(&self, statistics: &Statistics, dialect: &Dialect) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        let mut chunk = Chunk::default();
        let mut line = String::new();
        statistics.counters(|name, value| {
            let sent = self.counters.get(name).copied().unwrap_or(0);
            if value == sent {
                return;
            }
            let more = value.wrapping_sub(sent).cast_signed();
            line.clear();
            let Dialect { in_name, at_end, .. } = dialect;
            let _ = writeln!(line, "{name}{in_name}:{more}|c{at_end}");
            chunk = std::mem::take(&mut chunk).with(&line, dialect, &mut chunks);
            chunk.counters.push((name.to_owned(), value));
        });
        for (bucket, count) in statistics.times.counts.into_iter().enumerate() {
            let sent = self.times.get(bucket).copied().unwrap_or(0);
            let more = count.wrapping_sub(sent);
            if more == 0 {
                continue;
            }
            line.clear();
            let Dialect { in_name, at_end, .. } = dialect;
            let (ms, rate) = (whole_ms_from(bucket), rate(more));
            let _ = writeln!(
                line,
                "ratelimit_server.ShouldRateLimit.response_time{in_name}:{ms}|ms{rate}{at_end}"
            );
            chunk = std::mem::take(&mut chunk).with(&line, dialect, &mut chunks);
            chunk.times.push((bucket, count));
        }
        if !chunk.bytes.is_empty() {
            chunks.push(chunk);
        }
        chunks
    }

    /// Records that `chunk` was written.
    pub fn note(&mut self, chunk: Chunk) {
        self.counters.extend(chunk.counters);
        for (bucket, count) in chunk.times {
            if let Some(sent) = self.times.get_mut(bucket) {
                *sent = count;
            }
        }
    }
}

impl Chunk {
    /// Appends a line. If it does not fit, `self` moves to `full` and the line starts a new chunk.
    fn with(mut self, line: &str, dialect: &Dialect, full: &mut Vec<Self>) -> Self {
        if !self.bytes.is_empty() && self.bytes.len() + line.len() > dialect.bytes_max {
            full.push(std::mem::take(&mut self));
        }
        self.bytes.extend_from_slice(line.as_bytes());
        self
    }
}

/// The lower bound of a bucket in whole milliseconds, to which envoyproxy/ratelimit rounds down.
fn whole_ms_from(bucket: usize) -> u64 {
    let below = bucket.checked_sub(1).and_then(|below| BOUNDS.get(below));
    below.map_or(0, |micros| micros / 1_000)
}

/// One in `count`, rounded down: servers divide by it and drop the fraction.
fn rate(count: u64) -> String {
    match count {
        1 => String::new(),
        count => format!("|@0.{:09}", (1_000_000_000 / count).max(1)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tidegate_limiter::units::Span;
    use tidegate_rules::tally::{Outcome, Tallies};

    use StatsdProtocol::{Dogstatsd, Tcp, Udp};

    use super::*;
    use crate::observe::latency::{Latency, Times};

    #[test]
    fn counters_are_sent_as_differences() {
        let tallies = Tallies::default();
        let mut sent = Sent::default();
        let tally = tallies.of("mongo_cps.database_users");
        tally.count(10, 12, 12, Outcome::Over, false, 0.8);
        assert_eq!(
            text_of(&sent, &tallies),
            "ratelimit.service.rate_limit.mongo_cps.database_users.total_hits:12|c\n\
             ratelimit.service.rate_limit.mongo_cps.database_users.over_limit:2|c\n\
             ratelimit.service.rate_limit.mongo_cps.database_users.near_limit:2|c\n"
        );
        note_all(&mut sent, &tallies);
        assert_eq!(text_of(&sent, &tallies), "");

        tally.count(10, 13, 1, Outcome::Over, false, 0.8);
        tallies.domain_not_found("10.0.0.1:80");
        tallies.service.service_error.fetch_add(1, Ordering::Relaxed);
        tallies.service.config_load_success.fetch_add(1, Ordering::Relaxed);
        assert_eq!(
            text_of(&sent, &tallies),
            "ratelimit.service.rate_limit.mongo_cps.database_users.total_hits:1|c\n\
             ratelimit.service.rate_limit.mongo_cps.database_users.over_limit:1|c\n\
             ratelimit.service.rate_limit.10_0_0_1_80.domain_not_found:1|c\n\
             ratelimit.service.config_load_success:1|c\n\
             ratelimit.service.call.should_rate_limit.service_error:1|c\n"
        );
    }

    #[test]
    fn unsent_values_stay_pending() {
        let tallies = Tallies::default();
        let sent = Sent::default();
        let tally = tallies.of("d.k");
        tally.count(10, 1, 1, Outcome::Within, false, 0.8);
        let first = text_of(&sent, &tallies);
        assert_eq!(first, text_of(&sent, &tallies));
        tally.count(10, 2, 1, Outcome::Within, false, 0.8);
        assert!(text_of(&sent, &tallies).contains("total_hits:2|c\n"));
    }

    #[test]
    fn refunded_hits_are_negative() {
        let tallies = Tallies::default();
        let mut sent = Sent::default();
        tallies.of("d.k").count(10, 5, 5, Outcome::Within, false, 0.8);
        note_all(&mut sent, &tallies);
        tallies.of("d.k").count(10, 2, 3_u64.wrapping_neg(), Outcome::Within, false, 0.8);
        assert!(text_of(&sent, &tallies).contains("d.k.total_hits:-3|c\n"));
    }

    #[test]
    fn tags_follow_the_dialect() {
        let tags = [("zone", "a.b"), ("env", "prod"), ("empty", ""), ("", "x")];
        let tallies = Tallies::default();
        tallies.domain_not_found("d");
        let line = |dialect: &Dialect| {
            let statistics = Statistics::read(&tallies, 0, Times::default());
            text(&Sent::default().pending(&statistics, dialect))
        };
        let name = "ratelimit.service.rate_limit.d.domain_not_found";
        let in_name = format!("{name}.__env=prod.__zone=a_b:1|c\n");
        assert_eq!(line(&Dialect::new(Tcp, &tags)), in_name);
        assert_eq!(line(&Dialect::new(Udp, &tags)), in_name);
        assert_eq!(
            line(&Dialect::new(Dogstatsd, &tags)),
            format!("{name}:1|c|#env:prod,zone:a_b\n")
        );
        assert_eq!(line(&Dialect::new(Dogstatsd, &[])), format!("{name}:1|c\n"));
    }

    #[test]
    fn calls_of_one_bucket_are_one_sampled_line() {
        let latency = Latency::default();
        for micros in [20, 300, 300, 300, 7_000] {
            latency.record(Span::from_nanos(micros * 1_000));
        }
        let statistics = Statistics::read(&Tallies::default(), 6, latency.read());
        let mut sent = Sent::default();
        let chunks = sent.pending(&statistics, &Dialect::new(Tcp, &[]));
        assert_eq!(
            text(&chunks),
            "ratelimit_server.ShouldRateLimit.total_requests:6|c\n\
             ratelimit_server.ShouldRateLimit.response_time:0|ms\n\
             ratelimit_server.ShouldRateLimit.response_time:0|ms|@0.333333333\n\
             ratelimit_server.ShouldRateLimit.response_time:5|ms\n"
        );
        note(&mut sent, chunks);
        assert_eq!(sent.pending(&statistics, &Dialect::new(Tcp, &[])), []);
    }

    #[test]
    fn a_datagram_holds_whole_lines_and_a_lost_one_stays_pending_alone() {
        let tallies = Tallies::default();
        for n in 0..100 {
            tallies.of(&format!("domain.key_{n}")).count(10, 1, 1, Outcome::Within, false, 0.8);
        }
        let statistics = Statistics::read(&tallies, 0, Times::default());
        let dialect = Dialect::new(Udp, &[]);
        let mut sent = Sent::default();
        let mut chunks = sent.pending(&statistics, &dialect);
        let lines = text(&chunks).lines().count();
        assert_eq!(lines, 200, "total_hits and within_limit of each");
        assert!(chunks.len() > 5);
        for chunk in &chunks {
            assert!(chunk.bytes.len() <= DATAGRAM_BYTES);
            assert_eq!(chunk.bytes.last(), Some(&b'\n'));
        }
        let lost = chunks.remove(3);
        note(&mut sent, chunks);
        assert_eq!(sent.pending(&statistics, &dialect), [lost]);
    }

    fn text_of(sent: &Sent, tallies: &Tallies) -> String {
        let statistics = Statistics::read(tallies, 0, Times::default());
        text(&sent.pending(&statistics, &Dialect::new(Tcp, &[])))
    }

    fn note_all(sent: &mut Sent, tallies: &Tallies) {
        let statistics = Statistics::read(tallies, 0, Times::default());
        let pending = sent.pending(&statistics, &Dialect::new(Tcp, &[]));
        note(sent, pending);
    }

    fn note(sent: &mut Sent, chunks: Vec<Chunk>) {
        for chunk in chunks {
            sent.note(chunk);
        }
    }

    fn text(chunks: &[Chunk]) -> String {
        chunks.iter().map(|chunk| String::from_utf8_lossy(&chunk.bytes).into_owned()).collect()
    }
}
