//! The descriptors of one request, decided with regard to each other: `[envoy] all_or_nothing` and
//! `local_cache`.
//!
//! **Local cache.** With `local_cache` a key of a fixed window that was refused is refused until
//! its window ends, and nothing is counted. Not that of a leased rule, whose refusals end when hits
//! are given back: the negative cache has those.
//!
//! **All or nothing.** A request that one limit refuses must charge the others nothing. No lock
//! spans counters of several owners, so it takes two rounds, one of peeks and one of charges:
//!
//! ```text
//! some refused by the cache       the others are only peeked at
//! some peeks would refuse         these are charged, as their window counts what it refuses;
//!                                 the others answer from the peek
//! no peek would refuse            all are charged
//!   … and one refuses after all   another request was admitted between, or two descriptors of
//!                                 this one are equal: the others are refunded
//! ```
//!
//! **Worked example.** 20 a minute and 10 an hour, both checked by each request. At the eleventh
//! the peek finds that the hour has nothing left. The hour is charged and refuses, and the minute
//! answers that 10 are left, as it did before.
//!
//! **Bound.** Between the rounds other requests may be admitted, so one that is refused in the
//! second round may hold up to its hits of the other counters for as long as a message takes, and
//! for good when its caller disconnects meanwhile. A refund after the window has turned is taken
//! off the next one. No request passes that is not charged everywhere. It takes two rounds, so up
//! to two deadlines of owners that do not answer.
//!
//! Source: envoyproxy/ratelimit, `src/redis/fixed_cache_impl.go`, `DoLimit`. It does not refund,
//! and charges the others nothing either when what is over its limit refuses no request: a rule in
//! shadow mode, or one of two quotas.

use smallvec::SmallVec;
use tidegate_limiter::policy::Mode;
use tidegate_limiter::units::{Hits, Timestamp};

use super::check::{VerdictSource, is_refused};
use super::decider::Decider;
use super::outcome::Decided;
use super::plan::PlannedCheck;
use super::status::is_within;
use crate::config::Envoy;

/// The checks of a request.
#[derive(Clone, Debug)]
struct Together<'a> {
    /// Those that have limits, in its order.
    checks: SmallVec<[&'a PlannedCheck; 2]>,
    envoy: &'a Envoy,
}

/// What is decided of each check so far.
type Decisions = SmallVec<[Option<Decided>; 2]>;
/// The hits of each check in one round; `None` for a check that is left out.
type Round = SmallVec<[Option<Hits>; 2]>;

impl Decider {
    /// Decides the `checks` of a request as `envoy` requires.
    pub(super) async fn all_or_nothing<'a>(
        &self,
        checks: SmallVec<[&'a PlannedCheck; 2]>,
        envoy: &'a Envoy,
        now: Timestamp,
    ) -> SmallVec<[Decided; 2]> {
        let request = Together { checks, envoy };
        let checks = &request.checks;
        if !request.envoy.local_cache {
            let none = checks.iter().map(|_| None).collect();
            return self.decide_rest(&request, none, now).await;
        }
        let cache = &self.shared.negative_cache;
        let mut decided = Decisions::new();
        let mut tickets: SmallVec<[_; 2]> = SmallVec::new();
        for check in checks {
            let cached = cache.recall_window(&check.counters, check.hits, now);
            decided.push(cached.map(|it| self.counted(it, VerdictSource::NegativeCache)));
            tickets.push(check.key().map(|key| cache.ticket(key.token)));
        }
        let decided = self.decide_rest(&request, decided, now).await;
        for ((check, ticket), (verdicts, source)) in checks.iter().zip(tickets).zip(&decided) {
            let is_counted = matches!(source, VerdictSource::Local | VerdictSource::Owner);
            let is_final = is_counted && check.rule.mode != Mode::Leased;
            if let (true, Some(ticket)) = (is_final, ticket) {
                cache.insert_window(ticket, &check.counters, check.hits, verdicts, now);
            }
        }
        decided
    }

    /// Decides those that are not in `decided` yet.
    async fn decide_rest(
        &self,
        request: &Together<'_>,
        mut decided: Decisions,
        now: Timestamp,
    ) -> SmallVec<[Decided; 2]> {
        let checks = &request.checks;
        let all: Round = checks.iter().map(|check| Some(check.hits)).collect();
        if !request.envoy.all_or_nothing || checks.len() < 2 {
            self.decide_round(checks, &mut decided, &all, now).await;
            return decided.into_iter().flatten().collect();
        }
        let is_refused_by_cache = request.is_refused(&decided);
        let mut peeks = decided.clone();
        let peek: Round = checks.iter().map(|_| Some(Hits::PEEK)).collect();
        self.decide_round(checks, &mut peeks, &peek, now).await;
        let refuses = |(check, peek): (&&PlannedCheck, &Option<Decided>)| {
            peek.as_ref().is_some_and(|peek| would_refuse(check, peek))
        };
        if !request.is_refused_where(checks.iter().zip(&peeks).map(refuses)) {
            self.charge(request, &mut decided, &all, now).await;
            return decided.into_iter().flatten().collect();
        }
        // A refund is applied whatever the other limits decide.
        let is_charged = |at: (&&PlannedCheck, &Option<Decided>)| {
            at.0.hits.refund() > 0 || (!is_refused_by_cache && refuses(at))
        };
        let charged: SmallVec<[bool; 2]> = checks.iter().zip(&peeks).map(is_charged).collect();
        self.charge_some(checks, &mut decided, peeks, &charged, now).await;
        if request.is_refused(&decided) {
            // A peek may be outdated where another one was not.
            self.give_back_if_refused(request, &mut decided, &charged, now).await;
        } else {
            // The peek is outdated: a bucket was refilled, or a window turned. Charge the rest, so
            // that no request passes uncharged.
            let mut rest = Round::new();
            for ((check, charged), decided) in checks.iter().zip(&charged).zip(&mut decided) {
                rest.push((!charged).then_some(check.hits));
                if !charged {
                    *decided = None;
                }
            }
            self.charge(request, &mut decided, &rest, now).await;
        }
        decided.into_iter().flatten().collect()
    }

