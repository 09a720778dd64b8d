//! Grants of all limits of a descriptor, charged under the lock that decides its checks.
//!
//! How much is guided self-scheduling: of what is left a node holds at most one part in `divisor`,
//! so grants shrink as the limit is used up, and near its end there are none.
//!
//! **Worked example.** Limit 100, three nodes, divisor 6. The first grant is at most 16, the next
//! one `(100 − 16) / 6 = 14`, and so on; with five left nothing is granted, and every check asks
//! the owner. A node that holds 10 of its 16 gets no more than 4 of the 14.
//!
//! Source: Polychronopoulos and Kuck, "Guided Self-Scheduling", IEEE Transactions on Computers
//! C-36(12), 1987, for the sizes.

use smallvec::SmallVec;

use super::check::{Checks, Verdicts, one_after_the_other, until_forgotten};
use super::counting_mode::CheckParams;
use super::key::Counter;
use super::shard::Shard;
use super::sharded::Store;
use super::slot::Slot;
use crate::engine::grant::{self, Mark, Offer, Outstanding, Refunded, Terms};
use crate::engine::{Retry, State, Verdict, preview};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Span, Timestamp};

/// What a node asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The most hits that it takes.
    pub wanted: u32,
    /// What it holds already.
    pub held: u32,
    /// It may hold what is left divided by this; at least 1.
    pub divisor: u32,
    pub terms: Terms,
    /// A grant that would be for less is none.
    pub shortest: Span,
}

/// Hits that were taken off, of each counter.
pub type GivenBack = SmallVec<[u32; 1]>;

/// Hits that were charged for a node to spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub hits: u32,
    /// How long, from the instant of the charge.
    pub term: Span,
    /// One per counter, in their order.
    pub marks: SmallVec<[Mark; 1]>,
}

/// What checks of a leased rule came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// Of each check in turn, one per counter.
    pub verdicts: Verdicts,
    pub granted: Option<Granted>,
    /// Of all refunds among the checks, one per counter; empty if there are none.
    pub refunded: SmallVec<[Refunded; 1]>,
}

impl Store {
    /// Decides `checks` of a leased rule as [`Store::check_each_if`] does, and
    /// then grants what is asked for, if anything is to be had. A refund among them takes nothing
    /// of what is `outstanding`, one per counter (an empty list: nothing is).
    ///
    /// A refused check is not counted, by a fixed window either: what is given back to it would be
    /// used up by hits that were refused. What was granted is neither drained nor credited.
    pub fn check_leased_if<'a>(
        &self,
        counters: &[Counter],
        checks: impl Into<Checks<'a>>,
        ask: Option<Ask>,
        outstanding: &[Outstanding],
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Leased> {
        let Some(first) = counters.first() else { return Some(Leased::default()) };
        let mut shard = self.lock_for(first.key);
        if !owns() {
            return None;
        }
        let Checks { hits, behavior } = checks.into();
        let mut refunded = SmallVec::new();
        let check = |hits: Hits| {
            if hits.refund() > 0 {
                refunded.resize(counters.len(), Refunded::default());
                return shard.refund(counters, hits.refund(), outstanding, &mut refunded, now);
            }
            let params = CheckParams { behavior, ..CheckParams::leased(hits, now) };
            shard.check_uncounted(counters, params, &self.overflow)
        };
        let verdicts = one_after_the_other(hits, check);
        let is_refused = verdicts.iter().any(|verdict| !verdict.allowed);
        let is_first_hit = |it: &Counter| it.quota.algorithm() == Algorithm::FirstHitWindow;
        // A refused request changes no window, and opens none: nor does what it would be granted.
        let ask = ask.filter(|_| !(is_refused && counters.iter().any(is_first_hit)));
        let granted = ask.and_then(|ask| shard.grant(counters, ask, now));
        self.moved_windows.note(&mut shard, first.key);
        Some(Leased { verdicts, granted, refunded })
    }

    /// Takes off what can be given back of `hits` of a grant with these marks, which will not be
    /// spent; returns how many of each counter: a window may get all of them and the bucket beside
    /// it fewer. `ends` are the terms of all grants and the latest end of those of these counters.
    /// Nothing if `owns` returns false under the lock.
    pub fn give_back_if(
        &self,
        counters: &[Counter],
        marks: &[Mark],
        hits: u32,
        ends: (Terms, Timestamp),
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> GivenBack {
        let Some(first) = counters.first() else { return GivenBack::new() };
        let mut shard = self.lock_for(first.key);
        if !owns() {
            return GivenBack::new();
        }
        let now = shard.instant(now);
        let of_each = counters.iter().zip(marks);
        of_each.map(|(counter, mark)| shard.give_back(counter, *mark, hits, ends, now)).collect()
    }
}

impl Shard {
    fn grant(&mut self, counters: &[Counter], ask: Ask, now: Timestamp) -> Option<Granted> {
        let now = self.instant(now);
        let new = counters.iter().filter(|it| self.table.find(it.key).is_none()).count();
        // Shared counters of a full store grant nothing.
        if ask.wanted == 0 || (new > 0 && !self.reserve_for(counters, new, now)) {
            return None;
        }
        let mut least = Offer { room: u32::MAX, term: ask.terms.longest };
        if counters.iter().any(|counter| self.would_end_otherwise(counter, now)) {
            return None;
        }
        for counter in counters {
            let state = self.state(counter.key, now).unwrap_or(&State::Absent);
            let Offer { room, term } = grant::offer(state, &counter.quota, ask.terms, now)?;
            least = Offer { room: least.room.min(room), term: least.term.min(term) };
        }
        let reserved = counters.first().map_or(0, |it| self.reserved(it, now));
        let room = u64::from(least.room).saturating_sub(reserved);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let may_hold = room / ask.divisor.max(1);
        let hits = may_hold.saturating_sub(ask.held).min(ask.wanted);
        if hits == 0 || least.term < ask.shortest {
            return None;
        }
        let mut marks = SmallVec::new();
        for counter in counters {
            marks.push(self.charge_grant(counter, hits, least.term, now)?);
        }
        Some(Granted { hits, term: least.term, marks })
    }

