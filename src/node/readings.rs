//! Constructors of metric readings.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::observe::samples::{Kind, Reading};

pub(super) fn counter(name: &'static str, text: &'static str, value: u64) -> Reading {
    Reading { name, text, kind: Kind::Counter, label: None, value: signed(value) }
}

pub(super) fn labelled(
    name: &'static str,
    text: &'static str,
    label: (&'static str, &'static str),
    value: u64,
) -> Reading {
    Reading { name, text, kind: Kind::Counter, label: Some(label), value: signed(value) }
}

pub(super) fn gauge(name: &'static str, text: &'static str, value: i64) -> Reading {
    Reading { name, text, kind: Kind::Gauge, label: None, value }
}

/// Relaxed: statistics need no ordering.
pub(super) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
