//! What was asked and answered, in hits and by name, as envoyproxy/ratelimit counts it.
//!
//! A name is `domain.key_value.key`, made from a rule or, for rules with `detailed_metric` and
//! limits that a request brings along, from the request itself. Clients can invent such names, so
//! their number and their length are bounded: what comes beyond [`NAMES_MAX`] and
//! [`NAMES_BYTES_MAX`] is counted under [`OTHER`].
//!
//! Worked example: of a limit of 10 an hour with 8 used, an ask for 5 is refused. Of its hits 2
//! came near the limit and 3 went over it: `total_hits` 5, `near_limit` 2, `over_limit` 3. An ask
//! for 1 after that finds the limit used up: `total_hits` 1, `over_limit` 1.
//!
//! Source: envoyproxy/ratelimit, `src/stats/manager_impl.go` and `src/limiter/base_limiter.go`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Most names. Each costs some 200 bytes here and six series where they are stored.
pub const NAMES_MAX: usize = 10_000;
/// Most bytes of all names together. A name is made of whole descriptors, so it can be long, and
/// each comes back in every line that is told of it.
pub const NAMES_BYTES_MAX: usize = 2 << 20;
/// The name under which everything beyond these bounds is counted.
pub const OTHER: &str = "(other)";
/// How the counters of a name are called, in the order of [`Tally::read`].
pub const COUNTERS: [&str; 6] = [
    "total_hits",
    "over_limit",
    "near_limit",
    "over_limit_with_local_cache",
    "within_limit",
    "shadow_mode",
];

/// What one name counted, in hits.
#[derive(Debug, Default)]
pub struct Tally {
    /// Hits that were asked for.
    pub total_hits: AtomicU64,
    /// Hits beyond the limit.
    pub over_limit: AtomicU64,
    /// Hits below the limit, but beyond the part of it that counts as near.
    pub near_limit: AtomicU64,
    /// Hits that were refused from memory.
    pub over_limit_with_local_cache: AtomicU64,
    /// Hits of asks that passed.
    pub within_limit: AtomicU64,
    /// Hits beyond the limit of a rule in shadow mode, which passed.
    pub shadow_mode: AtomicU64,
}

/// How an ask ended, for [`Tally::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Within,
    /// It was refused, or would have been but for shadow mode.
    Over,
    /// Likewise, from memory: the window was known to be used up, and nothing was counted in it.
    OverFromMemory,
}

/// Every [`Tally`] of the process by its name, and what is counted once for all.
#[derive(Debug, Default)]
pub struct Tallies {
    by_name: RwLock<Named<Tally>>,
    /// Asks for a domain that no rule speaks of, by domain.
    not_found: RwLock<Named<AtomicU64>>,
    /// What many requests share.
    pub service: Service,
}

/// Things by name, within the bounds on names.
#[derive(Debug, Default)]
struct Named<T> {
    things: BTreeMap<Arc<str>, Arc<T>>,
    /// Of all names but [`OTHER`].
    bytes: usize,
}

/// What is counted once for all names.
#[derive(Debug, Default)]
#[expect(clippy::struct_field_names, reason = "fields have the names of what they count")]
pub struct Service {
    /// Loads of the rules that made a book.
    pub config_load_success: AtomicU64,
    /// Loads that made none.
    pub config_load_error: AtomicU64,
    /// Requests that were wrong in form, or came before there were rules.
    pub service_error: AtomicU64,
    /// Requests that passed only because everything is in shadow mode.
    pub global_shadow_mode: AtomicU64,
}

impl Tally {
    /// The counters now, in the order of [`COUNTERS`].
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

    /// Counts an ask for `hits` of a limit of which `after` are used, these `hits` among them.
    ///
    /// What is near begins at `floor(limit * near_limit_ratio)`, in single precision. Sums wrap, as
    /// they do there: hits that are negative in two's complement take a counter back. Decisions
    /// count no hits that are given back.
    ///
    /// An algorithm may refuse although `after` is within the limit, as a bucket that holds less
    /// than the limit does. Its hits are all over the limit, and none is near it.
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
    /// The tally of `name`, which is made when it is new.
    pub fn of(&self, name: &str) -> Arc<Tally> {
        entry(&self.by_name, name)
    }

