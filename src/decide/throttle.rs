//! Limits that clients name themselves, with the key that they count under: `CL.THROTTLE`.
//!
//! No rule file speaks of them. What a rule would say besides the limit (who decides, what to
//! answer while the owner is out of reach) one rule says for all of them ([`Parts::clients`]).
//!
//! They come many at once, as a pipeline does, so they are decided together: one look at the clock,
//! and one addition to each statistic. The door counts what was let through (`node/measured.rs`).
//!
//! [`Parts::clients`]: super::Parts::clients

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_cluster::mesh::wire::Check;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::{Durability, Mode};
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{Counter, CounterKind, LocalActor, SingleCheck, is_urgent};
use tidegate_limiter::units::{Hits, Timestamp};

use super::{Decide, Decider, policy};

/// Most demands that are decided in one go; more are decided in several.
pub const TOGETHER_MAX: usize = 32;

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

/// Checks that need others, and where their verdicts belong.
type Elsewhere = Vec<(usize, Check)>;

impl Throttle for Decider {
    async fn throttle(&self, demands: &[Demand<'_>], verdicts: &mut Vec<Verdict>) {
        let now = self.parts().clock.now();
        let mut elsewhere = Elsewhere::new();
        for all_or_nothing in demands.chunks(TOGETHER_MAX) {
            self.throttle_here(all_or_nothing, now, verdicts, &mut elsewhere);
        }
        if !elsewhere.is_empty() {
            let rule = &self.parts().clients;
            let outcomes = self.each(elsewhere.iter().map(|(_, check)| (rule, check)), now).await;
            for ((at, _), outcome) in elsewhere.iter().zip(outcomes) {
                let token = verdicts.get_mut(*at);
                if let (Some(token), Some(verdict)) = (token, outcome.verdicts.first()) {
                    *token = *verdict;
                }
            }
        }
    }
}

impl Decider {
    /// Decides those of `demands` that need nobody else. The others get a place among `verdicts`
    /// and join `elsewhere`.
    fn throttle_here(
        &self,
        demands: &[Demand<'_>],
        now: Timestamp,
        verdicts: &mut Vec<Verdict>,
        elsewhere: &mut Elsewhere,
    ) {
        let parts = self.parts();
        let rule = &parts.clients;
        // Who asks many times at once mostly names one limit.
        let mut last = None;
        let mut kind_of = |quota: Quota| match last {
            Some((known, kind)) if known == quota => kind,
            _ => last.insert((quota, CounterKind::of(&quota, rule.mode, rule.scope))).1,
        };
        let asks: SmallVec<[SingleCheck; TOGETHER_MAX]> = demands
            .iter()
            .map(|&Demand { key, quota, hits }| {
                let key = parts.hasher.bare(key).counter_of(kind_of(quota));
                SingleCheck { counter: Counter { key, quota }, hits }
            })
            .collect();
        let mut answers: SmallVec<[Option<Verdict>; TOGETHER_MAX]> = SmallVec::new();
        let concerns_others = rule.durability == Durability::Replicated
            || asks.iter().any(|ask| ask.hits < Hits::PEEK);
        match (rule.mode, &parts.remote) {
            _ if concerns_others => answers.resize(asks.len(), None),
            (Mode::Eventual, Some(remote)) => {
                let slack_divisor = remote.synchroniser.slack_divisor();
                let me = LocalActor { actor: parts.incarnation.actor(), slack_divisor };
                parts.store.check_batch_eventual(&asks, me, now, |it| answers.push(Some(it)));
                if answers.iter().flatten().any(is_urgent) {
                    remote.synchroniser.hurry();
                }
            }
            (Mode::Eventual, None) => {
                parts.store.check_batch_if(&asks, now, |_| true, |it| answers.push(it));
            }
            (Mode::Strict, _) => {
                let owns = |token| parts.ownership.owns(rule.scope, token);
                parts.store.check_batch_if(&asks, now, owns, |it| answers.push(it));
            }
        }
        let mut decided = 0;
        for (SingleCheck { counter, hits }, answer) in asks.into_iter().zip(answers) {
            if let Some(verdict) = answer {
                decided += 1;
                verdicts.push(verdict);
                continue;
            }
            let (scope, durability) = (rule.scope, rule.durability);
            let counters = smallvec::smallvec![counter];
            elsewhere.push((verdicts.len(), Check { id: 0, scope, counters, hits, durability }));
            // Kept for whoever decides; what stands here meanwhile is what nobody's word means.
            verdicts.push(policy::denied(&counter.quota));
        }
        self.counters().local.fetch_add(decided, Ordering::Relaxed);
    }
}
