//! Checks: all limits of a descriptor, decided together under the lock of their shard; or many
//! checks of one counter each, with their memory prefetched.
//!
//! **Several limits.** All are previewed first. Only when each would admit the hits is any of them
//! charged, so a denial by the hourly limit consumes nothing of the minute's. The limits that would
//! have passed return "allowed" with their remaining hits; the others return their denial.
//!
//! **Worked example.** 1 a second and 10 a minute, ten hits used in this minute: a check returns
//! (allowed, 1 remaining) and (denied, retry at the end of the minute), and the hit of this second
//! is still available.
//!
//! # Batches
//!
//! Each check takes its own lock and is decided as it would be alone, in the order of the slice.
//! While one is decided, the slots of the [`AHEAD`] next ones are being fetched, so a thread waits
//! for memory about once per batch instead of once per check.
//!
//! **Measured** (a million keys in random order, one thread): 310 to 400 ns a check one by one,
//! 95 to 140 ns in batches of 32 (`docs/benchmarks.md`).

use smallvec::SmallVec;

use super::counting_mode::{CheckParams, LocalActor};
use super::key::{Beside, Counter};
use super::moved_windows::OpenWindow;
use super::overflow::{self, Overflow, Placement, refusal};
use super::queues::Queues;
use super::reserved::Refused;
use super::shard::Shard;
use super::sharded::Store;
use super::slot::Slot;
use super::sync::{record_check, slice_expiry};
use crate::engine::fine_window::NEAR_DIVISOR;
use crate::engine::{Behavior, State, Verdict, first_hit_window, rest, takes_rest};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Timestamp};

/// How many checks ahead memory is prefetched. From 4 to 16 the time per check did not change
/// beyond noise.
const AHEAD: usize = 8;

/// A check of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleCheck {
    pub counter: Counter,
    /// Zero is a peek, which changes nothing.
    pub hits: Hits,
}

/// Checks of the same counters, decided one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks<'a> {
    /// The hits of each check.
    pub hits: &'a [Hits],
    /// Of all of them.
    pub behavior: Behavior,
}

impl<'a> From<&'a [Hits]> for Checks<'a> {
    fn from(hits: &'a [Hits]) -> Self {
        Self { hits, behavior: Behavior::default() }
    }
}

impl<'a, const N: usize> From<&'a [Hits; N]> for Checks<'a> {
    fn from(hits: &'a [Hits; N]) -> Self {
        Self::from(hits.as_slice())
    }
}

/// One verdict per counter, in the same order.
pub type Verdicts = SmallVec<[Verdict; 1]>;

// === impl Store ===

impl Store {
    /// Decides the limits of one descriptor together, one verdict each in their order.
    ///
    /// All must admit the hits, else none is charged (a single `fixed_window` counts denied hits,
    /// as its algorithm requires). Zero hits are a peek, which changes nothing. The counters share
    /// their `token` and have distinct tags.
    pub fn check(&self, counters: &[Counter], hits: Hits, now: Timestamp) -> Verdicts {
        self.check_in(counters, CheckParams::strict(hits, now))
    }

    /// Like [`Store::check`], but only if `owns` returns true under the lock; otherwise returns
    /// `None` and counts nothing. A node that hands a range over uses it to verify that it still
    /// owns the key; see [`Store::barrier`].
    pub fn check_if(
        &self,
        counters: &[Counter],
        hits: Hits,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Verdicts> {
        let Some(first) = counters.first() else { return Some(Verdicts::new()) };
        let mut shard = self.lock_for(first.key);
        let params = CheckParams::strict(hits, now);
        let verdicts = owns().then(|| shard.check(counters, params, &self.overflow));
        self.moved_windows.note(&mut shard, first.key);
        verdicts
    }

    /// Decides `checks` one after the other as [`Store::check_if`] would, and returns all verdicts:
    /// those of the first check, then those of the second. `owns` is called once, for all of them.
    ///
    /// A check whose [`Behavior`] drains, and that some of several limits refuse, takes what is
    /// left of these, and nothing of the others.
    pub fn check_each_if<'a>(
        &self,
        counters: &[Counter],
        checks: impl Into<Checks<'a>>,
        now: Timestamp,
        owns: impl FnOnce() -> bool,
    ) -> Option<Verdicts> {
        let Some(first) = counters.first() else { return Some(Verdicts::new()) };
        let mut shard = self.lock_for(first.key);
        if !owns() {
            return None;
        }
        let Checks { hits, behavior } = checks.into();
        let check = |hits| {
            let params = CheckParams { behavior, ..CheckParams::strict(hits, now) };
            shard.check(counters, params, &self.overflow)
        };
        let verdicts = one_after_the_other(hits, check);
        self.moved_windows.note(&mut shard, first.key);
        Some(verdicts)
    }

