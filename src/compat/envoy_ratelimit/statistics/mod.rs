//! The statistics of envoyproxy/ratelimit under its names: a reading of the `Tallies`, exported to
//! statsd and Prometheus.
//!
//! A [tally](tidegate_rules::tally) has a name such as `domain.key_value.key`. For statsd it is
//! part of the counter's name, `ratelimit.service.rate_limit.domain.key_value.key.total_hits`; for
//! Prometheus its first three parts are labels.
//!
//! Source: envoyproxy/ratelimit, `src/stats/manager_impl.go`, `src/metrics/metrics.go`.

pub mod prometheus;
pub mod statsd;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_rules::tally::{COUNTERS, Tallies};

use crate::front::serve::ListenerStats;
use crate::observe::latency::{Latency, Times};

/// Where statistics are read from.
#[derive(Clone, Debug)]
pub struct Source {
    pub tallies: Arc<Tallies>,
    /// Latency of the gRPC listener's decisions.
    pub latency: Latency,
    /// Counts calls of the gRPC listener that were refused without a decision.
    pub listener: Arc<ListenerStats>,
}

impl Source {
    pub fn read(&self) -> Statistics {
        let times = self.latency.read();
        let calls = times.count().saturating_add(self.listener.refused.get());
        Statistics::read(&self.tallies, calls, times)
    }
}

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// The counters of each name, in the order of [`COUNTERS`]; sorted by name.
    pub by_name: Vec<(Arc<str>, [u64; COUNTERS.len()])>,
    /// Checks of domains without rules, sorted by domain.
    pub not_found: Vec<(Arc<str>, u64)>,
    /// Successful loads of the rules.
    pub config_load_success: u64,
    /// Failed loads.
    pub config_load_error: u64,
    /// Malformed requests, and requests before the first rules.
    pub service_error: u64,
    /// Requests admitted only because of the global shadow mode.
    pub global_shadow_mode: u64,
    /// Calls of `ShouldRateLimit`.
    pub calls: u64,
    /// Latency of the decided calls.
    pub times: Times,
}

impl Statistics {
    /// Reads `tallies`, and adds the calls of the gRPC listener.
    pub fn read(tallies: &Tallies, calls: u64, times: Times) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let by_name = tallies.all().into_iter().map(|(name, tally)| (name, tally.read()));
        let not_found = tallies.unknown_domains().into_iter();
        let not_found = not_found.map(|(domain, checks)| (domain, read(&checks)));
        let service = &tallies.service;
        Self {
            by_name: by_name.collect(),
            not_found: not_found.collect(),
            config_load_success: read(&service.config_load_success),
            config_load_error: read(&service.config_load_error),
            service_error: read(&service.service_error),
            global_shadow_mode: read(&service.global_shadow_mode),
            calls,
            times,
        }
    }

    /// Calls `take` with the full name and the value of every counter.
    pub fn counters(&self, mut take: impl FnMut(&str, u64)) {
        let mut name = String::new();
        for (tally, counts) in &self.by_name {
            name.clear();
            let _ = write!(name, "ratelimit.service.rate_limit.{}.", sanitized(tally));
            let common = name.len();
            for (counter, value) in COUNTERS.into_iter().zip(counts) {
                name.truncate(common);
                name.push_str(counter);
                take(&name, *value);
            }
        }
        for (domain, checks) in &self.not_found {
            name.clear();
            let domain = sanitized(domain);
            let _ = write!(name, "ratelimit.service.rate_limit.{domain}.domain_not_found");
            take(&name, *checks);
        }
        for (name, value) in [
            ("ratelimit.service.config_load_success", self.config_load_success),
            ("ratelimit.service.config_load_error", self.config_load_error),
            ("ratelimit.service.call.should_rate_limit.service_error", self.service_error),
            ("ratelimit.service.global_shadow_mode", self.global_shadow_mode),
            ("ratelimit_server.ShouldRateLimit.total_requests", self.calls),
        ] {
            take(name, value);
        }
    }
}

/// The name of a tally for use in the name of a counter.
///
/// `:` and `|` separate name, value and type in statsd's protocol, and a dot separates the levels
/// of a name, so an IPv4 address would be four levels: `remote_address_10.0.0.1` becomes
/// `remote_address_10_0_0_1`. Control characters become `_` as well, unlike in
/// envoyproxy/ratelimit, where a line break in a client's value begins a new line.
///
/// Source: envoyproxy/ratelimit, `SanitizeStatName` in `src/utils/utilities.go`, whose pattern is
/// `\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`, found anywhere, leftmost first.
pub fn sanitized(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(char) = rest.chars().next() {
        let length = if let Some(length) = address(rest.as_bytes()) {
            out.push_str(&rest[..length].replace('.', "_"));
            length
        } else {
            let has_meaning = matches!(char, ':' | '|') || char.is_control();
            out.push(if has_meaning { '_' } else { char });
            char.len_utf8()
        };
        rest = &rest[length..];
    }
    out
}

/// Length of the IPv4 address at the start of `bytes`, by the pattern above: at most three digits
/// of the last number belong to it, whatever follows.
fn address(bytes: &[u8]) -> Option<usize> {
    let mut length = 0;
    for part in 0..4 {
        if part > 0 {
            if bytes.get(length) != Some(&b'.') {
                return None;
            }
            length += 1;
        }
        let digits =
            bytes.get(length..)?.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        length += digits;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_the_protocol_are_replaced() {
        for (name, expected) in [
            ("mongo_cps.database_users", "mongo_cps.database_users"),
            ("d.path_/a:b|c", "d.path_/a_b_c"),
            ("d.remote_address_10.0.0.1", "d.remote_address_10_0_0_1"),
            ("10.0.0.1.20.0.0.2", "10_0_0_1.20_0_0_2"),
            // Leftmost first: not an address from its first digit on, but from its second.
            ("1234.5.6.7", "1234_5_6_7"),
            ("1.2.3.4567", "1_2_3_4567"),
            ("1.2.3", "1.2.3"),
            ("1.2.3.x", "1.2.3.x"),
            ("1.2222.3.4.5.6", "1.2222_3_4_5.6"),
            ("é.ü_1.1.1.1", "é.ü_1_1_1_1"),
            ("d.k_v\nfake:1|c", "d.k_v_fake_1_c"),
            ("", ""),
        ] {
            assert_eq!(sanitized(name), expected, "{name}");
        }
    }
}
