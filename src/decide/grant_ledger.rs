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
//!   of it. What it would have taken waits, and of that as much is dropped as comes back unspent
//!   ([`waiting_refunds`](super::waiting_refunds)).
//! - *Reset*: what is spent of a grant that was made before the limit was reset is taken off, too,
//!   when it is known how much that is.
//! - *Ended*: an entry is kept for a term after the end of the grant, so that what was given back
//!   at the last moment still counts.
//!
//! Grants are kept by descriptor, each with the counters that it was charged to: a reload may have
//! put its limits into another order, or others beside them.
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
use tidegate_limiter::store::{Counter, GivenBack, Granted, KeyHash};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::{Generation, NodeId};

/// Grants that are kept, of all keys.
const ENTRIES_MAX: usize = 65_536;
const SHARDS: usize = 64;
/// Descriptors that a grant looks at for entries that have ended.
const SWEEP_DESCRIPTORS: usize = 4;

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
    /// By the token of the descriptor.
    descriptors: BTreeMap<u64, OfDescriptor>,
    /// Descriptors in the order in which they are looked at.
    sweep: VecDeque<u64>,
}

#[derive(Clone, Debug, Default)]
struct OfDescriptor {
    /// In the order in which they were charged.
    entries: SmallVec<[Entry; 4]>,
    /// The latest end of all grants, also of those that were given back.
    granted_until: Timestamp,
    /// A node was refused since hits were last given back.
    is_refused: bool,
    /// Spent, as far as is known, of grants that were made before a reset; by the tag of the
    /// counter.
    spent_before_reset: BTreeMap<u64, u64>,
}

#[derive(Clone, Debug)]
struct Entry {
    holder: Holder,
    /// Unique among the grants of the holder.
    id: u64,
    hits: u32,
    /// The first is that by which its holder knows it.
    counters: SmallVec<[OfCounter; 1]>,
    kept_until: Timestamp,
    is_recalled: bool,
    /// The limit was reset after it was made.
    is_before_reset: bool,
}

/// A counter that a grant was charged to.
#[derive(Clone, Copy, Debug)]
struct OfCounter {
    tag: u64,
    mark: Mark,
    /// A refund waits until it is known what of the grant was spent.
    is_awaited: bool,
}

/// What is counted of a key beside what may be given back.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Of each counter, what is granted and can still be given back; empty if nothing is.
    pub(super) outstanding: SmallVec<[Outstanding; 1]>,
    /// Of each counter, the hits of that which no refund waits for yet; empty if there are none.
    pub(super) unawaited: SmallVec<[u64; 1]>,
    /// What a reset is going to take off the first counter, as far as it is known.
    spent_before_reset: u64,
    /// The most that it is going to take.
    pub(super) may_be_spent_before_reset: u64,
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

