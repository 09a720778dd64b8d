//! The hits that owners have granted to this node: what a leased rule admits here without asking.
//!
//! A grant is spent by whole checks until its *end*, three quarters of its term from the moment at
//! which it was asked for. That moment is before the charge, so the end is before the owner's by
//! any clock, and the last quarter is there for the way back: what is not spent by then is given
//! back.
//!
//! ```text
//! asked ── charged ──────────────── end ─────── end by the owner's clock
//!   │◀────────── ¾ term ────────────▶│  given back
//! ```
//!
//! **When it is asked.** A grant costs what two forwarded checks cost: a replica confirms it, and
//! what is left of it is given back. So a key asks that is checked [`WORTH_CHECKS`] times within a
//! second (`recent_checks.rs`), or was since its last call; at once if two of its checks are on
//! their way together. Other keys have no entry here.
//!
//! **How much is asked for.** Four times the hits that were checked since the last call, at least
//! [`WANTED_MIN`], so that the grants of a key follow its rate within a few calls; its owner gives
//! less as the limit is used up. More is asked for, by one call at a time, when no more is left
//! than is checked during two calls at the rate since the last one: a call that leaves earlier
//! brings less. It leaves when a half is left at the earliest, and an eighth at the latest, because
//! a rate may rise.
//!
//! **Worked example.** 60 hits were checked in the 10 ms since the last call, and this one takes
//! 2 ms. With its grant 100 hits are left: the next call leaves when less than 24 are, after 13 ms.
//! Of 30 hits it leaves when less than 15 are left, and comes late.
//!
//! **Verdicts.** Limit and reset are those of the owner's last reply. `remaining` is what it had
//! left then, with what is left here: an estimate, since others spend too.
//!
//! **Refunds.** Hits that a client gives back are there again in the grants that they were spent
//! of, while these have not ended. They are spent before those that never were; what is left of
//! them at the end goes to the owner as what it is, a refund: the owner may have taken the same
//! hits for a refund of another client already, and then takes those that this one meant.
//!
//! **Bound.** [`KEYS_MAX`] keys; at the bound nothing is asked for, and checks of other keys ask
//! their owners.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::quota::Algorithm;
use tidegate_limiter::store::{Counter, KeyHash, Verdicts};
use tidegate_limiter::units::{Hits, Monotonic, Span, Timestamp};
use tidegate_rules::stats::{GrantedHits, RuleStats};

use super::grant_ledger::Holder;
use super::limits::Limits;
use super::recent_checks::RecentChecks;

/// Keys with grants or with a call for one.
const KEYS_MAX: usize = 65_536;
const SHARDS: usize = 64;
/// Hits that are asked for, for each that was checked since the last call.
const WANTED_PER_CHECKED: u32 = 4;
/// The fewest hits that are asked for.
const WANTED_MIN: u32 = 4;
/// A key of which nothing is held is forgotten when it was not used for so long.
const IDLE: Span = Span::from_secs(1);
/// A key that is checked as often while nothing of it is held asks for hits.
const WORTH_CHECKS: u32 = 5;
/// The same of the share of another region, whose checks wait for long.
const WORTH_FAR_CHECKS: u32 = 2;

#[derive(Debug)]
pub(super) struct HeldGrants {
    shards: Box<[Mutex<Shard>]>,
    keys: AtomicUsize,
    /// Of keys that are not in `shards`.
    recent: RecentChecks,
    /// This node leaves: it asks for nothing, and what still comes is taken by the next
    /// [`HeldGrants::leave`].
    is_leaving: AtomicBool,
    /// Of all rules since the start, also of those that are gone.
    pub(super) hits: GrantedHits,
}

#[derive(Clone, Debug, Default)]
struct Shard {
    held: BTreeMap<KeyHash, Held>,
    /// When to look at a key; those that are not [`Held::due`] any more are skipped.
    due: BinaryHeap<Reverse<(Monotonic, KeyHash)>>,
}

/// The grants of one key.
#[derive(Clone, Debug)]
struct Held {
    limits: Limits,
    /// The oldest first.
    grants: SmallVec<[Grant; 2]>,
    /// Hits checked since the last call.
    checked: u32,
    /// Checks since the last call, or since [`IDLE`] began with nothing held.
    checks: u32,
    /// When the last call left.
    asked_at: Monotonic,
    /// Hits checked between the last two calls, and the time between them.
    pace: (u32, Span),
    /// Ask for more when less is left.
    low: u32,
    is_asking: bool,
    /// What calls bring that left before is given back: the limit was reset then, or what was held
    /// was recalled for another node.
    empty_at: Monotonic,
    /// Of a share of another region: what the next call asks for, whatever was checked.
    ahead: u32,
    /// Since it was looked at.
    is_used: bool,
    /// When it is looked at.
    due: Monotonic,
    /// The verdicts of the owner's last reply, at which time, with what it had granted in it.
    last: Verdicts,
    last_at: Timestamp,
    last_granted: u32,
}

#[derive(Clone, Debug)]
struct Grant {
    /// Who granted it, and under which number.
    owner: Holder,
    id: u64,
    left: u32,
    /// Of these, what was spent and refunded.
    refunded: u32,
    /// What was spent of it, and not refunded.
    spent: u32,
    ends: Monotonic,
}

