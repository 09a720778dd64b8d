//! Reservations beside the counters of a descriptor;
//! [`engine::reservation`](crate::engine::reservation) has the idea.
//!
//! A reservation is a slot of its own, with the token of the counters that it is beside, so it is
//! decided under their lock, and replicated, handed over and saved as they are. It counts for all
//! counters of its descriptor, whatever limits that has when it is committed, and for none of a
//! descriptor that is begun anew.
//!
//! **Bound.** All reservations of a store, until their ids are forgotten, are at most a quarter of
//! `keys_max`, besides the counters; those of one descriptor may be all of them. At the bound no
//! reservation is made. Ids of commits that have none, and copies from other nodes, have as much
//! again. At that bound a commit is charged without being remembered.
//!
//! **A full store.** A counter without a slot is decided as a check of it is: by the counter that
//! new keys share, or refused. With `on_full: refuse` what is committed then is counted nowhere,
//! and nothing is reserved.

use serde::{Deserialize, Serialize};

use super::check::Verdicts;
use super::counting_mode::{CheckParams, LocalActor};
use super::key::{Beside, Counter, KeyHash};
use super::occupancy::Slots;
use super::overflow::{Overflow, refusal};
use super::promises::{Left, Promise};
use super::shard::Shard;
use super::sharded::Store;
use super::slot::Slot;
use super::unconfirmed::AwaitsCopy;
use crate::engine::grant::Outstanding;
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
    /// What changed, for a request of which another part is refused; `None` if nothing did.
    pub made: Option<Made>,
}

/// What a request to reserve has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// What is reserved since, in hits.
    pub amount: u32,
    pub until: Timestamp,
    /// What was reserved before, if less; zero if nothing was.
    pub before: u32,
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
    /// Whether the same commit again counts nothing: there was a slot for its id.
    pub is_remembered: bool,
    /// What the commit did to the reservation; `None` if nothing.
    pub applied: Option<Applied>,
}

/// What a commit did to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    before: Option<Reservation>,
    after: Reservation,
}

// === impl Store ===

