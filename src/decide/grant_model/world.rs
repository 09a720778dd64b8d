//! An owner, the node that follows it, and two holders of grants, as one value.
//!
//! The nodes drive the code of the product: the store, the ledger and the dedup cache of an owner,
//! and the grants of a holder. What is rebuilt here is the network and the few lines of the shell
//! between them (`owner.rs`, `forward.rs`, `leased.rs`).

#![allow(clippy::needless_pass_by_value, reason = "a message is gone when it has arrived")]

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_limiter::engine::grant::{self, Mark, Refunded, Terms};
use tidegate_limiter::engine::{State, decide, preview};
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Ask, Counter, Granted, KeyHash, Leased, OnFull, Options, Store, StoredCounter,
};
use tidegate_limiter::units::{Hits, Monotonic, Span, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId, node_actor};
use tidegate_rules::stats::RuleStats;

use super::setting::{Bounds, Rule};
use crate::decide::dedup_cache::{DedupCache, Once};
use crate::decide::grant_ledger::{Charged, EntryView, GrantLedger, Holder, Returned};
use crate::decide::held_grants::{HeldGrants, HeldView, NewGrant, Unspent};
use crate::decide::leased_refunds::UnknownGrants;
use crate::decide::limits::Limits;

pub(super) const HOLDERS: usize = 2;
const KEY: KeyHash = KeyHash { token: 7, tag: 8 };
/// Of the one rule there is; a reload keeps them.
static STATS: LazyLock<Arc<RuleStats>> = LazyLock::new(Arc::default);

/// A window begins then.
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
/// Tenths: the clock of one holder is a tenth too slow, that of the other a tenth too fast.
const SPEEDS: [u64; HOLDERS] = [9, 11];

/// What does not change in a search.
#[derive(Debug)]
pub(super) struct Setting {
    /// The limit, by revision of the rule. The first is the largest.
    pub(super) quotas: [Quota; 2],
    /// What a node holds is at most what is left divided by this.
    pub(super) divisor: u32,
    /// Time passes in steps of this.
    pub(super) tick: Span,
    pub(super) terms: Terms,
    /// The rule that is left out.
    pub(super) without: Option<Rule>,
    /// What has happened in any of the worlds.
    pub(super) reached: Mutex<BTreeSet<&'static str>>,
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) setting: Arc<Setting>,
    pub(super) left: Bounds,
    ticks: u64,
    owner: Owner,
    /// The node from which the key was handed over, if it runs.
    former: Option<Owner>,
    /// What the replica of the owner has.
    copy: Option<StoredCounter>,
    starts: u64,
    /// When the owner became it.
    owner_since: Timestamp,
    holders: [HolderNode; HOLDERS],
    pub(super) flying: Vec<Message>,
    pub(super) truth: Truth,
}

/// A process that decides the key, or did.
#[derive(Clone)]
struct Owner {
    start: u64,
    counter: Option<StoredCounter>,
    ledger: Arc<GrantLedger>,
    dedup: Arc<DedupCache>,
    /// Replies with grants that wait for the replica.
    pending: Vec<Message>,
}

#[derive(Clone)]
struct HolderNode {
    start: u64,
    /// The revision of its rule.
    revision: usize,
    next_id: u64,
    held: Arc<HeldGrants>,
    /// Calls without a reply.
    calls: Vec<u64>,
}

/// What really happened.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    /// A counter that sees each hit when it passes.
    passed: State,
    /// It had no room for one of them.
    pub(super) is_over: bool,
    /// A hit passed that was granted under another rule than that of its node.
    pub(super) is_foreign: bool,
    /// Calls of holders that were granted something in this window.
    calls: BTreeMap<CallId, Fate>,
    /// Hits of the owner's own clients in this window.
    own: u32,
    /// What the owner took off for refunds in this window.
    own_refunded: u32,
    /// The owner has changed in this window.
    has_moved: bool,
}

/// Holder, its start, and the number of its call.
type CallId = (usize, u64, u64);

