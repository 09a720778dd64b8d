//! One node that stands alone, behind the gRPC service, under a clock that is set.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use http::uri::PathAndQuery;
use serde_json::Value;
use tidegate::config::{Config, Envoy};
use tidegate::decide::Decider;
use tidegate::front::bounds::Bounds;
use tidegate::front::rls::RlsService;
use tidegate::front::rls::message::{RateLimitRequest, RateLimitResponse};
use tidegate::node::{self, Core};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::units::Timestamp;
use tidegate_rules::book::Book;
use tidegate_rules::load::{Options, Source, parse};
use tidegate_testkit::clock::ManualClock;
use tidegate_testkit::in_process::standalone;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::case::{Case, Step};
use super::render;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const BROKEN: &str = "'''";

/// The node, and what was loaded so far.
pub(crate) struct Node {
    pub(crate) core: Arc<Core>,
    clock: Arc<ManualClock>,
    book: Arc<ArcSwap<Book>>,
    merges_domains: bool,
    loads_ok: u64,
    loads_failed: u64,
}

impl Node {
    /// A node with the settings of the case, which loaded its rules or could not.
    pub(crate) async fn start(case: &Case) -> Self {
        let seconds = case.steps.first().map_or(0, Step::seconds);
        let mut node = Self::unloaded(case.envoy(), seconds).await;
        node.merges_domains = case.merges_domains();
        node.load(&case.files());
        node
    }

