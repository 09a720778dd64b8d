//! The descriptors of one request, decided with regard to each other: `[envoy] all_or_nothing` and
//! `local_cache`.
//!
//! **From memory.** With `local_cache` a key of a fixed window that was refused is refused until its
//! window ends, and nothing is counted.
//!
//! **All or nothing.** A request that one limit refuses is to charge the others nothing. No lock
//! spans counters of several owners, so it takes two rounds, one of looks and one of charges:
//!
//! ```text
//! some refused from memory        the others look only
//! some looks would refuse         these are charged, as their window counts what it refuses;
//!                                 the others answer from the look
//! no look would refuse            all are charged
//!   … and one refuses after all   another request came between: the others are given back theirs
//! ```
//!
//! **Worked example.** 20 a minute and 10 an hour, both asked by each request. The eleventh looks:
//! the hour has nothing left. It is charged to the hour, which refuses, and the minute answers that
//! 10 are left, as it did before.
//!
//! **Bound.** Between the rounds others may be admitted, so one that is refused in the second round
//! may hold up to its hits of the other counters for as long as a message takes. No limit admits
//! more than it does without this: what decides is the charge, not the look.
//!
//! Source: envoyproxy/ratelimit, `src/redis/fixed_cache_impl.go`, `DoLimit`. It does not give back.

use smallvec::SmallVec;

use super::Decider;
use super::ask::Source;
use super::decider::Outcomes;
use super::plan::Limited;
use super::status::Outcome;
use crate::cluster::mesh::wire::Check;
use crate::config::Envoy;
use crate::store::KeyHash;
use crate::units::{Hits, Timestamp};

/// The limits of a request, in its order.
type Limits<'a> = SmallVec<[&'a Limited; 2]>;
/// What is known of each limit of a request so far.
type Known = SmallVec<[Option<Outcome>; 2]>;

impl Decider {
    /// Decides `limits` as `envoy` says.
    pub(super) async fn together(
        &self,
        limits: Limits<'_>,
        envoy: &Envoy,
        now: Timestamp,
    ) -> Outcomes {
        let mut known: Known = SmallVec::new();
        let mut tickets: SmallVec<[_; 2]> = SmallVec::new();
        for limited in &limits {
            let recalled =
                envoy.local_cache.then(|| self.denials().recall_window(&limited.check, now));
            let recalled = recalled.flatten();
            known.push(recalled.map(|verdicts| self.outcome(verdicts, Source::Remembered)));
            let counter = limited.check.counters.first().filter(|_| envoy.local_cache);
            tickets.push(counter.map(|counter| self.denials().ticket(counter.key.place)));
        }
        let outcomes = self.decide_open(&limits, known, envoy.all_or_nothing, now).await;
        if envoy.local_cache {
            for ((limited, ticket), outcome) in limits.iter().zip(tickets).zip(&outcomes) {
                let is_counted = matches!(outcome.source, Source::Local | Source::Owner);
                if let (true, Some(ticket)) = (is_counted, ticket) {
                    let check = &limited.check;
                    self.denials().remember_window(ticket, check, now, &outcome.verdicts);
                }
            }
        }
        outcomes
    }

    /// Decides those that are not `known` yet.
    async fn decide_open(
        &self,
        limits: &Limits<'_>,
        mut known: Known,
        all_or_nothing: bool,
        now: Timestamp,
    ) -> Outcomes {
        let is_refused = known.iter().any(Option::is_some);
        if all_or_nothing && limits.len() > 1 {
            let looks = self.ask_open(limits, &known, now, |_| Hits::PEEK).await;
            // Who gives hits back is not kept from it by another's refusal.
            let would_refuse = |limited: &Limited, look: &Outcome| {
                let hits = limited.check.hits.charge();
                !look.is_within()
                    || look.verdicts.iter().any(|verdict| u64::from(verdict.remaining) < hits)
            };
            let refusing: SmallVec<[bool; 2]> = limits
                .iter()
                .zip(&looks)
                .map(|(limited, look)| {
                    look.as_ref().is_some_and(|look| would_refuse(limited, look))
                })
                .collect();
            if is_refused || refusing.contains(&true) {
                for ((known, look), (limited, refuses)) in
                    known.iter_mut().zip(looks).zip(limits.iter().zip(refusing))
                {
                    let is_charged = (refuses && !is_refused) || limited.check.hits.refund() > 0;
                    if known.is_none() && !is_charged {
                        *known = look;
                    }
                }
            }
        }
        let is_certain = known.iter().any(Option::is_some);
        let charged = self.ask_open(limits, &known, now, |hits| hits).await;
        let mut all: Known =
            known.into_iter().zip(charged).map(|(known, charged)| known.or(charged)).collect();
        if all_or_nothing && !is_certain {
            self.give_back(limits, &mut all, now).await;
        }
        all.into_iter().flatten().collect()
    }

    /// Has those that are not `known` decided for `hits` of what they ask for.
    async fn ask_open(
        &self,
        limits: &Limits<'_>,
        known: &Known,
        now: Timestamp,
        hits: impl Fn(Hits) -> Hits,
    ) -> Known {
        let checks: SmallVec<[Option<Check>; 2]> = limits
            .iter()
            .zip(known)
            .map(|(limited, known)| {
                let check = &limited.check;
                known.is_none().then(|| Check { hits: hits(check.hits), ..check.clone() })
            })
            .collect();
        let open = limits.iter().zip(&checks);
        let open = open.filter_map(|(limited, check)| Some((&limited.rule, check.as_ref()?)));
        let mut outcomes = self.each(open, now).await.into_iter();
        checks.iter().map(|check| check.as_ref().and_then(|_| outcomes.next())).collect()
    }

    /// If one refuses after all, gives the others their hits back. A descriptor that stands twice in
    /// a request and refuses itself the second time keeps the first.
    async fn give_back(&self, limits: &Limits<'_>, all: &mut Known, now: Timestamp) {
        let key = |limited: &Limited| limited.check.counters.first().map(|counter| counter.key);
        let refused: SmallVec<[Option<KeyHash>; 2]> = limits
            .iter()
            .zip(all.iter())
            .filter(|(_, outcome)| outcome.as_ref().is_some_and(|it| !it.is_within()))
            .map(|(limited, _)| key(limited))
            .collect();
        if refused.is_empty() {
            return;
        }
        let is_given_back = |limited: &Limited, outcome: &Outcome| {
            outcome.is_within()
                && outcome.source != Source::Policy
                && limited.check.hits.charge() > 0
                && !refused.contains(&key(limited))
        };
        let mut kept = all.clone();
        for (kept, limited) in kept.iter_mut().zip(limits) {
            kept.take_if(|outcome| is_given_back(limited, outcome));
        }
        let refund = |hits: Hits| Hits::new(hits.get().saturating_neg());
        let refunds = self.ask_open(limits, &kept, now, refund).await;
        for (outcome, refund) in all.iter_mut().zip(refunds) {
            // What is left is what the refund found; a refund that nobody took leaves the answer.
            if let Some(refund) = refund.filter(|refund| refund.source != Source::Policy) {
                *outcome = Some(refund);
            }
        }
    }
}