/// A grant that is given back.
#[derive(Debug)]
pub(super) struct Returned<'a> {
    /// One per counter.
    pub(super) marks: &'a [Mark],
    /// The latest end of all grants of the descriptor.
    pub(super) granted_until: Timestamp,
    /// Not spent.
    pub(super) hits: u32,
    /// Counters of which a refund waits for what becomes of the grant.
    pub(super) awaited: &'a [KeyHash],
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
        let mut shard = self.shard(key.token).lock();
        self.sweep(&mut shard, now);
        let has_room = to.is_some() && self.entries.load(Ordering::Relaxed) < ENTRIES_MAX;
        let beside = shard.descriptors.get_mut(&key.token).map(|of_descriptor| {
            let removed = of_descriptor.remove_ended(now);
            self.entries.fetch_sub(removed, Ordering::Relaxed);
            of_descriptor.beside(counters, now)
        });
        let charged = charge(has_room, &beside.unwrap_or_default())?;
        let Shard { descriptors, sweep } = &mut *shard;
        if let Some(of_descriptor) = descriptors.get_mut(&key.token) {
            for (counter, refunded) in counters.iter().zip(&charged.refunded) {
                of_descriptor.refunded(counter, refunded, now);
            }
            of_descriptor.note_reset(key.tag, charged.reset);
            of_descriptor.is_refused |= charged.is_refused;
        }
        if let (Some(Granted { hits, term, marks }), Some((holder, id))) = (&charged.granted, to) {
            let of_counter = |(counter, mark): (&Counter, &Mark)| OfCounter {
                tag: counter.key.tag,
                mark: *mark,
                is_awaited: false,
            };
            let entry = Entry {
                holder: holder.clone(),
                id,
                hits: *hits,
                counters: counters.iter().zip(marks).map(of_counter).collect(),
                kept_until: now.plus(*term).plus(*term),
                is_recalled: false,
                is_before_reset: false,
            };
            let of_descriptor = descriptors.entry(key.token).or_insert_with(|| {
                sweep.push_back(key.token);
                OfDescriptor::default()
            });
            of_descriptor.granted_until = of_descriptor.granted_until.max(now.plus(*term));
            of_descriptor.entries.push(entry);
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

    /// Whether it has any entry; without one a refund need not look.
    pub(super) fn holds_any(&self) -> bool {
        self.entries.load(Ordering::Relaxed) > 0
    }

    /// How many nodes hold grants of this key.
    pub(super) fn holders(&self, key: KeyHash) -> u32 {
        let mut shard = self.shard(key.token).lock();
        let entries = entries_of(&mut shard, key.token).filter(|entry| entry.is_of(key.tag));
        let holders: BTreeSet<NodeId> = entries.map(|entry| entry.holder.node.clone()).collect();
        u32::try_from(holders.len()).unwrap_or(u32::MAX)
    }

    /// When nothing of what is granted of the descriptor of this key now is outstanding any more,
    /// unless it is given back before.
    pub(super) fn outstanding_until(&self, key: KeyHash) -> Timestamp {
        let mut shard = self.shard(key.token).lock();
        let ends = entries_of(&mut shard, key.token).map(|entry| entry.kept_until);
        ends.max().unwrap_or(Timestamp::EPOCH)
    }

    /// The holder gives `unspent` hits of a grant back. `settle` takes them off the counters, those
    /// that were charged, and returns how many it took of each.
    pub(super) fn give_back(
        &self,
        counters: &[Counter],
        holder: &Holder,
        id: u64,
        unspent: u32,
        settle: impl FnOnce(Returned<'_>) -> GivenBack,
    ) -> TakenBack {
        let nothing = TakenBack::default();
        let Some(token) = counters.first().map(|counter| counter.key.token) else { return nothing };
        let mut shard = self.shard(token).lock();
        let Some(of_descriptor) = shard.descriptors.get_mut(&token) else { return nothing };
        let tags = || counters.iter().map(|counter| counter.key.tag);
        let is_it = |entry: &Entry| {
            entry.id == id
                && entry.holder == *holder
                && entry.counters.iter().map(|counter| counter.tag).eq(tags())
        };
        let Some(at) = of_descriptor.entries.iter().position(is_it) else { return nothing };
        let entry = of_descriptor.entries.remove(at);
        self.entries.fetch_sub(1, Ordering::Relaxed);
        note_spent_before_reset(&mut of_descriptor.spent_before_reset, &entry, unspent);
        let marks: SmallVec<[Mark; 1]> = entry.counters.iter().map(|it| it.mark).collect();
        let awaited = entry.counters.iter().filter(|it| it.is_awaited);
        let awaited: SmallVec<[KeyHash; 1]> =
            awaited.map(|it| KeyHash { token, tag: it.tag }).collect();
        let taken = settle(Returned {
            marks: &marks,
            granted_until: of_descriptor.granted_until,
            hits: unspent.min(entry.hits),
            awaited: &awaited,
        });
        for (counter, taken) in counters.iter().zip(&taken) {
            of_descriptor.lower_marks(counter, *taken, at);
        }
        let hits = taken.into_iter().max().unwrap_or(0);
        let ends_refusals = hits > 0 && std::mem::take(&mut of_descriptor.is_refused);
        TakenBack { hits, ends_refusals }
    }

    /// Hits of this counter that were spent of grants before a reset, of those that are accounted
    /// for since the last call. A grant that has ended and was not given back was spent.
    pub(super) fn take_spent_before_reset(&self, key: KeyHash, now: Timestamp) -> u64 {
        let mut shard = self.shard(key.token).lock();
        let Some(of_descriptor) = shard.descriptors.get_mut(&key.token) else { return 0 };
        self.entries.fetch_sub(of_descriptor.remove_ended(now), Ordering::Relaxed);
        of_descriptor.spent_before_reset.remove(&key.tag).unwrap_or(0)
    }

    /// Forgets all grants of this key: they stay charged.
    pub(super) fn forget(&self, key: KeyHash) {
        let mut shard = self.shard(key.token).lock();
        let Some(of_descriptor) = shard.descriptors.get_mut(&key.token) else { return };
        let before = of_descriptor.entries.len();
        of_descriptor.entries.retain(|entry| !entry.is_of(key.tag));
        self.entries.fetch_sub(before - of_descriptor.entries.len(), Ordering::Relaxed);
    }

    /// The holders, but for `except`, of grants of this descriptor that have not been recalled yet,
    /// with the keys of these; they are from now on. The second result is whether any other node
    /// holds a grant.
    pub(super) fn recall(
        &self,
        KeyHash { token, .. }: KeyHash,
        except: Option<&Holder>,
        now: Timestamp,
    ) -> (SmallVec<[(NodeId, KeyHash); 4]>, bool) {
        let (mut holders, mut are_held) = (SmallVec::new(), false);
        if !self.holds_any() {
            return (holders, are_held);
        }
        let mut shard = self.shard(token).lock();
        let others = entries_of(&mut shard, token).filter(|entry| Some(&entry.holder) != except);
        for entry in others.filter(|entry| entry.kept_until > now) {
            are_held = true;
            let Some(first) = entry.counters.first() else { continue };
            let holder = (entry.holder.node.clone(), KeyHash { token, tag: first.tag });
            if !std::mem::replace(&mut entry.is_recalled, true) && !holders.contains(&holder) {
                holders.push(holder);
            }
        }
        (holders, are_held)
    }

    /// Removes what has ended from some descriptors.
    fn sweep(&self, shard: &mut Shard, now: Timestamp) {
        for _ in 0..SWEEP_DESCRIPTORS {
            let Some(token) = shard.sweep.pop_front() else { return };
            let Some(of_descriptor) = shard.descriptors.get_mut(&token) else { continue };
            self.entries.fetch_sub(of_descriptor.remove_ended(now), Ordering::Relaxed);
            if of_descriptor.entries.is_empty() && of_descriptor.spent_before_reset.is_empty() {
                shard.descriptors.remove(&token);
            } else {
                shard.sweep.push_back(token);
            }
        }
    }

    fn shard(&self, token: u64) -> &Mutex<Shard> {
        let at = token % self.shards.len() as u64;
        &self.shards[usize::try_from(at).unwrap_or(0)]
    }
}

fn entries_of(shard: &mut Shard, token: u64) -> impl Iterator<Item = &mut Entry> {
    shard.descriptors.get_mut(&token).into_iter().flat_map(|it| &mut it.entries)
}

/// Notes what was spent of an entry that is removed. Limits that are reset have one counter.
fn note_spent_before_reset(noted: &mut BTreeMap<u64, u64>, entry: &Entry, unspent: u32) {
    let spent = entry.spent_before_reset(unspent);
    if let Some(counter) = entry.counters.first().filter(|_| spent > 0) {
        *noted.entry(counter.tag).or_default() += spent;
    }
}

impl Entry {
    fn counter(&self, tag: u64) -> Option<&OfCounter> {
        self.counters.iter().find(|counter| counter.tag == tag)
    }

    fn counter_mut(&mut self, tag: u64) -> Option<&mut OfCounter> {
        self.counters.iter_mut().find(|counter| counter.tag == tag)
    }

    fn is_of(&self, tag: u64) -> bool {
        self.counter(tag).is_some()
    }

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

// === impl OfDescriptor ===

impl OfDescriptor {
    /// Returns how many entries it removed.
    fn remove_ended(&mut self, now: Timestamp) -> usize {
        let Self { entries, spent_before_reset, .. } = self;
        let before = entries.len();
        entries.retain(|entry| {
            let is_kept = entry.kept_until > now;
            if !is_kept {
                note_spent_before_reset(spent_before_reset, entry, 0);
            }
            is_kept
        });
        before - entries.len()
    }

    fn beside(&self, counters: &[Counter], now: Timestamp) -> Beside {
        let mut beside = Beside::default();
        for Counter { key, quota } in counters {
            let (mut hits, mut unawaited) = (0, 0);
            for entry in &self.entries {
                let open = entry.counter(key.tag).filter(|it| it.mark.is_open(quota, now));
                let Some(counter) = open else { continue };
                hits += u64::from(entry.hits);
                unawaited += if counter.is_awaited { 0 } else { u64::from(entry.hits) };
            }
            beside.outstanding.push(Outstanding { hits, until: self.granted_until });
            beside.unawaited.push(unawaited);
        }
        if let Some(tag) = counters.first().map(|counter| counter.key.tag) {
            beside.spent_before_reset = self.spent_before_reset.get(&tag).copied().unwrap_or(0);
            let of_tag = self.entries.iter().filter(|entry| entry.is_of(tag));
            let unknown: u64 = of_tag.map(|entry| entry.spent_before_reset(0)).sum();
            beside.may_be_spent_before_reset = unknown + beside.spent_before_reset;
        }
        beside
    }

    /// Hits were given back of a grant of this counter. The entries from `later` on were charged
    /// after it, and their marks have its hits in them.
    fn lower_marks(&mut self, Counter { key, quota }: &Counter, taken: u32, later: usize) {
        let later = self.entries.iter_mut().skip(later);
        for counter in later.filter_map(|entry| entry.counter_mut(key.tag)) {
            counter.mark.lower(quota, taken);
        }
    }

    /// A reset of a counter takes what an earlier one was going to take.
    fn note_reset(&mut self, tag: u64, reset: Reset) {
        if reset != Reset::No {
            self.spent_before_reset.remove(&tag);
        }
        if reset == Reset::BesideGrants {
            let of_tag = self.entries.iter_mut().filter(|entry| entry.is_of(tag));
            of_tag.for_each(|entry| entry.is_before_reset = true);
        }
    }

    /// A refund took hits of this counter. What is left of it, and of those that waited for what it
    /// took, waits for what is open now.
    fn refunded(&mut self, counter: &Counter, refunded: &Refunded, now: Timestamp) {
        let Counter { key, quota } = counter;
        let mut later = 0;
        for entry in self.entries.iter_mut().rev() {
            let hits = u64::from(entry.hits);
            let Some(of_counter) = entry.counter_mut(key.tag) else { continue };
            of_counter.is_awaited |=
                refunded.left + refunded.taken > 0 && of_counter.mark.is_open(quota, now);
            of_counter.mark.refunded(quota, refunded, later);
            later += hits;
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
            let mut shard = self.shard(key.token).lock();
            let entries = entries_of(&mut shard, key.token).filter(|entry| entry.is_of(key.tag));
            let view = |it: &mut Entry| {
                let Entry { holder, id, hits, counters, kept_until, is_recalled, .. } = it;
                let marks = counters.iter().map(|counter| counter.mark).collect();
                (holder.clone(), *id, *hits, marks, *kept_until, *is_recalled)
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
        ledger.give_back(&counters(), &holder(name), id, unspent, |it| smallvec![it.hits])
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
        let known = |_, known: &Beside| {
            assert_eq!(known.may_be_spent_before_reset, 4 + 10);
            Some(Charged::of(()))
        };
        assert!(ledger.enter(&counters(), None, NOW, known).is_some());
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
        let back = ledger.give_back(&both, &holder("a"), 2, 10, |_| smallvec![10, 7]);
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
