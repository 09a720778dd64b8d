//! What can be said of a state by whoever does not know its quota: what copies are checked by.
//!
//! # Time
//!
//! A copy of the far future would push present counts out. Its quota is not sent along, so its time
//! is told from the state and its expiry alone: a window number belongs to an expiry.
//!
//! ```text
//! fixed window      expires = (index + 1)·w     w = ⌊expires / (index + 1)⌋     start = index·w
//! sliding counter   expires = (index + 2)·w     w = ⌊expires / (index + 2)⌋     start = index·w
//! bucket            TAT − seen ≤ the longest that any bucket takes to drain
//! sub-windows, log  they hold their own time
//! ```
//!
//! The store rounds an expiry up to [`EXPIRY_STEP`], so `w` is too large by less than a step
//! divided by the index, and `start` by less than a step; it is taken one step earlier.
//!
//! # Example
//!
//! Window number 28,333,334 that expires at 1,700,000,100 s: `w` is 60 s and the window began at
//! 1,700,000,040 s. The same number with an expiry a minute later would be a window of 60.000002 s,
//! which is harmless; with an expiry ten years ahead it would be one that begins years ahead.

use super::State;
use crate::quota::{DRAIN_MAX, WINDOW_MAX};
use crate::units::{Span, Timestamp};

/// What an expiry may have been rounded up by.
const EXPIRY_STEP: Span = Span::from_nanos(16);

impl State {
    /// How far time had come, at least, when this state was last changed, told from its expiry
    /// instead of its quota ([`State::seen_at`]). `None` when no quota gives this state this
    /// expiry.
    pub fn seen_by(&self, expires: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Absent => Some(Timestamp::EPOCH),
            Self::FixedWindow { index, .. } => start(*index, 1, expires),
            Self::SlidingCounter { index, .. } => start(*index, 2, expires),
            Self::Tat(tat) => (tat.ceil() <= expires).then(|| tat.ceil().minus(DRAIN_MAX)),
            Self::SubWindows(slots) => (slots.absent_at() <= expires).then(|| slots.newest_start()),
            Self::Log(log) => (log.latest() <= expires).then(|| log.latest()),
            Self::ActorCounters(_) => None,
        }
    }

    /// Most bytes this state takes on the wire; columns weigh by themselves.
    pub fn weight(&self) -> usize {
        let (parts, bytes) = match self {
            Self::SubWindows(slots) => (slots.len(), 5),
            Self::Log(log) => (log.len(), 14),
            _ => (0, 0),
        };
        32 + parts * bytes
    }

    /// Writes this state as numbers that are the same on every build, for a digest. Columns are
    /// told by their own digests and write nothing.
    pub fn words(&self, write: impl FnMut(u64)) {
        match self {
            Self::Absent | Self::ActorCounters(_) => {}
            Self::FixedWindow { index, used } => {
                [1, *index, *used].into_iter().map(u64::from).for_each(write);
            }
            Self::SlidingCounter { index, prev, cur } => {
                [2, *index, *prev, *cur].into_iter().map(u64::from).for_each(write);
            }
            Self::Tat(tat) => tat.words().into_iter().for_each(write),
            Self::SubWindows(slots) => slots.words().for_each(write),
            Self::Log(log) => log.words().for_each(write),
        }
    }
}

/// When the window `index` began that ends, or ends to matter, `ahead` windows after its start.
fn start(index: u32, ahead: u64, expires: Timestamp) -> Option<Timestamp> {
    let index = u64::from(index);
    let window = expires.as_nanos() / index.saturating_add(ahead).max(1);
    let longest = WINDOW_MAX.as_nanos().saturating_add(EXPIRY_STEP.as_nanos());
    let start = Timestamp::from_nanos(index.saturating_mul(window));
    (1..=longest).contains(&window).then(|| start.minus(EXPIRY_STEP))
}