/// A grant that arrived.
#[derive(Debug)]
pub(super) struct NewGrant {
    pub(super) owner: Holder,
    pub(super) id: u64,
    pub(super) hits: u32,
    pub(super) term: Span,
    /// When the call left.
    pub(super) asked: Monotonic,
}

/// What is to be given back.
#[derive(Debug)]
pub(super) struct Unspent {
    pub(super) limits: Limits,
    pub(super) owner: Holder,
    pub(super) id: u64,
    pub(super) hits: u32,
    /// Hits beside these that were spent, and that clients gave back.
    pub(super) refunded: u32,
    /// From then on another window is counted, which the refund is not to be taken off.
    pub(super) refunded_until: Timestamp,
}

impl Unspent {
    /// Of a grant of which nothing was given back.
    pub(super) fn of_grant(limits: Limits, owner: Holder, id: u64, hits: u32) -> Self {
        Self { limits, owner, id, hits, refunded: 0, refunded_until: Timestamp::NEVER }
    }
}

/// A check that granted hits admit.
#[derive(Debug)]
pub(super) struct Spent {
    pub(super) verdicts: Verdicts,
    /// Hits that are left here.
    pub(super) left: u32,
    /// Ask the owner for more; then call [`HeldGrants::asked`].
    pub(super) asks: bool,
}

impl HeldGrants {
    /// Admits `hits` from what is held, if it is enough.
    pub(super) fn spend(
        &self,
        limits: &Limits,
        hits: Hits,
        now: Timestamp,
        monotonic: Monotonic,
    ) -> Option<Spent> {
        self.spend_of(limits, hits, true, now, monotonic)
    }

    /// As [`HeldGrants::spend`], of a share of another region, for which
    /// [`HeldGrants::ask_ahead`] says when to ask.
    pub(super) fn spend_ahead(
        &self,
        limits: &Limits,
        hits: Hits,
        now: Timestamp,
        monotonic: Monotonic,
    ) -> Option<Spent> {
        self.spend_of(limits, hits, false, now, monotonic)
    }

    fn spend_of(
        &self,
        limits: &Limits,
        hits: Hits,
        may_ask: bool,
        now: Timestamp,
        monotonic: Monotonic,
    ) -> Option<Spent> {
        let key = limits.key()?;
        let charge = u32::try_from(hits.charge()).ok().filter(|charge| *charge > 0)?;
        let mut shard = self.shard(key).lock();
        let Some(held) = shard.held.get_mut(&key) else {
            self.recent.count(key, charge, monotonic);
            return None;
        };
        held.checked = held.checked.saturating_add(charge);
        held.checks = held.checks.saturating_add(1);
        held.is_used = true;
        // Other limits have come with a reload of the rules.
        if held.limits != *limits || held.left(monotonic) < charge {
            return None;
        }
        let mut open = charge;
        for grant in held.grants.iter_mut().filter(|grant| grant.ends > monotonic) {
            let taken = open.min(grant.left);
            grant.left -= taken;
            grant.refunded -= taken.min(grant.refunded);
            grant.spent += taken;
            open -= taken;
        }
        self.count(limits, |hits| &hits.spent, charge);
        let left = held.left(monotonic);
        let asks = may_ask && left < held.low && !std::mem::replace(&mut held.is_asking, true);
        let verdicts = held.verdicts(left, now);
        Some(Spent { verdicts, left, asks })
    }

    /// Puts what a client gives back into the grants that it was spent of. Returns the hits that
    /// were spent of none that is still held, with the verdicts of those that were; `None` if there
    /// are none of these.
    pub(super) fn refund(
        &self,
        limits: &Limits,
        hits: Hits,
        now: Timestamp,
        monotonic: Monotonic,
    ) -> Option<(Verdicts, Hits)> {
        if self.keys.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut shard = self.shard(limits.key()?).lock();
        let held = shard.held.get_mut(&limits.key()?).filter(|held| held.limits == *limits)?;
        let mut open = hits.refund();
        let mut refunded = 0;
        for grant in held.grants.iter_mut().filter(|grant| grant.ends > monotonic) {
            let back = u32::try_from(open).unwrap_or(u32::MAX).min(grant.spent);
            grant.spent -= back;
            grant.left += back;
            grant.refunded += back;
            open -= u64::from(back);
            refunded += back;
        }
        if refunded == 0 {
            return None;
        }
        self.count(limits, |hits| &hits.refunded, refunded);
        let verdicts = held.verdicts(held.left(monotonic), now);
        Some((verdicts, Hits::new(hits.get().saturating_add(i64::from(refunded)))))
    }

    /// Hits of this key that may be spent now, and whether a call for more is on its way.
    pub(super) fn outlook(&self, limits: &Limits, monotonic: Monotonic) -> (u32, bool) {
        let Some(key) = limits.key() else { return (0, false) };
        let shard = self.shard(key).lock();
        let held = shard.held.get(&key).filter(|held| held.limits == *limits);
        held.map_or((0, false), |held| (held.left(monotonic), held.is_asking))
    }

