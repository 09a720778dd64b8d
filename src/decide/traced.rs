//! What the spans of a request say about its decision, at the node that received it and at the
//! owner of its key.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_cluster::mesh::bounded_vec::BOUNDED_VEC_MAX;
use tidegate_cluster::mesh::wire::{Reply, TraceContext};
use tidegate_limiter::engine::Verdict;
use tidegate_ownership::identity::NodeId;

use super::check::{CheckRequest, CheckResponse};
use super::refused_keys;
use crate::traces::{Kind, Span, Traces};

/// Adds what was decided first. A request that is refused afterwards gives its hits back, which is
/// decided too.
#[cold]
pub(super) fn decided(
    span: &Span,
    request: &CheckRequest<'_>,
    response: &CheckResponse,
    shows_keys: bool,
) {
    if span.has("tidegate.domain") {
        return;
    }
    span.set_text("tidegate.domain", request.domain);
    span.set_number("tidegate.descriptors", request.descriptors.len());
    span.set_text("tidegate.verdict", if response.allowed { "allowed" } else { "refused" });
    let statuses = &response.statuses;
    let refused = statuses.iter().find(|status| !status.allowed);
    let deciding = refused.or_else(|| statuses.iter().find(|status| status.rule.is_some()));
    if let Some(status) = deciding
        && let Some(rule) = &status.rule
    {
        span.set_text("tidegate.rule", &*rule.id);
        span.set_text("tidegate.mode", rule.mode.name());
        span.set_text("tidegate.source", status.source.name());
    }
    if shows_keys {
        let labels = request.descriptors.iter().map(|it| refused_keys::label(&it.entries).into());
        span.set_texts("tidegate.keys", labels.take(LABELS_MAX));
    }
}

/// The most descriptors whose values are in a span, if the operator allows them.
const LABELS_MAX: usize = 16;

// === at the sender of a check ===

/// The spans of the checks of one call, from when it is sent. Most often none.
pub(super) type Forwards = SmallVec<[Span; 1]>;

pub(super) fn forwards(traces: &Traces, parents: &[Arc<TraceContext>]) -> Forwards {
    parents.iter().filter_map(|parent| traces.below(parent, "forward", Kind::Client)).collect()
}

/// An attempt at this node begins.
pub(super) fn asks(forwards: &[Span], owner: &NodeId) {
    for span in forwards {
        span.set_text("tidegate.owner", owner.as_str());
    }
}

/// What the owner has to know; nothing if none of the checks is recorded.
pub(super) fn contexts(forwards: &[Span]) -> SmallVec<[TraceContext; 1]> {
    let contexts = forwards.iter().map(|span| TraceContext::clone(span.context()));
    contexts.take(BOUNDED_VEC_MAX).collect()
}

/// A call with so many checks has ended.
pub(super) fn forwarded(forwards: Forwards, checks: usize, is_decided: bool) {
    for span in forwards {
        span.set_number("tidegate.checks", checks);
        span.set_text("tidegate.outcome", if is_decided { "decided" } else { "unavailable" });
        if !is_decided {
            span.fails();
        }
    }
}

// === at the owner ===

/// The spans of checks while their owner decides them.
pub(crate) struct Decisions(SmallVec<[Span; 1]>);

impl Decisions {
    pub(crate) fn begin(
        traces: &Traces,
        from: &NodeId,
        checks: usize,
        parents: &[TraceContext],
    ) -> Self {
        let spans = parents.iter().filter_map(|parent| {
            let span = traces.below(parent, "decide", Kind::Server)?;
            span.set_text("tidegate.asker", from.as_str());
            span.set_number("tidegate.checks", checks);
            Some(span)
        });
        Self(spans.collect())
    }

    pub(crate) fn end(self, reply: &Reply) {
        let (outcome, verdicts): (_, &[Verdict]) = match reply {
            Reply::Verdicts(verdicts) => ("decided", &verdicts[..]),
            Reply::CombinedVerdicts(reply) => ("decided", &reply.verdicts[..]),
            Reply::NotOwner { .. } => ("not_owner", &[]),
            Reply::Expired => ("expired", &[]),
            Reply::Unconfirmed => ("unconfirmed", &[]),
            _ => ("malformed", &[]),
        };
        for span in self.0 {
            span.set_text("tidegate.outcome", outcome);
            if !verdicts.is_empty() {
                // Of several checks: whether one of them was refused.
                let is_allowed = verdicts.iter().all(|verdict| verdict.allowed);
                span.set_text("tidegate.verdict", if is_allowed { "allowed" } else { "refused" });
            }
        }
    }
}