    /// Like [`Store::check`] for eventual limits: counts for `me`, and queues the keys for
    /// [`Store::drain_sync_queue`] or leaves them to [`Store::drain_lazy`].
    pub fn check_eventual(
        &self,
        counters: &[Counter],
        hits: Hits,
        me: impl Into<LocalActor>,
        now: Timestamp,
    ) -> Verdicts {
        self.check_in(counters, CheckParams::eventual(hits, now, me.into()))
    }

    fn check_in(&self, counters: &[Counter], params: CheckParams) -> Verdicts {
        let Some(first) = counters.first() else { return Verdicts::new() };
        self.lock_for(first.key).check(counters, params, &self.overflow)
    }

    /// Decides `checks` in their order as [`Store::check_if`] does, and passes each result to
    /// `answer`: `None` where `owns`, called under the lock with the token of the key, returns
    /// false.
    pub fn check_batch_if(
        &self,
        checks: &[SingleCheck],
        now: Timestamp,
        owns: impl Fn(u64) -> bool,
        answer: impl FnMut(Option<Verdict>),
    ) {
        self.check_batch(checks, None, now, owns, answer);
    }

    /// Decides `checks` in their order as [`Store::check_eventual`] does.
    pub fn check_batch_eventual(
        &self,
        checks: &[SingleCheck],
        me: impl Into<LocalActor>,
        now: Timestamp,
        mut answer: impl FnMut(Verdict),
    ) {
        let answer = |verdict: Option<_>| verdict.map_or((), &mut answer);
        self.check_batch(checks, Some(me.into()), now, |_| true, answer);
    }

    fn check_batch(
        &self,
        checks: &[SingleCheck],
        me: Option<LocalActor>,
        now: Timestamp,
        owns: impl Fn(u64) -> bool,
        mut answer: impl FnMut(Option<Verdict>),
    ) {
        for check in checks.iter().take(AHEAD) {
            self.prefetch(&check.counter);
        }
        for (at, check) in checks.iter().enumerate() {
            if let Some(later) = checks.get(at + AHEAD) {
                self.prefetch(&later.counter);
            }
            let token = check.counter.key.token;
            let mut shard = self.shard(token).lock();
            let params = match me {
                None => CheckParams::strict(check.hits, now),
                Some(me) => CheckParams::eventual(check.hits, now, me),
            };
            let verdict =
                owns(token).then(|| shard.check_single(&check.counter, params, &self.overflow));
            drop(shard);
            answer(verdict);
        }
    }

    /// Prefetches the memory that a check of `counter` reads.
    fn prefetch(&self, counter: &Counter) {
        self.shard(counter.key.token).prefetch(counter.key);
    }
}

/// The verdicts of a check for each of `hits`.
pub(super) fn one_after_the_other(
    hits: &[Hits],
    mut check: impl FnMut(Hits) -> Verdicts,
) -> Verdicts {
    let mut verdicts = Verdicts::with_capacity(hits.len());
    for &hits in hits {
        verdicts.extend(check(hits));
    }
    verdicts
}

// === impl Shard ===

impl Shard {
    /// Decides `counters` together.
    pub(super) fn check(
        &mut self,
        counters: &[Counter],
        params: CheckParams,
        overflow: &Overflow,
    ) -> Verdicts {
        if let [counter] = counters {
            return smallvec::smallvec![self.check_single(counter, params, overflow)];
        }
        self.check_uncounted(counters, params, overflow)
    }

    /// Like [`Shard::check`], but a single counter does not count what it refuses either.
    pub(super) fn check_uncounted(
        &mut self,
        counters: &[Counter],
        mut params: CheckParams,
        overflow: &Overflow,
    ) -> Verdicts {
        params.now = self.instant(params.now);
        params.reserved = counters.first().map_or(0, |it| self.reserved(it, params.now));
        let verdicts = self.check_several(counters, params, overflow);
        self.sweep_for_check(params.now);
        verdicts
    }

    /// Decides one counter.
    #[inline]
    pub(super) fn check_single(
        &mut self,
        counter: &Counter,
        mut params: CheckParams,
        overflow: &Overflow,
    ) -> Verdict {
        params.now = self.instant(params.now);
        params.reserved = self.reserved(counter, params.now);
        if params.reserved > 0 {
            return self.check_single_beside(counter, params, overflow);
        }
        let known =
            if params.hits == Hits::PEEK { None } else { self.charge_known(counter, params) };
        let verdict = known.unwrap_or_else(|| self.check_new_or_peek(counter, params, overflow));
        self.sweep_for_check(params.now);
        verdict
    }

