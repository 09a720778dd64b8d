//! Which keys are refused most, now: the heavy hitters among refusals.
//!
//! # Idea
//!
//! A Space-Saving sketch keeps a weight for each of a fixed number of keys. A key that has no entry
//! takes over the lightest one with its weight, which becomes the error of the new entry:
//!
//! ```text
//! weight − error  ≤  refused hits of the key  ≤  weight
//! ```
//!
//! A key that has no entry was refused no more often than the lightest entry weighs, so no key that
//! is refused often is missing. So that the sketch tells what happens now, each second takes a
//! 1/[`FADES_BY`] part of all weights and errors; both inequalities hold for faded counts as well.
//! A key that is refused `r` times a second weighs `16 r`, whatever came before.
//!
//! # Example
//!
//! One client is refused 100 times a second: after a minute its entry weighs 1,600, which is shown
//! as 100 a second. Once it is silent, 11 seconds halve it.
//!
//! # Bound and cost
//!
//! [`KEYS_MAX`] entries in [`SETS`] sets that the hash of the key selects; the guarantee holds in
//! each set. Entries are ordered by weight, so a key that is refused often is found at once.
//! A check that is admitted costs nothing. One that is refused never waits: a refusal that finds
//! its set in use by another thread is not counted, so under contention weights are lower bounds.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in
//! Data Streams", 2005.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_limiter::descriptor::Entry as Pair;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::{NANOS_PER_SEC, Timestamp};

/// Most keys of the sketch; 64 kB, and with labels 200 kB at most.
pub const KEYS_MAX: usize = SETS * WAYS;
const SETS: usize = 32;
const WAYS: usize = 32;
/// Each second takes this fraction, 1/16, of a weight.
pub const FADES_BY: u32 = 16;
/// Longest label in bytes; the rest of it is not shown.
pub const LABEL_BYTES_MAX: usize = 128;
/// Entries that weigh less are free.
const WEIGHT_MIN: f64 = 0.1;

/// The keys of a node that are refused most.
#[derive(Debug)]
pub struct RefusedKeys {
    /// Whether the values of descriptors are kept.
    shows_values: bool,
    sets: Box<[Mutex<Set>]>,
}

#[derive(Debug, Default)]
struct Set {
    /// The second up to which its entries are faded.
    second: u64,
    /// The heaviest first; at most [`WAYS`].
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: KeyHash,
    rule: Arc<str>,
    label: Option<Box<str>>,
    weight: f64,
    error: f64,
}

/// A key that is refused often.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedKey {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Its position on the ring: a keyed hash of domain and entries.
    pub token: u64,
    /// Its entries, `key=value` with `|` between; `None` where values are not shown.
    pub label: Option<Box<str>>,
    /// Refused hits a second, not below the true number.
    pub per_second: f64,
    /// By how much that may be too high.
    pub error: f64,
}

impl RefusedKeys {
    pub fn new(shows_values: bool) -> Self {
        Self { shows_values, sets: std::iter::repeat_with(Mutex::default).take(SETS).collect() }
    }

