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
//! Source: lyft/gostats, `net_sink.go` and `internal/tags/tags.go`.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::reading::Statistics;
use crate::observe::latency::BOUNDS;

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

// === impl Dialect ===

impl Dialect {
    /// gostats over a stream.
    pub fn stream(tags: &[(&str, &str)]) -> Self {
        Self { bytes_max: STREAM_BYTES, ..Self::datagrams(tags) }
    }

    /// gostats in datagrams.
    pub fn datagrams(tags: &[(&str, &str)]) -> Self {
        let mut in_name = String::new();
        for (key, value) in in_order(tags) {
            let _ = write!(in_name, ".__{key}={}", clean(value));
        }
        Self { in_name, at_end: String::new(), bytes_max: DATAGRAM_BYTES }
    }

    /// `DogStatsD` in datagrams.
    pub fn dog(tags: &[(&str, &str)]) -> Self {
        let tags = in_order(tags).map(|(key, value)| format!("{key}:{}", clean(value)));
        let tags = tags.collect::<Vec<_>>().join(",");
        let at_end = if tags.is_empty() { tags } else { format!("|#{tags}") };
        Self { in_name: String::new(), at_end, bytes_max: DATAGRAM_BYTES }
    }
}

/// Tags sorted by key, without those whose key or value is empty.
fn in_order<'a>(tags: &[(&'a str, &'a str)]) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut tags: Vec<_> =
        tags.iter().copied().filter(|(key, value)| !key.is_empty() && !value.is_empty()).collect();
    tags.sort_unstable();
    tags.into_iter()
}

/// A tag's value without separators of the protocol.
fn clean(value: &str) -> String {
    value.replace(['.', ':', '|'], "_")
}

// === impl Sent ===

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
        assert_eq!(line(&Dialect::stream(&tags)), in_name);
        assert_eq!(line(&Dialect::datagrams(&tags)), in_name);
        assert_eq!(line(&Dialect::dog(&tags)), format!("{name}:1|c|#env:prod,zone:a_b\n"));
        assert_eq!(line(&Dialect::dog(&[])), format!("{name}:1|c\n"));
    }

    #[test]
    fn calls_of_one_bucket_are_one_sampled_line() {
        let latency = Latency::default();
        for micros in [20, 300, 300, 300, 7_000] {
            latency.record(Span::from_nanos(micros * 1_000));
        }
        let statistics = Statistics::read(&Tallies::default(), 6, latency.read());
        let mut sent = Sent::default();
        let chunks = sent.pending(&statistics, &Dialect::stream(&[]));
        assert_eq!(
            text(&chunks),
            "ratelimit_server.ShouldRateLimit.total_requests:6|c\n\
             ratelimit_server.ShouldRateLimit.response_time:0|ms\n\
             ratelimit_server.ShouldRateLimit.response_time:0|ms|@0.333333333\n\
             ratelimit_server.ShouldRateLimit.response_time:5|ms\n"
        );
        note(&mut sent, chunks);
        assert_eq!(sent.pending(&statistics, &Dialect::stream(&[])), []);
    }

    #[test]
    fn a_datagram_holds_whole_lines_and_a_lost_one_stays_pending_alone() {
        let tallies = Tallies::default();
        for n in 0..100 {
            tallies.of(&format!("domain.key_{n}")).count(10, 1, 1, Outcome::Within, false, 0.8);
        }
        let statistics = Statistics::read(&tallies, 0, Times::default());
        let dialect = Dialect::datagrams(&[]);
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
        text(&sent.pending(&statistics, &Dialect::stream(&[])))
    }

    fn note_all(sent: &mut Sent, tallies: &Tallies) {
        let statistics = Statistics::read(tallies, 0, Times::default());
        let pending = sent.pending(&statistics, &Dialect::stream(&[]));
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