    /// Decides one counter beside which something is reserved. What it refuses is not counted, by a
    /// fixed window either: the refusal may end with a reservation.
    #[cold]
    fn check_single_beside(
        &mut self,
        counter: &Counter,
        params: CheckParams,
        overflow: &Overflow,
    ) -> Verdict {
        let verdicts = self.check_several(std::slice::from_ref(counter), params, overflow);
        self.sweep_for_check(params.now);
        verdicts.first().copied().unwrap_or_else(|| refusal(&counter.quota))
    }

    /// Decides one counter that is not in the table, or peeks at it.
    fn check_new_or_peek(
        &mut self,
        counter: &Counter,
        params: CheckParams,
        overflow: &Overflow,
    ) -> Verdict {
        let mut placement = self.place_new(std::slice::from_ref(counter), params, overflow);
        if params.hits == Hits::PEEK {
            return self.preview(counter, params, &placement);
        }
        self.charge(counter, params, &mut placement)
    }

    /// Decides several counters, some of which may not be in the table.
    fn check_several(
        &mut self,
        counters: &[Counter],
        params: CheckParams,
        overflow: &Overflow,
    ) -> Verdicts {
        let mut placement = self.place_new(counters, params, overflow);
        let previews: Verdicts =
            counters.iter().map(|counter| self.preview(counter, params, &placement)).collect();
        if params.hits == Hits::PEEK {
            return previews;
        }
        if previews.iter().all(|verdict| verdict.allowed) {
            return counters
                .iter()
                .map(|counter| self.charge(counter, params, &mut placement).beside(params.reserved))
                .collect();
        }
        if let (Some(reservations), Some(first)) = (&mut self.reservations, counters.first()) {
            reservations.has_refused(Beside::of_counter(first));
        }
        let peek = CheckParams { hits: Hits::PEEK, ..params };
        // What other keys share is not taken from them.
        let may_drain = params.me.is_none() && matches!(placement, Placement::Table);
        let answer = |(counter, verdict): (&Counter, Verdict)| {
            self.record_denial(counter, params);
            if may_drain && takes_rest(params.behavior, params.hits, &verdict) {
                let excess = verdict.excess;
                self.charge(
                    counter,
                    CheckParams { hits: rest(&verdict), ..params },
                    &mut placement,
                );
                return Verdict { excess, ..self.preview(counter, params, &placement) };
            }
            if verdict.allowed { self.preview(counter, peek, &placement) } else { verdict }
        };
        counters.iter().zip(previews).map(answer).collect()
    }