    /// Whether a first-hit window is open, and would end at another time if hits of this quota were
    /// charged: only a request that is admitted changes that.
    fn would_end_otherwise(&self, Counter { key, quota }: &Counter, now: Timestamp) -> bool {
        if quota.algorithm() != Algorithm::FirstHitWindow {
            return false;
        }
        let Some(slot) = self.table.find(*key).filter(|slot| !slot.is_expired(now)) else {
            return false;
        };
        let is_window = matches!(slot.state, State::FirstHitWindow { .. });
        is_window && slot.meta.with_expiry(slot.state.expires_at(quota)) != slot.meta
    }

    fn charge_grant(
        &mut self,
        counter: &Counter,
        hits: u32,
        term: Span,
        now: Timestamp,
    ) -> Option<Mark> {
        let Counter { key, quota } = counter;
        if let Some((slot, queues)) = self.live_mut(*key, now) {
            let mark = grant::charge(&mut slot.state, quota, hits, term, now)?;
            slot.meta = slot.meta.with_expiry(slot.state.expires_at(quota));
            queues.enqueue_strict(slot);
            queues.enqueue_snapshot(slot);
            return Some(mark);
        }
        let mut state = State::Absent;
        let mark = grant::charge(&mut state, quota, hits, term, now)?;
        let expires = state.expires_at(quota);
        let mut slot = Slot::new(*key, state, expires);
        self.queues.enqueue_strict(&mut slot);
        self.queues.enqueue_snapshot(&mut slot);
        self.insert(slot);
        Some(mark)
    }

    /// Takes a refund off each of `counters`, and adds to `refunded` what became of it.
    pub(super) fn refund(
        &mut self,
        counters: &[Counter],
        hits: u64,
        outstanding: &[Outstanding],
        refunded: &mut [Refunded],
        now: Timestamp,
    ) -> Verdicts {
        let now = self.instant(now);
        let mut verdicts = Verdicts::with_capacity(counters.len());
        for (at, (Counter { key, quota }, refunded)) in counters.iter().zip(refunded).enumerate() {
            let outstanding = outstanding.get(at).copied().unwrap_or_default();
            let mut left = preview(&State::Absent, quota, Hits::PEEK, now);
            if let Some((slot, queues)) = self.live_mut(*key, now) {
                let now_refunded = grant::refund(&mut slot.state, quota, hits, outstanding, now);
                if now_refunded.taken > 0 {
                    expires_after_refund(slot, quota);
                    queues.enqueue_strict(slot);
                    queues.enqueue_snapshot(slot);
                    refunded.tat = now_refunded.tat;
                }
                refunded.taken = refunded.taken.saturating_add(now_refunded.taken);
                refunded.left = refunded.left.saturating_add(now_refunded.left);
                refunded.left_max = now_refunded.left_max;
                left = preview(&slot.state, quota, Hits::PEEK, now);
                left = until_forgotten(slot, left, now);
            }
            verdicts.push(Verdict { allowed: true, retry: Retry::Now, excess: 0, ..left });
        }
        self.sweep_for_check(now);
        verdicts
    }

    fn give_back(
        &mut self,
        counter: &Counter,
        mark: Mark,
        hits: u32,
        ends: (Terms, Timestamp),
        now: Timestamp,
    ) -> u32 {
        let Counter { key, quota } = counter;
        let Some((slot, queues)) = self.live_mut(*key, now) else { return 0 };
        let back = grant::give_back(&mut slot.state, quota, mark, hits, ends, now);
        if back > 0 {
            expires_after_refund(slot, quota);
            queues.enqueue_strict(slot);
            queues.enqueue_snapshot(slot);
        }
        back
    }
}

/// A first-hit window that is still open ends no earlier: hits may come back long after they were
/// charged, when a later request has made it longer.
fn expires_after_refund(slot: &mut Slot, quota: &Quota) {
    let expires = slot.state.expires_at(quota);
    if matches!(slot.state, State::FirstHitWindow { .. }) {
        slot.extend(expires);
    } else {
        slot.meta = slot.meta.with_expiry(expires);
    }
}
