//! The checks that peers forwarded lately, and what they were answered: a check that comes twice is
//! counted once.
//!
//! An asker whose connection broke cannot know whether its check was applied. It sends the check
//! again under the same id, and is given the verdicts that the first one got.
//!
//! Ids of one asker ascend, so `(id + asker) mod` [`SETS`] deals them out evenly: each set keeps
//! its last [`WAYS`], and all together keep the last [`SEEN_MAX`] or so.
//!
//! **Bound.** At [`SEEN_MAX`] the oldest go; nothing goes because of its age. At 5,000 forwarded
//! checks a second that is 13 s, longer than the longest deadline (10 s). At more, a repetition
//! that comes later than [`SEEN_MAX`] other checks is counted a second time.

use parking_lot::Mutex;
use tidegate_limiter::engine::ActorId;
use tidegate_limiter::store::Verdicts;

/// Checks that are remembered, of all askers together; about 100 bytes each.
const SEEN_MAX: usize = 65_536;
const SETS: usize = SEEN_MAX / WAYS;
const WAYS: usize = 8;

/// What became of forwarded checks.
#[derive(Debug)]
pub(super) struct DedupCache {
    /// Each under a lock of its own: a check waits for another only to be told its answer.
    sets: Box<[Mutex<Set>]>,
}

/// The verdicts of a check that comes once or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Once {
    /// Decided now.
    First(Verdicts),
    /// Decided before, and not counted again.
    Again(Verdicts),
}

#[derive(Debug, Default)]
struct Set {
    /// At most [`WAYS`]; grows as checks come.
    entries: Vec<Entry>,
    /// Which one is overwritten next, once all are taken.
    oldest: usize,
}

#[derive(Debug)]
struct Entry {
    asker: ActorId,
    id: u64,
    verdicts: Verdicts,
}

impl DedupCache {
    /// The verdicts of the check `id` of `asker`, which is one start of one node: those of `decide`
    /// the first time, and those again from then on. What `decide` declines is not remembered.
    ///
    /// The lock is held while it decides, so two copies that come at once are one check too.
    pub(super) fn once(
        &self,
        asker: ActorId,
        id: u64,
        decide: impl FnOnce() -> Option<Verdicts>,
    ) -> Option<Once> {
        let mut set = self.set(asker, id).lock();
        let same = |entry: &&Entry| entry.id == id && entry.asker == asker;
        if let Some(entry) = set.entries.iter().find(same) {
            return Some(Once::Again(entry.verdicts.clone()));
        }
        let verdicts = decide()?;
        set.insert(Entry { asker, id, verdicts: verdicts.clone() });
        Some(Once::First(verdicts))
    }

    fn set(&self, asker: ActorId, id: u64) -> &Mutex<Set> {
        let sets = self.sets.len() as u64;
        let at = id.wrapping_add(asker.get()) % sets;
        &self.sets[usize::try_from(at).unwrap_or(0)]
    }
}

impl Default for DedupCache {
    fn default() -> Self {
        Self { sets: std::iter::repeat_with(Mutex::default).take(SETS).collect() }
    }
}

impl Set {
    fn insert(&mut self, entry: Entry) {
        if self.entries.len() < WAYS {
            self.entries.push(entry);
            return;
        }
        self.entries[self.oldest] = entry;
        self.oldest = (self.oldest + 1) % WAYS;
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::{Retry, Verdict};
    use tidegate_limiter::units::Span;

    use super::*;

    const ASKER: ActorId = ActorId::new(0x1234_5678_9abc_def0);

    fn verdicts(remaining: u32) -> Verdicts {
        smallvec::smallvec![Verdict {
            allowed: true,
            limit: 10,
            remaining,
            reset: Span::ZERO,
            retry: Retry::Now,
            delay: Span::ZERO,
            excess: 0,
        }]
    }

    #[test]
    fn a_check_that_comes_again_gets_its_verdicts_again() {
        let seen = DedupCache::default();
        let first = seen.once(ASKER, 1, || Some(verdicts(9)));
        assert_eq!(first, Some(Once::First(verdicts(9))));
        let again = seen.once(ASKER, 1, || panic!("it was decided before"));
        assert_eq!(again, Some(Once::Again(verdicts(9))));
    }

    #[test]
    fn another_start_of_the_asker_is_another_asker() {
        let seen = DedupCache::default();
        seen.once(ASKER, 1, || Some(verdicts(9)));
        let other = seen.once(ActorId::new(ASKER.get() + 1), 1, || Some(verdicts(8)));
        assert_eq!(other, Some(Once::First(verdicts(8))));
    }

    #[test]
    fn what_was_declined_may_be_decided_later() {
        let seen = DedupCache::default();
        assert_eq!(seen.once(ASKER, 1, || None), None);
        assert_eq!(seen.once(ASKER, 1, || Some(verdicts(9))), Some(Once::First(verdicts(9))));
    }

    #[test]
    fn at_the_bound_the_oldest_go() {
        let seen = DedupCache::default();
        let last = SEEN_MAX as u64 + 10;
        for id in 0..last {
            seen.once(ASKER, id, || Some(verdicts(1)));
        }
        let held: usize = seen.sets.iter().map(|set| set.lock().entries.len()).sum();
        assert_eq!(held, SEEN_MAX);
        for id in 10..last {
            let again = seen.once(ASKER, id, || None);
            assert!(matches!(again, Some(Once::Again(_))), "{id} is among the last {SEEN_MAX}");
        }
        assert!((0..10).all(|id| seen.once(ASKER, id, || None).is_none()));
    }
}
