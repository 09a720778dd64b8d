//! Refunds of leased rules: hits that a client gives back.
//!
//! ```text
//! refund ─▶ spent of a grant that is held here? ── yes ─▶ there again (held_grants.rs)
//!               └─ the rest ─▶ the owner: takes what is counted and not outstanding
//!                                 └─ the rest ─▶ once more, when what was outstanding has ended
//! ```
//!
//! What is granted is counted, and may not have been spent. A refund that took it off would admit
//! it twice, so the owner takes no hit that is outstanding
//! ([`engine::grant`](tidegate_limiter::engine::grant)). A node that has become the owner knows no
//! grants of the one before it: for as long as these may last it takes nothing.
//!
//! So at most the limit and what was given back are admitted, as of a strict rule; and no hit is
//! given back before it was spent. What was outstanding at a refund may be spent after
//! it, and is then taken as if it had been before. A fixed window or a first-hit window that has
//! ended gets nothing.
//!
//! **Example.** 100 a minute. The owner has admitted 30 and granted 16 to a node, which has spent
//! ten of them: 46 are counted. A client gives 50 hits back at another node. The owner takes 30 and
//! keeps 16 for later. When the node has given six back, it takes the other ten.
//!
//! **Beside a reset.** What nodes had spent of grants before a limit was reset is taken off when it
//! is known ([`grant_ledger`](super::grant_ledger)). It is not there for a refund, which would have
//! the reset take hits that come later.
//!
//! Where the map changes while a refund waits, other owners may have made grants again, and it
//! waits once more; and so where another refund has taken what it waited for. It ends with the
//! window, or with the ownership of the key.
//!
//! **Bound.** [`WAITING_MAX`](super::waiting_refunds::WAITING_MAX) refunds wait at an owner; of
//! others the rest is lost, which refuses early.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_cluster::mesh::StreamClass;
use tidegate_cluster::mesh::codec::COMBINED_CHECKS;
use tidegate_cluster::mesh::wire::Call;
use tidegate_limiter::engine::State;
use tidegate_limiter::engine::grant::{Outstanding, Refunded};
use tidegate_limiter::policy::Scope;
use tidegate_limiter::quota::Algorithm;
use tidegate_limiter::store::{Counter, KeyHash};
use tidegate_limiter::units::{Hits, Monotonic, Span, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::check::VerdictSource;
use super::decider::{Decider, Peers, Shared};
use super::grant_ledger::{Beside, Charged};
use super::leased::{FAR_TERM_MAX, TERM_MAX};
use super::limits::Limits;
use super::outcome::Decided;
use super::waiting_refunds::{OneWindow, OpenGrants};

/// Beyond the end of a grant, which is that of the clock of its owner.
const MARGIN: Duration = Duration::from_millis(1);
/// Of which it is not known how much is granted.
const ANY: Outstanding = Outstanding { hits: u64::MAX, until: Timestamp::NEVER };

/// Hits of a counter that a refund is to take when grants have ended.
#[derive(Debug)]
struct Waiting {
    /// The position of the counter in its limits.
    at: usize,
    key: KeyHash,
    hits: u64,
    window: OneWindow,
}

/// Hits that are to be taken when grants have ended, and the place that this has.
#[derive(Debug)]
pub(super) struct WaitingRefund {
    waiting: SmallVec<[Waiting; 1]>,
    place: OwnedSemaphorePermit,
}

/// What others may have granted that owned the keys of this node before; by default nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnknownGrants {
    /// Until when; `None` if that has passed.
    pub(super) until: Option<Timestamp>,
}

impl UnknownGrants {
    /// Of an owner since then.
    pub(super) fn since(since: Timestamp, longest: Span, now: Timestamp) -> Self {
        Self { until: Some(since.plus(longest)).filter(|until| *until > now) }
    }

    /// What is outstanding of each counter, with `known`.
    pub(super) fn beside(
        self,
        counters: &[Counter],
        known: &[Outstanding],
    ) -> SmallVec<[Outstanding; 1]> {
        match self.until {
            Some(_) => counters.iter().map(|_| ANY).collect(),
            None => known.into(),
        }
    }
}

// === impl Decider ===

impl Decider {
    /// Puts a refund into grants that are held here. Returns the rest of it, or the verdicts if
    /// there is none.
    pub(super) fn refund_if_granted(
        &self,
        limits: &Limits,
        hits: Hits,
        now: Timestamp,
    ) -> Result<Decided, Hits> {
        if hits.refund() == 0 {
            return Err(hits);
        }
        let Shared { node, held_grants, .. } = &*self.shared;
        match held_grants.refund(limits, hits, now, node.clock.monotonic()) {
            Some((verdicts, Hits::PEEK)) => Ok((verdicts, VerdictSource::Grant)),
            Some((_, rest)) => Err(rest),
            None => Err(hits),
        }
    }

