//! What this node, as an owner, has granted: who holds it, and how it is given back.
//!
//! A grant is charged when it is made, so the limit holds whatever becomes of this ledger: it only
//! serves to take unspent hits off again, and to know whom to ask for them. A new owner starts with
//! an empty one, and what was granted before then stays charged until the window ends.
//!
//! - *Given back*: by its holder, once; what arrives again finds no entry.
//! - *Recalled*: once, when another node is refused while this one holds something. A refused node
//!   refuses by itself from then on (`negative_cache.rs`), so it is told when hits of the key are
//!   given back.
//! - *Outstanding* until then: what is granted may have been spent or not, so a refund takes none
//!   of it.
//! - *Reset*: what is spent of a grant that was made before the limit was reset is taken off, too,
//!   when it is known how much that is.
//! - *Ended*: an entry is kept for a term after the end of the grant, so that what was given back
//!   at the last moment still counts.
//!
//! One lock spans the charge of a grant and its entry, a reset and the entries from before it, and
//! another grant that is given back and the marks of those beside it ([`Mark`]): a mark is never
//! higher than the counter has been since.
//!
//! **Bound.** [`ENTRIES_MAX`] grants; at the bound none is made, and checks ask the owner.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_limiter::engine::grant::{Mark, Outstanding, Refunded};
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{Counter, GivenBack, Granted, KeyHash};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::{Generation, NodeId};

/// Grants that are kept, of all keys.
const ENTRIES_MAX: usize = 65_536;
const SHARDS: usize = 64;
/// Keys that a grant looks at for entries that have ended.
const SWEEP_KEYS: usize = 4;

/// One incarnation of a node that holds grants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Holder {
    pub(super) node: NodeId,
    pub(super) generation: Generation,
}

#[derive(Debug)]
pub(super) struct GrantLedger {
    shards: Box<[Mutex<Shard>]>,
    entries: AtomicUsize,
}

#[derive(Clone, Debug, Default)]
struct Shard {
    /// By the first counter of their limits. Those of one descriptor are beside each other: a
    /// reload may have put another limit first.
    keys: BTreeMap<KeyHash, OfKey>,
    /// Keys in the order in which they are looked at.
    sweep: VecDeque<KeyHash>,
}

#[derive(Clone, Debug, Default)]
struct OfKey {
    /// In the order in which they were charged.
    entries: SmallVec<[Entry; 4]>,
    /// The latest end of all grants, also of those that were given back.
    granted_until: Timestamp,
    /// A node was refused since hits of the key were last given back.
    is_refused: bool,
    /// Spent, as far as is known, of grants that were made before a reset.
    spent_before_reset: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    holder: Holder,
    /// Unique among the grants of the holder.
    id: u64,
    hits: u32,
    marks: SmallVec<[Mark; 1]>,
    kept_until: Timestamp,
    is_recalled: bool,
    /// The limit was reset after it was made.
    is_before_reset: bool,
}

/// What is counted of a key beside what may be given back.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Of each counter, what is granted and can still be given back; empty if nothing is.
    pub(super) outstanding: SmallVec<[Outstanding; 1]>,
    /// What a reset is going to take off the first counter.
    spent_before_reset: u64,
}

/// What a charge came to.
#[derive(Debug)]
pub(super) struct Charged<T> {
    pub(super) result: T,
    pub(super) is_refused: bool,
    pub(super) granted: Option<Granted>,
    /// Of each counter; empty without a refund.
    pub(super) refunded: SmallVec<[Refunded; 1]>,
    pub(super) reset: Reset,
}

/// Whether the limit of a key was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    No,
    /// All that is counted was taken.
    Whole,
    /// What is spent of the present grants is to be taken off when it is known, by
    /// [`GrantLedger::take_spent_before_reset`].
    BesideGrants,
}

impl<T> Charged<T> {
    /// Neither refused nor granted or given back.
    pub(super) fn of(result: T) -> Self {
        let (granted, refunded, reset) = (None, SmallVec::new(), Reset::No);
        Self { result, is_refused: false, granted, refunded, reset }
    }
}

/// What was taken back of a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TakenBack {
    /// Of the counter that got most.
    pub(super) hits: u32,
    /// Nodes may have cached refusals that hold no more.
    pub(super) ends_refusals: bool,
}