    /// Decides where to place those of `counters` that are new.
    pub(super) fn place_new<'a>(
        &mut self,
        counters: &[Counter],
        params: CheckParams,
        overflow: &'a Overflow,
    ) -> Placement<'a> {
        let mut new = self.count_new(counters);
        while self.reserve_for(counters, new, params.now) {
            // Reserving may have removed an expired one of `counters` themselves.
            let before = std::mem::replace(&mut new, self.count_new(counters));
            if new <= before {
                return Placement::Table;
            }
        }
        let is_new = |counter: &&Counter| self.table.find(counter.key).is_none();
        let shared = |counter: &Counter| self.shared_counter(counter, params);
        let placement = overflow.place(counters.iter().filter(is_new).map(shared), params.now);
        let charged = if params.hits.charge() > 0 { new as u64 } else { 0 };
        let is_domain_full = counters.first().is_some_and(|it| self.is_domain_full(it.key));
        match placement {
            _ if is_domain_full => self.counts.in_full_domains += charged,
            Placement::Shared(_) => self.counts.overflowed += charged,
            Placement::Refused | Placement::Table => self.counts.refused += charged,
        }
        placement
    }

    fn shared_counter(&self, counter: &Counter, params: CheckParams) -> Counter {
        let domain = self.occupancy.domain_of(counter.key);
        overflow::shared_counter(counter, params, domain)
    }

    /// Whether `new` of `counters`, which are of one domain, fit.
    pub(super) fn reserve_for(&mut self, counters: &[Counter], new: usize, now: Timestamp) -> bool {
        counters.first().is_none_or(|counter| self.reserve(counter.key, new, now))
    }

    fn count_new(&self, counters: &[Counter]) -> usize {
        counters.iter().filter(|counter| self.table.find(counter.key).is_none()).count()
    }

    /// Counts the cost of work that was done, whatever is left.
    pub(super) fn charge_in_full(
        &mut self,
        counters: &[Counter],
        params: CheckParams,
        overflow: &Overflow,
    ) {
        let mut placement = self.place_new(counters, params, overflow);
        for counter in counters {
            self.charge(counter, params, &mut placement);
        }
    }

    fn charge(
        &mut self,
        counter: &Counter,
        params: CheckParams,
        placement: &mut Placement<'_>,
    ) -> Verdict {
        if let Some(verdict) = self.charge_known(counter, params) {
            return verdict;
        }
        // What new keys share is not given back to one of them: it used none of that itself.
        if params.hits.refund() > 0 && matches!(placement, Placement::Shared(_)) {
            let peek = CheckParams { hits: Hits::PEEK, ..params };
            return self.preview(counter, peek, placement);
        }
        match placement {
            Placement::Table => self.charge_new(counter, params),
            Placement::Shared(shared) => {
                let counter = self.shared_counter(counter, params);
                let params = params.strict_at(shared.instant(params.now));
                let known = shared.charge_known(&counter, params);
                let verdict = known.unwrap_or_else(|| shared.charge_new(&counter, params));
                shared.sweep_for_check(params.now);
                verdict
            }
            Placement::Refused => refusal(&counter.quota),
        }
    }

    /// Charges a counter that has a slot.
    #[inline]
    pub(super) fn charge_known(
        &mut self,
        counter: &Counter,
        mut params: CheckParams,
    ) -> Option<Verdict> {
        let Counter { key, quota } = counter;
        if params.in_full {
            self.refine_for_cost(counter, params);
        }
        let (slot, queues) = self.live_mut(*key, params.now)?;
        let window = OpenWindow::of(slot);
        if window.is_some() && params.hits.refund() > 0 {
            // A window that is over by the request's own length, and open for longer ones: it has
            // nothing to give back, and the next one has not begun.
            params.behavior.credits &= first_hit_window::is_open(&slot.state, quota, params.now);
        }
        let mut verdict = params.decide(&mut slot.state, quota);
        // A first-hit window has the length of the request at hand. One that takes nothing does not
        // end the window for requests of a longer one either, nor one that leaves it open and gives
        // hits back.
        let takes_nothing = !verdict.allowed && !counts_refused(quota, params, &verdict);
        let gives_back = params.hits.refund() > 0 && window.is_some_and(|it| it.is_of(slot));
        let is_kept =
            quota.algorithm() == Algorithm::FirstHitWindow && (takes_nothing || gives_back);
        if params.me.is_some() {
            // The expiry of an eventual counter is that of its slices.
        } else if is_kept {
            verdict = until_forgotten(slot, verdict, params.now);
        } else {
            slot.meta = slot.meta.with_expiry(params.expiry(&slot.state, quota));
        }
        let window = window.filter(|_| params.hits.charge() > 0);
        let is_cut = window.is_some_and(|it| it.is_cut(slot));
        let has_moved = window.is_some_and(|it| it.has_moved(slot));
        record_charge(slot, queues, quota, params, &verdict);
        if is_cut {
            queues.note_ended(*key);
        }
        if params.refines && may_refine(&slot.state, &verdict) {
            self.refine(counter, params.now);
        }
        if has_moved {
            self.has_moved = true;
        }
        Some(verdict)
    }

    /// Begins the ring of a counter, if there is room.
    #[cold]
    fn refine(&mut self, counter: &Counter, now: Timestamp) {
        if let (Some(slot), Some(keys)) = (self.table.find_mut(counter.key), &self.fine_keys) {
            slot.state.refine(&counter.quota, now, keys);
        }
    }

    /// The same for a cost that exceeds what is left of the counter.
    #[cold]
    fn refine_for_cost(&mut self, counter: &Counter, params: CheckParams) {
        let Some(keys) = self.fine_keys.clone().filter(|_| params.refines) else { return };
        if let Some((slot, _)) = self.live_mut(counter.key, params.now) {
            slot.state.refine_for_cost(&counter.quota, params.hits, params.now, &keys);
        }
    }

    /// Charges a counter that has no slot. A slot is created only if there is something to store.
    fn charge_new(&mut self, counter: &Counter, params: CheckParams) -> Verdict {
        let mut state = State::Absent;
        if let Some(keys) = self.fine_keys.as_ref().filter(|_| params.in_full && params.refines) {
            state.refine_for_cost(&counter.quota, params.hits, params.now, keys);
        }
        let verdict = params.decide(&mut state, &counter.quota);
        let expires = match params.me {
            None => params.expiry(&state, &counter.quota),
            Some(_) => slice_expiry(&counter.quota, params.now),
        };
        if !matches!(state, State::Absent) && expires > params.now {
            let mut slot = Slot::new(counter.key, state, expires);
            record_charge(&mut slot, &mut self.queues, &counter.quota, params, &verdict);
            if let Some(keys) = self.fine_keys.as_ref().filter(|_| params.refines) {
                slot.state.refine(&counter.quota, params.now, keys);
            }
            self.insert(slot);
        }
        verdict
    }

    /// The verdict beside what is reserved.
    pub(super) fn preview(
        &self,
        counter: &Counter,
        params: CheckParams,
        placement: &Placement<'_>,
    ) -> Verdict {
        let alone = self.preview_alone(counter, params, placement);
        if params.reserved == 0 {
            return alone;
        }
        if params.hits.charge() == 0 {
            return alone.beside(params.reserved);
        }
        let of = |hits| self.preview_alone(counter, CheckParams { hits, ..params }, placement);
        let reserved = i64::try_from(params.reserved).unwrap_or(i64::MAX);
        let whole = of(Hits::new(params.hits.get().saturating_add(reserved)));
        if whole.allowed {
            // Of a queue: what is reserved does not wait in it.
            return Verdict { delay: alone.delay, ..whole };
        }
        let refused = Refused { alone, whole, left: of(Hits::PEEK).remaining };
        match &self.reservations {
            Some(it) => it.refusal(Beside::of_counter(counter), refused, params),
            None => whole,
        }
    }

    fn preview_alone(
        &self,
        counter: &Counter,
        params: CheckParams,
        placement: &Placement<'_>,
    ) -> Verdict {
        let quota = &counter.quota;
        if let Some(slot) = self.table.find(counter.key) {
            let is_expired = slot.is_expired(params.now);
            let verdict =
                params.preview(if is_expired { &State::Absent } else { &slot.state }, quota);
            let takes = params.hits.charge() > 0 && verdict.allowed;
            let is_kept = quota.algorithm() == Algorithm::FirstHitWindow && !takes && !is_expired;
            if is_kept && params.me.is_none() {
                return until_forgotten(slot, verdict, params.now);
            }
            return verdict;
        }
        match placement {
            Placement::Table => params.preview(&State::Absent, quota),
            Placement::Shared(shared) => {
                let key = self.shared_counter(counter, params).key;
                let params = params.strict_at(shared.instant(params.now));
                params.preview(shared.state(key, params.now).unwrap_or(&State::Absent), quota)
            }
            Placement::Refused => refusal(quota),
        }
    }

    /// A node receives the counts of an eventual key only while it checks the key itself, so the
    /// first denial in a slice is sent to peers although nothing was counted.
    fn record_denial(&mut self, counter: &Counter, params: CheckParams) {
        if params.me.is_some()
            && let Some((slot, queues)) = self.live_mut(counter.key, params.now)
        {
            record_check(slot, queues, &counter.quota, params, None);
        }
    }
}

