//! The counters under the names that envoyproxy/ratelimit gives them, `name: value`, one a line:
//!
//! ```text
//! ratelimit.service.config_load_success: 1
//! ratelimit.service.rate_limit.shop.user_ann.total_hits: 5
//! ```
//!
//! Source: `src/stats/manager_impl.go`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::observe::tally::Tallies;

pub(super) fn dump(tallies: &Tallies) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &AtomicU64| {
        // Writing to a `String` cannot fail.
        let value = value.load(Ordering::Relaxed);
        let _ = writeln!(text, "ratelimit.service.{name}: {value}");
    };
    let service = &tallies.service;
    line("call.should_rate_limit.service_error", &service.service_error);
    line("config_load_error", &service.config_load_error);
    line("config_load_success", &service.config_load_success);
    line("global_shadow_mode", &service.global_shadow_mode);
    for (domain, count) in tallies.unknown_domains() {
        line(&format!("rate_limit.{}.domain_not_found", plain(&domain)), &count);
    }
    for (name, tally) in tallies.all() {
        let name = plain(&name);
        for (what, count) in [
            ("near_limit", &tally.near_limit),
            ("over_limit", &tally.over_limit),
            ("over_limit_with_local_cache", &tally.over_limit_with_local_cache),
            ("shadow_mode", &tally.shadow_mode),
            ("total_hits", &tally.total_hits),
            ("within_limit", &tally.within_limit),
        ] {
            line(&format!("rate_limit.{name}.{what}"), count);
        }
    }
    text
}

/// A name on one line: it may have come from a request. Colons and bars mean something to statsd
/// and are underscores there too.
fn plain(name: &str) -> String {
    let plain = |char: char| if char.is_control() || ":|".contains(char) { '_' } else { char };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_a_line_whatever_its_name() {
        let tallies = Tallies::default();
        tallies.of("d.k_a:b\nc").total_hits.fetch_add(5, Ordering::Relaxed);
        tallies.domain_not_found("nowhere");
        let text = dump(&tallies);
        assert!(
            text.contains("\nratelimit.service.rate_limit.d.k_a_b_c.total_hits: 5\n"),
            "{text}"
        );
        assert!(text.contains("\nratelimit.service.rate_limit.nowhere.domain_not_found: 1\n"));
        assert!(text.lines().all(|line| line.starts_with("ratelimit.service.")), "{text}");
    }
}
