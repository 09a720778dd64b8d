//! Reservations beside the counters of a descriptor;
//! [`engine::reservation`](crate::engine::reservation) has the idea.
//!
//! A reservation is a slot of its own, with the token of the counters that it is beside, so it is
//! decided under their lock, and replicated, handed over and saved as they are. It counts for all
//! counters of that token: the limits of one descriptor.
//!
//! **Bound.** All reservations of a store, until their ids are forgotten, are at most a quarter of
//! `keys_max`, besides the counters; those of one descriptor may be all of them. At the bound no
//! reservation is made, and a commit is charged without being remembered.

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

// === impl Store ===

impl Store {
    /// Reserves an amount of all `counters` or of none. `None` if `owns` returns false under the
    /// lock. `me` is the writer of eventual counters.
    ///
    /// The same reservation again is admitted again, and lasts `ttl` from now on if that is longer.
    /// A larger amount has to fit, otherwise the reservation stays as it is; a smaller one changes
    /// nothing. One that is settled is refused, and one that has ended is a new one.
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
        let live = before.filter(|before| before.reserved(now) > 0);
        let more = amount.saturating_sub(live.map_or(0, |live| live.amount));
        if let Some(live) = live.filter(|_| more == 0) {
            let until = live.until.max(now.plus(ttl));
            self.store(key, Reservation { until, ..live }, now);
            let admit = |it: Verdict| Verdict { allowed: true, retry: Retry::Now, excess: 0, ..it };
            let verdicts = self.peek(counters, params(Hits::PEEK)).into_iter().map(admit).collect();
            return Reserved { verdicts, ttl: until.since(now) };
        }
        let params = params(Hits::new(i64::from(more)));
        let mut verdicts = self.peek(counters, params);
        if !verdicts.iter().all(|verdict| verdict.allowed) {
            if let Some(reservations) = &mut self.reservations {
                reservations.has_refused(key.token);
            }
            let peeks = self.peek(counters, CheckParams { hits: Hits::PEEK, ..params });
            for (verdict, peek) in verdicts.iter_mut().zip(peeks) {
                // Nothing was counted, by a fixed window either.
                let remaining = peek.remaining;
                *verdict = if verdict.allowed { peek } else { Verdict { remaining, ..*verdict } };
            }
        } else if amount > 0 {
            let until = live.map_or(now, |live| live.until).max(now.plus(ttl));
            let reservation = Reservation { until, amount, is_settled: false };
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
            let reservations = self.reservations.as_mut();
            frees = reservations.is_some_and(|it| it.take_refused(key.token));
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
        if !is_known && !self.has_room_for_reservation(now) {
            return false;
        }
        self.forget_reservation(key);
        if let Some((slot, queues)) = self.live_mut(key, now) {
            let was_reservation = slot.state.reservation().is_some();
            slot.state = state;
            slot.meta = slot.meta.with_expiry(expires);
            queues.enqueue_strict(slot);
            queues.enqueue_snapshot(slot);
            self.occupancy.changed(key, was_reservation, true);
            self.note_reservation(key);
        } else {
            let mut slot = Slot::new(key, state, expires);
            self.queues.enqueue_strict(&mut slot);
            self.queues.enqueue_snapshot(&mut slot);
            self.insert(slot);
        }
        true
    }
}
