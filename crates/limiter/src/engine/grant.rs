//! Grants: hits that are charged in advance, and spent by another node within a *term*.
//!
//! # Idea
//!
//! The owner of a counter charges `k` hits now, and a node that asked for them admits `k` hits by
//! itself during the term. What is not spent is given back or lost. All nodes together then admit
//! no more than one counter that decided each hit when it passed, because a charge is valid for the
//! whole term:
//!
//! - **Windows.** A hit weighs the same anywhere in its slice, and the weight of older slices only
//!   falls. So the term ends with the slice, and the charge is a plain decision. A first-hit window
//!   is one slice, which the first grant opens if no hit has: its end, which is all that a holder
//!   has to know, is the term.
//! - **Buckets.** A bucket that is idle when it is charged would refill what is not spent yet. So
//!   the charge is made as if at the end of the term: `TAT = max(TAT, now + term) + k·T`, with the
//!   notation of [`tat`](super::tat).
//! - The log remembers the instant of each hit, and a queue tells each hit how long to wait: they
//!   grant nothing.
//!
//! # Why nothing is over (buckets)
//!
//! Let `O` be the TAT of the owner and `R` that of a bucket that decides each hit when it passes.
//! `R` is the largest of `TAT₀ + n·T`, with all `n` hits that passed, and of `s + n(s)·T` for each
//! instant `s` at which a hit passed, with the hits `n(s)` that passed from `s` on. Those hits are
//! of grants whose term ends at `s` or later. The first of these to be charged left `O` at no
//! less than `s + k·T`, and each later charge added its `k·T`: so `O ≥ R`. A charge is made only
//! when `O ≤ now + burst·T`, and hits pass after it, so `R` is within the burst when each of them
//! passes.
//!
//! # What can be given back
//!
//! In a window, everything, as long as its slice lasts. A bucket may have been raised to the end of
//! a later term in the meantime, and what it was raised by is not to be taken off again. So each
//! grant has a [`Mark`], the `O` that its charge left, less what was given back since of grants
//! that were charged before it. Without `u` of its hits `O` would now be lower by `u·T` if no later
//! charge had raised it, which holds as long as `mark − u·T` is no less than `now`, one term, and
//! the end of every later grant. Those ends are passed in: rules with different bursts share a
//! bucket, and their terms differ.
//!
//! The hits of later grants are not in a mark, and it stays when these are given back. *Example*:
//! grants of 4 and of 3 are charged at 0, with a term of one hit. The marks are 5·T and 8·T. The
//! second gives 3 back, which leaves `O` at 5·T and the first mark where it is, so that the first
//! gives 4 back. In the other order the second mark becomes 4·T, of which 3·T are beyond the term.
//!
//! # Example
//!
//! 100 a second, burst 100, idle at 0 s. A grant of 16 with a term of 7.8 ms leaves the TAT at
//! 7.8 + 160 = 167.8 ms, so that 83 hits are left: one for the 7.8 ms. All 16 are spent at 5 ms: a
//! bucket of its own would be at 165 ms. None is spent and at 6 ms 16 are given back: the mark less
//! 160 ms is 7.8 ms, and terms that begin now end at 13.8 ms, so only 15 are taken off.
//!
//! # Refunds
//!
//! A client gives hits back that have passed, and what is granted may not have passed yet. So a
//! refund takes no hit that is *outstanding*, granted and not accounted for: of a window what its
//! newest slice has beside these, then of older slices; of a bucket what it has beyond
//! `outstanding·T` after the end of the last grant, so that `O ≥ R` holds although all of them pass
//! then. How many of them have passed is known when they are given back or have ended: what a
//! refund could not take for their sake it may take later.
//!
//! A refund does not say whether its hits were charged before a grant or after it. If before, the
//! mark is lower by as many. If after, it stays, as long as the `O` that the refund leaves is no
//! lower than the mark and the hits of later grants together: these may be given back, and what
//! later terms raise is judged by the mark. Both are safe, so the mark becomes the larger one.
//! *Example*: three grants of 4 are charged, and 40 hits pass after them. A refund of 40 leaves 12
//! beyond the end of the last grant, so that the marks stay, and each of the three can be given
//! back.
//!
//! # Bound
//!
//! Unspent hits that are not given back are refused early: in a window until it ends, in a bucket
//! until as many have drained. An idle bucket loses one term once: 1/128 of its burst, or what the
//! distance of a holder asks for, at most a half ([`Terms::useful`]). A bucket under load loses
//! nothing: it is beyond the end of a term, and drains as fast. Where another owner may have made
//! grants for so long, as much is not given back of any grant, until it has drained.

