//! The interface between listeners and the decision path, independent of any protocol.

use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::OnUnavailable;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::{Hits, Span};
use tidegate_rules::book::Rule;
use tidegate_rules::metadata::Metadata;
use tidegate_rules::tally::Tallies;

use crate::config::Envoy;
use crate::traces::Traces;

/// Most limits of clients that are decided in one batch; longer pipelines take several.
pub const THROTTLE_BATCH_MAX: usize = 32;

/// The decision path, as listeners see it.
pub trait Decide: Send + Sync + 'static {
    /// Decides and counts. Never fails: when no owner answers, the rule's `on_unavailable` does.
    fn decide(&self, request: CheckRequest<'_>) -> impl Future<Output = CheckResponse> + Send;

    /// Gives back what `answer` has counted of `request`, for a listener that does not pass it on.
    fn give_back(
        &self,
        request: CheckRequest<'_>,
        answer: &CheckResponse,
        given: Given,
    ) -> impl Future<Output = ()> + Send {
        let is_given = |(_, status): &(&Descriptor<'_>, &Status)| status.gives_back(given);
        let all = request.descriptors.iter().zip(&answer.statuses);
        let back = |hits: Hits| Hits::new(hits.get().saturating_neg());
        let given = all.filter(is_given).map(|(descriptor, _)| Descriptor {
            hits: descriptor.hits.map(back),
            ..descriptor.clone()
        });
        let descriptors: SmallVec<[Descriptor<'_>; 2]> = given.collect();
        let hits = back(request.hits);
        async move {
            if !descriptors.is_empty() {
                let _ =
                    self.decide(CheckRequest { descriptors: &descriptors, hits, ..request }).await;
            }
        }
    }

    /// Whether any rules have been loaded since the start.
    fn is_loaded(&self) -> bool {
        true
    }

    /// The settings of Envoy's rate limit service.
    fn envoy(&self) -> &Envoy {
        static DEFAULT: LazyLock<Envoy> = LazyLock::new(Envoy::default);
        &DEFAULT
    }

    /// The traces that requests belong to.
    fn traces(&self) -> Option<&Traces> {
        None
    }

    /// The statistics in which a listener counts the requests that it answers with an error.
    fn tallies(&self) -> Option<&Tallies> {
        None
    }
}

/// Decides limits that clients name themselves: `CL.THROTTLE`.
pub trait Throttle: Decide {
    /// Decides `requests` in their order and appends one verdict each to `verdicts`. Never fails:
    /// when no owner answers, `on_unavailable` does.
    fn throttle(
        &self,
        requests: &[ThrottleRequest<'_>],
        verdicts: &mut Vec<Verdict>,
    ) -> impl Future<Output = ()> + Send;
}

/// One request, borrowed from the bytes that carried it.
#[derive(Clone, Copy, Debug)]
pub struct CheckRequest<'a> {
    /// Selects the rules.
    pub domain: &'a str,
    /// Each is decided on its own; the request is over the limit when any of them is.
    pub descriptors: &'a [Descriptor<'a>],
    /// Hits of every descriptor that does not carry its own.
    pub hits: Hits,
    /// Whether the `[envoy]` section applies: Envoy's rate limit service, and its JSON form.
    pub for_envoy: bool,
}

/// One limit that a client names itself.
#[derive(Clone, Copy, Debug)]
pub struct ThrottleRequest<'a> {
    /// What is limited. Equal keys with the same window length and algorithm share a counter, as
    /// those of rules do.
    pub key: &'a [u8],
    pub quota: Quota,
    /// Zero peeks, negative refunds.
    pub hits: Hits,
}

/// A request that was held for longer gives nothing back to a sliding window.
const AT_ONCE: Span = Span::from_millis(50);

/// What a listener gives back of a request that it does not pass on.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// How long ago the request was decided, or longer.
    pub passed: Span,
    /// Also turns in queues. One that has passed is used: the requests behind it have later ones,
    /// and the next would get the same as the last of these.
    pub turns: bool,
}

/// The response to one request.
#[derive(Clone, Debug)]
pub struct CheckResponse {
    /// Whether the request may pass: no descriptor refused it (shadow mode and quota rules aside),
    /// and its quota rules did not all refuse it.
    pub allowed: bool,
    /// One per descriptor, in the request's order.
    pub statuses: SmallVec<[Status; 2]>,
}

/// The result of one descriptor.
#[derive(Clone, Debug)]
pub struct Status {
    /// The rule that matched, if any.
    pub rule: Option<Arc<Rule>>,
    /// Whether this descriptor lets the request pass; always true in shadow mode.
    pub allowed: bool,
    /// One per limit of the rule, in the rule's order; empty when no limit applies.
    pub verdicts: SmallVec<[Verdict; 1]>,
    /// Index of the most restrictive verdict: of the refusals the one that lasts longest, else the
    /// verdict with the least remaining. `None` without verdicts.
    pub leading: Option<usize>,
    pub source: VerdictSource,
    /// What Envoy receives as dynamic metadata when the rule lets the request pass.
    pub metadata: Option<Arc<Metadata>>,
}