    /// Whether the last reply to a call for this key brought a grant.
    pub(super) fn has_brought(&self, limits: &Limits) -> bool {
        let Some(key) = limits.key() else { return false };
        self.shard(key).lock().held.get(&key).is_some_and(|held| held.last_granted > 0)
    }

    /// Has the next call for this key ask for so many hits beside those that are held. Returns
    /// whether to send it now: none is on its way, and there is room.
    pub(super) fn ask_ahead(&self, limits: &Limits, hits: u32, monotonic: Monotonic) -> bool {
        let Some(key) = limits.key() else { return false };
        let mut shard = self.shard(key).lock();
        let Some(held) = self.enter(&mut shard, key, limits, monotonic) else { return false };
        held.ahead = hits;
        !std::mem::replace(&mut held.is_asking, true)
    }

    /// Whether a check of this key that is not admitted here asks for hits: the key is checked so
    /// often that a grant is worth its cost, or something is held of it.
    pub(super) fn is_in_use(&self, limits: &Limits, monotonic: Monotonic) -> bool {
        let Some(key) = limits.key() else { return false };
        if let Some(held) = self.shard(key).lock().held.get(&key) {
            let is_worth = limits.is_share || held.checks >= WORTH_CHECKS;
            return is_worth || !held.grants.is_empty();
        }
        let worth = if limits.is_share { WORTH_FAR_CHECKS } else { WORTH_CHECKS };
        self.recent.of(key, monotonic).checks >= worth
    }

    /// Whether no call for this key asks for more, and there is room for one.
    pub(super) fn may_ask(&self, limits: &Limits) -> bool {
        let Some(key) = limits.key() else { return false };
        if self.is_leaving.load(Ordering::Relaxed) {
            return false;
        }
        match self.shard(key).lock().held.get(&key) {
            Some(held) => held.limits == *limits && !held.is_asking,
            None => self.keys.load(Ordering::Relaxed) < KEYS_MAX,
        }
    }

    /// A call for this key leaves: what it asks for, as (wanted, held); `None` at the bound, and
    /// when this node leaves.
    pub(super) fn ask(
        &self,
        limits: &Limits,
        waiting: u32,
        monotonic: Monotonic,
    ) -> Option<(u32, u32)> {
        let key = limits.key()?;
        let mut shard = self.shard(key).lock();
        let Some(held) = self.enter(&mut shard, key, limits, monotonic) else {
            // The call leaves without.
            shard.held.get_mut(&key).into_iter().for_each(|held| held.is_asking = false);
            return None;
        };
        (held.is_asking, held.is_used, held.checks) = (true, true, 0);
        let checked = std::mem::take(&mut held.checked).max(waiting);
        held.pace = (checked, monotonic.since(held.asked_at));
        held.asked_at = monotonic;
        let ahead = std::mem::take(&mut held.ahead);
        if ahead > 0 {
            return Some((ahead.saturating_add(waiting), 0));
        }
        let left = if held.limits == *limits { held.left(monotonic) } else { 0 };
        Some((checked.saturating_mul(WANTED_PER_CHECKED).max(WANTED_MIN), left))
    }

    /// The call for this key has ended, with these verdicts of its last check and a grant, if there
    /// was one. Returns what cannot be spent any more.
    pub(super) fn asked(
        &self,
        limits: &Limits,
        last: Option<&[Verdict]>,
        grant: Option<NewGrant>,
        now: Timestamp,
        monotonic: Monotonic,
    ) -> SmallVec<[Unspent; 2]> {
        let mut unspent = SmallVec::new();
        let Some(key) = limits.key() else { return unspent };
        let granted = grant.as_ref().map_or(0, |grant| grant.hits);
        self.count(limits, |hits| &hits.received, granted);
        let mut shard = self.shard(key).lock();
        let Shard { held, due } = &mut *shard;
        let Some(held) = held.get_mut(&key) else {
            // It was forgotten meanwhile.
            if let Some(NewGrant { owner, id, hits, .. }) = grant {
                self.count(limits, |hits| &hits.late, hits);
                unspent.push(Unspent::of_grant(limits.clone(), owner, id, hits));
            }
            return unspent;
        };
        held.is_asking = false;
        if held.limits != *limits {
            unspent.extend(held.take());
            self.count_all(&unspent, |hits| &hits.given_back);
            held.limits = limits.clone();
            held.last = Verdicts::new();
        }
        if let Some(last) = last {
            held.last = last.into();
            held.last_at = now;
            held.last_granted = granted;
        }
        let Some(NewGrant { owner, id, hits, term, asked }) = grant else {
            held.low = 0;
            return unspent;
        };
        let until = asked.plus(Span::from_nanos(term.as_nanos() / 4 * 3));
        let is_unwanted = asked < held.empty_at;
        if is_unwanted || until <= monotonic && !self.is_leaving.load(Ordering::Relaxed) {
            self.count(limits, |hits| &hits.late, hits);
            unspent.push(Unspent::of_grant(limits.clone(), owner, id, hits));
            return unspent;
        }
        held.grants.push(Grant { owner, id, left: hits, refunded: 0, spent: 0, ends: until });
        held.low = held.low_after(monotonic.since(asked), monotonic);
        held.look_at(key, until, due);
        unspent
    }

