//! The question and the answer of one request, in no protocol's form.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::units::Hits;
use tidegate_rules::book::Rule;
use tidegate_rules::metadata::Metadata;

/// One request, borrowed from the bytes that carried it.
#[derive(Clone, Copy, Debug)]
pub struct CheckRequest<'a> {
    /// Which set of rules applies.
    pub domain: &'a str,
    /// Each is decided by itself; the request is over the limit when any of them is.
    pub descriptors: &'a [Descriptor<'a>],
    /// Hits of every descriptor that names none itself.
    pub hits: Hits,
    /// Whether `[envoy]` has a say: Envoy's rate limit service, and its JSON form.
    pub for_envoy: bool,
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether the request may pass: no descriptor refused it, shadowed refusals and those of
    /// quota rules aside, and not all of its quota rules did.
    pub allowed: bool,
    /// One a descriptor, in the request's order.
    pub statuses: SmallVec<[Status; 2]>,
}

/// The answer to one descriptor.
#[derive(Clone, Debug)]
pub struct Status {
    /// The rule that matched, if any did.
    pub rule: Option<Arc<Rule>>,
    /// Whether this descriptor lets the request pass; true in shadow mode whatever the limits say.
    pub allowed: bool,
    /// One a limit of the rule, in the rule's order; empty when no rule matched or it is unlimited.
    pub verdicts: SmallVec<[Verdict; 1]>,
    /// Which verdict speaks for the rule: the refusing one that lasts longest, else the one with
    /// the least left. `None` when there are no verdicts.
    pub leading: Option<usize>,
    /// How the verdicts came about.
    pub source: VerdictSource,
    /// What Envoy is told of the rule when it lets the request pass.
    pub metadata: Option<Arc<Metadata>>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictSource {
    /// No limit applied.
    Unlimited,
    /// This node: it owns the key, or the rule is eventual.
    Local,
    /// The key's owner, asked over the mesh.
    Owner,
    /// The rule's `on_unavailable`, because the owner did not answer in time.
    Policy,
    /// Whoever decided a moment ago: what was refused then is still refused.
    Remembered,
}

impl Answer {
    /// The answer that `statuses` make. With `all_quota` every descriptor counts as one of a rule
    /// with `quota_mode`, also one that no rule speaks of.
    ///
    /// Example: of two quota rules one refuses: the request passes. Of a quota rule and another
    /// rule the other refuses: it does not pass.
    pub(super) fn new(statuses: SmallVec<[Status; 2]>, all_quota: bool) -> Self {
        let (mut is_refused, mut quotas, mut quotas_refused) = (false, 0, 0);
        for status in statuses.iter().filter(|status| !status.is_unlimited()) {
            let is_over = !status.allowed;
            if status.is_quota(all_quota) {
                quotas += 1;
                quotas_refused += usize::from(is_over);
            } else {
                is_refused |= is_over;
            }
        }
        let allowed = !is_refused && (quotas == 0 || quotas_refused < quotas);
        Self { allowed, statuses }
    }
}

impl Status {
    /// The status of a descriptor that no limit applies to.
    pub(super) fn unlimited(rule: Option<Arc<Rule>>) -> Self {
        let (verdicts, source) = (SmallVec::new(), VerdictSource::Unlimited);
        Self { rule, allowed: true, verdicts, leading: None, source, metadata: None }
    }

    /// Whether the rule that matched has no limit.
    pub fn is_unlimited(&self) -> bool {
        self.rule.is_some() && self.verdicts.is_empty()
    }

    /// Whether its refusal alone refuses no request: the rule has `quota_mode`, or `all_quota` says
    /// so of every descriptor.
    pub fn is_quota(&self, all_quota: bool) -> bool {
        all_quota || self.rule.as_ref().is_some_and(|rule| rule.quota_mode)
    }

    /// The verdict that speaks for the rule.
    pub fn leading_verdict(&self) -> Option<&Verdict> {
        self.leading.and_then(|index| self.verdicts.get(index))
    }
}

/// Which verdict speaks for all: of the refusing ones the one that lasts longest, else the one that
/// has the least left.
pub(super) fn leading(verdicts: &[Verdict]) -> Option<usize> {
    let weight = |verdict: &Verdict| {
        let wait = match verdict.retry {
            Retry::Now => 0,
            Retry::After(span) => span.as_nanos(),
            Retry::Never => u64::MAX,
        };
        (!verdict.allowed, wait, u32::MAX - verdict.remaining)
    };
    let heaviest = verdicts.iter().enumerate().max_by_key(|(_, verdict)| weight(verdict));
    heaviest.map(|(index, _)| index)
}