    /// What was granted before this node had its present ranges, and since when it has them.
    pub(super) fn unknown_grants(
        &self,
        scope: Scope,
        now: Timestamp,
    ) -> (UnknownGrants, Monotonic) {
        let Shared { node, .. } = &*self.shared;
        let since = node.ownership.right().since;
        let longest = if scope == Scope::Global { FAR_TERM_MAX } else { TERM_MAX };
        let owner_since = now.minus(node.clock.monotonic().since(since));
        (UnknownGrants::since(owner_since, longest, now), since)
    }

    /// As [`Decider::unknown_grants`]; of a strict rule nothing, as mostly none was granted.
    pub(super) fn unknown_grants_of(
        &self,
        (scope, is_leased): (Scope, bool),
        now: Timestamp,
    ) -> (UnknownGrants, Monotonic) {
        let (unknown, since) = self.unknown_grants(scope, now);
        (if is_leased { unknown } else { UnknownGrants::default() }, since)
    }

    /// Whether this node decides the key at `token`, and has its ranges since then.
    pub(super) fn decides_since(&self, scope: Scope, token: u64, since: Monotonic) -> bool {
        let ownership = &self.shared.node.ownership;
        ownership.decides(scope, token) && ownership.right().since == since
    }

    /// Notes what these refunds could not take for the sake of outstanding hits, each of the
    /// counter at its position. To be called under the lock of the ledger, which knows what is
    /// granted beside it. `None` if nothing waits, for [`Decider::take_later`].
    pub(super) fn note_left(
        &self,
        limits: &Limits,
        refunded: impl Iterator<Item = (usize, Refunded)> + Clone,
        known: &Beside,
        now: Timestamp,
    ) -> Option<WaitingRefund> {
        let is_left = refunded.clone().any(|(_, refunded)| refunded.left > 0);
        let place = if is_left { self.shared.waiting_refunds.place() } else { None };
        let has_place = place.is_some();
        let waiting = refunded.filter_map(|(at, refunded)| {
            let left = if has_place { refunded.left } else { 0 };
            self.add_waiting(limits, at, Refunded { left, ..refunded }, known, now)
        });
        let waiting: SmallVec<[Waiting; 1]> = waiting.collect();
        place.filter(|_| !waiting.is_empty()).map(|place| WaitingRefund { waiting, place })
    }

    /// What of this waits, for the counter at this position; `None` if nothing does.
    fn add_waiting(
        &self,
        limits: &Limits,
        at: usize,
        refunded: Refunded,
        known: &Beside,
        now: Timestamp,
    ) -> Option<Waiting> {
        let counter = limits.counters.get(at)?;
        let left_max = refunded.left_max.saturating_sub(known.may_be_spent_before_reset);
        let (key, window) = (counter.key, self.window_of(counter, now));
        let refunded = Refunded { left_max, ..refunded };
        let open = OpenGrants {
            hits: known.outstanding.get(at).map_or(0, |outstanding| outstanding.hits),
            unawaited: known.unawaited.get(at).copied().unwrap_or(0),
        };
        let hits = self.shared.waiting_refunds.add(key, refunded, open, window, now);
        (hits > 0).then_some(Waiting { at, key, hits, window })
    }

    /// Takes what waits, when what was outstanding has ended.
    pub(super) fn take_later(
        &self,
        limits: &Limits,
        refund: Option<WaitingRefund>,
        unknown: UnknownGrants,
        now: Timestamp,
    ) {
        let Some(WaitingRefund { waiting, place }) = refund else { return };
        self.when_grants_have_ended(limits, unknown, now, place, move |decider, limits, then| {
            for Waiting { at, key, hits, window } in &waiting {
                let hits = decider.shared.waiting_refunds.take(*key, *hits, *window, then);
                if hits > 0 && decider.is_open(limits, *at, *window, then) {
                    decider.refund_counter(limits, *at, hits, then);
                }
            }
        });
    }

    /// A carried limit was reset by its owner, and this is what could not be taken of it yet. What
    /// other nodes hold is asked back, and what they have spent is taken when that is known, if
    /// there is a `place` for that. Hits that they spend while the reset is on its way count as
    /// before it.
    pub(super) fn after_reset(
        &self,
        limits: &Limits,
        left: Option<WaitingRefund>,
        unknown: UnknownGrants,
        place: Option<OwnedSemaphorePermit>,
        now: Timestamp,
    ) {
        let Shared { grant_ledger, waiting_refunds, .. } = &*self.shared;
        let (Some(key), Some(counter)) = (limits.key(), limits.counters.first()) else { return };
        if unknown.until.is_some() {
            self.take_later(limits, left, unknown, now);
            // All that is counted now is taken then, also what this owner has granted itself.
            grant_ledger.forget(key);
            return;
        }
        self.recall(key, None, now);
        // It has taken what earlier refunds wait for.
        let (nothing, open) = (Refunded::default(), OpenGrants::default());
        waiting_refunds.add(key, nothing, open, OneWindow::none(now), now);
        let Some(place) = place else { return };
        let window = self.window_of(counter, now);
        self.when_grants_have_ended(limits, unknown, now, place, move |decider, limits, then| {
            let spent = decider.shared.grant_ledger.take_spent_before_reset(key, then);
            if spent > 0 && decider.is_open(limits, 0, window, then) {
                decider.refund_counter(limits, 0, spent, then);
            }
        });
    }