impl GrantLedger {
    /// Decides checks of these counters by `charge`, and enters what it grants to a holder under a
    /// number. `charge` is passed whether the ledger has room for a grant, and what is outstanding.
    pub(super) fn enter<T>(
        &self,
        counters: &[Counter],
        to: Option<(&Holder, u64)>,
        now: Timestamp,
        charge: impl FnOnce(bool, &Beside) -> Option<Charged<T>>,
    ) -> Option<Charged<T>> {
        let key = counters.first()?.key;
        let mut shard = self.shard(key).lock();
        self.sweep(&mut shard, now);
        let has_room = to.is_some() && self.entries.load(Ordering::Relaxed) < ENTRIES_MAX;
        let beside = shard.keys.get_mut(&key).map(|of_key| {
            let removed = of_key.remove_ended(now);
            self.entries.fetch_sub(removed, Ordering::Relaxed);
            let outstanding = of_key.outstanding(counters, now);
            Beside { outstanding, spent_before_reset: of_key.spent_before_reset }
        });
        let charged = charge(has_room, &beside.unwrap_or_default())?;
        let Shard { keys, sweep } = &mut *shard;
        if let Some(of_key) = keys.get_mut(&key) {
            for (counter, (at, refunded)) in
                counters.iter().zip(charged.refunded.iter().enumerate())
            {
                of_key.refunded(at, &counter.quota, refunded);
            }
            of_key.note_reset(charged.reset);
        }
        if charged.is_refused {
            of_descriptor(keys, key).for_each(|(_, of_key)| of_key.is_refused = true);
        }
        if let (Some(Granted { hits, term, marks }), Some((holder, id))) = (&charged.granted, to) {
            let entry = Entry {
                holder: holder.clone(),
                id,
                hits: *hits,
                marks: marks.clone(),
                kept_until: now.plus(*term).plus(*term),
                is_recalled: false,
                is_before_reset: false,
            };
            let of_key = keys.entry(key).or_insert_with(|| {
                sweep.push_back(key);
                OfKey::default()
            });
            of_key.granted_until = of_key.granted_until.max(now.plus(*term));
            of_key.entries.push(entry);
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
        Some(charged)
    }

    /// Decides checks that ask for no grant by `decide`, and notes a refusal: the sender caches it,
    /// and has to hear of hits that come back. Without any grant it takes no lock.
    pub(super) fn note_refusals<T>(
        &self,
        counters: &[Counter],
        now: Timestamp,
        decide: impl FnOnce() -> Option<T>,
        is_refused: impl Fn(&T) -> bool,
    ) -> Option<T> {
        if self.entries.load(Ordering::Relaxed) == 0 {
            return decide();
        }
        let charged = self.enter(counters, None, now, |_, _| {
            let result = decide()?;
            let is_refused = is_refused(&result);
            Some(Charged { is_refused, ..Charged::of(result) })
        });
        charged.map(|charged| charged.result)
    }

    /// How many nodes hold grants of this key.
    pub(super) fn holders(&self, key: KeyHash) -> u32 {
        let shard = self.shard(key).lock();
        let entries = shard.keys.get(&key).into_iter().flat_map(|of_key| &of_key.entries);
        let holders: BTreeSet<&NodeId> = entries.map(|entry| &entry.holder.node).collect();
        u32::try_from(holders.len()).unwrap_or(u32::MAX)
    }

    /// When nothing of what is granted of this key now is outstanding any more, unless it is given
    /// back before.
    pub(super) fn outstanding_until(&self, key: KeyHash) -> Timestamp {
        let shard = self.shard(key).lock();
        let entries = shard.keys.get(&key).into_iter().flat_map(|of_key| &of_key.entries);
        entries.map(|entry| entry.kept_until).max().unwrap_or(Timestamp::EPOCH)
    }

    /// The holder gives `unspent` hits of a grant back. `settle` takes them off the counters and
    /// returns how many it took of each; it is passed the marks of the grant, the latest end of all
    /// grants of the key, and the hits.
    pub(super) fn give_back(
        &self,
        counters: &[Counter],
        holder: &Holder,
        id: u64,
        unspent: u32,
        settle: impl FnOnce(&[Mark], Timestamp, u32) -> GivenBack,
    ) -> TakenBack {
        let nothing = TakenBack::default();
        let Some(key) = counters.first().map(|counter| counter.key) else { return nothing };
        let mut shard = self.shard(key).lock();
        let Some(of_key) = shard.keys.get_mut(&key) else { return nothing };
        let is_it = |entry: &Entry| entry.id == id && entry.holder == *holder;
        let Some(at) = of_key.entries.iter().position(is_it) else { return nothing };
        let entry = of_key.entries.remove(at);
        self.entries.fetch_sub(1, Ordering::Relaxed);
        of_key.spent_before_reset += entry.spent_before_reset(unspent);
        let taken = settle(&entry.marks, of_key.granted_until, unspent.min(entry.hits));
        for (position, (counter, taken)) in counters.iter().zip(&taken).enumerate() {
            of_key.lower_marks(position, &counter.quota, *taken, at);
        }
        let hits = taken.into_iter().max().unwrap_or(0);
        let ends_refusals = hits > 0 && std::mem::take(&mut of_key.is_refused);
        TakenBack { hits, ends_refusals }
    }

    /// Hits that were spent of grants before a reset, of those that are accounted for since the
    /// last call. A grant that has ended and was not given back was spent.
    pub(super) fn take_spent_before_reset(&self, key: KeyHash, now: Timestamp) -> u64 {
        let mut shard = self.shard(key).lock();
        let Some(of_key) = shard.keys.get_mut(&key) else { return 0 };
        self.entries.fetch_sub(of_key.remove_ended(now), Ordering::Relaxed);
        std::mem::take(&mut of_key.spent_before_reset)
    }

    /// The most hits that a reset has yet to take off, as they may have been spent before it.
    pub(super) fn may_be_spent_before_reset(&self, key: KeyHash) -> u64 {
        let shard = self.shard(key).lock();
        let Some(of_key) = shard.keys.get(&key) else { return 0 };
        let of_entries = of_key.entries.iter().map(|entry| entry.spent_before_reset(0));
        of_entries.sum::<u64>() + of_key.spent_before_reset
    }

    /// Forgets all grants of this key: they stay charged.
    pub(super) fn forget(&self, key: KeyHash) {
        let mut shard = self.shard(key).lock();
        let of_key = shard.keys.get_mut(&key).map(|of_key| std::mem::take(&mut of_key.entries));
        self.entries.fetch_sub(of_key.map_or(0, |entries| entries.len()), Ordering::Relaxed);
    }

    /// The holders, but for `except`, of grants of this descriptor that have not been recalled yet,
    /// with the keys of these; they are from now on. The second result is whether any other node
    /// holds a grant.
    pub(super) fn recall(
        &self,
        key: KeyHash,
        except: Option<&Holder>,
        now: Timestamp,
    ) -> (SmallVec<[(NodeId, KeyHash); 4]>, bool) {
        let (mut holders, mut are_held) = (SmallVec::new(), false);
        if self.entries.load(Ordering::Relaxed) == 0 {
            return (holders, are_held);
        }
        let mut shard = self.shard(key).lock();
        for (key, OfKey { entries, .. }) in of_descriptor(&mut shard.keys, key) {
            let others = entries.iter_mut().filter(|entry| Some(&entry.holder) != except);
            for entry in others.filter(|entry| entry.kept_until > now) {
                are_held = true;
                let holder = (entry.holder.node.clone(), *key);
                if !std::mem::replace(&mut entry.is_recalled, true) && !holders.contains(&holder) {
                    holders.push(holder);
                }
            }
        }
        (holders, are_held)
    }

    /// Removes what has ended from some keys.
    fn sweep(&self, shard: &mut Shard, now: Timestamp) {
        for _ in 0..SWEEP_KEYS {
            let Some(key) = shard.sweep.pop_front() else { return };
            let Some(of_key) = shard.keys.get_mut(&key) else { continue };
            self.entries.fetch_sub(of_key.remove_ended(now), Ordering::Relaxed);
            if of_key.entries.is_empty() && of_key.spent_before_reset == 0 {
                shard.keys.remove(&key);
            } else {
                shard.sweep.push_back(key);
            }
        }
    }

    fn shard(&self, key: KeyHash) -> &Mutex<Shard> {
        let at = key.token % self.shards.len() as u64;
        &self.shards[usize::try_from(at).unwrap_or(0)]
    }
}

/// What is kept of the keys of one descriptor.
fn of_descriptor(
    keys: &mut BTreeMap<KeyHash, OfKey>,
    KeyHash { token, .. }: KeyHash,
) -> impl Iterator<Item = (&KeyHash, &mut OfKey)> {
    keys.range_mut(KeyHash { token, tag: 0 }..=KeyHash { token, tag: u64::MAX })
}

impl Entry {
    /// What was spent of it, if its limit was reset since it was made.
    fn spent_before_reset(&self, unspent: u32) -> u64 {
        if self.is_before_reset { self.hits.saturating_sub(unspent).into() } else { 0 }
    }
}

impl Beside {
    /// What a refund takes nothing of: also what a reset is going to take.
    pub(super) fn of_refund(&self) -> SmallVec<[Outstanding; 1]> {
        let mut outstanding = self.outstanding.clone();
        if let Some(first) = outstanding.first_mut() {
            first.hits = first.hits.saturating_add(self.spent_before_reset);
        }
        outstanding
    }
}

// === impl OfKey ===

impl OfKey {
    /// Returns how many entries it removed.
    fn remove_ended(&mut self, now: Timestamp) -> usize {
        let before = self.entries.len();
        let mut spent = 0;
        self.entries.retain(|entry| {
            let is_kept = entry.kept_until > now;
            if !is_kept {
                spent += entry.spent_before_reset(0);
            }
            is_kept
        });
        self.spent_before_reset += spent;
        before - self.entries.len()
    }

