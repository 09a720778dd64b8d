//! Hits by name and outcome, counted as envoyproxy/ratelimit does.
//!
//! A name is `domain.key_value.key`, made from a rule or, for rules with `detailed_metric` and
//! limits in a request, from the request. Clients can invent such names, so their number and length
//! are bounded: beyond [`NAMES_MAX`] and [`NAMES_BYTES_MAX`], hits are counted under [`OTHER`].
//!
//! Worked example: of a limit of 10 an hour with 8 used, a check of 5 hits is denied. 2 of its hits
//! are near the limit and 3 over it: `total_hits` 5, `near_limit` 2, `over_limit` 3. The limit is
//! used up for the next check of 1 hit: `total_hits` 1, `over_limit` 1.
//!
//! Source: envoyproxy/ratelimit, `src/stats/manager_impl.go` and `src/limiter/base_limiter.go`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Most names. Each costs some 200 bytes here and six series where they are stored.
pub const NAMES_MAX: usize = 10_000;
/// Most bytes of all names together. A name consists of whole descriptors, so it can be long, and
/// it is part of every exported line.
pub const NAMES_BYTES_MAX: usize = 2 << 20;
/// The name for everything beyond these bounds.
pub const OTHER: &str = "(other)";
/// Names of the counters of a tally, in the order of [`Tally::read`].
pub const COUNTERS: [&str; 6] = [
    "total_hits",
    "over_limit",
    "near_limit",
    "over_limit_with_local_cache",
    "within_limit",
    "shadow_mode",
];

/// The counters of one name, in hits.
#[derive(Debug, Default)]
pub struct Tally {
    /// Hits of all checks.
    pub total_hits: AtomicU64,
    /// Hits beyond the limit.
    pub over_limit: AtomicU64,
    /// Hits below the limit, but above `near_limit_ratio` of it.
    pub near_limit: AtomicU64,
    /// Hits denied from the local cache.
    pub over_limit_with_local_cache: AtomicU64,
    /// Hits of admitted checks.
    pub within_limit: AtomicU64,
    /// Hits beyond the limit of a rule in shadow mode, which were admitted.
    pub shadow_mode: AtomicU64,
}

/// The outcome of a check, for [`Tally::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Admitted.
    Within,
    /// Denied, or it would have been without shadow mode.
    Over,
    /// Refused from the local cache, without counting in the window.
    OverFromMemory,
}

/// Every [`Tally`] of the process by name, and the counters without a name.
#[derive(Debug, Default)]
pub struct Tallies {
    by_name: RwLock<Named<Tally>>,
    /// Checks of domains without rules, by domain.
    not_found: RwLock<Named<AtomicU64>>,
    pub service: Service,
}

/// Values by name, within the bounds on names.
#[derive(Debug, Default)]
struct Named<T> {
    values: BTreeMap<Arc<str>, Arc<T>>,
    /// Length of all names but [`OTHER`].
    bytes: usize,
}

/// Counters without a name.
#[derive(Debug, Default)]
#[expect(clippy::struct_field_names, reason = "fields have the names of what they count")]
pub struct Service {
    /// Successful loads of the rules.
    pub config_load_success: AtomicU64,
    /// Failed loads.
    pub config_load_error: AtomicU64,
    /// Malformed requests, and requests before the first rules.
    pub service_error: AtomicU64,
    /// Requests admitted only because of the global shadow mode.
    pub global_shadow_mode: AtomicU64,
}

impl Tally {
    /// The values, in the order of [`COUNTERS`].
    pub fn read(&self) -> [u64; COUNTERS.len()] {
        [
            &self.total_hits,
            &self.over_limit,
            &self.near_limit,
            &self.over_limit_with_local_cache,
            &self.within_limit,
            &self.shadow_mode,
        ]
        .map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Counts a check of `hits` against a limit of which `after` are used, including these `hits`.
    ///
    /// Hits are near the limit above `floor(limit * near_limit_ratio)`, in single precision. Sums
    /// wrap, as in envoyproxy/ratelimit: hits that are negative in two's complement decrease a
    /// counter. Decisions do not count refunded hits.
    ///
    /// An algorithm may deny although `after` is within the limit, for example a bucket that is
    /// smaller than the limit. Then all hits are over the limit, and none is near it.
    pub fn count(
        &self,
        limit: u32,
        after: u64,
        hits: u64,
        outcome: Outcome,
        shadow: bool,
        near_limit_ratio: f32,
    ) {
        let limit_hits = u64::from(limit);
        let before = after.wrapping_sub(hits);
        let near = near_threshold(limit, near_limit_ratio);
        add(&self.total_hits, hits);
        let over = match outcome {
            Outcome::Within => {
                if after > near {
                    add(&self.near_limit, if before >= near { hits } else { after - near });
                }
                add(&self.within_limit, hits);
                return;
            }
            Outcome::OverFromMemory => {
                add(&self.over_limit_with_local_cache, hits);
                hits
            }
            Outcome::Over if before >= limit_hits || after <= limit_hits => hits,
            Outcome::Over => {
                add(&self.near_limit, limit_hits.wrapping_sub(near.max(before)));
                after - limit_hits
            }
        };
        add(&self.over_limit, over);
        if shadow {
            add(&self.shadow_mode, over);
        }
    }
}

impl Tallies {
    /// The tally of `name`, created on first use.
    pub fn of(&self, name: &str) -> Arc<Tally> {
        entry(&self.by_name, name)
    }

    /// Counts a check of a domain without rules.
    pub fn domain_not_found(&self, domain: &str) {
        entry(&self.not_found, domain).fetch_add(1, Ordering::Relaxed);
    }

