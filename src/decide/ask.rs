//! The question and the answer of one request, in no protocol's form.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::{Retry, Verdict};
use crate::rules::book::Rule;
use crate::rules::descriptor::Descriptor;
use crate::rules::rule::RuleStats;
use crate::store::Verdicts;
use crate::units::Hits;

/// One request, borrowed from the bytes that carried it.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Which set of rules applies.
    pub domain: &'a str,
    /// Each is decided by itself; the request is over the limit when any of them is.
    pub descriptors: &'a [Descriptor<'a>],
    /// Hits of every descriptor that names none itself.
    pub hits: Hits,
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether the request may pass: no descriptor refused it (shadowed refusals aside).
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
    pub source: Source,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// No limit applied.
    Unlimited,
    /// This node: it owns the key, or the rule is eventual.
    Local,
    /// The key's owner, asked over the mesh.
    Owner,
    /// The rule's `on_unavailable`, because the owner did not answer in time.
    Policy,
    /// The key's owner, at most a minute ago: what it refused then is still refused.
    Remembered,
}

impl Status {
    /// The status that `verdicts` make, counted in the rule's statistics.
    pub(super) fn new(rule: Arc<Rule>, hits: Hits, verdicts: Verdicts, source: Source) -> Self {
        let is_within = verdicts.iter().all(|verdict| verdict.allowed);
        let stats = &rule.stats;
        let counter = match (is_within, rule.shadow) {
            (true, _) => &stats.allowed,
            (false, false) => &stats.denied,
            (false, true) => &stats.shadowed,
        };
        RuleStats::add(counter, hits.charge());
        let leading = leading(&verdicts);
        Self { allowed: is_within || rule.shadow, rule: Some(rule), verdicts, leading, source }
    }

    /// The status of a descriptor that no limit applies to.
    pub(super) fn unlimited(rule: Option<Arc<Rule>>) -> Self {
        let (verdicts, source) = (SmallVec::new(), Source::Unlimited);
        Self { rule, allowed: true, verdicts, leading: None, source }
    }

    /// The verdict that speaks for the rule.
    pub fn leading_verdict(&self) -> Option<&Verdict> {
        self.leading.and_then(|index| self.verdicts.get(index))
    }
}

/// Which verdict speaks for all: of the refusing ones the one that lasts longest, else the one that
/// has the least left.
fn leading(verdicts: &[Verdict]) -> Option<usize> {
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
