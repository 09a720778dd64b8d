//! The rules of the nodes: one for each mode, algorithm and limit.
//!
//! A check of which the owner does not answer in time is denied, so that everything that is
//! admitted was counted. By default nodes admit shares of the limit by themselves.

use std::fmt::{self, Write as _};
use std::time::Duration;

pub(crate) const DOMAIN: &str = "modes";
pub(crate) const LIMITS: [u32; 4] = [10, 100, 1_000, 10_000];
/// The limit of [`SECONDS`] rules.
pub(crate) const PER_SECOND: u32 = 1_000;
/// Longer than any run.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// A strict key that is never refused.
pub(crate) const HOT: &str = "hot";
/// A leased key that is never refused.
pub(crate) const ROOMY: &str = "roomy";
/// The limit of [`ROOMY`] and [`SHARED`].
pub(crate) const MILLION: u32 = 1_000_000;
/// An eventual key of all nodes.
pub(crate) const SHARED: &str = "shared";
/// An eventual key by which the delay of an announcement is measured.
pub(crate) const PROBE: &str = "probe";
pub(crate) const PROBE_LIMIT: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Strict,
    Leased,
    Eventual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    FixedWindow,
    SlidingWindowCounter,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strict => "strict",
            Self::Leased => "leased",
            Self::Eventual => "eventual",
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowCounter => "sliding_window_counter",
        })
    }
}

/// The key of the descriptors with this limit in each [`WINDOW`].
pub(crate) fn key(mode: Mode, algorithm: Algorithm, limit: u32) -> String {
    format!("{mode}-{algorithm}-{limit}")
}

/// The key of the descriptors with [`PER_SECOND`].
pub(crate) fn key_of_seconds(mode: Mode) -> String {
    format!("{mode}-seconds")
}

pub(crate) fn yaml() -> String {
    let mut yaml = format!("domain: {DOMAIN}\ndescriptors:\n");
    let mut rule = |key: &str, mode, seconds: u64, limit: u32, algorithm| {
        let on_unavailable = match mode {
            Mode::Strict | Mode::Leased => "on_unavailable: deny",
            Mode::Eventual => "",
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            yaml,
            "  - key: {key}\n    mode: {mode}\n    {on_unavailable}\n    rate_limit: {{window: \
             {seconds}s, requests_per_unit: {limit}, algorithm: {algorithm}}}"
        );
    };
    for mode in [Mode::Strict, Mode::Leased, Mode::Eventual] {
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
            for limit in LIMITS {
                rule(&key(mode, algorithm, limit), mode, WINDOW.as_secs(), limit, algorithm);
            }
        }
        rule(&key_of_seconds(mode), mode, 1, PER_SECOND, Algorithm::FixedWindow);
    }
    let day = 86_400;
    rule(HOT, Mode::Strict, day, 1_000_000_000, Algorithm::FixedWindow);
    rule(ROOMY, Mode::Leased, day, MILLION, Algorithm::FixedWindow);
    rule(SHARED, Mode::Eventual, day, MILLION, Algorithm::FixedWindow);
    rule(PROBE, Mode::Eventual, day, PROBE_LIMIT, Algorithm::FixedWindow);
    yaml
}