impl Store {
    /// Reserves an amount of all `counters` or of none. `None` if `owns` returns false under the
    /// lock. `me` is the writer of eventual counters.
    ///
    /// The same reservation again is admitted again, and lasts `ttl` from now on if that is longer.
    /// A larger amount has to fit, otherwise the reservation stays as it is; a smaller one changes
    /// nothing. One that is settled is refused until its id is forgotten, and one that has ended is
    /// a new one.
    pub fn reserve_if(
        &self,
        counters: &[Counter],
        reserve: &Reserve,
        me: Option<LocalActor>,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Reserved> {
        let mut shard = self.lock_for(reserve.key);
        owns().then(|| shard.hold(counters, reserve, me, now, &self.overflow))
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
        self.commit_beside_grants_if(counters, commit, me, &[], now, owns)
    }

    /// The same while granted hits are `outstanding`, one per counter (an empty list: none are). A
    /// counter of which some are gets no fine window: it is not known when they pass.
    pub fn commit_beside_grants_if(
        &self,
        counters: &[Counter],
        commit: &Commit,
        me: Option<LocalActor>,
        outstanding: &[Outstanding],
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Settlement> {
        let mut shard = self.lock_for(commit.key);
        let are_outstanding = outstanding.iter().any(|it| it.hits > 0);
        let params = CheckParams::in_full(commit.cost, now, me, are_outstanding);
        owns().then(|| shard.settle(counters, commit, params, &self.overflow))
    }
}

// === impl Store: of requests that are refused ===

impl Store {
    /// Takes back what a request has reserved: what others were promised remains, or what was
    /// reserved before, until the same time, and the id may be reserved anew. Changes nothing, and
    /// says so by [`Settled::Again`], if the reservation was settled, or changed by another owner
    /// since. `None` if `owns` returns false under the lock.
    pub fn undo_if(
        &self,
        counters: &[Counter],
        (key, made): (KeyHash, Made),
        me: Option<LocalActor>,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Settlement> {
        let mut shard = self.lock_for(key);
        owns().then(|| {
            let params = CheckParams { me, ..CheckParams::strict(Hits::PEEK, now) };
            shard.undo(counters, (key, made), params, &self.overflow)
        })
    }
}

// === impl Store: of owners that are none any more ===

impl Store {
    /// Takes back a commit that no other node knows, because this node lost the key before one had
    /// a copy: the next owner is to count it, and this node is not to say then that it was counted.
    /// Nothing may have been merged with the counters since the key was lost. Changes nothing if
    /// the reservation was changed since.
    pub fn take_back(
        &self,
        counters: &[Counter],
        (commit, applied): (&Commit, Applied),
        me: Option<LocalActor>,
        now: Timestamp,
    ) {
        let &Commit { key, cost, .. } = commit;
        let mut shard = self.lock_for(key);
        let now = shard.instant(now);
        if shard.reservation(key, now) != Some(applied.after) {
            return;
        }
        let hits = Hits::new(cost.get().saturating_neg());
        let params = CheckParams { me, ..CheckParams::strict(hits, now) };
        for counter in counters.iter().filter(|_| cost.charge() > 0) {
            shard.charge_known(counter, params);
        }
        match applied.before {
            Some(before) => drop(shard.store(key, before, now)),
            None => drop(shard.remove(key)),
        }
    }

    /// To be called before the commit of a reservation with this key that waits for a replica. When
    /// the result is dropped, [`Store::enqueue_replication`] and [`Store::enqueue_snapshot`] send
    /// what was held back.
    pub fn awaits_copy(&self, key: KeyHash) -> AwaitsCopy {
        self.unconfirmed.add(key)
    }

    /// Whether a commit of a descriptor with this token waits for a replica.
    pub fn has_unconfirmed(&self, token: u64) -> bool {
        self.unconfirmed.has_token(token)
    }

    /// Whether a commit with this key waits for a replica.
    pub fn is_unconfirmed(&self, key: KeyHash) -> bool {
        self.unconfirmed.has(key)
    }

    /// Whether something is reserved under this key.
    pub fn is_reserved(&self, key: KeyHash, now: Timestamp) -> bool {
        let shard = self.lock_for(key);
        shard.reservation(key, now).is_some_and(|it| it.reserved(now) > 0)
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
        overflow: &Overflow,
    ) -> Reserved {
        let &Reserve { key, amount, ttl } = reserve;
        let now = self.instant(now);
        let params = |hits| CheckParams { me, ..CheckParams::strict(hits, now) };
        let shortest = counters.iter().map(|counter| counter.quota.window()).min();
        let ttl = ttl.min(TTL_MAX).min(shortest.unwrap_or(TTL_MAX));
        let before = self.reservation(key, now);
        let hits = Hits::new(i64::from(amount));
        if let Some(settled) = before.filter(|before| before.is_settled) {
            let forgotten = settled.expires_at().since(now);
            let verdicts = self.peek(counters, params(hits), overflow);
            let peeks = self.peek(counters, params(Hits::PEEK), overflow);
            let refused = |(verdict, peek): (Verdict, Verdict)| Verdict {
                remaining: peek.remaining,
                ..refused_for(verdict, forgotten)
            };
            let verdicts = verdicts.into_iter().zip(peeks).map(refused).collect();
            return Reserved { verdicts, ttl: Span::ZERO, made: None };
        }
        let live = before.filter(|before| before.reserved(now) > 0);
        let more = amount.saturating_sub(live.map_or(0, |live| live.amount));
        if let Some(live) = live.filter(|_| more == 0) {
            let ttl = live.until.max(now.plus(ttl)).since(now);
            // Later in any case: one that was promised the same before must not take this back.
            let until = live.until.plus(Span::from_nanos(1)).max(now.plus(ttl));
            let made = Made { amount, until, before: amount };
            self.promise(key, live, made, now);
            self.store(key, Reservation { until, ..live }, now);
            let admit = |it: Verdict| Verdict { allowed: true, retry: Retry::Now, excess: 0, ..it };
            let peek = self.peek(counters, params(Hits::PEEK), overflow);
            let verdicts = peek.into_iter().map(admit).collect();
            let made = Some(made).filter(|_| amount > 0);
            return Reserved { verdicts, ttl, made };
        }
        let (mut made, mut ttl) = (None, ttl);
        let params = params(hits);
        // What it keeps free already is a part of the amount.
        let mut verdicts = match live {
            Some(_) => self.peek_without(key, counters, params, overflow),
            None => self.peek(counters, params, overflow),
        };
        if !verdicts.iter().all(|verdict| verdict.allowed) {
            if let Some(reservations) = &mut self.reservations {
                reservations.has_refused(Beside::of_reservation(key));
            }
            let peeks = self.peek(counters, CheckParams { hits: Hits::PEEK, ..params }, overflow);
            for (verdict, peek) in verdicts.iter_mut().zip(peeks) {
                // Nothing was counted, by a fixed window either.
                let remaining = peek.remaining;
                *verdict = if verdict.allowed { peek } else { Verdict { remaining, ..*verdict } };
            }
        } else if amount > 0 {
            // Also of one of which nothing is reserved any more: a state only grows.
            let until = before.map_or(now, |before| before.until).max(now.plus(ttl));
            let reservation = Reservation { until, amount, is_settled: false };
            if self.store(key, reservation, now) {
                let before = live.map_or(0, |live| live.amount);
                let new = Made { amount, until, before };
                match live {
                    Some(live) => self.promise(key, live, new, now),
                    None => self.forget_promises(key),
                }
                (made, ttl) = (Some(new), until.since(now));
            } else {
                self.counts.refused += 1;
                verdicts = counters.iter().map(|counter| refusal(&counter.quota)).collect();
            }
        }
        self.sweep_for_check(now);
        Reserved { verdicts, ttl, made }
    }

    /// Notes what a request was promised of a reservation that was there.
    fn promise(&mut self, key: KeyHash, live: Reservation, made: Made, now: Timestamp) {
        if made.amount == 0 {
            return;
        }
        let Some(mut reservations) = self.reservations.take() else { return };
        let promises = &mut reservations.promises;
        if promises.is_full() {
            promises
                .retain(|key| self.reservation(key, now).is_some_and(|it| it.reserved(now) > 0));
        }
        let before = Promise { amount: live.amount, until: live.until };
        promises.add(key, before, Promise { amount: made.amount, until: made.until });
        self.reservations = Some(reservations);
    }

    fn forget_promises(&mut self, key: KeyHash) {
        if let Some(reservations) = &mut self.reservations {
            reservations.promises.forget(key);
        }
    }

    /// What `params` would be told of `counters`, each for itself.
    fn peek(
        &mut self,
        counters: &[Counter],
        mut params: CheckParams,
        overflow: &Overflow,
    ) -> Verdicts {
        params.reserved = counters.first().map_or(0, |it| self.reserved(it, params.now));
        let placement = self.place_new(counters, params, overflow);
        counters.iter().map(|counter| self.preview(counter, params, &placement)).collect()
    }

    /// The same if the reservation `key` kept nothing free.
    fn peek_without(
        &mut self,
        key: KeyHash,
        counters: &[Counter],
        params: CheckParams,
        overflow: &Overflow,
    ) -> Verdicts {
        let beside = Beside::of_reservation(key);
        let have_refused = self.reservations.as_mut().is_some_and(|it| it.take_refused(beside));
        self.forget_reservation(key);
        let verdicts = self.peek(counters, params, overflow);
        self.note_reservation(key);
        if have_refused {
            self.may_have_refused(key);
        }
        verdicts
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
        let (mut frees, mut is_remembered, mut applied) = (false, true, None);
        if settled != Settled::Again {
            let reservations = self.reservations.as_mut();
            frees = reservations.is_some_and(|it| it.take_refused(Beside::of_reservation(key)));
            if params.hits.charge() > 0 {
                self.charge_in_full(counters, params, overflow);
            }
            // After the counters: a replica that knows it to be settled is to know its cost.
            let unknown = Reservation { is_settled: false, until: now, amount: 0 };
            let reservation = found.unwrap_or(unknown).settled(remembered, now);
            is_remembered = self.store(key, reservation, now);
            self.forget_promises(key);
            applied = Some(Applied { before: found, after: reservation });
        }
        let peek = CheckParams { hits: Hits::PEEK, in_full: false, ..params };
        let verdicts = self.peek(counters, peek, overflow);
        self.sweep_for_check(now);
        Settlement { settled, verdicts, frees, is_remembered, applied }
    }

    fn undo(
        &mut self,
        counters: &[Counter],
        (key, made): (KeyHash, Made),
        mut params: CheckParams,
        overflow: &Overflow,
    ) -> Settlement {
        params.now = self.instant(params.now);
        let now = params.now;
        let Made { amount, until, before } = made;
        let found = self.reservation(key, now).filter(|found| !found.is_settled);
        let left = found.and_then(|found| {
            let promises = self.reservations.as_mut().map(|it| &mut it.promises);
            let promise = Promise { amount, until };
            match promises.map_or(Left::Unknown, |it| it.take(key, (promise, before), found.amount))
            {
                Left::Unknown => {
                    (found.amount == amount && found.until == until).then_some((found, before))
                }
                Left::Changed => None,
                Left::Amount(left) => Some((found, left)),
            }
        });
        let (mut settled, mut frees) = (Settled::Again, false);
        if let Some((found, left)) = left {
            settled = Settled::Committed;
            if left < found.amount {
                let reservations = self.reservations.as_mut();
                frees = reservations.is_some_and(|it| it.take_refused(Beside::of_reservation(key)));
                // Less with the same end would be a smaller state, which copies do not take over.
                let until = found.until.plus(Span::from_nanos(1));
                self.store(key, Reservation { until, amount: left, is_settled: false }, now);
            }
        }
        let verdicts = self.peek(counters, params, overflow);
        self.sweep_for_check(now);
        Settlement { settled, verdicts, frees, is_remembered: true, applied: None }
    }

    /// Stores a reservation, new or changed. Returns whether there was a slot for it.
    fn store(&mut self, key: KeyHash, reservation: Reservation, now: Timestamp) -> bool {
        let (state, expires) = (State::from(reservation), reservation.expires_at());
        let is_known = self.live_mut(key, now).is_some();
        let slots = if reservation.is_settled { Slots::Further } else { Slots::New };
        if !is_known && !self.has_room_for_reservation(slots, now) {
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

/// The verdict on an amount that is refused for `span` whatever is left.
fn refused_for(verdict: Verdict, span: Span) -> Verdict {
    let retry = match verdict.retry {
        Retry::Now => Retry::After(span),
        Retry::After(longer) => Retry::After(longer.max(span)),
        Retry::Never => Retry::Never,
    };
    Verdict { allowed: false, retry, reset: verdict.reset.max(span), ..verdict }
}