    /// Counts an ask for a domain that no rule speaks of.
    pub fn domain_not_found(&self, domain: &str) {
        entry(&self.not_found, domain).fetch_add(1, Ordering::Relaxed);
    }

    /// All names with their tallies, sorted.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<Tally>)> {
        sorted(&self.by_name)
    }

    /// All unknown domains with how often they were asked for, sorted.
    pub fn unknown_domains(&self) -> Vec<(Arc<str>, Arc<AtomicU64>)> {
        sorted(&self.not_found)
    }
}

/// Hits of `limit` that are not near it yet.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is near is told in single precision where this comes from, and bounds saturate"
)]
fn near_threshold(limit: u32, ratio: f32) -> u64 {
    f64::from(limit as f32 * ratio).floor() as u64
}

/// Adds, and wraps.
fn add(counter: &AtomicU64, hits: u64) {
    counter.fetch_add(hits, Ordering::Relaxed);
}

fn entry<T: Default>(named: &RwLock<Named<T>>, name: &str) -> Arc<T> {
    {
        let named = named.read();
        // A flood of new names must not make everybody wait for the one who writes.
        let is_full = named.things.len() > NAMES_MAX;
        let full = || if is_full { named.things.get(OTHER) } else { None };
        if let Some(found) = named.things.get(name).or_else(full) {
            return found.clone();
        }
    }
    let mut named = named.write();
    let bytes = named.bytes.saturating_add(name.len());
    let has_room = named.things.len() < NAMES_MAX && bytes <= NAMES_BYTES_MAX;
    let name = if has_room || named.things.contains_key(name) { name } else { OTHER };
    if let Some(found) = named.things.get(name) {
        return found.clone();
    }
    if name != OTHER {
        named.bytes = bytes;
    }
    named.things.entry(name.into()).or_default().clone()
}

fn sorted<T>(named: &RwLock<Named<T>>) -> Vec<(Arc<str>, Arc<T>)> {
    named.read().things.iter().map(|(name, it)| (name.clone(), it.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_nothing_is_lost_beyond_the_bound() {
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
        // A short one still fits, and those that came first keep theirs.
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
    fn an_ask_across_the_limit_is_near_up_to_it_and_over_beyond() {
        let tally = Tally::default();
        tally.count(10, 13, 5, Outcome::Over, false, 0.8);
        assert_eq!(tally.read(), [5, 3, 2, 0, 0, 0]);
        tally.count(10, 14, 1, Outcome::Over, false, 0.8);
        assert_eq!(tally.read(), [6, 4, 2, 0, 0, 0]);
    }

    #[test]
    fn shadow_mode_counts_what_would_have_been_refused() {
        let tally = Tally::default();
        tally.count(10, 13, 5, Outcome::Over, true, 0.8);
        assert_eq!(tally.read(), [5, 3, 2, 0, 0, 3]);
        tally.count(10, 0, 4, Outcome::OverFromMemory, true, 0.8);
        assert_eq!(tally.read(), [9, 7, 2, 4, 0, 7]);
        tally.count(10, 1, 1, Outcome::Within, true, 0.8);
        assert_eq!(tally.read(), [10, 7, 2, 4, 1, 7]);
    }

    #[test]
    fn hits_given_back_are_taken_off_again() {
        let tally = Tally::default();
        tally.count(10, 5, 5, Outcome::Within, false, 0.8);
        tally.count(10, 2, 3_u64.wrapping_neg(), Outcome::Within, false, 0.8);
        assert_eq!(tally.read(), [2, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn a_refusal_below_the_limit_is_all_over_it() {
        let tally = Tally::default();
        tally.count(10, 9, 4, Outcome::Over, true, 0.8);
        assert_eq!(tally.read(), [4, 4, 0, 0, 0, 4]);
    }

    #[test]
    fn what_is_near_is_rounded_down_in_single_precision() {
        assert_eq!(near_threshold(10, 0.8), 8);
        assert_eq!(near_threshold(1, 0.8), 0);
        // 0.1 in single precision is a little more than a tenth, and 10 of it round to 1.
        assert_eq!(near_threshold(10, 0.1), 1);
        assert_eq!(near_threshold(16_777_217, 1.0), 16_777_216);
        assert_eq!(near_threshold(10, -1.0), 0);
        assert_eq!(near_threshold(10, f32::NAN), 0);
    }
}
