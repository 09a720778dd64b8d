//! Reservations beside the counters of a descriptor; [`engine::reservation`](crate::engine::reservation)
//! has the idea.
//!
//! A reservation is a slot of its own, with the token of the counters that it is beside, so it is
//! decided under their lock, and replicated, handed over and saved as they are. It counts for all
//! counters of that token: the limits of one descriptor.
//!
//! What is reserved has to be known for every check of such a counter. So a shard keeps, beside its
//! table, the amounts of its tokens in the order in which they end. They follow from the slots:
//! whatever changes a slot with a reservation notes it here. A shard without reservations, the common
//! case, pays for one comparison a check.
//!
//! **Bound.** A reservation is one of `keys_max` keys, until its id is forgotten. At the bound no
//! reservation is made, and a commit is charged without being remembered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::check::Verdicts;
use super::counting_mode::{CheckParams, LocalActor};
use super::key::{Counter, KeyHash};
use super::overflow::{Overflow, Placement, refusal};
use super::shard::Shard;
use super::sharded::Store;
use super::slot::Slot;
use crate::engine::reservation::TTL_MAX;
use crate::engine::{Reservation, Retry, State, Verdict};
use crate::units::{Hits, Span, Timestamp};

/// What a node wants to keep free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Of [`KeyHash::of_reservation`].
    pub key: KeyHash,
    /// In hits of each counter; zero reserves nothing, and tells whether anything is left.
    pub amount: u32,
    /// From now on; at most [`TTL_MAX`] and the shortest window of the counters.
    pub ttl: Span,
}

/// What a reservation cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Of [`KeyHash::of_reservation`].
    pub key: KeyHash,
    /// In hits of each counter; zero releases the reservation, and none is below zero.
    pub cost: Hits,
    /// How long after the end of the reservation the same commit counts nothing more; at most
    /// [`REMEMBERED`](crate::engine::reservation::REMEMBERED).
    pub remembered: Span,
}

/// What became of an attempt to reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// One per counter; the amount is reserved if all allow it. What remains is left beside it.
    pub verdicts: Verdicts,
    /// How long it lasts from now on.
    pub ttl: Span,
}

/// What a commit found; the later ones are less as expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Settled {
    /// A live reservation. Its cost was counted in its place.
    Committed,
    /// One that was settled before. Nothing was counted.
    Again,
    /// None, or one that has ended. The cost was counted, beyond the limit if it had to be.
    Reported,
}

/// What became of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub settled: Settled,
    /// What is left, one per counter.
    pub verdicts: Verdicts,
    /// Checks were refused for what is free again.
    pub frees: bool,
}

/// Hits that do not fit beside what is reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    /// The verdict without reservations.
    pub(super) alone: Verdict,
    /// The verdict on the hits and all that is reserved.
    pub(super) whole: Verdict,
    /// What is left without reservations.
    pub(super) left: u32,
}

/// The live reservations of a shard.
#[derive(Debug, Default)]
pub(super) struct Reservations(BTreeMap<u64, OfToken>);

/// Those of one token.
#[derive(Debug, Default)]
struct OfToken {
    /// Amounts by end, and by tag.
    amounts: BTreeMap<(Timestamp, u64), u32>,
    /// Sum of the amounts.
    sum: u64,
    /// A check was refused that would have passed without them.
    has_refused: bool,
}

// === impl Store ===