use smallvec::SmallVec;

use super::state::State;
use super::tat::{Rate, Tat};
use super::{bucket, decide, first_hit_window, preview, windows};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Span, Timestamp};

/// A term of a bucket is this part of the time in which it drains.
const BUCKET_TERM_DIVISOR: u64 = 128;
/// One that a holder far away needs is at most this part.
const FAR_BUCKET_TERM_DIVISOR: u64 = 2;

/// What a grant of one counter has to be given back by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The number of the slice that was charged.
    Slice(u64),
    /// When the first-hit window that was charged was opened.
    Opened(Timestamp),
    /// The TAT that the charge left.
    Tat(Tat),
}

/// Hits of one counter that are granted, and of which it is not known whether they have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    pub hits: u64,
    /// They pass no later.
    pub until: Timestamp,
}

/// What became of a refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refunded {
    pub taken: u64,
    /// Not taken for the sake of outstanding hits.
    pub left: u64,
    /// The most that may be left of this refund and of earlier ones together: more hits are not
    /// counted.
    pub left_max: u64,
    /// The TAT that it left, of a bucket of which something was taken beside outstanding hits.
    pub tat: Option<Tat>,
}

/// What an owner can grant of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The most hits that can be granted.
    pub room: u32,
    /// How long they may be spent.
    pub term: Span,
}

/// How long a grant may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// At most.
    pub longest: Span,
    /// One for so long is of use to its holder: a bucket grants it although its term is usually
    /// less.
    pub useful: Span,
}

/// Whether counters of this quota are granted at all.
pub fn can_grant(quota: &Quota) -> bool {
    quota.algorithm() != Algorithm::SlidingWindowLog && quota.queue().is_none()
}

/// What can be granted at `now`; `None` of a log or a queue.
pub fn offer(state: &State, quota: &Quota, terms: Terms, now: Timestamp) -> Option<Offer> {
    if !can_grant(quota) {
        return None;
    }
    if is_bucket(quota) {
        let term = bucket_term(quota, terms);
        let room = preview(&raised(state, term, now), quota, Hits::PEEK, now).remaining;
        return Some(Offer { room, term });
    }
    let room = preview(&state.copy(), quota, Hits::PEEK, now).remaining;
    let end = if quota.algorithm() == Algorithm::FirstHitWindow {
        let open = first_hit_window::open_at(state, quota, now);
        first_hit_window::end(open.map_or(now, |window| window.opened), quota)
    } else {
        // A state that was counted by a clock ahead of this one stays in its slice.
        let slice = slice_of(state).unwrap_or(0).max(slice_at(quota, now));
        let end = slice.saturating_add(1).saturating_mul(quota.slice().as_nanos());
        Timestamp::from_nanos(end)
    };
    Some(Offer { room, term: end.since(now).min(terms.longest) })
}

/// Charges `hits` that may be spent for `term`, both within an [`offer`] of the same instant. On
/// `None` nothing was charged.
pub fn charge(
    state: &mut State,
    quota: &Quota,
    hits: u32,
    term: Span,
    now: Timestamp,
) -> Option<Mark> {
    let hits = Hits::new(i64::from(hits));
    // A ring would take the hits for ones that passed now.
    let mut next = if is_bucket(quota) { raised(state, term, now) } else { state.copy() };
    // A fixed window would count what it refuses.
    if !preview(&next, quota, hits, now).allowed {
        return None;
    }
    decide(&mut next, quota, hits, now);
    let mark = match &next {
        State::Tat(tat) => Mark::Tat(*tat),
        State::FirstHitWindow { opened, .. } => Mark::Opened(*opened),
        windows => Mark::Slice(slice_of(windows)?),
    };
    *state = next;
    Some(mark)
}

