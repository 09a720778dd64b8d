//! The descriptors of one request, decided with regard to each other: `[envoy] all_or_nothing` and
//! `local_cache`.
//!
//! **From memory.** With `local_cache` a key of a fixed window that was refused is refused until
//! its window ends, and nothing is counted.
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
//! may hold up to its hits of the other counters for as long as a message takes, and for good when
//! its caller goes away meanwhile. What is given back after the window has turned is taken off the
//! next one. No request passes that is not charged everywhere. It takes two rounds, so up to two
//! deadlines of owners that do not answer. As at its source, a rule in shadow mode that would
//! refuse keeps the others from being charged.
//!
//! Source: envoyproxy/ratelimit, `src/redis/fixed_cache_impl.go`, `DoLimit`. It does not give back.

use smallvec::SmallVec;
use tidegate_cluster::mesh::wire::Check;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{Hits, Timestamp};

use super::Decider;
use super::ask::VerdictSource;
use super::decider::Outcomes;
use super::plan::Limited;
use super::status::Outcome;
use crate::config::Envoy;

/// The limits of a request, in its order.
type Limits<'a> = SmallVec<[&'a Limited; 2]>;
/// What is known of each limit of a request so far.
type KnownMembers = SmallVec<[Option<Outcome>; 2]>;
/// The hits that each limit of a request is asked for; `None` where nothing is asked.
type Round = SmallVec<[Option<Hits>; 2]>;

impl Decider {
    /// Decides `limits` as `envoy` says.
    pub(super) async fn all_or_nothing(
        &self,
        limits: Limits<'_>,
        envoy: &Envoy,
        now: Timestamp,
    ) -> Outcomes {
        let mut known: KnownMembers = SmallVec::new();
        let mut tickets: SmallVec<[_; 2]> = SmallVec::new();
        for limited in &limits {
            let recalled =
                envoy.local_cache.then(|| self.negative_cache().recall_window(&limited.check, now));
            let recalled = recalled.flatten();
            known.push(recalled.map(|verdicts| self.outcome(verdicts, VerdictSource::Remembered)));
            let counter = limited.check.counters.first().filter(|_| envoy.local_cache);
            tickets.push(counter.map(|counter| self.negative_cache().ticket(counter.key.token)));
        }
        let outcomes = self.decide_open(&limits, known, envoy.all_or_nothing, now).await;
        if envoy.local_cache {
            for ((limited, ticket), outcome) in limits.iter().zip(tickets).zip(&outcomes) {
                let is_counted =
                    matches!(outcome.source, VerdictSource::Local | VerdictSource::Owner);
                if let (true, Some(ticket)) = (is_counted, ticket) {
                    let check = &limited.check;
                    self.negative_cache().remember_window(ticket, check, now, &outcome.verdicts);
                }
            }
        }
        outcomes
    }

    /// Decides those that are not `known` yet.
    async fn decide_open(
        &self,
        limits: &Limits<'_>,
        mut known: KnownMembers,
        all_or_nothing: bool,
        now: Timestamp,
    ) -> Outcomes {
        let all: Round = limits.iter().map(|limited| Some(limited.check.hits)).collect();
        if !all_or_nothing || limits.len() < 2 {
            self.ask_open(limits, &mut known, &all, now).await;
            return known.into_iter().flatten().collect();
        }
        let is_refused = known.iter().any(Option::is_some);
        let mut looks = known.clone();
        let peek: Round = limits.iter().map(|_| Some(Hits::PEEK)).collect();
        self.ask_open(limits, &mut looks, &peek, now).await;
        let refuses = |(limited, look): (&&Limited, &Option<Outcome>)| {
            look.as_ref().is_some_and(|look| would_refuse(limited, look))
        };
        if !is_refused && !limits.iter().zip(&looks).any(refuses) {
            self.ask_open(limits, &mut known, &all, now).await;
            self.give_back(limits, &mut known, now).await;
            return known.into_iter().flatten().collect();
        }
        // Who gives hits back is not kept from it by another's refusal.
        let is_charged = |at: (&&Limited, &Option<Outcome>)| {
            at.0.check.hits.refund() > 0 || (!is_refused && refuses(at))
        };
        let charged: SmallVec<[bool; 2]> = limits.iter().zip(&looks).map(is_charged).collect();
        let has_charged_twin = |limited: &Limited| {
            let mut others = limits.iter().zip(&charged);
            others.any(|(other, charged)| *charged && key(other) == key(limited))
        };
        let mut second: Round = SmallVec::new();
        for ((limited, known), (look, charged)) in
            limits.iter().zip(&mut known).zip(looks.into_iter().zip(&charged))
        {
            // A descriptor that stands twice sees what the first of it was charged.
            second.push(match charged {
                true => Some(limited.check.hits),
                false if has_charged_twin(limited) => Some(Hits::PEEK),
                false => None,
            });
            if second.last() == Some(&None) {
                *known = look;
            }
        }
        self.ask_open(limits, &mut known, &second, now).await;
        let refused =
            |known: &KnownMembers| known.iter().flatten().any(|outcome| !outcome.is_within());
        if !refused(&known) {
            // The look was overtaken: a bucket was refilled, a window turned. Then nothing passes
            // uncharged.
            let rest: Round = limits
                .iter()
                .zip(&charged)
                .map(|(limited, charged)| (!charged).then_some(limited.check.hits))
                .collect();
            for (known, _) in known.iter_mut().zip(&rest).filter(|(_, hits)| hits.is_some()) {
                *known = None;
            }
            self.ask_open(limits, &mut known, &rest, now).await;
            self.give_back(limits, &mut known, now).await;
        }
        known.into_iter().flatten().collect()
    }