    /// Charges those that are `charged`; the others answer from their peek.
    async fn charge_some(
        &self,
        checks: &[&PlannedCheck],
        decided: &mut Decisions,
        peeks: Decisions,
        charged: &[bool],
        now: Timestamp,
    ) {
        let has_charged_twin = |check: &PlannedCheck| {
            let mut others = checks.iter().zip(charged);
            others.any(|(other, charged)| *charged && other.key() == check.key())
        };
        let mut round = Round::new();
        for ((check, charged), (decided, peek)) in
            checks.iter().zip(charged).zip(decided.iter_mut().zip(peeks))
        {
            // The second of two equal descriptors sees the charge of the first.
            round.push(match charged {
                true => Some(check.hits),
                false if has_charged_twin(check) => Some(Hits::PEEK),
                false => {
                    *decided = peek;
                    None
                }
            });
        }
        self.decide_round(checks, decided, &round, now).await;
    }

    /// Charges a round; when the request is refused after all, refunds what it was charged.
    async fn charge(
        &self,
        request: &Together<'_>,
        decided: &mut Decisions,
        round: &Round,
        now: Timestamp,
    ) {
        self.decide_round(&request.checks, decided, round, now).await;
        let all: SmallVec<[bool; 2]> = request.checks.iter().map(|_| true).collect();
        self.give_back_if_refused(request, decided, &all, now).await;
    }

    /// Refunds those that are `charged`, if the request is refused.
    async fn give_back_if_refused(
        &self,
        request: &Together<'_>,
        decided: &mut Decisions,
        charged: &[bool],
        now: Timestamp,
    ) {
        if !request.is_refused(decided) {
            return;
        }
        let checks = &request.checks;
        let refund = |((check, decided), charged): ((&&PlannedCheck, &Option<Decided>), &bool)| {
            let (verdicts, source) = decided.as_ref()?;
            let is_charged = *charged
                && is_within(verdicts)
                && *source != VerdictSource::Fallback
                && check.hits.charge() > 0;
            is_charged.then(|| Hits::new(check.hits.get().saturating_neg()))
        };
        let refunds: Round = checks.iter().zip(decided.iter()).zip(charged).map(refund).collect();
        if refunds.iter().all(Option::is_none) {
            return;
        }
        let mut refunded: Decisions = checks.iter().map(|_| None).collect();
        self.decide_round(checks, &mut refunded, &refunds, now).await;
        for (decided, refunded) in decided.iter_mut().zip(refunded) {
            // The refund's verdict has the remaining hits; without an owner the charge's stays.
            if let Some(refunded) = refunded.filter(|it| it.1 != VerdictSource::Fallback) {
                *decided = Some(refunded);
            }
        }
    }

    /// Decides those that are not in `decided`, for their hits in `round`.
    async fn decide_round(
        &self,
        checks: &[&PlannedCheck],
        decided: &mut Decisions,
        round: &Round,
        now: Timestamp,
    ) {
        let open: SmallVec<[_; 2]> = checks
            .iter()
            .zip(decided.iter().zip(round))
            .map(|(check, (decided, hits))| Some((*check, (*hits).filter(|_| decided.is_none())?)))
            .collect();
        let mut verdicts = self.decide_each(open.iter().flatten().copied(), now).await.into_iter();
        for (decided, _) in decided.iter_mut().zip(open).filter(|(_, open)| open.is_some()) {
            *decided = verdicts.next();
        }
    }
}

// === impl Together ===

impl Together<'_> {
    /// Whether the request is refused by what is decided of it. What is not decided yet is within
    /// its limits.
    fn is_refused(&self, decided: &Decisions) -> bool {
        let is_over = |decided: &Option<Decided>| {
            decided.as_ref().is_some_and(|(verdicts, _)| !is_within(verdicts))
        };
        self.is_refused_where(decided.iter().map(is_over))
    }

    /// The same where those checks are over their limits. One of a rule in shadow mode refuses no
    /// request. A descriptor without a rule does not matter here, although it may be a quota that
    /// is not used up: where all others are over their limits, there is none to be spared.
    fn is_refused_where(&self, over: impl Iterator<Item = bool>) -> bool {
        let all_quota = self.envoy.quota_mode;
        let of_check = |(check, is_over): (&&PlannedCheck, bool)| {
            (is_over && !check.rule.shadow, all_quota || check.rule.quota_mode)
        };
        is_refused(self.checks.iter().zip(over).map(of_check))
    }
}

/// Whether a charge after this peek would be refused. A refund never is, and the fallback's verdict
/// does not depend on counts.
fn would_refuse(check: &PlannedCheck, (verdicts, source): &Decided) -> bool {
    let exceeds = || verdicts.iter().any(|it| u64::from(it.remaining) < check.hits.charge());
    let refuses = !is_within(verdicts) || (*source != VerdictSource::Fallback && exceeds());
    refuses && check.hits.refund() == 0
}