    /// Takes what has ended, of all keys; and forgets keys of which nothing is held.
    pub(super) fn ended(&self, monotonic: Monotonic) -> Vec<Unspent> {
        let mut unspent = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let Shard { held, due } = &mut *shard;
            while let Some(&Reverse((at, key))) = due.peek()
                && at <= monotonic
            {
                due.pop();
                let Some(of_key) = held.get_mut(&key).filter(|it| it.due == at) else { continue };
                of_key.due = Monotonic::NEVER;
                let held_nothing = of_key.grants.is_empty();
                unspent.extend(of_key.take_ended(monotonic));
                if let Some(next) = of_key.grants.iter().map(|grant| grant.ends).min() {
                    of_key.look_at(key, next, due);
                } else if std::mem::take(&mut of_key.is_used) {
                    if held_nothing {
                        of_key.checks = 0;
                    }
                    of_key.look_at(key, monotonic.plus(IDLE), due);
                } else {
                    held.remove(&key);
                    self.keys.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        self.count_all(&unspent, |hits| &hits.given_back);
        unspent
    }

    /// Takes all that is held of this key, and has given back what calls bring that are on their
    /// way: their grants are recalled no second time.
    pub(super) fn recalled(&self, key: KeyHash, monotonic: Monotonic) -> SmallVec<[Unspent; 2]> {
        let mut shard = self.shard(key).lock();
        if let Some(held) = shard.held.get_mut(&key) {
            held.empty_at = monotonic;
        }
        self.take_recalled(&mut shard, key)
    }

    /// Takes all that is held of this key: it was too little for a check of this node.
    pub(super) fn too_few(&self, key: KeyHash) -> SmallVec<[Unspent; 2]> {
        self.take_recalled(&mut self.shard(key).lock(), key)
    }

    fn take_recalled(&self, shard: &mut Shard, key: KeyHash) -> SmallVec<[Unspent; 2]> {
        let unspent: SmallVec<[Unspent; 2]> =
            shard.held.get_mut(&key).map(|held| held.take().collect()).unwrap_or_default();
        self.count_all(&unspent, |hits| &hits.recalled);
        unspent
    }

    /// The limit of this key was reset by now: takes all that is held of it, and has given back
    /// what calls bring that are on their way.
    pub(super) fn reset(&self, key: KeyHash, monotonic: Monotonic) -> SmallVec<[Unspent; 2]> {
        if self.keys.load(Ordering::Relaxed) == 0 {
            return SmallVec::new();
        }
        let mut shard = self.shard(key).lock();
        let Some(held) = shard.held.get_mut(&key) else { return SmallVec::new() };
        held.empty_at = monotonic;
        let unspent = held.take().collect::<SmallVec<[Unspent; 2]>>();
        self.count_all(&unspent, |hits| &hits.given_back);
        unspent
    }

    /// Whether a call is on its way that may bring hits.
    pub(super) fn is_asking(&self) -> bool {
        let asks = |shard: &Mutex<Shard>| shard.lock().held.values().any(|held| held.is_asking);
        self.shards.iter().any(asks)
    }

    /// Takes all that is held, as this node leaves.
    pub(super) fn leave(&self) -> Vec<Unspent> {
        // Read under the lock of a shard: what is entered before is taken below.
        self.is_leaving.store(true, Ordering::Relaxed);
        let mut unspent = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            unspent
                .extend(shard.held.values_mut().flat_map(|held| held.take().collect::<Vec<_>>()));
        }
        self.count_all(&unspent, |hits| &hits.given_back);
        unspent
    }

    /// The entry of this key; `None` at the bound, and when this node leaves.
    fn enter<'a>(
        &self,
        Shard { held, due }: &'a mut Shard,
        key: KeyHash,
        limits: &Limits,
        monotonic: Monotonic,
    ) -> Option<&'a mut Held> {
        if self.is_leaving.load(Ordering::Relaxed) {
            return None;
        }
        let held = match held.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if self.keys.load(Ordering::Relaxed) >= KEYS_MAX => return None,
            Entry::Vacant(new) => {
                self.keys.fetch_add(1, Ordering::Relaxed);
                new.insert(Held {
                    checked: self.recent.of(key, monotonic).hits,
                    ..Held::new(limits)
                })
            }
        };
        held.look_at(key, monotonic.plus(IDLE), due);
        Some(held)
    }

    /// Counts granted hits by what becomes of them, for this node and for their rule.
    fn count(&self, limits: &Limits, fate: impl Fn(&GrantedHits) -> &AtomicU64, hits: u32) {
        let of_rule = limits.leased.as_ref().map(|stats| &stats.grants);
        for counts in [Some(&self.hits), of_rule].into_iter().flatten() {
            RuleStats::add(fate(counts), u64::from(hits));
        }
    }

    fn count_all(&self, unspent: &[Unspent], fate: impl Fn(&GrantedHits) -> &AtomicU64) {
        for Unspent { limits, hits, refunded, .. } in unspent {
            self.count(limits, &fate, hits + refunded);
        }
    }

    /// Whether no key has anything to be looked at.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.load(Ordering::Relaxed) == 0
    }

    /// Hits that are held now.
    pub(super) fn held(&self) -> u64 {
        let of_shard = |shard: &Mutex<Shard>| -> u64 {
            let shard = shard.lock();
            shard.held.values().flat_map(|held| &held.grants).map(|it| u64::from(it.left)).sum()
        };
        self.shards.iter().map(of_shard).sum()
    }

    fn shard(&self, key: KeyHash) -> &Mutex<Shard> {
        let at = key.token % self.shards.len() as u64;
        &self.shards[usize::try_from(at).unwrap_or(0)]
    }
}