    /// Has those that are not `known` decided, for the hits that `round` names.
    async fn ask_open(
        &self,
        limits: &Limits<'_>,
        known: &mut KnownMembers,
        round: &Round,
        now: Timestamp,
    ) {
        let checks: SmallVec<[Option<Check>; 2]> = limits
            .iter()
            .zip(known.iter().zip(round))
            .map(|(limited, (known, hits))| {
                let hits = hits.filter(|_| known.is_none())?;
                Some(Check { hits, ..limited.check.clone() })
            })
            .collect();
        let open = limits.iter().zip(&checks);
        let open = open.filter_map(|(limited, check)| Some((&limited.rule, check.as_ref()?)));
        let mut outcomes = self.each(open, now).await.into_iter();
        for (known, _) in known.iter_mut().zip(checks).filter(|(_, check)| check.is_some()) {
            *known = outcomes.next();
        }
    }

    /// If one refuses after all, gives the others their hits back. Not where a descriptor stands
    /// twice in the request and refuses itself the second time: no other request came between.
    async fn give_back(&self, limits: &Limits<'_>, known: &mut KnownMembers, now: Timestamp) {
        let stands_once =
            |limited: &Limited| limits.iter().filter(|it| key(it) == key(limited)).count() == 1;
        let was_overtaken = limits.iter().zip(known.iter()).any(|(limited, outcome)| {
            // What passes in shadow mode takes nothing from the others.
            stands_once(limited)
                && !limited.rule.shadow
                && outcome.as_ref().is_some_and(|outcome| !outcome.is_within())
        });
        if !was_overtaken {
            return;
        }
        let refund = |(limited, outcome): (&&Limited, &Option<Outcome>)| {
            let outcome = outcome.as_ref()?;
            let hits = limited.check.hits;
            let is_charged =
                outcome.is_within() && outcome.source != VerdictSource::Policy && hits.charge() > 0;
            is_charged.then(|| Hits::new(hits.get().saturating_neg()))
        };
        let refunds: Round = limits.iter().zip(known.iter()).map(refund).collect();
        let mut given_back: KnownMembers = limits.iter().map(|_| None).collect();
        self.ask_open(limits, &mut given_back, &refunds, now).await;
        for (outcome, refund) in known.iter_mut().zip(given_back) {
            // What is left is what the refund found; a refund that nobody took leaves the answer.
            if let Some(refund) = refund.filter(|refund| refund.source != VerdictSource::Policy) {
                *outcome = Some(refund);
            }
        }
    }
}

/// Whether a charge after this look would be refused. Nobody refuses to be given something back,
/// and a policy says what it would say.
fn would_refuse(limited: &Limited, look: &Outcome) -> bool {
    let hits = limited.check.hits;
    let is_beyond = || look.verdicts.iter().any(|it| u64::from(it.remaining) < hits.charge());
    let refuses = !look.is_within() || (look.source != VerdictSource::Policy && is_beyond());
    refuses && hits.refund() == 0
}

/// Descriptors with the same are the same.
fn key(limited: &Limited) -> Option<KeyHash> {
    limited.check.counters.first().map(|counter| counter.key)
}