impl Store {
    /// Reserves an amount of all `counters` or of none. `None` if `owns` returns false under the
    /// lock. `me` is the writer of eventual counters.
    ///
    /// The same reservation again is admitted again, and lasts `ttl` from now on if that is longer.
    /// One that is settled is refused, and one that has ended is a new one.
    pub fn reserve_if(
        &self,
        counters: &[Counter],
        reserve: &Reserve,
        me: Option<LocalActor>,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Reserved> {
        let mut shard = self.lock_for(reserve.key);
        owns().then(|| shard.hold(counters, reserve, me, now))
    }

    /// Ends a reservation, and counts its cost in all `counters`. `None` if `owns` returns false
    /// under the lock.
    pub fn commit_if(
        &self,
        counters: &[Counter],
        commit: &Commit,
        me: Option<LocalActor>,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Settlement> {
        let mut shard = self.lock_for(commit.key);
        owns().then(|| {
            shard.settle(
                counters,
                commit,
                CheckParams::in_full(commit.cost, now, me),
                &self.overflow,
            )
        })
    }
}

// === impl Shard ===

impl Shard {
    /// What is reserved beside the counters of `token`, in hits.
    #[inline]
    pub(super) fn reserved(&mut self, token: u64, now: Timestamp) -> u64 {
        if self.reservations.is_none() { 0 } else { self.reserved_now(token, now) }
    }

    #[cold]
    fn reserved_now(&mut self, token: u64, now: Timestamp) -> u64 {
        let Some(reservations) = &mut self.reservations else { return 0 };
        let sum = reservations.sum(token, now);
        if reservations.0.is_empty() {
            self.reservations = None;
        }
        sum
    }

    /// The verdict on hits that do not fit beside what is reserved. The refusal ends when it would
    /// with all that is reserved, or when enough of that has ended.
    #[cold]
    pub(super) fn refused_beside(
        &self,
        token: u64,
        refused: Refused,
        params: CheckParams,
    ) -> Verdict {
        let Refused { alone, whole, left } = refused;
        let (hits, left) = (params.hits.charge(), u64::from(left));
        let missing = hits.saturating_add(params.reserved).saturating_sub(left);
        let of_token = self.reservations.as_ref().and_then(|it| it.0.get(&token));
        // What is missing without reservations, too, comes with time alone.
        let end = of_token.and_then(|it| it.end_of(missing.min(it.sum)));
        let end = end.map(|end| end.since(params.now).max(Span::from_nanos(1)));
        let ended = match (alone.retry, end) {
            (Retry::Never, _) | (_, None) => None,
            (Retry::Now, Some(end)) => Some(end),
            (Retry::After(span), Some(end)) => Some(end.max(span)),
        };
        let retry = match (whole.retry, ended) {
            (Retry::After(one), Some(other)) => Retry::After(one.min(other)),
            (_, Some(ended)) => Retry::After(ended),
            (retry, None) => retry,
        };
        let remaining = left.saturating_sub(params.reserved);
        let narrow = |hits: u64| u32::try_from(hits).unwrap_or(u32::MAX);
        let excess = narrow(hits.saturating_sub(remaining));
        Verdict { remaining: narrow(remaining), retry, excess, ..whole }
    }

    /// Hits were refused that would have passed without what is reserved at `token`.
    pub(super) fn reservations_have_refused(&mut self, token: u64) {
        if let Some(of_token) = self.reservations.as_mut().and_then(|it| it.0.get_mut(&token)) {
            of_token.has_refused = true;
        }
    }

    /// The reservation in the slot of `key`.
    fn reservation(&self, key: KeyHash, now: Timestamp) -> Option<Reservation> {
        self.state(key, now)?.reservation()
    }

    fn hold(
        &mut self,
        counters: &[Counter],
        reserve: &Reserve,
        me: Option<LocalActor>,
        now: Timestamp,
    ) -> Reserved {
        let &Reserve { key, amount, ttl } = reserve;
        let now = self.instant(now);
        let params = |hits| CheckParams { me, ..CheckParams::strict(hits, now) };
        let shortest = counters.iter().map(|counter| counter.quota.window()).min();
        let ttl = ttl.min(TTL_MAX).min(shortest.unwrap_or(TTL_MAX));
        let before = self.reservation(key, now);
        if before.is_some_and(|before| before.is_settled) {
            let verdicts = counters.iter().map(|counter| refusal(&counter.quota)).collect();
            return Reserved { verdicts, ttl: Span::ZERO };
        }
        if let Some(live) = before.filter(|before| before.reserved(now) > 0) {
            let until = live.until.max(now.plus(ttl));
            self.store(key, Reservation { until, ..live }, now);
            let admit = |it: Verdict| Verdict { allowed: true, retry: Retry::Now, excess: 0, ..it };
            let verdicts = self.peek(counters, params(Hits::PEEK)).into_iter().map(admit).collect();
            return Reserved { verdicts, ttl: until.since(now) };
        }
        let params = params(Hits::new(i64::from(amount)));
        let mut verdicts = self.peek(counters, params);
        if !verdicts.iter().all(|verdict| verdict.allowed) {
            self.reservations_have_refused(key.token);
            let peeks = self.peek(counters, CheckParams { hits: Hits::PEEK, ..params });
            for (verdict, peek) in verdicts.iter_mut().zip(peeks) {
                if verdict.allowed {
                    *verdict = peek;
                }
            }
        } else if amount > 0 {
            let reservation = Reservation { until: now.plus(ttl), amount, is_settled: false };
            if !self.store(key, reservation, now) {
                self.counts.refused += 1;
                verdicts = counters.iter().map(|counter| refusal(&counter.quota)).collect();
            }
        }
        self.sweep_for_check(now);
        Reserved { verdicts, ttl }
    }

    /// What `params` would be told of `counters`, each for itself.
    fn peek(&mut self, counters: &[Counter], mut params: CheckParams) -> Verdicts {
        let token = counters.first().map_or(0, |counter| counter.key.token);
        params.reserved = self.reserved(token, params.now);
        counters.iter().map(|counter| self.preview(counter, params, &Placement::Table)).collect()
    }

    fn settle(
        &mut self,
        counters: &[Counter],
        &Commit { key, remembered, .. }: &Commit,
        mut params: CheckParams,
        overflow: &Overflow,
    ) -> Settlement {
        params.now = self.instant(params.now);
        let now = params.now;
        let found = self.reservation(key, now);
        let settled = match found {
            Some(found) if found.is_settled => Settled::Again,
            Some(found) if found.reserved(now) > 0 => Settled::Committed,
            _ => Settled::Reported,
        };
        let mut frees = false;
        if settled != Settled::Again {
            let of_token = self.reservations.as_mut().and_then(|it| it.0.get_mut(&key.token));
            frees = of_token.is_some_and(|it| std::mem::take(&mut it.has_refused));
            if params.hits.charge() > 0 {
                self.charge_in_full(counters, params, overflow);
            }
            // After the counters: a replica that knows it to be settled is to know its cost.
            let unknown = Reservation { is_settled: false, until: now, amount: 0 };
            self.store(key, found.unwrap_or(unknown).settled(remembered, now), now);
        }
        let peek = CheckParams { hits: Hits::PEEK, in_full: false, ..params };
        let verdicts = self.peek(counters, peek);
        self.sweep_for_check(now);
        Settlement { settled, verdicts, frees }
    }

    /// Stores a reservation, new or changed. Returns whether there was a slot for it.
    fn store(&mut self, key: KeyHash, reservation: Reservation, now: Timestamp) -> bool {
        let (state, expires) = (State::from(reservation), reservation.expires_at());
        let is_known = self.live_mut(key, now).is_some();
        if !is_known && !self.reserve(1, now) {
            return false;
        }
        self.forget_reservation(key);
        if let Some((slot, queues)) = self.live_mut(key, now) {
            slot.state = state;
            slot.meta = slot.meta.with_expiry(expires);
            queues.enqueue_strict(slot);
            queues.enqueue_snapshot(slot);
            self.note_reservation_of(key);
        } else {
            let mut slot = Slot::new(key, state, expires);
            self.queues.enqueue_strict(&mut slot);
            self.queues.enqueue_snapshot(&mut slot);
            self.insert(slot);
        }
        true
    }

    /// The slot of `key` is about to change or go: what it reserves no longer counts.
    #[inline]
    pub(super) fn forget_reservation(&mut self, key: KeyHash) {
        if self.reservations.is_some() {
            let of_slot = self.table.find(key).and_then(|slot| slot.state.reservation());
            if let (Some(old), Some(reservations)) = (of_slot, &mut self.reservations) {
                reservations.remove(key, old.until);
            }
        }
    }

    /// What this slot reserves counts from now on.
    #[inline]
    pub(super) fn note_reservation(&mut self, slot: &Slot) {
        let Some(reservation) = slot.state.reservation() else { return };
        if !reservation.is_settled {
            let Reservation { until, amount, .. } = reservation;
            self.reservations.get_or_insert_default().add(slot.key, until, amount);
        }
    }

    /// The slot of `key` has changed: what it reserves now counts from now on.
    pub(super) fn note_reservation_of(&mut self, key: KeyHash) {
        let of_slot = self.table.find(key).and_then(|slot| slot.state.reservation());
        if let Some(Reservation { until, amount, is_settled: false }) = of_slot {
            self.reservations.get_or_insert_default().add(key, until, amount);
        }
    }

    /// Notes the reservations of all slots anew.
    pub(super) fn note_all_reservations(&mut self) {
        let mut all = Reservations::default();
        for slot in self.table.occupied(0..self.table.slots_len()) {
            if let Some(Reservation { until, amount, is_settled: false }) = slot.state.reservation()
            {
                all.add(slot.key, until, amount);
            }
        }
        self.reservations = (!all.0.is_empty()).then(|| Box::new(all));
    }

    /// Drops what has ended, also of tokens that are not checked any more.
    pub(super) fn drop_ended_reservations(&mut self, now: Timestamp) {
        if let Some(reservations) = &mut self.reservations {
            reservations.0.retain(|_, of_token| of_token.sum_at(now) > 0);
            if reservations.0.is_empty() {
                self.reservations = None;
            }
        }
    }
}

// === impl Reservations ===

impl Reservations {
    fn add(&mut self, key: KeyHash, until: Timestamp, amount: u32) {
        let of_token = self.0.entry(key.token).or_default();
        if of_token.amounts.insert((until, key.tag), amount).is_none() {
            of_token.sum += u64::from(amount);
        }
    }

    fn remove(&mut self, key: KeyHash, until: Timestamp) {
        let Some(of_token) = self.0.get_mut(&key.token) else { return };
        if let Some(amount) = of_token.amounts.remove(&(until, key.tag)) {
            of_token.sum -= u64::from(amount);
        }
        if of_token.amounts.is_empty() {
            self.0.remove(&key.token);
        }
    }

    /// What is reserved of `token` at `now`.
    fn sum(&mut self, token: u64, now: Timestamp) -> u64 {
        let Some(of_token) = self.0.get_mut(&token) else { return 0 };
        let sum = of_token.sum_at(now);
        if sum == 0 {
            self.0.remove(&token);
        }
        sum
    }
}

impl OfToken {
    /// The sum at `now`. Drops what has ended.
    fn sum_at(&mut self, now: Timestamp) -> u64 {
        while let Some(first) = self.amounts.first_entry()
            && first.key().0 <= now
        {
            self.sum -= u64::from(first.remove());
        }
        self.sum
    }

    /// When at least `hits` of them have ended; `None` if there are fewer.
    fn end_of(&self, hits: u64) -> Option<Timestamp> {
        let mut ended = 0_u64;
        self.amounts.iter().find_map(|((until, _), amount)| {
            ended += u64::from(*amount);
            (ended >= hits).then_some(*until)
        })
    }
}