impl Default for HeldGrants {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self {
            shards,
            keys: AtomicUsize::new(0),
            recent: RecentChecks::default(),
            is_leaving: AtomicBool::new(false),
            hits: GrantedHits::default(),
        }
    }
}

// === impl Held ===

impl Held {
    fn new(limits: &Limits) -> Self {
        Self {
            limits: limits.clone(),
            grants: SmallVec::new(),
            checked: 0,
            checks: 0,
            asked_at: Monotonic::NEVER,
            pace: (0, Span::ZERO),
            low: 0,
            is_asking: false,
            empty_at: Monotonic::START,
            ahead: 0,
            is_used: false,
            due: Monotonic::NEVER,
            last: Verdicts::new(),
            last_at: Timestamp::EPOCH,
            last_granted: 0,
        }
    }

    /// Hits that may be spent now.
    fn left(&self, monotonic: Monotonic) -> u32 {
        let open = self.grants.iter().filter(|grant| grant.ends > monotonic);
        open.map(|grant| grant.left).fold(0, u32::saturating_add)
    }

    /// Ask for more when less is left, after a call that took so long.
    fn low_after(&self, took: Span, monotonic: Monotonic) -> u32 {
        let left = self.left(monotonic);
        let (checked, within) = self.pace;
        let during_two = u64::from(checked).saturating_mul(took.as_nanos().saturating_mul(2));
        // Of the first call nothing is known.
        let needed = during_two.checked_div(within.as_nanos()).unwrap_or(u64::MAX);
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        needed.clamp(left.div_ceil(8), left.div_ceil(2))
    }

    /// The verdicts of a check that was admitted, after which `left` hits are left here.
    fn verdicts(&self, left: u32, now: Timestamp) -> Verdicts {
        let passed = now.since(self.last_at).as_nanos();
        let verdict = |last: &Verdict| Verdict {
            allowed: true,
            remaining: last.remaining.saturating_sub(self.last_granted).saturating_add(left),
            reset: Span::from_nanos(last.reset.as_nanos().saturating_sub(passed)),
            retry: Retry::Now,
            delay: Span::ZERO,
            excess: 0,
            ..*last
        };
        self.last.iter().map(verdict).collect()
    }

    /// Has the key looked at then, or before.
    fn look_at(
        &mut self,
        key: KeyHash,
        at: Monotonic,
        due: &mut BinaryHeap<Reverse<(Monotonic, KeyHash)>>,
    ) {
        if at < self.due {
            self.due = at;
            due.push(Reverse((at, key)));
        }
    }

    /// Takes all grants.
    fn take(&mut self) -> impl Iterator<Item = Unspent> {
        let (limits, refunded_until) = (self.limits.clone(), self.window_ends());
        std::mem::take(&mut self.grants).into_iter().filter(|grant| grant.left > 0).map(
            move |Grant { owner, id, left, refunded, .. }| Unspent {
                limits: limits.clone(),
                owner,
                id,
                hits: left - refunded,
                refunded,
                refunded_until,
            },
        )
    }

    /// When the first of the windows ends that the owner's last reply was about.
    fn window_ends(&self) -> Timestamp {
        let of_window = |(counter, last): (&Counter, &Verdict)| {
            let ends = self.last_at.plus(last.reset);
            matches!(counter.quota.algorithm(), Algorithm::FixedWindow | Algorithm::FirstHitWindow)
                .then_some(ends)
        };
        let of_each = self.limits.counters.iter().zip(&self.last).filter_map(of_window);
        of_each.min().unwrap_or(Timestamp::NEVER)
    }

    fn take_ended(&mut self, monotonic: Monotonic) -> SmallVec<[Unspent; 2]> {
        let (open, ended) = self.grants.drain(..).partition(|grant| grant.ends > monotonic);
        self.grants = ended;
        let unspent = self.take().collect();
        self.grants = open;
        unspent
    }
}

/// For the model of grants, which goes on from one state in several ways.
#[cfg(test)]
mod for_model {
    use super::*;

