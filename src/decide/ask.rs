//! The question and the answer of one request, in no protocol's form.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::Verdict;
use crate::rules::book::Rule;
use crate::rules::descriptor::Descriptor;
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
}

impl Status {
    /// The verdict that speaks for the rule.
    pub fn leading_verdict(&self) -> Option<&Verdict> {
        self.leading.and_then(|index| self.verdicts.get(index))
    }
}
