//! Gubernator's V1 API: its JSON form, and its calendar.

pub mod calendar;
pub mod json;

/// Most requests of one message. At the bound the message is refused, as there.
pub const REQUESTS_MAX: usize = 1_000;
