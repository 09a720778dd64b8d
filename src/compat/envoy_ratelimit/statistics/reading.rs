//! A reading of all statistics.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_rules::tally::{COUNTERS, Tallies};

use super::name::sanitized;
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
        let not_found =
            tallies.unknown_domains().into_iter().map(|(domain, checks)| (domain, read(&checks)));
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
