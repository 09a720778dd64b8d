//! Limits that clients name themselves, with the key that they count under: `CL.THROTTLE`.
//!
//! No rule file speaks of them. What a rule would say besides the limit (who decides, what to
//! answer while the owner is out of reach) one rule says for all of them ([`Parts::clients`]).
//!
//! They come many at once, as a pipeline or from many connections that were read in one turn, so
//! they are decided together: one instant, one look at the clock, one addition to each statistic.
//!
//! [`Parts::clients`]: super::Parts::clients

use smallvec::SmallVec;

use super::ask::Source;
use super::{Decide, Decider};
use crate::cluster::mesh::wire::Check;
use crate::engine::Verdict;
use crate::rules::quota::Quota;
use crate::rules::rule::RuleStats;
use crate::store::Counter;
use crate::units::Hits;

/// One limit that a client names itself.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// What it counts under. Equal keys with windows of one length and the same algorithm share a
    /// counter, as those of rules do.
    pub key: &'a [u8],
    /// The limit.
    pub quota: Quota,
    /// Zero looks, negative gives back.
    pub hits: Hits,
}

/// Decides limits that clients name themselves.
pub trait Throttle: Decide {
    /// Decides `demands` in their order and puts the verdicts, as many, behind those in `verdicts`.
    /// Never fails: an owner that does not answer is covered by the policy.
    fn throttle(
        &self,
        demands: &[Demand<'_>],
        verdicts: &mut Vec<Verdict>,
    ) -> impl Future<Output = ()> + Send;
}

impl Throttle for Decider {
    async fn throttle(&self, demands: &[Demand<'_>], verdicts: &mut Vec<Verdict>) {
        let parts = self.parts();
        let rule = &parts.clients;
        let now = parts.clock.now();
        let check = |demand: &Demand<'_>| {
            let hash = parts.hasher.bare(demand.key);
            let key = hash.counter(&demand.quota, rule.mode, rule.scope);
            let counters = smallvec::smallvec![Counter { key, quota: demand.quota }];
            let (scope, durability) = (rule.scope, rule.durability);
            Check { id: 0, scope, counters, hits: demand.hits, durability }
        };
        let checks: SmallVec<[Check; 4]> = demands.iter().map(check).collect();
        let outcomes = self.each(checks.iter().map(|check| (rule, check)), now).await;
        for (outcome, demand) in outcomes.iter().zip(demands) {
            let Some(verdict) = outcome.verdicts.first() else { continue };
            let stats = &rule.stats;
            let counter = if verdict.allowed { &stats.allowed } else { &stats.denied };
            RuleStats::add(counter, demand.hits.charge());
            debug_assert!(outcome.source != Source::Unlimited, "every demand has a limit");
            verdicts.push(*verdict);
        }
    }
}
