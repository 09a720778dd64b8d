//! Reservations: an amount that is kept free for work whose cost is known only later.
//!
//! # Idea
//!
//! A reservation keeps an amount of each limit of a descriptor free from now on, until its real
//! cost is committed or its time is over. It is a small state of its own beside the counters, not a
//! charge in them:
//!
//! - it ends by itself, at [`until`](Reservation::until), and nobody has to give anything back;
//! - counters still only grow, and so does a reservation: its time may be extended, and it is
//!   settled once. Copies of both join without losing anything, in any order
//!   ([`State::merge`](super::State::merge)), so a replica that takes over knows what is reserved.
//!
//! # Formula
//!
//! ```text
//! reserved(t)    = Σ amount of the reservations with t < until that are not settled
//! admit n at t   ⇔ the counter would admit n + reserved(t); it then counts n
//! reserve a at t ⇔ the counter would admit a + reserved(t); it counts nothing
//! commit c at t  : settled, and the counter counts c, whatever is left
//! join           : a settled one before one that is not; then the later until
//! ```
//!
//! # Example
//!
//! 1,000 tokens a minute, 500 used. A reservation of 400 is admitted, one of 200 after it is not:
//! 900 are taken. The first commits 150: 650 are used and 350 are free again. Had it committed 700,
//! all 700 would count, 1,200 of 1,000, and nothing would pass until the next minute.
//!
//! # Bound
//!
//! While the commits of all reservations come in time and are no larger than reserved, what passes
//! is within the limit at every instant: a commit takes no more than its reservation kept free. An
//! overrun, and a commit that comes after the end, can exceed the limit by what was not reserved.

use super::delta::ActorId;
use super::eventual::{decide_eventual, preview_eventual};
use super::state::State;
use super::verdict::Verdict;
use super::{decide, preview, sliding_window_counter, sliding_window_log};
use crate::quota::{Algorithm, DRAIN_MAX, Quota, QuotaParts};
use crate::units::{Hits, Span, Timestamp};

/// The longest time to live of a reservation, from the reservation or its last extension.
pub const TTL_MAX: Span = Span::from_secs(3_600);
/// The longest that the id of a settled reservation is remembered after its end: a commit that is
/// repeated within this time counts once.
pub const REMEMBERED: Span = Span::from_secs(60);

/// The content of [`State::Reservation`]. The order is that of the join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reservation {
    /// It was committed or released, and keeps nothing free.
    pub is_settled: bool,
    /// From then on it keeps nothing free. A settled one is forgotten [`REMEMBERED`] later.
    pub until: Timestamp,
    /// In hits.
    pub amount: u32,
}

impl Reservation {
    /// What it keeps free at `now`, in hits.
    pub fn reserved(&self, now: Timestamp) -> u32 {
        if self.is_settled || self.until <= now { 0 } else { self.amount }
    }

    /// The same, committed or released at `now`, and known for `remembered` after its end or `now`.
    #[must_use]
    pub fn settled(self, remembered: Span, now: Timestamp) -> Self {
        let until = self.until.max(now).plus(remembered.min(REMEMBERED)).minus(REMEMBERED);
        Self { is_settled: true, until, ..self }
    }

    /// From then on its id is unknown.
    pub fn expires_at(&self) -> Timestamp {
        if self.is_settled { self.until.plus(REMEMBERED) } else { self.until }
    }
}

impl State {
    /// The reservation that this state is.
    pub const fn reservation(&self) -> Option<Reservation> {
        match *self {
            Self::Reservation { until, amount, is_settled } => {
                Some(Reservation { is_settled, until, amount })
            }
            _ => None,
        }
    }
}

impl From<Reservation> for State {
    fn from(Reservation { until, amount, is_settled }: Reservation) -> Self {
        Self::Reservation { until, amount, is_settled }
    }
}

/// Counts `hits` whatever is left of the limit: the cost of work that was done. Returns what a peek
/// says afterwards.
///
/// The count saturates where a state can hold no more: a bucket at what drains within
/// [`DRAIN_MAX`], the others at `u32::MAX` hits.
pub fn charge_in_full(state: &mut State, quota: &Quota, hits: Hits, now: Timestamp) -> Verdict {
    if quota.algorithm() == Algorithm::SlidingWindowLog {
        sliding_window_log::charge_in_full(state, quota, hits, now);
    } else if !sliding_window_counter::charge_ring_in_full(state, quota, hits, now) {
        let endless = endless(quota);
        let room = preview(state, &endless, Hits::PEEK, now).remaining;
        decide(state, &endless, at_most(hits, room), now);
    }
    preview(state, quota, Hits::PEEK, now)
}

/// As [`charge_in_full`], in the counter of the actor `me` of an eventual limit.
pub fn charge_in_full_eventual(
    state: &mut State,
    me: ActorId,
    quota: &Quota,
    hits: Hits,
    now: Timestamp,
) -> Verdict {
    let endless = endless(quota);
    let room = preview_eventual(state, &endless, Hits::PEEK, now).remaining;
    decide_eventual(state, me, &endless, at_most(hits, room), now);
    preview_eventual(state, quota, Hits::PEEK, now)
}

/// The same limit with the most hits that its state can hold.
fn endless(quota: &Quota) -> Quota {
    let parts = QuotaParts::from(*quota);
    let is_bucket = matches!(
        quota.algorithm(),
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket
    );
    let endless = if is_bucket {
        // The rate stays: what is beyond the burst drains like the rest.
        let window = u128::from(quota.window().as_nanos()).max(1);
        let drained = u128::from(DRAIN_MAX.as_nanos()) * u128::from(quota.limit()) / window;
        let burst = u32::try_from(drained).unwrap_or(u32::MAX);
        QuotaParts { burst, queue: None, ..parts }
    } else {
        QuotaParts { limit: u32::MAX, burst: u32::MAX, ..parts }
    };
    Quota::new(endless).unwrap_or(*quota)
}

fn at_most(hits: Hits, room: u32) -> Hits {
    Hits::new(hits.get().min(i64::from(room)))
}