/// What became of what a call was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Fate {
    grants: u32,
    hits: u32,
    spent: u32,
    taken_back: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Message {
    Ask { from: usize, start: u64, id: u64, owner: u64, revision: usize, what: Asked },
    Reply { to: usize, start: u64, id: u64, owner: u64, at: Monotonic, grant: Option<(u32, Span)> },
    GiveBack { from: usize, start: u64, id: u64, owner: u64, revision: usize, unspent: u32 },
    Recall { to: usize, start: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Asked {
    wanted: u32,
    held: u32,
    at: Monotonic,
}

/// All of a world that its future depends on.
type View<'a> = (
    (u64, u64, Timestamp, Bounds),
    Vec<(u64, Vec<u64>, Vec<EntryView>, Vec<(u64, u64, u64)>, &'a [Message])>,
    Vec<u64>,
    Vec<(u64, usize, u64, HeldView, &'a [u64])>,
    &'a [Message],
    (Vec<u64>, bool, bool, &'a BTreeMap<CallId, Fate>, (u32, u32), bool),
);

impl World {
    pub(super) fn new(setting: Setting, left: Bounds) -> Self {
        let holder = || HolderNode {
            start: 1,
            revision: 0,
            next_id: 1,
            held: Arc::new(HeldGrants::of_one_shard()),
            calls: Vec::new(),
        };
        Self {
            setting: Arc::new(setting),
            left,
            ticks: 0,
            owner: Owner::new(1, None),
            former: None,
            copy: None,
            starts: 1,
            owner_since: Timestamp::EPOCH,
            holders: [holder(), holder()],
            flying: Vec::new(),
            truth: Truth::default(),
        }
    }

    // === events ===

    pub(super) fn tick(&mut self) {
        let before = self.slice();
        self.ticks += 1;
        if before != self.slice() {
            self.truth.calls.clear();
            (self.truth.own, self.truth.own_refunded) = (0, 0);
            self.truth.has_moved = false;
            let are_held = (0..HOLDERS).any(|at| !self.view(at).grants.is_empty());
            if are_held {
                self.reach("a window ends while hits of it are held");
            }
        }
    }

    /// A client of a holder checks `hits`, or as many as there are.
    pub(super) fn spend(&mut self, at: usize, all: bool) -> bool {
        let before = self.view(at);
        let mut monotonic = self.monotonic(at);
        if self.is_without(Rule::ExpiredIsNotSpent) {
            monotonic = Monotonic::START;
        }
        let open = before.grants.iter().filter(|grant| grant.3 > monotonic);
        let left: u32 = open.map(|grant| grant.2).sum();
        let hits = if all { left } else { 1 };
        if left == 0 || all && left == 1 {
            return false;
        }
        let mut revision = self.holders[at].revision;
        if self.is_without(Rule::OtherLimitsAreNotSpent) {
            revision = usize::from(before.limit != self.setting.quotas[0].limit());
        }
        let (limits, now) = (self.limits(revision), self.now());
        let held = Arc::make_mut(&mut self.holders[at].held);
        if held.spend(&limits, Hits::new(hits.into()), now, monotonic).is_none() {
            return false;
        }
        self.truth.is_foreign |= revision != self.holders[at].revision;
        self.passes(hits);
        let after = self.view(at);
        let start = self.holders[at].start;
        for ((_, id, had, ..), (_, _, has, ..)) in before.grants.iter().zip(&after.grants) {
            if let Some(fate) = self.truth.calls.get_mut(&(at, start, *id)) {
                fate.spent += had - has;
            }
        }
        true
    }

    /// A holder asks the owner for more.
    pub(super) fn ask(&mut self, at: usize) {
        let (monotonic, owner) = (self.monotonic(at), self.owner.start);
        let limits = self.limits(self.holders[at].revision);
        let node = &mut self.holders[at];
        let Some((wanted, held)) = Arc::make_mut(&mut node.held).ask(&limits, 0, monotonic) else {
            return;
        };
        let id = node.next_id;
        node.next_id += 1;
        node.calls.push(id);
        let what = Asked { wanted, held, at: monotonic };
        let (start, revision) = (node.start, node.revision);
        self.send(Message::Ask { from: at, start, id, owner, revision, what });
    }

    /// The oldest call of a holder ends without a reply. What it may have brought is given back.
    pub(super) fn time_out(&mut self, at: usize) {
        let id = self.holders[at].calls.remove(0);
        let owner = self.owner.start;
        self.ended(at, None);
        let Self { holders, .. } = self;
        let (start, revision) = (holders[at].start, holders[at].revision);
        self.send(Message::GiveBack { from: at, start, id, owner, revision, unspent: u32::MAX });
        self.reach("a call has no reply");
    }

    /// A holder looks for grants that have ended.
    pub(super) fn look(&mut self, at: usize) {
        let monotonic = self.monotonic(at);
        let unspent = Arc::make_mut(&mut self.holders[at].held).ended(monotonic);
        self.give_back(at, unspent);
    }

    /// A client of the owner checks a hit, which is copied at once.
    pub(super) fn check(&mut self) {
        let (store, now) = (self.store(), self.now());
        let counters = self.counters(0);
        let made = store.check_leased_if(&counters, &[Hits::ONE], None, &[], now, || true);
        let is_allowed = made.is_some_and(|made| made.verdicts[0].allowed);
        if !is_allowed {
            return self.recall(None);
        }
        self.owner.counter = store.get(KEY, now);
        self.passes(1);
        self.truth.own += 1;
        self.copy();
    }

    /// A client of a holder gives three hits back, and the holder puts what it can into its grants.
    pub(super) fn refund_granted(&mut self, at: usize) {
        let (now, monotonic) = (self.now(), self.monotonic(at));
        let limits = self.limits(self.holders[at].revision);
        let hits = Hits::new(-3);
        let before = self.view(at);
        let held = Arc::make_mut(&mut self.holders[at].held);
        let Some((_, rest)) = held.refund(&limits, hits, now, monotonic) else {
            return;
        };
        let start = self.holders[at].start;
        for ((_, id, had, ..), (_, _, has, ..)) in before.grants.iter().zip(&self.view(at).grants) {
            if let Some(fate) = self.truth.calls.get_mut(&(at, start, *id)) {
                fate.spent -= has - had;
            }
        }
        self.is_refunded(3 - rest.refund());
        self.reach("a refund is put into a grant");
    }

    /// A client gives hits back at the owner.
    pub(super) fn refund(&mut self, hits: u32) {
        let taken = self.take_refund(hits);
        self.is_refunded(taken);
    }

    /// The owner takes a refund off, and returns how much. What has to wait for outstanding hits is
    /// lost.
    fn take_refund(&mut self, hits: u32) -> u64 {
        let (store, now, without) = (self.store(), self.now(), self.setting.without);
        let counters = self.counters(0);
        let refund = [Hits::new(-i64::from(hits))];
        let since = match without {
            Some(Rule::UnknownIsNotRefunded) => Timestamp::EPOCH,
            _ => self.owner_since,
        };
        let unknown = UnknownGrants::since(since, self.setting.terms.longest, now);
        let ledger = Arc::make_mut(&mut self.owner.ledger);
        let charged = ledger.enter(&counters, None, now, |_, known| {
            let known = match without {
                Some(Rule::OutstandingIsNotRefunded) => SmallVec::new(),
                _ => known.of_refund(),
            };
            let outstanding = unknown.beside(&counters, &known);
            let leased =
                store.check_leased_if(&counters, &refund, None, &outstanding, now, || true)?;
            Some(Charged { refunded: leased.refunded, ..Charged::of(()) })
        });
        let Some(Refunded { taken, left, .. }) =
            charged.and_then(|it| it.refunded.first().copied())
        else {
            return 0;
        };
        if left > 0 {
            self.reach("a refund waits for what is outstanding");
        }
        let before = self.used();
        self.owner.counter = store.get(KEY, now);
        // Of nothing that is counted any number is taken.
        let taken_here = before.saturating_sub(self.used());
        self.truth.own_refunded += taken_here;
        if taken_here > 0 {
            self.reach("a refund is taken off by the owner");
        }
        taken
    }

    /// A holder restarts, without its grants, and counts its calls anew.
    pub(super) fn restart(&mut self, at: usize) {
        if !self.view(at).grants.is_empty() {
            self.reach("a holder dies with grants");
        }
        let node = &mut self.holders[at];
        node.start += 1;
        (node.held, node.next_id) = (Arc::new(HeldGrants::of_one_shard()), 1);
        node.calls.clear();
    }

    /// The owner dies, and the node with the copy goes on.
    pub(super) fn crash(&mut self) {
        if (0..HOLDERS).any(|at| !self.view(at).grants.is_empty()) {
            self.reach("an owner dies with grants outstanding");
        }
        self.starts += 1;
        self.owner = Owner::new(self.starts, self.copy.clone());
        self.owner_since = self.now();
        self.truth.has_moved = true;
    }

    /// The owner hands over, to the node that handed over to it if there is one.
    pub(super) fn hand_over(&mut self) {
        let next = self.former.take();
        let starts = self.starts + u64::from(next.is_none());
        let mut next = next.unwrap_or_else(|| Owner::new(starts, None));
        self.starts = starts;
        next.counter = merged(next.counter, self.owner.counter.as_ref(), self.now());
        self.former = Some(std::mem::replace(&mut self.owner, next));
        self.owner_since = self.now();
        self.copy();
        self.truth.has_moved = true;
    }

    /// A holder learns the next rule.
    pub(super) fn reload(&mut self, at: usize) {
        self.holders[at].revision = 1;
    }

    /// The replica has the charge of a grant, or does not confirm it in time.
    pub(super) fn settle(&mut self, former: bool, index: usize, is_confirmed: bool) {
        let owner = if former { self.former.as_mut() } else { Some(&mut self.owner) };
        let Some(owner) = owner else { return };
        let mut reply = owner.pending.remove(index);
        let counter = owner.counter.clone();
        if is_confirmed {
            self.copy = merged(self.copy.take(), counter.as_ref(), self.now());
        } else if let Message::Reply { to, start, id, owner, grant, .. } = &mut reply {
            *grant = None;
            let (to, start, id, owner) = (*to, *start, *id, *owner);
            self.take_back((to, start, id), owner, 0, u32::MAX);
            self.reach("a grant is not confirmed");
        }
        if !self.is_without(Rule::ConfirmedBeforeItIsSent) {
            self.send(reply);
        }
    }

    /// The message at this index arrives; if it stays, it may arrive again.
    pub(super) fn deliver(&mut self, index: usize, stays: bool) {
        let message = if stays { self.flying[index].clone() } else { self.flying.remove(index) };
        match message {
            Message::Ask { .. } => self.ask_arrives(&message),
            Message::Reply { to, start, .. } if self.holders[to].start == start => {
                self.reply_arrives(message);
            }
            Message::GiveBack { from, start, id, owner, revision, unspent } => {
                self.take_back((from, start, id), owner, revision, unspent);
            }
            Message::Recall { to, start } if self.holders[to].start == start => {
                let monotonic = self.monotonic(to);
                let held = Arc::make_mut(&mut self.holders[to].held);
                let before = held.clone();
                let unspent = held.recalled(KEY, monotonic);
                if self.is_without(Rule::GivenBackIsNotSpent) {
                    self.holders[to].held = Arc::new(before);
                }
                if !unspent.is_empty() {
                    self.reach("a grant is recalled");
                }
                self.give_back(to, unspent);
            }
            Message::Reply { .. } | Message::Recall { .. } => {}
        }
    }

    fn ask_arrives(&mut self, message: &Message) {
        let Message::Ask { from, start, id, owner, revision, what } = *message else { return };
        // Another process does not own the key, or is not the one that was asked.
        if self.owner.start != owner {
            return;
        }
        let (holder, now, store) = (holder(from, start), self.now(), self.store());
        let counters = self.counters(revision);
        let Setting { divisor, terms, .. } = *self.setting;
        let Asked { wanted, held, at } = what;
        let mut granted = None;
        let ledger = Arc::make_mut(&mut self.owner.ledger);
        let mut decide = || {
            let to = Some((&holder, id));
            let made = ledger.enter(&counters, to, now, |has_room, known| {
                let ask = Ask { wanted, held, divisor, terms, shortest: Span::ZERO };
                let ask = has_room.then_some(ask);
                let peek = [Hits::PEEK];
                let leased = store.check_leased_if(
                    &counters,
                    &peek,
                    ask,
                    &known.outstanding,
                    now,
                    || true,
                )?;
                let Leased { verdicts, granted, refunded } = leased;
                Some(Charged { granted, refunded, ..Charged::of(verdicts) })
            })?;
            granted = made.granted;
            Some((made.result, None))
        };
        if self.setting.without == Some(Rule::GrantedOnce) {
            decide();
        } else {
            let sender = node_actor(&holder.node, holder.generation);
            let dedup = self.owner.dedup.copied();
            if matches!(dedup.once(sender, id, decide), Some(Once::Again(_))) {
                self.reach("a call arrives twice");
            }
            self.owner.dedup = Arc::new(dedup);
        }
        let grant =
            granted.map(|granted| self.granted((from, start, id), revision, granted, store));
        let reply = Message::Reply { to: from, start, id, owner, at, grant };
        if grant.is_none() {
            return self.send(reply);
        }
        if self.is_without(Rule::ConfirmedBeforeItIsSent) {
            self.send(reply.clone());
        }
        self.owner.pending.push(reply);
    }

    /// Notes what was granted; returns what is sent.
    fn granted(
        &mut self,
        call: CallId,
        revision: usize,
        granted: Granted,
        store: Store,
    ) -> (u32, Span) {
        let Granted { hits, mut term, .. } = granted;
        let (now, quota) = (self.now(), self.setting.quotas[revision]);
        let before = self.owner.counter.take();
        self.owner.counter = match self.setting.without {
            Some(Rule::ChargedBefore) => before,
            Some(Rule::ChargedAtTheEndOfTheTerm) => {
                let mut state = before.map_or(State::Absent, |counter| counter.state);
                grant::charge(&mut state, &quota, hits, Span::ZERO, now);
                Some(StoredCounter { key: KEY, expires: state.expires_at(&quota), state })
            }
            _ => store.get(KEY, now),
        };
        if self.is_without(Rule::EndsWithItsSlice) {
            term = self.setting.terms.longest;
        }
        let fate = self.truth.calls.entry(call).or_default();
        fate.grants += 1;
        fate.hits += hits;
        (hits, term)
    }

    fn reply_arrives(&mut self, message: Message) {
        let Message::Reply { to, id, owner, mut at, grant, .. } = message else { return };
        let position = self.holders[to].calls.iter().position(|call| *call == id);
        match position {
            Some(position) => {
                self.holders[to].calls.remove(position);
            }
            None if self.is_without(Rule::LateReplyIsNotSpent) => {}
            None => return,
        }
        if self.is_without(Rule::CountedFromSending) {
            at = self.monotonic(to);
        }
        let owner = Holder { node: id_of(HOLDERS), generation: Generation(owner) };
        let grant = grant.map(|(hits, mut term)| {
            if self.is_without(Rule::EndsBeforeItsTerm) {
                term = Span::from_nanos(term.as_nanos() / 3 * 4);
            }
            NewGrant { owner, id, hits, term, asked: at }
        });
        self.ended(to, grant);
    }

    fn ended(&mut self, at: usize, grant: Option<NewGrant>) {
        let (now, monotonic) = (self.now(), self.monotonic(at));
        let limits = self.limits(self.holders[at].revision);
        let held = Arc::make_mut(&mut self.holders[at].held);
        let unspent = held.asked(&limits, None, grant, now, monotonic);
        self.give_back(at, unspent);
    }

    fn give_back(&mut self, from: usize, unspent: impl IntoIterator<Item = Unspent>) {
        let start = self.holders[from].start;
        for Unspent { limits, owner, id, hits, refunded, .. } in unspent {
            if refunded > 0 {
                self.take_refund(refunded);
            }
            let owner = owner.generation.0;
            let revision = usize::from(limits != self.limits(0));
            self.send(Message::GiveBack { from, start, id, owner, revision, unspent: hits });
        }
    }

    /// An owner takes hits back: that one which is meant if it runs, otherwise the one that decides
    /// now, as if it had the same name.
    fn take_back(&mut self, call: CallId, owner: u64, revision: usize, unspent: u32) {
        let is_former = self.former.as_ref().is_some_and(|former| former.start == owner);
        let (store, now, terms) = (self.store(), self.now(), self.setting.terms);
        let (counters, without) = (self.counters(revision), self.setting.without);
        let slice = self.slice();
        let at = if is_former { self.former.as_mut() } else { Some(&mut self.owner) };
        let Some(at) = at else { return };
        let (from, mut start, id) = call;
        if without == Some(Rule::OfOneIncarnation) {
            let views = at.ledger.view(KEY);
            let same = views.iter().find(|it| it.0.node == id_of(from) && it.1 == id);
            start = same.map_or(start, |it| it.0.generation.0);
        }
        let settle = |Returned { marks, granted_until, hits, .. }: Returned<'_>| {
            let hits = match without {
                Some(Rule::NoMoreThanGranted) => unspent,
                _ => hits,
            };
            let marks: Vec<Mark> = marks
                .iter()
                .map(|mark| match mark {
                    Mark::Slice(_) if without == Some(Rule::NotLate) => Mark::Slice(slice),
                    mark => *mark,
                })
                .collect();
            let ends = (terms, granted_until);
            store.give_back_if(&counters, &marks, hits, ends, now, || !is_former)
        };
        let before = at.ledger.clone();
        // A limit of zero lowers no mark.
        let lowering = match without {
            Some(Rule::MarksAreLowered) => {
                let quota = counters[0].quota.with_limit(0);
                [Counter { key: KEY, quota }]
            }
            _ => counters,
        };
        let ledger = Arc::make_mut(&mut at.ledger);
        let taken = ledger.give_back(&lowering, &holder(from, start), id, unspent, settle);
        let mut taken = taken.hits;
        if without == Some(Rule::GivenBackOnce) {
            at.ledger = before;
        }
        if without == Some(Rule::OnlyWhatIsEntered) && taken == 0 && !is_former {
            let marks = [Mark::Slice(slice)];
            let hits = unspent.min(2);
            let ends = (terms, now);
            taken = store.give_back_if(&counters, &marks, hits, ends, now, || true)[0];
        }
        if taken > 0 {
            self.owner.counter = store.get(KEY, now);
        }
        if let Some(fate) = self.truth.calls.get_mut(&call) {
            fate.taken_back += taken;
        }
        let is_back = self.owner.start != self.starts;
        let name = match taken {
            0 if is_former => "hits are given back to a former owner",
            0 => "hits are given back in vain",
            _ if is_back => "hits are taken back by an owner that got its key back",
            _ => "hits are taken back",
        };
        self.reach(name);
    }

    fn recall(&mut self, except: Option<&Holder>) {
        let now = self.now();
        let (holders, _) = Arc::make_mut(&mut self.owner.ledger).recall(KEY, except, now);
        for to in 0..HOLDERS {
            if holders.contains(&(id_of(to), KEY)) {
                self.send(Message::Recall { to, start: self.holders[to].start });
            }
        }
    }

    /// Hits pass, now.
    fn passes(&mut self, hits: u32) {
        let (quota, now) = (self.setting.quotas[0], self.now());
        let hits = Hits::new(hits.into());
        let is_open = self.truth.passed.expires_at(&quota) > now;
        if let Some(StoredCounter { state: State::FirstHitWindow { opened, .. }, .. }) =
            self.owner.counter
            && !is_open
        {
            self.truth.passed = State::FirstHitWindow { opened, used: 0, credit: 0 };
        }
        self.truth.is_over |= !decide(&mut self.truth.passed, &quota, hits, now).allowed;
    }

    /// As many of the hits that have passed are there again.
    fn is_refunded(&mut self, hits: u64) {
        let (quota, now) = (self.setting.quotas[0], self.now());
        let hits = Hits::new(-i64::try_from(hits).unwrap_or(i64::MAX));
        if hits < Hits::PEEK {
            decide(&mut self.truth.passed, &quota, hits, now);
        }
    }

    fn copy(&mut self) {
        self.copy = merged(self.copy.take(), self.owner.counter.as_ref(), self.now());
    }

    fn send(&mut self, message: Message) {
        // Equal sets of messages have to be equal values.
        let at = self.flying.binary_search(&message).unwrap_or_else(|at| at);
        self.flying.insert(at, message);
    }

    // === state ===

    /// Whether the owner has counted all that has passed and all that may still pass.
    pub(super) fn is_covered(&self) -> bool {
        let (quota, now) = (self.setting.quotas[0], self.now());
        let left = |state: &State| preview(state, &quota, Hits::PEEK, now).remaining;
        let of_owner = self.owner.counter.as_ref().filter(|it| it.expires > now);
        let of_owner = left(of_owner.map_or(&State::Absent, |counter| &counter.state));
        let held: u32 = (0..HOLDERS).map(|at| self.spendable(at)).sum();
        of_owner + held <= left(&self.truth.passed)
    }

    /// Whether each call was granted something once, and no more was spent and taken back of it.
    pub(super) fn is_granted_once(&self) -> bool {
        let is_right = |fate: &Fate| fate.grants <= 1 && fate.spent + fate.taken_back <= fate.hits;
        self.truth.calls.values().all(is_right)
    }

    /// Whether a window has counted exactly what its owner admitted and granted, and did not take
    /// back.
    pub(super) fn adds_up(&self) -> bool {
        if self.setting.quotas[0].algorithm() != Algorithm::FixedWindow {
            return true;
        }
        let used = self.used() + self.truth.own_refunded;
        let open = |fate: &Fate| fate.hits.saturating_sub(fate.taken_back);
        let granted: u32 = self.truth.calls.values().map(open).sum();
        self.truth.has_moved || used == self.truth.own + granted
    }

    /// What the owner has counted in this window.
    fn used(&self) -> u32 {
        let now = self.now();
        match self.owner.counter.as_ref().filter(|it| it.expires > now) {
            Some(StoredCounter { state: State::FixedWindow { index, used }, .. })
                if u64::from(*index) == self.slice() =>
            {
                *used
            }
            _ => 0,
        }
    }

    /// Whether each holder knows what became of what it received.
    pub(super) fn is_accounted_for(&self) -> bool {
        self.holders.iter().all(|node| {
            let hits = &node.held.hits;
            let sum = |counters: &[&AtomicU64]| -> u64 {
                counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
            };
            let gone = sum(&[&hits.spent, &hits.given_back, &hits.recalled, &hits.late]);
            sum(&[&hits.received, &hits.refunded]) == gone + node.held.held()
        })
    }

    pub(super) fn calls(&self, at: usize) -> usize {
        self.holders[at].calls.len()
    }

    pub(super) fn pending(&self) -> [usize; 2] {
        [self.owner.pending.len(), self.former.as_ref().map_or(0, |former| former.pending.len())]
    }

    pub(super) fn is_behind(&self, at: usize) -> bool {
        self.holders[at].revision == 0
    }

    fn spendable(&self, at: usize) -> u32 {
        let monotonic = self.monotonic(at);
        let grants = self.view(at).grants;
        grants.iter().filter(|grant| grant.3 > monotonic).map(|grant| grant.2).sum()
    }

    fn view(&self, at: usize) -> HeldView {
        self.holders[at].held.view(KEY)
    }

    fn now(&self) -> Timestamp {
        START.plus(Span::from_nanos(self.ticks * self.setting.tick.as_nanos()))
    }

    fn monotonic(&self, at: usize) -> Monotonic {
        let ran = self.ticks * self.setting.tick.as_nanos() / 10 * SPEEDS[at];
        Monotonic::START.plus(Span::from_nanos(ran))
    }

    fn slice(&self) -> u64 {
        self.now().as_nanos() / self.setting.quotas[0].window().as_nanos()
    }

    /// The store of the owner.
    fn store(&self) -> Store {
        let options = Options { keys_max: 64, on_full: OnFull::Refuse, shards: Some(1) };
        let store = Store::new(options);
        if let Some(counter) = self.owner.counter.clone() {
            store.merge(counter, self.now());
        }
        store
    }

    fn counters(&self, revision: usize) -> [Counter; 1] {
        [Counter { key: KEY, quota: self.setting.quotas[revision] }]
    }

    fn limits(&self, revision: usize) -> Limits {
        let counters = self.counters(revision).into_iter().collect();
        let leased = Some(STATS.clone());
        let (scope, durability) = (Scope::Region, Durability::Async);
        Limits { scope, durability, leased, is_share: false, counters }
    }

    fn is_without(&self, rule: Rule) -> bool {
        self.setting.without == Some(rule)
    }

    fn reach(&self, name: &'static str) {
        self.setting.reached.lock().insert(name);
    }

    fn as_view(&self) -> View<'_> {
        let owner = |owner: &'_ Owner| {
            let Owner { start, counter, ledger, dedup, .. } = owner;
            (*start, words(counter.as_ref()), ledger.view(KEY), dedup.view())
        };
        let owners = std::iter::once(&self.owner).chain(&self.former);
        let owners = owners.map(|it| {
            let (start, counter, ledger, dedup) = owner(it);
            (start, counter, ledger, dedup, &it.pending[..])
        });
        let holders = self.holders.iter().map(|node| {
            let HolderNode { start, revision, next_id, held, calls } = node;
            (*start, *revision, *next_id, held.view(KEY), &calls[..])
        });
        let mut passed = Vec::new();
        let Truth { is_over, is_foreign, calls, own, own_refunded, has_moved, .. } = &self.truth;
        self.truth.passed.digest_words(|word| passed.push(word));
        (
            (self.ticks, self.starts, self.owner_since, self.left),
            owners.collect(),
            words(self.copy.as_ref()),
            holders.collect(),
            &self.flying,
            (passed, *is_over, *is_foreign, calls, (*own, *own_refunded), *has_moved),
        )
    }
}

impl Owner {
    fn new(start: u64, counter: Option<StoredCounter>) -> Self {
        let ledger = Arc::new(GrantLedger::of_one_shard());
        let dedup = Arc::new(DedupCache::of_one_set());
        Self { start, counter, ledger, dedup, pending: Vec::new() }
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_view().hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.as_view() == other.as_view()
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_view().fmt(f)
    }
}

fn merged(
    one: Option<StoredCounter>,
    other: Option<&StoredCounter>,
    now: Timestamp,
) -> Option<StoredCounter> {
    let both = [one.as_ref(), other].into_iter().flatten().filter(|it| it.expires > now);
    both.cloned().reduce(|mut all, one| {
        all.state.merge(one.state);
        all.expires = all.expires.max(one.expires);
        all
    })
}

fn words(counter: Option<&StoredCounter>) -> Vec<u64> {
    let mut words = Vec::new();
    if let Some(StoredCounter { state, expires, .. }) = counter {
        words.push(expires.as_nanos());
        state.digest_words(|word| words.push(word));
    }
    words
}

fn holder(node: usize, start: u64) -> Holder {
    Holder { node: id_of(node), generation: Generation(start) }
}

fn id_of(node: usize) -> NodeId {
    NodeId::new(["a", "b", "owner"][node]).expect("a valid id")
}
