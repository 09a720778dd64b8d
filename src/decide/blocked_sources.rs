//! From refused requests to the sources that a firewall may drop (`[blocked_sources]`).
//!
//! Only refusals of a limit count: not those of shadow rules, of rules whose owner did not answer
//! (`on_unavailable: deny`), or of a full store. A node knows the requests that its own listeners
//! received, and no others: a firewall takes the sources of all nodes together
//! ([`crate::export`]).
//!
//! A request that passes costs nothing. One that is refused is looked at for the entry with the
//! client's address; if there is one, a hash and the lock of a set of eight sources are taken.

use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::store::KeyHasher;
use tidegate_limiter::units::Timestamp;
use tokio::sync::watch;

use super::check::{CheckRequest, CheckResponse, Status, VerdictSource};
use super::source_net::{NEVER_BLOCKED, SourceNet};
use super::source_watch::{Blocked, Change, SourceWatch, Threshold};
use crate::config::{Auth, BlockedSources as Section};

/// The sources of a node that ask for many times their limits.
#[derive(Debug)]
pub struct BlockedSources {
    /// Key of the entry with the address.
    entry: String,
    ipv6_prefix: u8,
    allow: Vec<IpNet>,
    watch: SourceWatch,
    /// Changes when a source is blocked, or for longer.
    changes: watch::Sender<()>,
    pub counters: SourceCounters,
}

/// Counted since the start; read by the metrics.
#[derive(Debug, Default)]
pub struct SourceCounters {
    /// Times that a source was blocked that was not.
    pub blocked: AtomicU64,
    /// Refusals of sources that were not watched, because there were too many.
    pub unwatched: AtomicU64,
}

impl BlockedSources {
    /// None where `[blocked_sources]` is off.
    pub fn of(section: &Section, auth: &Auth) -> Option<Self> {
        let entry = section.entry.clone()?;
        let proxies = auth.trusted_proxies.iter().flatten();
        let allow = section.allow.iter().chain(proxies).chain(&NEVER_BLOCKED);
        let &Section { factor, after, refused_per_second_min, block_for, ipv6_prefix, .. } =
            section;
        Some(Self {
            entry,
            ipv6_prefix,
            allow: allow.copied().collect(),
            watch: SourceWatch::new(Threshold { factor, after, refused_per_second_min, block_for }),
            changes: watch::Sender::default(),
            counters: SourceCounters::default(),
        })
    }

    /// The sources that are blocked, each once, ordered by address.
    pub fn blocked(&self, now: Timestamp) -> Vec<Blocked> {
        self.watch.blocked(now)
    }

    /// Changes when a source is blocked, or for longer.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Looks at the response to a request that was refused.
    pub(super) fn refused(
        &self,
        request: &CheckRequest<'_>,
        response: &CheckResponse,
        hasher: &KeyHasher,
        now: Timestamp,
    ) {
        for (descriptor, status) in request.descriptors.iter().zip(&response.statuses) {
            let is_limit = !status.allowed && status.source != VerdictSource::Fallback;
            if is_limit && let Some(source) = self.source(descriptor) {
                self.observe(request, descriptor, source, status, hasher, now);
            }
        }
    }

    /// The source that a descriptor names, if it may be blocked.
    fn source(&self, descriptor: &Descriptor<'_>) -> Option<SourceNet> {
        let entry = descriptor.entries.iter().find(|entry| entry.key == self.entry)?;
        let source = entry.value.parse::<SourceNet>().ok()?.grouped(self.ipv6_prefix)?;
        let is_allowed = self.allow.iter().any(|net| source.overlaps(net));
        (!is_allowed).then_some(source)
    }