    /// The grants of a key and what decides when more is asked for.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub(in crate::decide) struct HeldView {
        /// Who granted it, under which number, what is left, until when, what was spent, and what
        /// of that was refunded.
        pub(in crate::decide) grants: Vec<(Holder, u64, u32, Monotonic, u32, u32)>,
        checked: u32,
        pace: (u32, Span),
        low: u32,
        is_asking: bool,
        is_used: bool,
        due: Option<Monotonic>,
        /// The limit of its rule.
        pub(in crate::decide) limit: u32,
    }

    impl Clone for HeldGrants {
        fn clone(&self) -> Self {
            let copied = |counter: &AtomicU64| AtomicU64::new(counter.load(Ordering::Relaxed));
            let GrantedHits { received, refunded, spent, given_back, recalled, late } = &self.hits;
            let [received, refunded, spent, given_back, recalled, late] =
                [received, refunded, spent, given_back, recalled, late].map(copied);
            Self {
                shards: self.shards.iter().map(|shard| Mutex::new(shard.lock().clone())).collect(),
                keys: AtomicUsize::new(self.keys.load(Ordering::Relaxed)),
                // The model asks with each check.
                recent: RecentChecks::default(),
                is_leaving: AtomicBool::new(self.is_leaving.load(Ordering::Relaxed)),
                hits: GrantedHits { received, refunded, spent, given_back, recalled, late },
            }
        }
    }

    impl HeldGrants {
        /// A small one, of which the model has one for each state.
        pub(in crate::decide) fn of_one_shard() -> Self {
            Self { shards: Box::new([Mutex::default()]), ..Self::default() }
        }

        pub(in crate::decide) fn view(&self, key: KeyHash) -> HeldView {
            let shard = self.shard(key).lock();
            let Some(held) = shard.held.get(&key) else { return HeldView::default() };
            let grant =
                |it: &Grant| (it.owner.clone(), it.id, it.left, it.ends, it.spent, it.refunded);
            HeldView {
                grants: held.grants.iter().map(grant).collect(),
                checked: held.checked,
                pace: held.pace,
                low: held.low,
                is_asking: held.is_asking,
                is_used: held.is_used,
                due: Some(held.due),
                limit: held.limits.counters.first().map_or(0, |counter| counter.quota.limit()),
            }
        }
    }
}
#[cfg(test)]
pub(super) use for_model::HeldView;