/// Takes off what can be given back of `hits` that were charged and will not be spent; returns how
/// many. No grant of the counter ends after `granted_until`, but for those of another owner, which
/// are within these terms.
pub fn give_back(
    state: &mut State,
    quota: &Quota,
    mark: Mark,
    hits: u32,
    (terms, granted_until): (Terms, Timestamp),
    now: Timestamp,
) -> u32 {
    let possible = match mark {
        Mark::Slice(slice) => {
            let is_open = slice_of(state) == Some(slice) && mark.is_open(quota, now);
            if is_open { hits } else { 0 }
        }
        Mark::Opened(opened) => {
            // Its store knows when it is over: a later request may have made it longer.
            let is_it = matches!(state, State::FirstHitWindow { opened: of, .. } if *of == opened);
            if is_it {
                first_hit_window::take_back(state, hits.into());
            }
            return if is_it { hits } else { 0 };
        }
        Mark::Tat(tat) => {
            let ends = now.plus(bucket_term(quota, terms)).max(granted_until);
            let spare = |rate: Rate| rate.hits(rate.debt::<u128>(Some(tat), ends)?);
            let spare = Rate::of(quota).and_then(spare).unwrap_or(0);
            hits.min(u32::try_from(spare).unwrap_or(u32::MAX))
        }
    };
    if possible > 0 {
        decide(state, quota, Hits::new(-i64::from(possible)), now);
    }
    possible
}

/// Takes off a refund of `hits`, but nothing that is outstanding.
pub fn refund(
    state: &mut State,
    quota: &Quota,
    hits: u64,
    outstanding: Outstanding,
    now: Timestamp,
) -> Refunded {
    if outstanding.hits == 0 || !can_grant(quota) {
        decide(state, quota, refund_of(hits), now);
        let left_max = refundable(state, quota, Outstanding::default(), now);
        return Refunded { taken: hits, left: 0, left_max, tat: None };
    }
    let counted = refundable(state, quota, Outstanding::default(), now);
    let possible = hits.min(counted);
    let nothing = Refunded { taken: 0, left: possible, left_max: counted, tat: None };
    let taken = hits.min(refundable(state, quota, outstanding, now));
    if taken == 0 {
        return nothing;
    }
    let mut next = state.copy();
    if is_bucket(quota) || quota.algorithm() == Algorithm::FirstHitWindow {
        decide(&mut next, quota, refund_of(taken), now);
    } else {
        // The outstanding hits are of the newest slice, of which a refund takes first.
        decide(&mut next, quota, refund_of(taken.saturating_add(outstanding.hits)), now);
        let again = i64::try_from(outstanding.hits).unwrap_or(i64::MAX);
        // More than the limit is counted only when that was lowered.
        if !decide(&mut next, quota, Hits::new(again), now).allowed {
            return nothing;
        }
    }
    *state = next;
    let tat = if let State::Tat(tat) = state { Some(*tat) } else { None };
    Refunded { taken, left: possible - taken, left_max: counted - taken, tat }
}

