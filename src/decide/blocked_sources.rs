//! From refused requests to the sources that a firewall may drop (`[blocked_sources]`).
//!
//! Only refusals of a limit count: not those of shadow rules, of rules whose owner did not answer
//! (`on_unavailable: deny`), or of a full store. A node knows the requests that its own listeners
//! received, and no others: whoever blocks takes the sources of all nodes together
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
