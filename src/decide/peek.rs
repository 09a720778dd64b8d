//! What the counters of a descriptor hold, for an operator to see: nothing is charged, and neither
//! the verdicts of the metrics nor a statistic of a rule count it. An owner that is asked counts it
//! as any check of a peer, and the rule an owner that does not answer.
//!
//! Of a leased limit whose regions share it, this is the share that the key has here.

use std::sync::Arc;

use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::store::Verdicts;
use tidegate_limiter::units::Hits;
use tidegate_rules::book::Rule;

use super::check::{CheckRequest, VerdictSource};
use super::decider::{Decider, Shared};
use super::plan::{PlannedCheck, Planner};

/// What was found.
#[derive(Clone, Debug)]
pub struct Peeked {
    pub rule: Arc<Rule>,
    /// One per limit of the rule.
    pub verdicts: Verdicts,
    pub source: VerdictSource,
}

impl Decider {
    /// Peeks at the counters of a descriptor; `None` if no limit applies to it.
    pub async fn peek(&self, domain: &str, entries: &[Entry<'_>]) -> Option<Peeked> {
        let Shared { node, rules, without_envoy, .. } = &*self.shared;
        let (book, now) = (rules.book.load_full(), node.clock.now());
        if !book.has_domain(domain) {
            return None;
        }
        let planner = Planner {
            book: &book,
            hasher: &node.hasher,
            interventions: &node.interventions,
            envoy: without_envoy,
            tallies: &rules.tallies,
        };
        let entries = entries.to_vec();
        let descriptors = [Descriptor { entries, hits: None, limit: None }];
        let hits = Hits::PEEK;
        let request = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
        let check = planner.plan(&request).pop().flatten().filter(PlannedCheck::has_limits)?;
        let step = self.begin_uncounted(&check, hits, now);
        let (verdicts, source) = self.finish_uncounted(&check, hits, step, now).await;
        Some(Peeked { rule: check.rule, verdicts, source })
    }
}