/// The most hits that a refund takes while these are outstanding.
fn refundable(state: &State, quota: &Quota, outstanding: Outstanding, now: Timestamp) -> u64 {
    let counted = match state {
        State::Tat(tat) => {
            let ends = now.max(outstanding.until);
            let spare = |rate: Rate| rate.hits(rate.debt::<u128>(Some(*tat), ends)?);
            Rate::of(quota).and_then(spare).unwrap_or(0)
        }
        State::FixedWindow { index, used } if *index >= windows::index_at(now, quota) => {
            u64::from(*used)
        }
        State::SlidingCounter { .. } | State::FineWindow(_) => {
            let counts = state.counts().map(|it| it.at(windows::index_at(now, quota)));
            counts.map_or(0, |it| it.newest_first().iter().sum())
        }
        State::SubWindows(slices) if slices.fits(quota) => {
            let mut counts: SmallVec<[u64; 16]> =
                SmallVec::from_elem(0, usize::from(quota.sub_windows()) + 1);
            slices.copy_at(slice_at(quota, now), &mut counts);
            counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
        }
        State::FirstHitWindow { .. } => {
            let open = first_hit_window::open_at(state, quota, now);
            open.map_or(0, |window| u64::from(window.used))
        }
        _ => 0,
    };
    counted.saturating_sub(outstanding.hits)
}

fn refund_of(hits: u64) -> Hits {
    Hits::new(i64::try_from(hits).map_or(i64::MIN, |hits| -hits))
}

impl Mark {
    /// Whether what it was charged with can still be given back.
    pub fn is_open(&self, quota: &Quota, now: Timestamp) -> bool {
        match self {
            Self::Slice(slice) => slice_at(quota, now) <= *slice,
            Self::Opened(opened) => now < first_hit_window::end(*opened, quota),
            Self::Tat(_) => true,
        }
    }

    /// A refund took hits of the counter, which has `later` hits of grants that were charged after
    /// this one and are not accounted for.
    pub fn refunded(&mut self, quota: &Quota, refunded: &Refunded, later: u64) {
        let Refunded { taken: taken @ 1.., tat: left, .. } = *refunded else { return };
        let (Self::Tat(tat), Some(rate)) = (self, Rate::of(quota)) else { return };
        let of_before = lowered(*tat, rate, taken);
        let of_after = left.map(|left| lowered(left, rate, later).min(*tat));
        *tat = of_after.map_or(of_before, |of_after| of_after.max(of_before));
    }

    /// `hits` of a grant of the counter that was charged before this one were given back.
    pub fn lower(&mut self, quota: &Quota, hits: u32) {
        if let (Self::Tat(tat), Some(rate)) = (self, Rate::of(quota)) {
            *tat = lowered(*tat, rate, u64::from(hits));
        }
    }
}

fn lowered(tat: Tat, rate: Rate, hits: u64) -> Tat {
    let lowered = || {
        let debt: u128 = rate.debt(Some(tat), Timestamp::EPOCH)?;
        rate.wait(debt.saturating_sub(rate.cost(hits)?))?.tat(Timestamp::EPOCH)
    };
    lowered().unwrap_or(Tat::new(0, 0))
}

/// Whether a grant is charged as if at the end of its term.
pub fn is_bucket(quota: &Quota) -> bool {
    matches!(quota.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra)
}

fn bucket_term(quota: &Quota, Terms { longest, useful }: Terms) -> Span {
    let drained = bucket::drain_time(quota).as_nanos();
    let part = |divisor| Span::from_nanos(drained / divisor);
    part(BUCKET_TERM_DIVISOR).max(useful.min(part(FAR_BUCKET_TERM_DIVISOR))).min(longest)
}

/// The bucket `state`, busy until the end of a term.
fn raised(state: &State, term: Span, now: Timestamp) -> State {
    let ends = Tat::new(now.plus(term).as_nanos(), 0);
    State::Tat(bucket::tat(state).map_or(ends, |tat| tat.max(ends)))
}

/// The number of the slice that `now` is in.
fn slice_at(quota: &Quota, now: Timestamp) -> u64 {
    now.as_nanos() / quota.slice().as_nanos().max(1)
}

/// The number of the newest slice of a window.
fn slice_of(state: &State) -> Option<u64> {
    match state {
        State::FixedWindow { index, .. } | State::SlidingCounter { index, .. } => {
            Some(u64::from(*index))
        }
        State::FineWindow(fine) => Some(u64::from(fine.counts().index)),
        State::SubWindows(slices) => Some(slices.newest()),
        _ => None,
    }
}
