//! A check whose limits regions share, while the shares are asked in turn; and the refusal of all
//! of them as one.

use smallvec::SmallVec;
use tidegate_cluster::ownership::OwnerTerm;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::store::Verdicts;
use tidegate_limiter::units::Hits;

use super::check::VerdictSource;
use super::forecast::Seen;
use super::outcome::Decided;

/// What this node alone can say about a check.
pub(super) enum Begun {
    Done(Decided),
    Open(Box<Divided>),
}

/// A check of which not all shares have been asked.
#[derive(Debug)]
pub(super) struct Divided {
    pub(super) seen: Seen,
    /// Of a refund what is left of it.
    pub(super) hits: Hits,
    /// Of each share, if it refused.
    pub(super) refused: SmallVec<[Option<Refusal>; 4]>,
    /// Share that has admitted and counted it; a replica has to confirm the count.
    pub(super) to_confirm: Option<(usize, Verdicts, Option<OwnerTerm>)>,
}

#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) decided: Decided,
    /// Others hold hits of the share.
    pub(super) may_end_early: bool,
}

// === impl Divided ===

impl Divided {
    pub(super) fn new(mut seen: Seen, hits: Hits) -> Self {
        if hits.charge() == 0 {
            seen.order.retain(|at| *at == seen.shares.own);
        }
        let refused = seen.shares.parts.iter().map(|_| None).collect();
        Self { seen, hits, refused, to_confirm: None }
    }

    /// The refusal of those that refused: that of the share which admits first again, with what is
    /// left of all.
    pub(super) fn refusal(&self, hits: Hits) -> Option<Decided> {
        let whole = &self.seen.shares.whole;
        let refusals = || self.refused.iter().flatten();
        let first = refusals().min_by_key(|refusal| wait(&refusal.decided.0))?;
        if refusals().any(|refusal| refusal.may_end_early) {
            whole.refused_early(hits);
        }
        let left = |limit: usize| {
            let of_each = refusals().filter_map(|refusal| refusal.decided.0.get(limit));
            of_each.map(|verdict| verdict.remaining).fold(0, u32::saturating_add)
        };
        let verdicts = whole.counters.iter().zip(&first.decided.0).enumerate();
        let verdicts = verdicts.map(|(limit, (counter, verdict))| Verdict {
            limit: counter.quota.limit(),
            remaining: left(limit),
            ..*verdict
        });
        // It took as long as the slowest.
        let sources = refusals().map(|refusal| refusal.decided.1);
        let source = sources.max_by_key(|source| match source {
            VerdictSource::NegativeCache => 0,
            VerdictSource::Owner => 2,
            _ => 1,
        })?;
        Some((verdicts.collect(), source))
    }
}

/// How long until the limits may admit.
fn wait(verdicts: &[Verdict]) -> u64 {
    let wait = |verdict: &Verdict| match verdict.retry {
        Retry::Now => 0,
        Retry::After(span) => span.as_nanos(),
        Retry::Never => u64::MAX,
    };
    verdicts.iter().map(wait).max().unwrap_or(0)
}