/// Where the verdicts of a descriptor come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictSource {
    /// No limit applies.
    Unlimited,
    /// This node's counters: it owns the key, or the rule is eventual.
    Local,
    /// The key's owner, over the mesh.
    Owner,
    /// The rule's `on_unavailable`, because no owner answered in time.
    Fallback,
    /// Hits that the owner of the key granted to this node, of a leased rule.
    Grant,
    /// A refusal that was received or decided before and still holds.
    NegativeCache,
    /// An operator has blocked the key by hand.
    Blocked,
    /// The verdicts are about requests in flight, and not about the limits of the rule.
    InFlight,
}

impl VerdictSource {
    /// As reports and traces call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Local => "local",
            Self::Owner => "owner",
            Self::Fallback => "fallback",
            Self::Grant => "grant",
            Self::NegativeCache => "negative_cache",
            Self::Blocked => "blocked",
            Self::InFlight => "in_flight",
        }
    }
}

impl CheckResponse {
    /// With `all_quota` every descriptor counts as one of a rule with `quota_mode`, also one that
    /// no rule matches.
    ///
    /// Example: of two quota rules one refuses: the request passes. Of a quota rule and another
    /// rule the other refuses: it does not pass.
    pub fn new(statuses: SmallVec<[Status; 2]>, all_quota: bool) -> Self {
        let limited = statuses.iter().filter(|status| !status.is_unlimited());
        let allowed =
            !is_refused(limited.map(|status| (!status.allowed, status.is_quota(all_quota))));
        Self { allowed, statuses }
    }

    /// The indices of the descriptors that pass above a soft limit; none when the request is
    /// refused. Rules in shadow mode are left out: clients are not to slow down for a limit that is
    /// only being tried.
    pub fn soft_limited(&self) -> impl Iterator<Item = usize> {
        let is_signalled = |status: &Status| {
            self.allowed
                && status.is_soft_limited()
                && !status.rule.as_ref().is_some_and(|rule| rule.shadow)
        };
        let statuses = self.statuses.iter().enumerate();
        statuses.filter(move |(_, status)| is_signalled(status)).map(|(index, _)| index)
    }

    pub fn is_soft_limited(&self) -> bool {
        self.soft_limited().next().is_some()
    }
}

/// Whether a request is refused, by whether each of its descriptors is over its limits, and is one
/// of a quota.
pub(super) fn is_refused(descriptors: impl IntoIterator<Item = (bool, bool)>) -> bool {
    let (mut is_refused, mut quotas, mut quotas_refused) = (false, 0, 0);
    for (is_over, is_quota) in descriptors {
        if is_quota {
            quotas += 1;
            quotas_refused += usize::from(is_over);
        } else {
            is_refused |= is_over;
        }
    }
    is_refused || (quotas > 0 && quotas_refused == quotas)
}

impl Status {
    /// The status of a descriptor to which no limit applies.
    pub(super) fn unlimited(rule: Option<Arc<Rule>>) -> Self {
        let (verdicts, source) = (SmallVec::new(), VerdictSource::Unlimited);
        Self { rule, allowed: true, verdicts, leading: None, source, metadata: None }
    }

    /// Whether the rule that matched has no limit.
    pub fn is_unlimited(&self) -> bool {
        self.rule.is_some() && self.verdicts.is_empty()
    }

    /// Whether hits were counted that can be given back: nothing of a descriptor that was refused
    /// or replaced, that has no limit, or that no counter has decided, and nothing of a window that
    /// has ended since, or a bucket that may have drained: what is counted there is of others.
    fn gives_back(&self, given: Given) -> bool {
        let Given { passed, turns } = given;
        let is_counted = match self.source {
            VerdictSource::Local | VerdictSource::Owner | VerdictSource::Grant => true,
            VerdictSource::Unlimited
            | VerdictSource::Fallback
            | VerdictSource::NegativeCache
            | VerdictSource::Blocked
            | VerdictSource::InFlight => false,
        };
        let limits = self.rule.iter().flat_map(|rule| &rule.limits);
        let is_open = |(limit, verdict): (&Quota, &Verdict)| {
            let has_ended = match limit.algorithm() {
                // What is given back is taken off the newest, which passed after it was held.
                Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter => {
                    passed >= AT_ONCE.min(verdict.reset)
                }
                // A bucket that was empty meanwhile: the hits have drained.
                _ => passed >= verdict.reset,
            };
            verdict.allowed && !has_ended && (turns || limit.queue().is_none())
        };
        is_counted && !self.verdicts.is_empty() && limits.zip(&self.verdicts).all(is_open)
    }

    /// Whether it passes above a soft limit of its rule. Nothing is known to be used where
    /// `on_unavailable: allow` has answered.
    pub fn is_soft_limited(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| {
            let is_counted = self.source != VerdictSource::Fallback
                || rule.on_unavailable != OnUnavailable::Allow;
            is_counted && rule.is_soft_limited(&self.verdicts)
        })
    }

    /// Whether its refusal alone does not refuse the request: the rule has `quota_mode`, or
    /// `all_quota` sets it for every descriptor.
    pub fn is_quota(&self, all_quota: bool) -> bool {
        all_quota || self.rule.as_ref().is_some_and(|rule| rule.quota_mode)
    }

    /// The most restrictive verdict.
    pub fn leading_verdict(&self) -> Option<&Verdict> {
        self.leading.and_then(|index| self.verdicts.get(index))
    }
}