    /// Of each counter, what is granted and can still be given back.
    fn outstanding(&self, counters: &[Counter], now: Timestamp) -> SmallVec<[Outstanding; 1]> {
        let of_counter = |(at, counter): (usize, &Counter)| {
            let is_open = |entry: &&Entry| {
                entry.marks.get(at).is_none_or(|mark| mark.is_open(&counter.quota, now))
            };
            let hits = self.entries.iter().filter(is_open).map(|entry| u64::from(entry.hits)).sum();
            Outstanding { hits, until: self.granted_until }
        };
        counters.iter().enumerate().map(of_counter).collect()
    }

    /// Hits were given back of a grant of the counter at this position. The entries from `later` on
    /// were charged after it, and their marks have its hits in them.
    fn lower_marks(&mut self, position: usize, quota: &Quota, taken: u32, later: usize) {
        let later = self.entries.iter_mut().skip(later);
        for mark in later.filter_map(|entry| entry.marks.get_mut(position)) {
            mark.lower(quota, taken);
        }
    }

    /// A reset takes what an earlier one was going to take.
    fn note_reset(&mut self, reset: Reset) {
        if reset != Reset::No {
            self.spent_before_reset = 0;
        }
        if reset == Reset::BesideGrants {
            self.entries.iter_mut().for_each(|entry| entry.is_before_reset = true);
        }
    }