    /// All names with their tallies, sorted.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<Tally>)> {
        sorted(&self.by_name)
    }

    /// All domains without rules and the number of their checks, sorted.
    pub fn unknown_domains(&self) -> Vec<(Arc<str>, Arc<AtomicU64>)> {
        sorted(&self.not_found)
    }
}

/// The hits of `limit` that are not near it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "envoyproxy/ratelimit uses single precision, and bounds saturate"
)]
fn near_threshold(limit: u32, ratio: f32) -> u64 {
    f64::from(limit as f32 * ratio).floor() as u64
}

fn add(counter: &AtomicU64, hits: u64) {
    counter.fetch_add(hits, Ordering::Relaxed);
}

fn entry<T: Default>(named: &RwLock<Named<T>>, name: &str) -> Arc<T> {
    {
        let named = named.read();
        // A flood of new names must not take the write lock.
        let is_full = named.values.len() > NAMES_MAX;
        let full = || if is_full { named.values.get(OTHER) } else { None };
        if let Some(found) = named.values.get(name).or_else(full) {
            return found.clone();
        }
    }
    let mut named = named.write();
    let bytes = named.bytes.saturating_add(name.len());
    let has_room = named.values.len() < NAMES_MAX && bytes <= NAMES_BYTES_MAX;
    let name = if has_room || named.values.contains_key(name) { name } else { OTHER };
    if let Some(found) = named.values.get(name) {
        return found.clone();
    }
    if name != OTHER {
        named.bytes = bytes;
    }
    named.values.entry(name.into()).or_default().clone()
}

fn sorted<T>(named: &RwLock<Named<T>>) -> Vec<(Arc<str>, Arc<T>)> {
    named.read().values.iter().map(|(name, it)| (name.clone(), it.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_no_hit_is_lost() {
        let tallies = Tallies::default();
        for n in 0..NAMES_MAX + 5 {
            tallies.of(&format!("d.k_{n}")).total_hits.fetch_add(1, Ordering::Relaxed);
        }
        let all = tallies.all();
        assert_eq!(all.len(), NAMES_MAX + 1);
        let sum: u64 = all.iter().map(|(_, it)| it.total_hits.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, NAMES_MAX as u64 + 5);
        assert_eq!(tallies.of(OTHER).total_hits.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn long_names_are_bounded_by_their_bytes() {
        let tallies = Tallies::default();
        let long = "x".repeat(NAMES_BYTES_MAX / 4);
        for n in 0..10 {
            tallies.of(&format!("{n}{long}")).total_hits.fetch_add(1, Ordering::Relaxed);
        }
        // A short one still fits, and earlier names keep their tallies.
        tallies.of("short").total_hits.fetch_add(1, Ordering::Relaxed);
        tallies.of(&format!("0{long}")).total_hits.fetch_add(1, Ordering::Relaxed);
        let read = |name: &str| tallies.of(name).read()[0];
        assert_eq!(tallies.all().len(), 3 + 1 + 1);
        assert_eq!(read(OTHER), 7);
        assert_eq!(read("short"), 1);
        assert_eq!(read(&format!("0{long}")), 2);
    }

    #[test]
    fn a_name_keeps_its_tally() {
        let tallies = Tallies::default();
        assert!(Arc::ptr_eq(&tallies.of("a"), &tallies.of("a")));
        tallies.domain_not_found("x");
        tallies.domain_not_found("x");
        assert_eq!(tallies.unknown_domains()[0].1.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_check_across_the_limit_is_near_up_to_it_and_over_beyond() {
        let tally = Tally::default();
        tally.count(10, 13, 5, Outcome::Over, false, 0.8);
        assert_eq!(tally.read(), [5, 3, 2, 0, 0, 0]);
        tally.count(10, 14, 1, Outcome::Over, false, 0.8);
        assert_eq!(tally.read(), [6, 4, 2, 0, 0, 0]);
    }

    #[test]
    fn shadow_mode_counts_what_would_have_been_denied() {
        let tally = Tally::default();
        tally.count(10, 13, 5, Outcome::Over, true, 0.8);
        assert_eq!(tally.read(), [5, 3, 2, 0, 0, 3]);
        tally.count(10, 0, 4, Outcome::OverFromMemory, true, 0.8);
        assert_eq!(tally.read(), [9, 7, 2, 4, 0, 7]);
        tally.count(10, 1, 1, Outcome::Within, true, 0.8);
        assert_eq!(tally.read(), [10, 7, 2, 4, 1, 7]);
    }

    #[test]
    fn refunded_hits_are_subtracted() {
        let tally = Tally::default();
        tally.count(10, 5, 5, Outcome::Within, false, 0.8);
        tally.count(10, 2, 3_u64.wrapping_neg(), Outcome::Within, false, 0.8);
        assert_eq!(tally.read(), [2, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn a_denial_below_the_limit_is_over_it_entirely() {
        let tally = Tally::default();
        tally.count(10, 9, 4, Outcome::Over, true, 0.8);
        assert_eq!(tally.read(), [4, 4, 0, 0, 0, 4]);
    }

    #[test]
    fn the_near_threshold_is_rounded_down_in_single_precision() {
        assert_eq!(near_threshold(10, 0.8), 8);
        assert_eq!(near_threshold(1, 0.8), 0);
        // 0.1 in single precision is a little more than a tenth, and 10 of it round to 1.
        assert_eq!(near_threshold(10, 0.1), 1);
        assert_eq!(near_threshold(16_777_217, 1.0), 16_777_216);
        assert_eq!(near_threshold(10, -1.0), 0);
        assert_eq!(near_threshold(10, f32::NAN), 0);
    }
}
