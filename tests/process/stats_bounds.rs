//! A million names invented by clients cost a bounded number of series, bytes and memory.
//!
//! These tests measure the memory of their own process, so they are here, where the nodes of other
//! tests are child processes.

use std::sync::atomic::Ordering;

use tidegate::compat::envoy_ratelimit::statistics::prometheus::{Form, render};
use tidegate::compat::envoy_ratelimit::statistics::statsd::{Dialect, Sent};
use tidegate::compat::envoy_ratelimit::statistics::{Statistics, sanitized};
use tidegate::config::{Config, StatsdProtocol};
use tidegate::decide::Decide;
use tidegate::front::bounds::Bounds;
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit,
};
use tidegate::front::rls::{check_request, descriptors, response};
use tidegate::node;
use tidegate::observe::latency::Times;
use tidegate_rules::tally::{COUNTERS, NAMES_BYTES_MAX, NAMES_MAX, OTHER, Outcome, Tallies};
use tidegate_testkit::exclusive;
use tidegate_testkit::in_process::standalone;
use tidegate_testkit::rules::book;

/// Names that each of the tests invents.
const INVENTED: usize = 1_000_000;
/// Most bytes of the text: each name in each of its series, with what stands around it, and the
/// same for domains without rules. Quotes and backslashes double.
const TEXT_BYTES_MAX: usize =
    (COUNTERS.len() + 1) * (NAMES_MAX + 1) * 110 + 2 * (COUNTERS.len() + 1) * NAMES_BYTES_MAX;
/// Most bytes that the process may grow by: the names, what statsd was sent of them, one text, and
/// what the allocator keeps back. A million names would take some 400 MiB.
const GROWTH_MAX: usize = 128 << 20;

const RULES: &str = "
domain: edge
descriptors:
  - key: path
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 5}
";

#[test]
fn tallies_are_bounded_for_any_number_of_names() {
    let _exclusive = exclusive::blocking_alone();
    let before = resident();
    let tallies = Tallies::default();
    let mut sent = Sent::default();
    for n in 0..INVENTED {
        let name = format!("edge.path_/products/{n:0100}");
        tallies.of(&name).count(1, 2, 2, Outcome::Over, true, 0.8);
        tallies.domain_not_found(&name);
        if n % (INVENTED / 4) == 0 {
            flush(&mut sent, &tallies);
        }
    }
    let all = tallies.all();
    // Those of 120 bytes each stay within both bounds.
    assert_eq!(all.len(), NAMES_MAX + 1);
    assert_eq!(tallies.unknown_domains().len(), NAMES_MAX + 1);
    let hits: u64 = all.iter().map(|(_, tally)| tally.total_hits.load(Ordering::Relaxed)).sum();
    assert_eq!(hits, 2 * INVENTED as u64, "nothing is lost");
    let lost: u64 = tallies.of(OTHER).total_hits.load(Ordering::Relaxed);
    assert_eq!(lost, 2 * (INVENTED - NAMES_MAX) as u64);
    flush(&mut sent, &tallies);
    is_within_bounds("tallies", &tallies, before);
}

/// Through the messages of Envoy's service, as a client would: domains, values and limits of its
/// own, each a million times another.
#[tokio::test]
async fn requests_cannot_grow_the_statistics() {
    let _exclusive = exclusive::alone().await;
    let mut config = Config::standalone();
    // The counters have a bound of their own, which is not what is measured.
    config.limits.keys_max = 10_000;
    let (environment, _) = node::system_environment();
    let core = standalone(config, book(RULES), environment).await;
    let bounds = Bounds::default();
    let before = resident();
    for n in 0..INVENTED {
        let request = invented(n);
        let descriptors = descriptors(&request, &bounds).expect("within the bounds");
        let check = check_request(&request, &descriptors, true);
        let answer = core.decider.decide(check).await;
        assert_eq!(response(&answer).statuses.len(), request.descriptors.len());
    }
    let tallies = &core.tallies;
    assert_eq!(tallies.all().len(), NAMES_MAX + 1);
    assert_eq!(tallies.unknown_domains().len(), NAMES_MAX + 1);
    is_within_bounds("requests", tallies, before);
}

/// One of three kinds: an unknown domain, a value under `detailed_metric`, a limit of its own.
fn invented(n: usize) -> RateLimitRequest {
    let invented = format!("invented-{n:040}");
    let (domain, key, limit) = match n % 3 {
        0 => (invented.clone(), "user", None),
        1 => ("edge".to_owned(), "path", None),
        _ => {
            let unit = Unit::Hour.into();
            ("edge".to_owned(), "user", Some(RateLimitOverride { requests_per_unit: 3, unit }))
        }
    };
    let entries = vec![Entry { key: key.to_owned(), value: invented }];
    let descriptor = RateLimitDescriptor { entries, limit, ..RateLimitDescriptor::default() };
    RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 1 }
}

fn is_within_bounds(what: &str, tallies: &Tallies, before: usize) {
    let statistics = Statistics::read(tallies, 0, Times::default());
    let text = render(statistics.clone(), Form::OpenMetrics);
    let grown = resident().saturating_sub(before);
    println!(
        "{what}: {INVENTED} invented, {} names, {} domains, {} bytes of metrics (at most \
         {TEXT_BYTES_MAX}), {} KiB grown (at most {})",
        statistics.by_name.len(),
        statistics.not_found.len(),
        text.len(),
        grown >> 10,
        GROWTH_MAX >> 10,
    );
    assert!(text.len() <= TEXT_BYTES_MAX, "{} bytes", text.len());
    assert!(grown <= GROWTH_MAX, "{grown} bytes");
    let longest = statistics.by_name.iter().map(|(name, _)| sanitized(name).len()).max();
    assert!(longest.unwrap_or(0) <= NAMES_BYTES_MAX);
}

fn flush(sent: &mut Sent, tallies: &Tallies) {
    let statistics = Statistics::read(tallies, 0, Times::default());
    for chunk in sent.pending(&statistics, &Dialect::new(StatsdProtocol::Tcp, &[])) {
        sent.note(chunk);
    }
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kib = line.split_whitespace().nth(1).expect("a number");
    kib.parse::<usize>().expect("a number") << 10
}