    /// A refund took hits of the counter at this position.
    fn refunded(&mut self, at: usize, quota: &Quota, refunded: &Refunded) {
        let mut later = 0;
        for entry in self.entries.iter_mut().rev() {
            if let Some(mark) = entry.marks.get_mut(at) {
                mark.refunded(quota, refunded, later);
            }
            later += u64::from(entry.hits);
        }
    }
}

impl Default for GrantLedger {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self { shards, entries: AtomicUsize::new(0) }
    }
}

/// For the model of grants, which goes on from one state in several ways.
#[cfg(test)]
mod for_model {
    use super::*;

    /// An entry: its holder, id and hits, its marks, until when it is kept, and whether it is
    /// recalled.
    pub(in crate::decide) type EntryView = (Holder, u64, u32, Vec<Mark>, Timestamp, bool);

    impl Clone for GrantLedger {
        fn clone(&self) -> Self {
            let shards = self.shards.iter().map(|shard| Mutex::new(shard.lock().clone()));
            let entries = AtomicUsize::new(self.entries.load(Ordering::Relaxed));
            Self { shards: shards.collect(), entries }
        }
    }

    impl GrantLedger {
        /// A small one, of which the model has one for each state.
        pub(in crate::decide) fn of_one_shard() -> Self {
            Self { shards: Box::new([Mutex::default()]), entries: AtomicUsize::new(0) }
        }

        pub(in crate::decide) fn view(&self, key: KeyHash) -> Vec<EntryView> {
            let shard = self.shard(key).lock();
            let entries = shard.keys.get(&key).into_iter().flat_map(|of_key| &of_key.entries);
            let view = |it: &Entry| {
                let Entry { holder, id, hits, marks, kept_until, is_recalled, .. } = it;
                (holder.clone(), *id, *hits, marks.to_vec(), *kept_until, *is_recalled)
            };
            let mut views: Vec<EntryView> = entries.map(view).collect();
            views.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
            views
        }
    }
}
#[cfg(test)]
pub(super) use for_model::EntryView;