#[cfg(test)]
mod tests {
    use tidegate_limiter::policy::{Durability, Scope};
    use tidegate_limiter::quota::{Algorithm, Quota};
    use tidegate_limiter::store::Counter;
    use tidegate_ownership::identity::{Generation, NodeId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn limits(limit: u32) -> Limits {
        let quota = Quota::simple(Algorithm::FixedWindow, limit, Span::from_secs(60));
        let key = KeyHash { token: 7, tag: 8 };
        let counters = [Counter { key, quota: quota.expect("valid") }].into_iter().collect();
        let leased = None;
        let (scope, durability) = (Scope::Region, Durability::Async);
        Limits { scope, durability, leased, is_share: false, counters }
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::START.plus(Span::from_millis(ms))
    }

    /// The owner had 50 left, of which it granted 16 for a second, asked for at `ms`.
    fn granted(held: &HeldGrants, id: u64, ms: u64) {
        granted_after(held, id, ms, 0);
    }

    /// The same, by a call that took so many ms.
    fn granted_after(held: &HeldGrants, id: u64, ms: u64, took: u64) {
        held.ask(&limits(100), 1, at(ms));
        assert_eq!(answered(held, id, ms, took), []);
    }

    /// That call is answered. Returns what cannot be spent.
    fn answered(held: &HeldGrants, id: u64, ms: u64, took: u64) -> Vec<(u64, u32)> {
        let node = NodeId::new("owner").expect("a valid id");
        let owner = Holder { node, generation: Generation(1) };
        let grant = NewGrant { owner, id, hits: 16, term: Span::from_secs(1), asked: at(ms) };
        let last = Verdict {
            allowed: true,
            limit: 100,
            remaining: 50,
            reset: Span::from_secs(30),
            retry: Retry::Now,
            delay: Span::ZERO,
            excess: 0,
        };
        let now = at(ms + took);
        hits(held.asked(&limits(100), Some(&[last]), Some(grant), NOW, now))
    }

    fn spend(held: &HeldGrants, hits: i64, ms: u64) -> Option<Spent> {
        held.spend(&limits(100), Hits::new(hits), NOW.plus(Span::from_millis(ms)), at(ms))
    }

    fn hits(unspent: impl IntoIterator<Item = Unspent>) -> Vec<(u64, u32)> {
        unspent.into_iter().map(|it| (it.id, it.hits)).collect()
    }

    #[test]
    fn what_was_granted_is_spent_by_whole_checks_and_no_more() {
        let held = HeldGrants::default();
        assert!(spend(&held, 1, 0).is_none());
        granted(&held, 1, 0);
        let verdicts = spend(&held, 10, 500).expect("granted").verdicts;
        assert_eq!((verdicts[0].allowed, verdicts[0].remaining), (true, 50 - 10));
        assert_eq!(verdicts[0].reset, Span::from_millis(29_500));
        assert!(spend(&held, 7, 500).is_none(), "six are left");
        assert!(spend(&held, 6, 500).is_some());
        assert!(spend(&held, 1, 500).is_none());
    }

    #[test]
    fn nothing_that_was_asked_for_before_a_reset_is_spent_after_it() {
        let held = HeldGrants::default();
        let key = limits(100).key().expect("a key");
        assert_eq!(hits(held.reset(key, at(0))), []);
        granted(&held, 1, 0);
        assert!(spend(&held, 5, 10).is_some());
        held.ask(&limits(100), 1, at(20));
        assert_eq!(hits(held.reset(key, at(30))), [(1, 11)]);
        assert_eq!(answered(&held, 2, 20, 15), [(2, 16)]);
        assert!(spend(&held, 1, 40).is_none());
        granted(&held, 3, 40);
        assert!(spend(&held, 1, 50).is_some());
    }

    #[test]
    fn more_is_asked_for_as_late_as_two_calls_allow() {
        for (ms, took, last_without) in [(100, 10, 12), (100, 1, 13), (20, 10, 8)] {
            let held = HeldGrants::default();
            granted(&held, 1, 0);
            assert!(spend(&held, 16, 1).is_some());
            granted_after(&held, 2, ms, took);
            let now = ms + took;
            // 16 hits in `ms`: during two calls 3, none, and 16.
            assert!(spend(&held, last_without, now).is_some_and(|spent| !spent.asks), "{ms}");
            assert!(spend(&held, 2, now).is_some_and(|spent| spent.asks), "{ms}");
        }
    }

    #[test]
    fn the_fifth_check_within_a_second_asks() {
        let held = HeldGrants::default();
        let asks = |ms| {
            assert!(spend(&held, 1, ms).is_none());
            held.is_in_use(&limits(100), at(ms))
        };
        assert_eq!([0, 1, 2, 400, 999].map(asks), [false, false, false, false, true]);
        // It was not asked: a second in which it is used less ends that.
        held.ended(at(1_000));
        assert_eq!([1_000, 1_500].map(asks), [false, false]);
        held.ended(at(2_000));
        held.ended(at(3_000));
        assert!(held.is_empty());
        assert_eq!([3_000, 3_001, 3_002].map(asks), [false, false, false]);
    }

    #[test]
    fn a_key_asks_at_once_when_its_grant_has_ended_if_that_was_worth_its_call() {
        for (spent, asks) in [(3, false), (4, true)] {
            let held = HeldGrants::default();
            granted(&held, 1, 0);
            for ms in 0..spent {
                assert!(spend(&held, 1, ms).is_some());
            }
            held.ended(at(750));
            assert!(spend(&held, 1, 800).is_none());
            assert_eq!(held.is_in_use(&limits(100), at(800)), asks, "{spent}");
        }
    }

    #[test]
    fn more_is_asked_for_once_when_less_than_half_is_left() {
        let held = HeldGrants::default();
        granted(&held, 1, 0);
        let asks = [8, 1, 1].map(|hits| spend(&held, hits, 1).expect("granted").asks);
        assert_eq!(asks, [false, true, false]);
        assert_eq!(held.ask(&limits(100), 0, at(2)), Some((40, 6)), "four times what was checked");
        granted(&held, 2, 2);
        assert!(spend(&held, 22, 3).is_some_and(|spent| spent.asks), "of both grants");
    }

    #[test]
    fn what_is_not_spent_after_three_quarters_of_its_term_is_given_back() {
        let held = HeldGrants::default();
        granted(&held, 1, 0);
        assert!(spend(&held, 3, 749).is_some());
        assert!(spend(&held, 3, 750).is_none());
        assert_eq!(hits(held.ended(at(749))), []);
        assert_eq!(hits(held.ended(at(750))), [(1, 13)]);
        assert_eq!(hits(held.ended(at(750))), []);
        assert!(!held.is_empty(), "it was used a moment ago");
        held.ended(at(1_750));
        held.ended(at(2_750));
        assert!(held.is_empty());
    }

    #[test]
    fn what_is_recalled_is_spent_no_more() {
        let held = HeldGrants::default();
        granted(&held, 1, 0);
        assert!(spend(&held, 3, 1).is_some());
        assert_eq!(hits(held.recalled(KeyHash { token: 7, tag: 8 }, at(10))), [(1, 13)]);
        assert!(spend(&held, 1, 1).is_none());
        assert_eq!((held.held(), held.hits.recalled.load(Ordering::Relaxed)), (0, 13));
    }

    /// Its owner recalls a grant once, which may overtake the reply that brings it.
    #[test]
    fn what_a_call_brings_that_left_before_a_recall_is_given_back() {
        let held = HeldGrants::default();
        let key = limits(100).key().expect("a key");
        held.ask(&limits(100), 1, at(20));
        assert_eq!(hits(held.recalled(key, at(30))), []);
        assert_eq!(answered(&held, 1, 20, 15), [(1, 16)]);
        assert!(spend(&held, 1, 40).is_none());
        granted(&held, 2, 40);
        assert!(spend(&held, 1, 50).is_some());
    }

    #[test]
    fn grants_of_another_limit_are_not_spent_and_given_back_with_the_next_reply() {
        let held = HeldGrants::default();
        granted(&held, 1, 0);
        assert!(held.spend(&limits(50), Hits::ONE, NOW, at(1)).is_none());
        assert_eq!(held.ask(&limits(50), 1, at(1)), Some((4, 0)));
        assert_eq!(hits(held.asked(&limits(50), None, None, NOW, at(2))), [(1, 16)]);
    }

    #[test]
    fn what_a_client_gives_back_is_there_again_in_the_grant_that_it_was_spent_of() {
        let held = HeldGrants::default();
        granted(&held, 1, 0);
        let refund = |hits, ms| {
            let refunded = held.refund(&limits(100), Hits::new(hits), NOW, at(ms));
            refunded.map(|(verdicts, rest)| (verdicts[0].remaining, rest.refund()))
        };
        assert_eq!(refund(-1, 1), None, "nothing was spent");
        assert!(spend(&held, 10, 1).is_some());
        assert_eq!(refund(-4, 2), Some((50 - 6, 0)));
        assert_eq!(refund(-9, 2), Some((50, 3)), "six were left to be given back");
        assert_eq!(refund(-1, 2), None);
        assert!(spend(&held, 16, 3).is_some());
        assert!(spend(&held, 1, 3).is_none());
        assert_eq!(refund(-16, 750), None, "the grant has ended");
        assert_eq!(held.hits.refunded.load(Ordering::Relaxed), 10);
    }

    /// Of 16 ten are spent, eight given back, and three spent again: six never were.
    #[test]
    fn what_clients_gave_back_is_not_what_was_never_spent() {
        let held = HeldGrants::default();
        granted(&held, 1, 0);
        assert!(spend(&held, 10, 1).is_some());
        assert!(held.refund(&limits(100), Hits::new(-8), NOW, at(2)).is_some());
        assert!(spend(&held, 3, 3).is_some());
        let unspent = held.leave();
        let [Unspent { hits: 6, refunded: 5, .. }] = &unspent[..] else { panic!("{unspent:?}") };
        assert_eq!(held.hits.given_back.load(Ordering::Relaxed), 11);
    }

    /// Late, such as by a node that stood still, they would be taken off the next.
    #[test]
    fn what_clients_gave_back_is_of_the_window_of_then() {
        let reset = Span::from_secs(7);
        let last = Verdict {
            allowed: true,
            limit: 100,
            remaining: 80,
            reset,
            retry: Retry::Now,
            delay: Span::ZERO,
            excess: 0,
        };
        let of = |algorithm| {
            let quota = Quota::simple(algorithm, 100, Span::from_secs(60)).expect("valid");
            let mut limits = limits(100);
            limits.counters[0].quota = quota;
            limits
        };
        for (algorithm, until) in [
            (Algorithm::FixedWindow, NOW.plus(reset)),
            (Algorithm::FirstHitWindow, NOW.plus(reset)),
            // The hits drain, or pass with the window that they are in.
            (Algorithm::TokenBucket, Timestamp::NEVER),
            (Algorithm::SlidingWindowCounter, Timestamp::NEVER),
        ] {
            let (held, limits) = (HeldGrants::default(), of(algorithm));
            held.ask(&limits, 1, at(0));
            let node = NodeId::new("owner").expect("a valid id");
            let owner = Holder { node, generation: Generation(1) };
            let term = Span::from_secs(1);
            let grant = NewGrant { owner, id: 1, hits: 16, term, asked: at(0) };
            held.asked(&limits, Some(&[last]), Some(grant), NOW, at(0));
            let unspent = held.leave();
            assert_eq!(unspent[0].refunded_until, until, "{algorithm:?}");
        }
    }

    #[test]
    fn a_node_that_leaves_asks_for_nothing_and_gives_back_what_still_comes() {
        let held = HeldGrants::default();
        granted(&held, 1, 0);
        held.ask(&limits(100), 1, at(1));
        assert_eq!(hits(held.leave()), [(1, 16)]);
        assert!(held.is_asking());
        let node = NodeId::new("owner").expect("a valid id");
        let owner = Holder { node, generation: Generation(1) };
        let term = Span::from_secs(1);
        let grant = NewGrant { owner, id: 2, hits: 14, term, asked: at(1) };
        let back = held.asked(&limits(100), None, Some(grant), NOW, at(3));
        assert!(back.is_empty() && !held.is_asking());
        assert_eq!((hits(held.leave()), held.held()), (vec![(2, 14)], 0));
        assert_eq!(held.ask(&limits(100), 1, at(4)), None);
        assert_eq!(held.hits.given_back.load(Ordering::Relaxed), 30);
    }

    #[test]
    fn a_grant_that_comes_after_its_end_is_given_back() {
        let held = HeldGrants::default();
        held.ask(&limits(100), 1, at(0));
        let node = NodeId::new("owner").expect("a valid id");
        let owner = Holder { node, generation: Generation(1) };
        let term = Span::from_millis(100);
        let grant = NewGrant { owner, id: 1, hits: 16, term, asked: at(0) };
        let back = held.asked(&limits(100), None, Some(grant), NOW, at(75));
        assert_eq!(hits(back), [(1, 16)]);
        assert!(spend(&held, 1, 75).is_none());
        assert_eq!(held.hits.late.load(Ordering::Relaxed), 16);
    }
}