    fn observe(
        &self,
        request: &CheckRequest<'_>,
        descriptor: &Descriptor<'_>,
        source: SourceNet,
        status: &Status,
        hasher: &KeyHasher,
        now: Timestamp,
    ) {
        let Some(rule) = &status.rule else { return };
        let hits = descriptor.hits.unwrap_or(request.hits).charge();
        let hash = hasher.descriptor(request.domain, &descriptor.entries);
        for (quota, verdict) in rule.limits.iter().zip(&status.verdicts) {
            // A full store refuses without an excess.
            if verdict.allowed || verdict.excess == 0 {
                continue;
            }
            let key = hash.counter(quota, rule.mode, rule.scope);
            let weight = self.watch.threshold().weight(quota, hits);
            match self.watch.refused(key, source, &rule.id, weight, now) {
                Change::None => continue,
                Change::NoRoom => {
                    self.counters.unwatched.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Change::Blocked => {
                    self.counters.blocked.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%source, rule = &*rule.id, "blocked a source");
                }
                Change::Extended => {}
            }
            self.changes.send_replace(());
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;
    use std::sync::Arc;
    use tidegate_limiter::descriptor::Entry;
    use tidegate_limiter::engine::{Retry, Verdict};
    use tidegate_limiter::policy::{Mode, OnUnavailable};
    use tidegate_limiter::quota::{Algorithm, Quota};
    use tidegate_limiter::units::{Hits, Span};
    use tidegate_rules::book::Rule;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_040);
    const EXCESS: u32 = 1;

    fn sources() -> BlockedSources {
        let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let section = Section {
            entry: Some("remote_address".to_owned()),
            allow: networks(&["198.51.100.0/24"]),
            ..Section::default()
        };
        let auth = Auth { trusted_proxies: Some(networks(&["192.0.2.0/28"])), ..Auth::default() };
        BlockedSources::of(&section, &auth).unwrap()
    }

    fn rule() -> Arc<Rule> {
        let quota = Quota::simple(Algorithm::FixedWindow, 100, Span::from_secs(60)).unwrap();
        Arc::new(Rule {
            limits: smallvec![quota],
            ..Rule::of_clients(Mode::Strict, OnUnavailable::Deny)
        })
    }

    fn refusal(source: VerdictSource, excess: u32) -> Status {
        let retry = Retry::After(Span::from_secs(7));
        let (limit, reset, delay) = (100, Span::from_secs(7), Span::ZERO);
        let verdict = Verdict { allowed: false, limit, remaining: 0, reset, retry, delay, excess };
        Status {
            rule: Some(rule()),
            allowed: false,
            verdicts: smallvec![verdict],
            leading: Some(0),
            source,
            metadata: None,
        }
    }

    /// The sources that are blocked after `entries` was refused twenty times a second for ten
    /// seconds.
    fn blocked(entries: &[(&str, &str)], status: &Status) -> Vec<String> {
        let sources = sources();
        let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let descriptor = Descriptor { entries, hits: None, limit: None };
        let request = CheckRequest {
            domain: "edge",
            descriptors: &[descriptor],
            hits: Hits::ONE,
            for_envoy: false,
        };
        let response = CheckResponse::new(smallvec![status.clone()], false);
        let changes = sources.changes();
        let hasher = KeyHasher::new([7; 16]);
        let mut now = START;
        for _ in 0..=200 {
            sources.refused(&request, &response, &hasher, now);
            now = now.plus(Span::from_millis(50));
        }
        let blocked: Vec<String> =
            sources.blocked(now).into_iter().map(|blocked| blocked.source.to_string()).collect();
        assert_eq!(changes.has_changed().unwrap(), !blocked.is_empty());
        blocked
    }

    #[test]
    fn the_entry_that_is_configured_names_the_source() {
        let status = refusal(VerdictSource::Local, EXCESS);
        for (entries, expected) in [
            (&[("remote_address", "203.0.113.7")][..], Some("203.0.113.7")),
            (&[("path", "/a"), ("remote_address", "203.0.113.7")], Some("203.0.113.7")),
            (&[("remote_address", "2001:db8:1:2::/64")], Some("2001:db8:1:2::/64")),
            (&[("remote_address", "2001:db8:1:2::9")], Some("2001:db8:1:2::/64")),
            // A limit that is shared by all is no source's fault.
            (&[("path", "203.0.113.7")], None),
            (&[("remote_address", "ann")], None),
            (&[("remote_address", "203.0.113.7; flush ruleset")], None),
            // Allowed, a trusted proxy, this host, the link.
            (&[("remote_address", "198.51.100.7")], None),
            (&[("remote_address", "192.0.2.7")], None),
            (&[("remote_address", "127.0.0.1")], None),
            (&[("remote_address", "::1")], None),
            (&[("remote_address", "fe80::/64")], None),
        ] {
            let expected: Vec<&str> = expected.into_iter().collect();
            assert_eq!(blocked(entries, &status), expected, "{entries:?}");
        }
    }

    #[test]
    fn only_refusals_of_a_limit_count() {
        let refused = |source| refusal(source, EXCESS);
        let shadow = Status { allowed: true, ..refused(VerdictSource::Local) };
        for (status, expected) in [
            (refused(VerdictSource::Local), 1),
            (refused(VerdictSource::Owner), 1),
            (refused(VerdictSource::NegativeCache), 1),
            (refused(VerdictSource::Grant), 1),
            // No owner answered, and the rule says `on_unavailable: deny`.
            (refused(VerdictSource::Fallback), 0),
            (shadow, 0),
            // A full store.
            (refusal(VerdictSource::Local, 0), 0),
        ] {
            let found = blocked(&[("remote_address", "203.0.113.7")], &status);
            assert_eq!(found.len(), expected, "{status:?}");
        }
    }
}