#[cfg(test)]
mod tests {
    use smallvec::smallvec;
    use tidegate_limiter::engine::Tat;
    use tidegate_limiter::quota::{Algorithm, Quota};
    use tidegate_limiter::units::Span;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
    const TERM: Span = Span::from_secs(1);

    fn counters() -> [Counter; 1] {
        let quota = Quota::simple(Algorithm::FixedWindow, 100, Span::from_secs(60)).expect("valid");
        [Counter { key: KeyHash { token: 7, tag: 8 }, quota }]
    }

    fn holder(name: &str) -> Holder {
        Holder { node: NodeId::new(name).expect("a valid id"), generation: Generation(1) }
    }

    fn charged(granted: Option<Granted>, is_refused: bool) -> Charged<()> {
        Charged { is_refused, granted, ..Charged::of(()) }
    }

    fn grant(ledger: &GrantLedger, name: &str, id: u64, now: Timestamp) -> bool {
        let [counter] = counters();
        let made = ledger.enter(&[counter], Some((&holder(name), id)), now, |has_room, _| {
            let marks = [Mark::Slice(1)].into_iter().collect();
            Some(charged(has_room.then_some(Granted { hits: 10, term: TERM, marks }), false))
        });
        made.is_some_and(|made| made.granted.is_some())
    }

    fn give_back(ledger: &GrantLedger, name: &str, id: u64, unspent: u32) -> u32 {
        take_back(ledger, name, id, unspent).hits
    }

    fn take_back(ledger: &GrantLedger, name: &str, id: u64, unspent: u32) -> TakenBack {
        ledger.give_back(&counters(), &holder(name), id, unspent, |_, _, hits| smallvec![hits])
    }

    fn refuse(ledger: &GrantLedger, name: &str) {
        let to = Some((&holder(name), 9));
        assert!(ledger.enter(&counters(), to, NOW, |_, _| Some(charged(None, true))).is_some());
    }

