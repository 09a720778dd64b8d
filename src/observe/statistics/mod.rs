//! The statistics of envoyproxy/ratelimit under the names that its dashboards know: a reading of
//! the [`Tallies`], and the two forms it is told in.
//!
//! A name of a tally is `domain.key_value.key`. In statsd's form it stands in the middle of the
//! counter's name, `ratelimit.service.rate_limit.domain.key_value.key.total_hits`; in Prometheus'
//! form its first three parts are labels.
//!
//! Source: envoyproxy/ratelimit, `src/stats/manager_impl.go`, `src/metrics/metrics.go`.

mod name;
pub mod prometheus;
pub mod statsd;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::name::sanitized;
use tidegate_rules::tally::{COUNTERS, Tallies};

use super::latency::Times;

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// What each name counted, in the order of [`COUNTERS`]; sorted by name.
    pub by_name: Vec<(Arc<str>, [u64; COUNTERS.len()])>,
    /// Asks for domains that no rule speaks of, sorted by domain.
    pub not_found: Vec<(Arc<str>, u64)>,
    /// Loads of the rules that made a book.
    pub config_load_success: u64,
    /// Loads that made none.
    pub config_load_error: u64,
    /// Requests that were wrong in form, or came before there were rules.
    pub service_error: u64,
    /// Requests that passed only because everything is in shadow mode.
    pub global_shadow_mode: u64,
    /// Calls of `ShouldRateLimit`.
    pub calls: u64,
    /// How long those took that were decided.
    pub times: Times,
}

impl Statistics {
    /// Reads `tallies`, and adds what the gRPC door knows of its calls.
    pub fn read(tallies: &Tallies, calls: u64, times: Times) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let by_name = tallies.all().into_iter().map(|(name, tally)| (name, tally.read()));
        let not_found =
            tallies.unknown_domains().into_iter().map(|(domain, asks)| (domain, read(&asks)));
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

    /// Hands every counter to `take` by its full name.
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
        for (domain, asks) in &self.not_found {
            name.clear();
            let domain = sanitized(domain);
            let _ = write!(name, "ratelimit.service.rate_limit.{domain}.domain_not_found");
            take(&name, *asks);
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