    /// `hits` were refused to the descriptor of `entries`, whose first counter is `key`.
    pub(super) fn refused(
        &self,
        key: KeyHash,
        rule: &Arc<str>,
        entries: &[Pair<'_>],
        hits: u64,
        now: Timestamp,
    ) {
        if hits == 0 {
            return;
        }
        let Some(mut set) = self.set(key).try_lock() else { return };
        set.fade(now);
        let label = || self.shows_values.then(|| label(entries));
        set.add(key, rule, label, hits);
    }

    /// The `max` keys that are refused most, those first; at most one of a rule and a token.
    pub fn most(&self, max: usize, now: Timestamp) -> Vec<RefusedKey> {
        let mut found = Vec::new();
        for set in &self.sets {
            let mut set = set.lock();
            set.fade(now);
            found.extend(set.entries.iter().map(|entry| RefusedKey {
                rule: entry.rule.clone(),
                token: entry.key.token,
                label: entry.label.clone(),
                per_second: entry.weight / f64::from(FADES_BY),
                error: entry.error / f64::from(FADES_BY),
            }));
        }
        found.sort_by(|a, b| b.per_second.total_cmp(&a.per_second).then(a.token.cmp(&b.token)));
        found.truncate(max);
        found
    }

    /// The tag takes part: tokens of one node are near to each other where regions are few.
    fn set(&self, key: KeyHash) -> &Mutex<Set> {
        let set = (key.token ^ key.tag) % SETS as u64;
        &self.sets[usize::try_from(set).unwrap_or(0)]
    }
}

impl Set {
    /// Lets the entries fade up to `now`. A clock that steps back fades nothing.
    fn fade(&mut self, now: Timestamp) {
        let second = now.as_nanos() / NANOS_PER_SEC;
        let passed = second.saturating_sub(self.second);
        if passed == 0 {
            return;
        }
        self.second = second;
        let kept = 1.0 - 1.0 / f64::from(FADES_BY);
        let kept = kept.powi(i32::try_from(passed).unwrap_or(i32::MAX));
        for entry in &mut self.entries {
            entry.weight *= kept;
            entry.error *= kept;
        }
        self.entries.retain(|entry| entry.weight >= WEIGHT_MIN);
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate, for display")]
    fn add(
        &mut self,
        key: KeyHash,
        rule: &Arc<str>,
        label: impl FnOnce() -> Option<Box<str>>,
        hits: u64,
    ) {
        let known = self.entries.iter().position(|entry| entry.key == key);
        let mut at = known.unwrap_or_else(|| {
            // The lightest goes, and leaves its weight.
            let is_full = self.entries.len() >= WAYS;
            let left = if is_full { self.entries.pop().map_or(0.0, |it| it.weight) } else { 0.0 };
            let (rule, label) = (rule.clone(), label());
            self.entries.push(Entry { key, rule, label, weight: left, error: left });
            self.entries.len() - 1
        });
        self.entries[at].weight += hits as f64;
        while at > 0 && self.entries[at - 1].weight < self.entries[at].weight {
            self.entries.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// `user=alice|path=/x`, cut at a character.
pub(super) fn label(entries: &[Pair<'_>]) -> Box<str> {
    let mut text = String::new();
    for Pair { key, value } in entries {
        let between = if text.is_empty() { "" } else { "|" };
        for part in [between, key, "=", value] {
            for character in part.chars() {
                if text.len() + character.len_utf8() > LABEL_BYTES_MAX {
                    return text.into();
                }
                text.push(character);
            }
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tidegate_limiter::units::Span;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_040);

    fn key(number: u64) -> KeyHash {
        KeyHash { token: number, tag: 0 }
    }

    fn at(second: u64) -> Timestamp {
        START.plus(Span::from_secs(second))
    }

    fn refuse(keys: &RefusedKeys, number: u64, hits: u64, second: u64) {
        keys.refused(key(number), &"edge.user".into(), &[], hits, at(second));
    }

    #[test]
    fn a_key_that_is_refused_at_one_rate_is_shown_with_it_and_fades_when_it_stops() {
        let keys = RefusedKeys::new(false);
        for second in 0..120 {
            refuse(&keys, 7, 100, second);
        }
        let found = keys.most(10, at(119));
        assert_eq!((found.len(), found[0].token, &*found[0].rule), (1, 7, "edge.user"));
        assert!((99.0..101.0).contains(&found[0].per_second), "{found:?}");
        assert!(keys.most(10, at(131))[0].per_second < 50.0);
        assert_eq!(keys.most(10, at(400)), []);
    }

    #[test]
    fn a_clock_that_steps_back_fades_nothing() {
        let keys = RefusedKeys::new(false);
        refuse(&keys, 7, 160, 100);
        refuse(&keys, 7, 160, 40);
        assert!((keys.most(1, at(100))[0].per_second - 20.0).abs() < 1e-9);
    }

    #[test]
    fn values_are_kept_only_where_they_are_shown_and_cut_at_a_character() {
        let entries = [Pair { key: "user", value: "ann" }, Pair { key: "path", value: "/x" }];
        for (shows, expected) in [(true, Some("user=ann|path=/x")), (false, None)] {
            let keys = RefusedKeys::new(shows);
            keys.refused(key(1), &"r".into(), &entries, 1, START);
            assert_eq!(keys.most(1, START)[0].label.as_deref(), expected);
        }
        let long = "ä".repeat(LABEL_BYTES_MAX);
        let text = label(&[Pair { key: "k", value: &long }]);
        assert_eq!((text.len(), text.chars().count()), (LABEL_BYTES_MAX, 2 + 63));
    }

    #[test]
    fn a_flood_of_new_keys_neither_grows_it_nor_hides_the_one_that_is_refused_most() {
        let keys = RefusedKeys::new(false);
        let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        for number in 0..200_000 {
            refuse(&keys, hash(number), 1, 0);
            if number % 100 == 0 {
                refuse(&keys, 7, 1, 0);
            }
        }
        let found = keys.most(usize::MAX, START);
        assert_eq!((found.len(), found[0].token), (KEYS_MAX, 7));
    }

    #[test]
    fn a_refusal_does_not_wait_for_another() {
        let keys = RefusedKeys::new(false);
        let held = keys.set(key(7)).lock();
        refuse(&keys, 7, 1, 0);
        drop(held);
        assert_eq!(keys.most(1, START), []);
    }

    proptest! {
        /// Against exact faded counts: what is listed is between its bounds, and what is not listed
        /// was refused no more often than what is.
        #[test]
        fn weights_bound_the_true_counts(
            refusals in prop::collection::vec((0_u64..120, 1_u64..20, 0_u64..2), 1..2_000),
        ) {
            let keys = RefusedKeys::new(false);
            let mut exact = BTreeMap::<u64, f64>::new();
            let mut now = 0;
            for (number, hits, pause) in refusals {
                now += pause;
                for weight in exact.values_mut() {
                    *weight *= 0.9375_f64.powi(i32::try_from(pause).unwrap());
                }
                // All in one set.
                let number = number * SETS as u64;
                refuse(&keys, number, hits, now);
                *exact.entry(number).or_default() += f64::from(u32::try_from(hits).unwrap());
            }
            let found = keys.most(usize::MAX, at(now));
            prop_assert!(found.len() <= WAYS);
            let lightest = found.last().map_or(0.0, |it| it.per_second * 16.0);
            let slack = 1e-6;
            for (number, weight) in exact {
                match found.iter().find(|it| it.token == number) {
                    Some(it) => {
                        prop_assert!(weight <= it.per_second * 16.0 + slack + WEIGHT_MIN);
                        prop_assert!(weight >= (it.per_second - it.error) * 16.0 - slack);
                    }
                    None => prop_assert!(weight <= lightest.max(WEIGHT_MIN) + WEIGHT_MIN + slack),
                }
            }
        }
    }
}