/// A verdict on a first-hit window whose length the request does not change: it ends as the
/// requests before have it.
#[cold]
pub(super) fn until_forgotten(slot: &Slot, verdict: Verdict, now: Timestamp) -> Verdict {
    match slot.state {
        State::FirstHitWindow { .. } => verdict.within(slot.meta.expires().since(now)),
        _ => verdict,
    }
}

/// Whether two counts have come near the limit.
#[inline]
fn may_refine(state: &State, verdict: &Verdict) -> bool {
    matches!(state, State::SlidingCounter { .. })
        && verdict.remaining <= verdict.limit - verdict.limit / NEAR_DIVISOR
}

/// Whether a refusal changed the counter.
#[inline]
fn counts_refused(quota: &Quota, params: CheckParams, verdict: &Verdict) -> bool {
    // Drained: of the hits some were not too many.
    let drained = || u64::from(verdict.excess) < params.hits.charge();
    quota.algorithm() == Algorithm::FixedWindow || (params.behavior.drains && drained())
}

/// Queues what a charge changed.
#[inline]
fn record_charge(
    slot: &mut Slot,
    queues: &mut Queues,
    quota: &Quota,
    params: CheckParams,
    verdict: &Verdict,
) {
    if params.me.is_some() {
        record_check(slot, queues, quota, params, Some(verdict));
    } else if verdict.allowed || counts_refused(quota, params, verdict) {
        queues.enqueue_strict(slot);
        queues.enqueue_snapshot(slot);
    }
}
