//! The latest checks that peers forwarded, with their verdicts: a check that arrives twice is
//! counted once.
//!
//! A peer whose connection broke cannot know whether its check was applied. It sends the check
//! again under the same id and gets the verdicts of the first one.
//!
//! Ids of one sender ascend, so `(id + sender) mod` [`SETS`] distributes them evenly: each set
//! keeps its latest [`WAYS`], and all sets together about the latest [`ENTRIES_MAX`].
//!
//! **Bound.** At [`ENTRIES_MAX`] the oldest entries are evicted; age alone evicts nothing. At 5,000
//! forwarded checks a second that is 13 s, longer than the longest deadline (10 s). At higher
//! rates, a repetition that arrives after [`ENTRIES_MAX`] other checks is counted a second time.
//! Checks that came as one call are one entry. Of those with many verdicts a set keeps fewer, but
//! always its latest: no less than [`WAYS`] checks in all.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tidegate_cluster::ownership::OwnerTerm;
use tidegate_limiter::engine::ActorId;
use tidegate_limiter::store::Verdicts;

/// Entries of all senders together; about 130 bytes each.
const ENTRIES_MAX: usize = 65_536;
const SETS: usize = ENTRIES_MAX / WAYS;
const WAYS: usize = 8;
/// The verdicts that a set keeps besides those of its latest entry.
const VERDICTS_MAX: usize = 8 * WAYS;

#[derive(Debug)]
pub(super) struct DedupCache {
    /// Each has its own lock: a check waits only for checks of the same set.
    sets: Box<[Mutex<Set>]>,
}

/// The verdicts of a check that arrives once or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Once {
    /// Decided now.
    First(Decided),
    /// Decided before, and not counted again.
    Again(Decided),
}

/// Verdicts, and the term in which they were decided: one that is repeated in another term is
/// confirmed no more.
pub(super) type Decided = (Verdicts, Option<OwnerTerm>);

/// At most [`WAYS`], the oldest first.
type Set = VecDeque<Entry>;

#[derive(Clone, Debug)]
struct Entry {
    sender: ActorId,
    id: u64,
    decided: Decided,
}

impl DedupCache {
    /// The verdicts of the check `id` of `sender`, one incarnation of a node: those of `decide` the
    /// first time, and the same ones from then on. `None` of `decide` is not stored.
    ///
    /// The lock is held during `decide`, so two copies that arrive at once are one check too.
    pub(super) fn once(
        &self,
        sender: ActorId,
        id: u64,
        decide: impl FnOnce() -> Option<Decided>,
    ) -> Option<Once> {
        let mut set = self.set(sender, id).lock();
        let same = |entry: &&Entry| entry.id == id && entry.sender == sender;
        if let Some(entry) = set.iter().find(same) {
            return Some(Once::Again(entry.decided.clone()));
        }
        let decided = decide()?;
        make_room(&mut set);
        set.push_back(Entry { sender, id, decided: decided.clone() });
        Some(Once::First(decided))
    }

    fn set(&self, sender: ActorId, id: u64) -> &Mutex<Set> {
        let sets = self.sets.len() as u64;
        let at = id.wrapping_add(sender.writer() ^ sender.start()) % sets;
        &self.sets[usize::try_from(at).unwrap_or(0)]
    }
}

/// Evicts what one more entry leaves no room for.
fn make_room(set: &mut Set) {
    let mut verdicts: usize = set.iter().map(|entry| entry.decided.0.len()).sum();
    while set.len() >= WAYS || verdicts > VERDICTS_MAX {
        let Some(oldest) = set.pop_front() else { return };
        verdicts -= oldest.decided.0.len();
    }
}

impl Default for DedupCache {
    fn default() -> Self {
        Self { sets: std::iter::repeat_with(Mutex::default).take(SETS).collect() }
    }
}

#[cfg(test)]
impl DedupCache {
    /// One for the model of grants, which copies it for each state.
    pub(super) fn of_one_set() -> Self {
        Self { sets: Box::new([Mutex::default()]) }
    }

    pub(super) fn copied(&self) -> Self {
        Self { sets: self.sets.iter().map(|set| Mutex::new(set.lock().clone())).collect() }
    }

    /// Which checks it knows.
    pub(super) fn view(&self) -> Vec<(u64, u64, u64)> {
        let key = |it: &Entry| (it.sender.writer(), it.sender.start(), it.id);
        self.sets.iter().flat_map(|set| set.lock().iter().map(key).collect::<Vec<_>>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::{Retry, Verdict};
    use tidegate_limiter::units::Span;

    use super::*;

    const SENDER: ActorId = ActorId::new(0x1234_5678_9abc_def0);

    fn verdicts(remaining: u32) -> Decided {
        let verdicts = smallvec::smallvec![Verdict {
            allowed: true,
            limit: 10,
            remaining,
            reset: Span::ZERO,
            retry: Retry::Now,
            delay: Span::ZERO,
            excess: 0,
        }];
        (verdicts, None)
    }

    #[test]
    fn a_repeated_check_gets_the_first_verdicts() {
        let cache = DedupCache::default();
        let first = cache.once(SENDER, 1, || Some(verdicts(9)));
        assert_eq!(first, Some(Once::First(verdicts(9))));
        let again = cache.once(SENDER, 1, || panic!("it was decided before"));
        assert_eq!(again, Some(Once::Again(verdicts(9))));
    }

    #[test]
    fn another_incarnation_is_another_sender() {
        let cache = DedupCache::default();
        cache.once(SENDER, 1, || Some(verdicts(9)));
        let other = cache.once(ActorId::new(SENDER.writer() + 1), 1, || Some(verdicts(8)));
        assert_eq!(other, Some(Once::First(verdicts(8))));
    }

    #[test]
    fn a_declined_check_may_be_decided_later() {
        let cache = DedupCache::default();
        assert_eq!(cache.once(SENDER, 1, || None), None);
        assert_eq!(cache.once(SENDER, 1, || Some(verdicts(9))), Some(Once::First(verdicts(9))));
    }

    #[test]
    fn at_the_bound_the_oldest_are_evicted() {
        let cache = DedupCache::default();
        let last = ENTRIES_MAX as u64 + 10;
        for id in 0..last {
            cache.once(SENDER, id, || Some(verdicts(1)));
        }
        let held: usize = cache.sets.iter().map(|set| set.lock().len()).sum();
        assert_eq!(held, ENTRIES_MAX);
        for id in 10..last {
            let again = cache.once(SENDER, id, || None);
            assert!(matches!(again, Some(Once::Again(_))), "{id} is among the last {ENTRIES_MAX}");
        }
        assert!((0..10).all(|id| cache.once(SENDER, id, || None).is_none()));
    }

    #[test]
    fn the_verdicts_of_a_set_are_bounded_and_its_latest_are_kept() {
        let cache = DedupCache::default();
        let call =
            |(verdicts, term): Decided| (std::iter::repeat_n(verdicts[0], 200).collect(), term);
        // All of one set.
        let ids = (0..20).map(|n| n * SETS as u64);
        for id in ids.clone() {
            let first = cache.once(SENDER, id, || Some(call(verdicts(1))));
            assert!(matches!(first, Some(Once::First(_))));
            assert!(matches!(cache.once(SENDER, id, || None), Some(Once::Again(_))));
        }
        let kept = ids.filter(|&id| cache.once(SENDER, id, || None).is_some()).count();
        assert_eq!(kept, 1, "the latest has more than {VERDICTS_MAX}");
    }
}
