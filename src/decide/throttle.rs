//! Limits that clients name themselves, with the key that they count under: `CL.THROTTLE`.
//!
//! No rule file describes them. Mode, scope, durability and `on_unavailable` come from one rule for
//! all of them ([`Options::throttle_rule`](super::Options::throttle_rule)).
//!
//! Pipelines bring many at once, so they are decided in batches: the clock is read once, and each
//! statistic is incremented once. The listener counts allowed and denied requests
//! (`node/measured.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::{Durability, Mode};
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{Counter, CounterKind, KeyHash, LocalActor, SingleCheck};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_rules::stats::RuleStats;

use super::check::{THROTTLE_BATCH_MAX, Throttle, ThrottleRequest, VerdictSource};
use super::decider::{Decider, Shared};
use super::fallback;
use super::plan::PlannedCheck;

/// Checks that need other nodes, each with the index of its verdict.
type Deferred = Vec<(usize, PlannedCheck)>;

impl Throttle for Decider {
    async fn throttle(&self, requests: &[ThrottleRequest<'_>], verdicts: &mut Vec<Verdict>) {
        let now = self.shared.node.clock.now();
        let mut deferred = Deferred::new();
        let mut gives_back = false;
        for batch in requests.chunks(THROTTLE_BATCH_MAX) {
            // What follows on a refund is decided after it.
            gives_back |= batch.iter().any(|request| request.hits < Hits::PEEK);
            self.throttle_batch(batch, now, gives_back, verdicts, &mut deferred);
        }
        if deferred.is_empty() {
            return;
        }
        let mut rest = deferred.as_slice();
        while !rest.is_empty() {
            let (run, after) = rest.split_at(ordered_run(rest));
            let now = self.shared.node.clock.now();
            let checks = run.iter().map(|(_, check)| (check, check.hits));
            let decided = self.decide_each(checks, now).await;
            for ((at, check), (decided, source)) in run.iter().zip(decided) {
                if let (Some(verdict), Some(decided)) = (verdicts.get_mut(*at), decided.first()) {
                    *verdict = *decided;
                    if !verdict.allowed
                        && source != VerdictSource::Fallback
                        && let (Some(key), Some(request)) = (check.key(), requests.get(*at))
                    {
                        self.note_refused_bare(key, request, now);
                    }
                }
            }
            rest = after;
        }
    }
}

/// How many of `deferred` may be decided together: those before the first that has to wait for one
/// of the same key, because either of the two gives hits back.
fn ordered_run(deferred: &[(usize, PlannedCheck)]) -> usize {
    let gives_back = |check: &PlannedCheck| check.hits < Hits::PEEK;
    if !deferred.iter().any(|(_, check)| gives_back(check)) {
        return deferred.len();
    }
    // By key, whether something was given back.
    let mut seen: BTreeMap<Option<KeyHash>, bool> = BTreeMap::new();
    let waits = |(_, check): &(usize, PlannedCheck)| {
        let before = seen.insert(check.key(), gives_back(check));
        before.is_some_and(|gave_back| gave_back || gives_back(check))
    };
    deferred.iter().position(waits).unwrap_or(deferred.len())
}

impl Decider {
    /// Decides those of `requests` that need no other node; none if one of them, or one before
    /// them, `gives_back`. The others get a placeholder among `verdicts` and are added to
    /// `deferred`.
    fn throttle_batch(
        &self,
        requests: &[ThrottleRequest<'_>],
        now: Timestamp,
        gives_back: bool,
        verdicts: &mut Vec<Verdict>,
        deferred: &mut Deferred,
    ) {
        let Shared { node, options, .. } = &*self.shared;
        let rule = &options.throttle_rule;
        // The requests of a pipeline mostly name the same limit.
        let mut last = None;
        let mut kind_of = |quota: Quota| match last {
            Some((known, kind)) if known == quota => kind,
            _ => last.insert((quota, CounterKind::of(&quota, rule.mode, rule.scope))).1,
        };
        let checks: SmallVec<[SingleCheck; THROTTLE_BATCH_MAX]> = requests
            .iter()
            .map(|&ThrottleRequest { key, quota, hits }| {
                let key = node.hasher.bare(key).counter_of(kind_of(quota));
                SingleCheck { counter: Counter { key, quota }, hits }
            })
            .collect();
        let decided = self.decide_batch(&checks, now, gives_back);
        let mut local = 0;
        let checks = checks.into_iter().zip(decided).zip(requests);
        for ((SingleCheck { counter, hits }, verdict), request) in checks {
            if let Some(verdict) = verdict {
                if !verdict.allowed {
                    self.note_refused_bare(counter.key, request, now);
                }
                local += 1;
                verdicts.push(verdict);
                continue;
            }
            let check = PlannedCheck {
                rule: rule.clone(),
                counters: smallvec::smallvec![counter],
                hits,
                tally_name: None,
                metadata: None,
                blocked_until: Timestamp::EPOCH,
            };
            deferred.push((verdicts.len(), check));
            // Placeholder, replaced by the verdict of the deferred check.
            verdicts.push(fallback::denied(&counter.quota));
        }
        self.shared.counters.local.fetch_add(local, Ordering::Relaxed);
    }

    /// A limit that a client names itself has refused, for an operator to see.
    #[cold]
    fn note_refused_bare(&self, key: KeyHash, request: &ThrottleRequest<'_>, now: Timestamp) {
        let Shared { options, refused_keys, .. } = &*self.shared;
        let value = str::from_utf8(request.key).unwrap_or("(binary)");
        let entries = [Entry { key: "key", value }];
        refused_keys.refused(key, &options.throttle_rule.id, &entries, request.hits.charge(), now);
    }

    /// Recalls what other nodes hold of the keys of refused checks.
    fn recall_refused(&self, checks: &[SingleCheck], decided: &[Option<Verdict>], now: Timestamp) {
        let stats = &self.shared.options.throttle_rule.stats;
        for (SingleCheck { counter, hits }, verdict) in checks.iter().zip(decided) {
            let is_refused = verdict.as_ref().is_some_and(|verdict| !verdict.allowed);
            if is_refused && self.recall(counter.key, None, now) && hits.charge() > 0 {
                RuleStats::add(&stats.refused_early, 1);
            }
        }
    }

    /// One entry per check; `None` for those that need other nodes.
    #[inline]
    fn decide_batch(
        &self,
        checks: &[SingleCheck],
        now: Timestamp,
        gives_back: bool,
    ) -> SmallVec<[Option<Verdict>; THROTTLE_BATCH_MAX]> {
        let Shared { node, options, peers, .. } = &*self.shared;
        let rule = &options.throttle_rule;
        let mut decided = SmallVec::new();
        let needs_others = rule.durability == Durability::Replicated || gives_back;
        match (rule.mode, peers) {
            _ if needs_others => decided.resize(checks.len(), None),
            (Mode::Eventual, Some(peers)) => {
                let slack_divisor = peers.synchroniser.slack_divisor();
                let local = LocalActor { actor: node.incarnation.actor(), slack_divisor };
                node.store.check_batch_eventual(checks, local, now, |it| decided.push(Some(it)));
            }
            (Mode::Eventual, None) => {
                node.store.check_batch_if(checks, now, |_| true, |it| decided.push(it));
            }
            (Mode::Strict | Mode::Leased, _) => {
                let decides = |token| node.ownership.decides(rule.scope, token);
                node.store.check_batch_if(checks, now, decides, |it| decided.push(it));
            }
        }
        if rule.mode == Mode::Leased {
            self.recall_refused(checks, &decided, now);
        }
        decided
    }
}