    /// Asks every node for what it holds of a key, granted by this owner or by one before. Edges
    /// only if `resets`: there may be a thousand, and what is given back waits for their grants.
    pub(super) fn recall_from_all(&self, key: KeyHash, resets: bool) {
        let Some(Peers { mesh, .. }) = &self.shared.peers else { return };
        let mut peers = mesh.peers();
        if resets {
            peers.extend(mesh.edges().iter().cloned());
        }
        for peer in peers.iter().filter(|peer| peer.version >= COMBINED_CHECKS) {
            mesh.notify(&peer.id, StreamClass::Checks, Call::Recall(key));
        }
    }

    /// Acts when no grant of these limits that was made by `now` is outstanding, and none of
    /// another owner since.
    fn when_grants_have_ended(
        &self,
        limits: &Limits,
        unknown: UnknownGrants,
        now: Timestamp,
        place: OwnedSemaphorePermit,
        act: impl FnOnce(&Self, &Limits, Timestamp) + Send + 'static,
    ) {
        let (Some(key), Ok(runtime)) = (limits.key(), Handle::try_current()) else { return };
        let known_until = self.shared.grant_ledger.outstanding_until(key);
        let mut until = unknown.until.map_or(known_until, |until| until.max(known_until));
        let (decider, limits, mut then) = (self.clone(), limits.clone(), now);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(until.since(then).to_std() + MARGIN).await;
                then = decider.shared.node.clock.now();
                let (unknown, _) = decider.unknown_grants(limits.scope, then);
                match unknown.until {
                    // The map has changed.
                    Some(again) if decider.owns(&limits) => until = again,
                    _ => break,
                }
            }
            act(&decider, &limits, then);
            drop(place);
        });
    }

    fn owns(&self, limits: &Limits) -> bool {
        let token = limits.key().map(|key| key.token);
        token.is_some_and(|token| self.shared.node.ownership.decides(limits.scope, token))
    }

    /// The window that the hits of `now` are counted in.
    fn window_of(&self, counter: &Counter, now: Timestamp) -> OneWindow {
        let window = counter.quota.window().as_nanos().max(1);
        match counter.quota.algorithm() {
            Algorithm::FixedWindow => {
                let next = (now.as_nanos() / window).saturating_add(1);
                let ends = Timestamp::from_nanos(next.saturating_mul(window));
                OneWindow { opened: Timestamp::EPOCH, ends }
            }
            Algorithm::FirstHitWindow => {
                // Its end is that which its requests have given it; this one may name another.
                let stored = self.shared.node.store.get(counter.key, now);
                match stored.map(|stored| (stored.state, stored.expires)) {
                    Some((State::FirstHitWindow { opened, .. }, ends)) => {
                        OneWindow { opened, ends }
                    }
                    _ => OneWindow::none(now),
                }
            }
            _ => OneWindow { opened: Timestamp::EPOCH, ends: Timestamp::NEVER },
        }
    }

    /// Whether hits of a window of the counter at this position are still counted in it.
    fn is_open(&self, limits: &Limits, at: usize, window: OneWindow, now: Timestamp) -> bool {
        let present = limits.counters.get(at).map(|counter| self.window_of(counter, now));
        window.ends > now && present.is_some_and(|present| present.opened == window.opened)
    }

    /// Takes a refund off one of the counters, if this node still owns them.
    fn refund_counter(&self, limits: &Limits, at: usize, hits: u64, now: Timestamp) {
        let Shared { node, grant_ledger, .. } = &*self.shared;
        let Limits { scope, counters, .. } = limits;
        let Some(token) = limits.key().map(|key| key.token) else { return };
        let hits = Hits::new(i64::try_from(hits).map_or(i64::MIN, |hits| -hits));
        let (unknown, since) = self.unknown_grants(*scope, now);
        let owns = || self.decides_since(*scope, token, since);
        let charged = grant_ledger.enter(counters, None, now, |_, known| {
            let of_refund = unknown.beside(counters, &known.of_refund());
            let mut outstanding: SmallVec<[_; 1]> = counters.iter().map(|_| ANY).collect();
            if let Some(of_this) = outstanding.get_mut(at) {
                *of_this = of_refund.get(at).copied().unwrap_or_default();
            }
            let leased =
                node.store.check_leased_if(counters, &[hits], None, &outstanding, now, owns)?;
            let mut refunded = leased.refunded;
            let of_others = refunded.iter_mut().enumerate().filter(|(other, _)| *other != at);
            of_others.for_each(|(_, refunded)| *refunded = Refunded::default());
            // Where another refund has taken what was accounted for, the rest is of newer grants.
            let again = refunded.get(at).map(|refunded| (at, *refunded)).into_iter();
            let left = self.note_left(limits, again, known, now);
            Some(Charged { refunded, ..Charged::of(left) })
        });
        let Some(charged) = charged else { return };
        self.announce_refund(*scope, counters, hits);
        let (unknown, _) = self.unknown_grants(*scope, now);
        self.take_later(limits, charged.result, unknown, now);
    }
}
