//! What the live reservations of a shard keep free, by descriptor.
//!
//! What is reserved has to be known for every check of a counter beside it. So a shard keeps,
//! beside its table, the amounts of each descriptor in the order in which they end. They follow
//! from the slots: whatever changes a slot with a reservation notes it here. A shard without
//! reservations, the common case, pays for one comparison a check.

use std::collections::BTreeMap;

use super::counting_mode::CheckParams;
use super::key::{Beside, KeyHash};
use super::promises::Promises;
use crate::engine::{Reservation, Retry, Verdict};
use crate::units::{Span, Timestamp};

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
pub(super) struct Reservations {
    by_descriptor: BTreeMap<Beside, OfDescriptor>,
    pub(super) promises: Promises,
}

/// Those of one descriptor.
#[derive(Debug, Default)]
struct OfDescriptor {
    /// Amounts by end, and by tag.
    amounts: BTreeMap<(Timestamp, u64), u32>,
    /// Sum of the amounts.
    sum: u64,
    /// A check was refused that would have passed without them, or may have been, at another owner.
    has_refused: bool,
}

// === impl Reservations ===

impl Reservations {
    /// Notes a reservation, new or changed.
    pub(super) fn add(&mut self, key: KeyHash, reservation: Reservation) {
        let Reservation { until, amount, is_settled: false } = reservation else { return };
        let of_descriptor = self.by_descriptor.entry(Beside::of_reservation(key)).or_default();
        if of_descriptor.amounts.insert((until, key.tag), amount).is_none() {
            of_descriptor.sum += u64::from(amount);
        }
    }

    pub(super) fn remove(&mut self, key: KeyHash, until: Timestamp) {
        let Some(of_descriptor) = self.by_descriptor.get_mut(&Beside::of_reservation(key)) else {
            return;
        };
        if let Some(amount) = of_descriptor.amounts.remove(&(until, key.tag)) {
            of_descriptor.sum -= u64::from(amount);
        }
        // What was refused is asked for when it is settled, and this may be a change of it alone.
        if of_descriptor.amounts.is_empty() && !of_descriptor.has_refused {
            self.by_descriptor.remove(&Beside::of_reservation(key));
        }
    }

    /// The verdict on hits that do not fit beside what is reserved. The refusal ends when it would
    /// with all that is reserved, or when enough of that has ended.
    #[cold]
    pub(super) fn refusal(&self, beside: Beside, refused: Refused, params: CheckParams) -> Verdict {
        let Refused { alone, whole, left } = refused;
        let (hits, left) = (params.hits.charge(), u64::from(left));
        let missing = hits.saturating_add(params.reserved).saturating_sub(left);
        let of_descriptor = self.by_descriptor.get(&beside);
        // What is missing without reservations, too, comes with time alone.
        let end = of_descriptor.and_then(|it| it.end_of(missing.min(it.sum)));
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
        // What is reserved is part of the limit that is not there yet.
        let reset = whole.reset.max(retry.after().unwrap_or(Span::ZERO));
        let narrow = |hits: u64| u32::try_from(hits).unwrap_or(u32::MAX);
        let excess = narrow(hits.saturating_sub(remaining));
        Verdict { remaining: narrow(remaining), reset, retry, excess, ..whole }
    }

    /// Hits were refused that would have passed without what is reserved at `beside`.
    pub(super) fn has_refused(&mut self, beside: Beside) {
        if let Some(of_descriptor) = self.by_descriptor.get_mut(&beside) {
            of_descriptor.has_refused = true;
        }
    }

    /// Whether hits were refused since this was asked last.
    pub(super) fn take_refused(&mut self, beside: Beside) -> bool {
        self.by_descriptor.get_mut(&beside).is_some_and(|it| std::mem::take(&mut it.has_refused))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_descriptor.is_empty() && self.promises.is_empty()
    }

    /// Drops what has ended, also beside counters that are not checked any more.
    pub(super) fn drop_ended(&mut self, now: Timestamp) {
        self.by_descriptor.retain(|_, of_descriptor| of_descriptor.sum_at(now) > 0);
        if self.by_descriptor.is_empty() {
            self.promises = Promises::default();
        }
    }

    /// What is reserved of `beside` at `now`.
    pub(super) fn sum(&mut self, beside: Beside, now: Timestamp) -> u64 {
        let Some(of_descriptor) = self.by_descriptor.get_mut(&beside) else { return 0 };
        let sum = of_descriptor.sum_at(now);
        if sum == 0 {
            self.by_descriptor.remove(&beside);
        }
        sum
    }
}

impl OfDescriptor {
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