    #[test]
    fn a_grant_is_given_back_once_by_its_holder_and_no_more_than_it_was() {
        let ledger = GrantLedger::default();
        assert!(grant(&ledger, "a", 1, NOW));
        assert_eq!(give_back(&ledger, "b", 1, 10), 0, "another node");
        assert_eq!(give_back(&ledger, "a", 2, 10), 0, "another grant");
        assert_eq!(give_back(&ledger, "a", 1, u32::MAX), 10);
        assert_eq!(give_back(&ledger, "a", 1, 10), 0, "it came twice");
        assert_eq!(ledger.entries.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_spent_before_a_reset_is_known_as_soon_as_it_is_given_back() {
        let (ledger, key) = (GrantLedger::default(), counters()[0].key);
        let reset = |reset| {
            let charge = |_, _: &Beside| Some(Charged { reset, ..Charged::of(()) });
            assert!(ledger.enter(&counters(), None, NOW, charge).is_some());
        };
        assert!(grant(&ledger, "a", 1, NOW) && grant(&ledger, "b", 1, NOW));
        reset(Reset::BesideGrants);
        assert_eq!(give_back(&ledger, "a", 1, 6), 6);
        assert!(grant(&ledger, "a", 2, NOW));
        assert_eq!(give_back(&ledger, "a", 2, 1), 1, "it is of after the reset");
        assert_eq!(ledger.may_be_spent_before_reset(key), 4 + 10);
        assert_eq!(ledger.take_spent_before_reset(key, NOW), 4);
        assert_eq!(give_back(&ledger, "b", 1, 3), 3);
        // The next reset takes it, and no refund before that.
        let of_refund = |_, known: &Beside| {
            assert_eq!(known.of_refund()[0].hits, 7);
            Some(Charged::of(()))
        };
        assert!(grant(&ledger, "c", 1, NOW) && give_back(&ledger, "c", 1, 10) == 10);
        assert!(ledger.enter(&counters(), None, NOW, of_refund).is_some());
        reset(Reset::Whole);
        assert_eq!(ledger.take_spent_before_reset(key, NOW), 0);
    }

    #[test]
    fn what_others_hold_is_recalled_once() {
        let (ledger, key) = (GrantLedger::default(), counters()[0].key);
        for (name, id) in [("a", 1), ("b", 1), ("b", 2)] {
            assert!(grant(&ledger, name, id, NOW));
        }
        let nodes = |except: &str| {
            let (holders, are_held) = ledger.recall(key, Some(&holder(except)), NOW);
            assert!(holders.iter().all(|(_, of)| *of == key));
            (holders.iter().map(|(node, _)| node.to_string()).collect::<Vec<_>>(), are_held)
        };
        assert_eq!(nodes("a"), (vec!["b".to_owned()], true));
        assert_eq!(nodes("a"), (vec![], true), "it was recalled");
        assert_eq!(nodes("b"), (vec!["a".to_owned()], true));
        assert!(grant(&ledger, "b", 3, NOW));
        let later = NOW.plus(TERM).plus(TERM);
        assert_eq!(ledger.recall(key, None, later), (SmallVec::new(), false), "it has ended");
    }

    #[test]
    fn a_refusal_ends_with_the_next_hits_that_are_given_back() {
        let ledger = GrantLedger::default();
        let ends = |id, unspent| take_back(&ledger, "a", id, unspent).ends_refusals;
        refuse(&ledger, "b");
        assert!((1..=4).all(|id| grant(&ledger, "a", id, NOW)));
        assert!(!ends(1, 10), "no node was refused while something was held");
        refuse(&ledger, "b");
        assert!(!ends(2, 0), "there is nothing to be had");
        assert!(ends(3, 1));
        assert!(!ends(4, 10), "no node was refused since");
    }

    /// A reload has put a limit in front of the one of which hits are held.
    #[test]
    fn what_was_granted_by_the_list_of_before_is_recalled_and_ends_refusals() {
        let (ledger, [before]) = (GrantLedger::default(), counters());
        let first = Counter { key: KeyHash { tag: 3, ..before.key }, ..before };
        assert!(grant(&ledger, "a", 1, NOW));
        let refuse = |counters: &[Counter]| {
            assert!(ledger.enter(counters, None, NOW, |_, _| Some(charged(None, true))).is_some());
        };
        refuse(&[first, before]);
        let (holders, are_held) = ledger.recall(first.key, None, NOW);
        assert!(are_held);
        assert_eq!(holders[..], [(holder("a").node, before.key)]);
        assert!(take_back(&ledger, "a", 1, 10).ends_refusals);
        let other = Counter { key: KeyHash { token: 6, ..before.key }, ..before };
        assert!(grant(&ledger, "a", 2, NOW));
        refuse(&[other]);
        assert!(!take_back(&ledger, "a", 2, 10).ends_refusals, "of another descriptor");
    }

    #[test]
    fn marks_are_lowered_by_what_each_limit_got_back_of_earlier_grants() {
        let (ledger, [window]) = (GrantLedger::default(), counters());
        let quota = Quota::simple(Algorithm::Gcra, 1, Span::from_secs(1)).expect("valid");
        let bucket = Counter { key: KeyHash { tag: 9, ..window.key }, quota };
        let both = [window, bucket];
        let tat = |secs: u64| Mark::Tat(Tat::new(Span::from_secs(secs).as_nanos(), 0));
        for id in 1..=3 {
            let marks = [Mark::Slice(1), tat(100 * id)].into_iter().collect();
            let granted = Some(Granted { hits: 10, term: TERM, marks });
            let charge = |_, _: &Beside| Some(charged(granted, false));
            assert!(ledger.enter(&both, Some((&holder("a"), id)), NOW, charge).is_some());
        }
        let back = ledger.give_back(&both, &holder("a"), 2, 10, |_, _, _| smallvec![10, 7]);
        assert_eq!(back.hits, 10);
        let marks = ledger.view(window.key).into_iter().map(|(_, id, _, marks, ..)| (id, marks[1]));
        assert_eq!(marks.collect::<Vec<_>>(), [(1, tat(100)), (3, tat(293))]);
    }

    #[test]
    fn at_the_bound_nothing_is_granted_until_grants_have_ended() {
        let ledger = GrantLedger::default();
        let all = u64::try_from(ENTRIES_MAX).expect("small");
        assert!((0..all).all(|id| grant(&ledger, "a", id, NOW)));
        assert!(!grant(&ledger, "a", all, NOW));
        let later = NOW.plus(TERM).plus(TERM);
        assert!(grant(&ledger, "a", all, later));
        assert_eq!(ledger.entries.load(Ordering::Relaxed), 1, "the others were removed");
    }
}