    /// A node without rules.
    pub(crate) async fn unloaded(envoy: Envoy, seconds: u64) -> Self {
        let (mut environment, _) = node::system_environment();
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(seconds)));
        environment.clock = clock.clone();
        let mut config = Config::default();
        config.cluster.listen = None;
        config.envoy = envoy;
        let book = Arc::new(ArcSwap::from_pointee(Book::unloaded()));
        let core = standalone(config, book.clone(), environment).await;
        Self { core, clock, book, merges_domains: false, loads_ok: 0, loads_failed: 0 }
    }

    /// Sends the request of a step and returns the response in the form of the cases.
    pub(crate) async fn check(&self, step: &Step) -> Value {
        render::answer(self.send(step.seconds(), step.request()).await)
    }

    /// Sends a message at a time.
    pub(crate) async fn send(
        &self,
        seconds: u64,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        self.clock.set_to(Timestamp::from_secs(seconds));
        let decider: Arc<Decider> = Arc::new(self.core.decider.clone());
        let (bounds, stats) = (Bounds::default(), Arc::default());
        let service = Arc::new(RlsService { decide: decider, bounds, stats });
        let mut grpc =
            tonic::client::Grpc::new(tower::service_fn(move |request: http::Request<_>| {
                let service = service.clone();
                let (head, body) = request.into_parts();
                async move { Ok::<_, Infallible>(service.call(&head, body).await) }
            }));
        let path = PathAndQuery::from_static(METHOD);
        let codec = ProstCodec::<_, RateLimitResponse>::default();
        let answer = grpc.unary(Request::new(request), path, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Loads files. The new rules are in force, or the old ones stay.
    pub(crate) fn load(&mut self, files: &[&str]) {
        let source = |(name, text): (&str, &&str)| Source {
            name: name.into(),
            bytes: text.as_bytes().to_vec(),
        };
        let sources: Vec<_> = ["f.yaml", "g.yaml"].into_iter().zip(files).map(source).collect();
        let options = Options { merge_domains: self.merges_domains, ..Options::default() };
        match parse(&sources, &options) {
            Ok(mut book) => {
                book.carry_stats(&self.book.load());
                self.book.store(Arc::new(book));
                self.loads_ok += 1;
            }
            Err(_) => self.loads_failed += 1,
        }
        let service = &self.core.tallies.service;
        service.config_load_success.store(self.loads_ok, Ordering::Relaxed);
        service.config_load_error.store(self.loads_failed, Ordering::Relaxed);
    }

    /// Loads other rules if the step shows that they are in force. The cases have how often the
    /// reference loaded, not what: that follows from the limits of its responses.
    pub(crate) fn reload_for(&mut self, case: &Case, step: &Step) {
        if let Some(text) = step.reload() {
            return self.load(&[text]);
        }
        let loads = case.statistics().get("config_load_success").copied().unwrap_or(0);
        if self.loads_ok == 0 || self.loads_ok >= loads || self.explains(step) {
            return;
        }
        let before = self.book.load_full();
        self.load(&case.files());
        if !self.explains(step) {
            self.loads_ok -= 1;
            self.book.store(before);
            self.load(&[&shown_by(step)]);
        }
    }

    /// Loads what the reference loaded without any answer showing it.
    pub(crate) fn reload_rest(&mut self, case: &Case) {
        let counted = case.statistics();
        let count = |name: &str| counted.get(name).copied().unwrap_or(0);
        while self.loads_ok < count("config_load_success") {
            self.load(&case.files());
        }
        while self.loads_failed < count("config_load_error") {
            self.load(&[BROKEN]);
        }
    }

    /// Whether the rules in force have the limits that the step was answered with.
    fn explains(&self, step: &Step) -> bool {
        let book = self.book.load();
        let request = step.request();
        let mut statuses = step.statuses().iter().zip(&request.descriptors);
        statuses.all(|(status, descriptor)| {
            let entries: Vec<_> = descriptor
                .entries
                .iter()
                .map(|entry| Entry { key: &entry.key, value: &entry.value })
                .collect();
            let found = book.find(&request.domain, &entries);
            let ours = found.and_then(|found| found.rule.limits.first().map(Quota::limit));
            let theirs = status["requests_per_unit"].as_u64();
            descriptor.limit.is_some() || ours.map(u64::from) == theirs
        })
    }

    /// What was counted, by the names of the cases.
    pub(crate) fn statistics(&self) -> BTreeMap<String, u64> {
        let tallies = &self.core.tallies;
        let mut counted = BTreeMap::new();
        let mut add = |name: String, count: &AtomicU64| {
            let sum: &mut u64 = counted.entry(name).or_insert(0);
            // As a counter of 64 bits does, here and there.
            *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
        };
        for (name, tally) in tallies.all() {
            let name = sanitized(&name);
            add(format!("{name}.total_hits"), &tally.total_hits);
            add(format!("{name}.over_limit"), &tally.over_limit);
            add(format!("{name}.near_limit"), &tally.near_limit);
            let from_memory = &tally.over_limit_with_local_cache;
            add(format!("{name}.over_limit_with_local_cache"), from_memory);
            add(format!("{name}.within_limit"), &tally.within_limit);
            add(format!("{name}.shadow_mode"), &tally.shadow_mode);
        }
        for (domain, count) in tallies.unknown_domains() {
            add(format!("{}.domain_not_found", sanitized(&domain)), &count);
        }
        let service = &tallies.service;
        add("config_load_success".into(), &service.config_load_success);
        add("config_load_error".into(), &service.config_load_error);
        add("call.service_error".into(), &service.service_error);
        add("global_shadow_mode".into(), &service.global_shadow_mode);
        counted.retain(|_, count| *count > 0);
        counted
    }
}

/// A rule file with just the limits that a step was answered with.
fn shown_by(step: &Step) -> String {
    let request = step.request();
    let mut text = format!("domain: {}\ndescriptors:\n", request.domain);
    for (status, descriptor) in step.statuses().iter().zip(&request.descriptors) {
        let Some(limit) = status["requests_per_unit"].as_u64() else { continue };
        let unit = status["unit"].as_str().unwrap_or_default();
        let mut rule = format!("rate_limit: {{unit: {unit}, requests_per_unit: {limit}}}");
        for entry in descriptor.entries.iter().rev() {
            rule = format!("descriptors: [{{key: {}, {rule}}}]", entry.key);
        }
        // The outermost list is the file's own.
        let element = rule.trim_start_matches("descriptors: [").strip_suffix(']');
        text.extend(["- ", element.unwrap_or_default(), "\n"]);
    }
    text
}

/// A name as the reference exports it: an address of four numbers keeps no dots.
fn sanitized(name: &str) -> String {
    let name = name.replace([':', '|'], "_");
    let mut parts: Vec<&str> = name.split('.').collect();
    let mut joined = String::new();
    while let Some(part) = parts.first() {
        let is_address = parts.len() > 3
            && ends_in_number(part)
            && parts[1..3].iter().all(|part| is_number(part))
            && begins_with_number(parts[3]);
        let taken = if is_address { 4 } else { 1 };
        let rest = parts.split_off(taken);
        if !joined.is_empty() {
            joined.push('.');
        }
        joined.push_str(&parts.join("_"));
        parts = rest;
    }
    joined
}

fn is_number(part: &str) -> bool {
    matches!(part.len(), 1..=3) && part.bytes().all(|byte| byte.is_ascii_digit())
}

fn ends_in_number(part: &str) -> bool {
    part.bytes().last().is_some_and(|byte| byte.is_ascii_digit())
}

fn begins_with_number(part: &str) -> bool {
    part.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
}
