//! Leased rules: decided here from hits that the owner of the key has granted, never over its
//! limit.
//!
//! ```text
//! check ─▶ granted here? ── yes ─▶ admitted; below half: ask for more, in the background
//!              └─ no ─▶ as a strict check: to its owner, with what is asked for
//! ```
//!
//! The owner charges a grant as it charges a check ([`grant`]), so its own state is always
//! complete: replication, handover and takeover know nothing of grants. It sends a grant after a
//! replica has the charge, also with `durability: async`; otherwise its death could hand the same
//! hits out twice. A node spends grants only while it has its lease, so a machine that was stopped
//! spends no more than it decides as an owner. What a node holds when it dies, or when its owner
//! does, stays charged until the window ends; a bucket drains it.
//!
//! When a check is refused while others hold something, the owner recalls it once from each of
//! them, also what is on its way to them. The refused node caches the refusal, as a strict one,
//! until its owner has taken hits back and says so.
//!
//! A log, a queue, and a limit of which a node's part is less than one hit grant nothing: those are
//! decided as strict, with their checks combined. So is everything by an owner of the release
//! before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tidegate_cluster::mesh::wire::{Call, Check, GiveBack, Grant, GrantAsk};
use tidegate_cluster::mesh::{Mesh, Peer, StreamClass};
use tidegate_limiter::engine::grant::{self, Outstanding, Terms};
use tidegate_limiter::engine::{State, Verdict};
use tidegate_limiter::policy::Scope;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{Ask, Counter, Granted, KeyHash, Leased, Verdicts};
use tidegate_limiter::units::{Hits, Monotonic, Span, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_rules::stats::GrantedHits;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::check::VerdictSource;
use super::combiner::Sending;
use super::decider::{Decider, Peers, Shared};
use super::grant_ledger::{Charged, Holder, Returned};
use super::held_grants::{NewGrant, Unspent};
use super::limits::Limits;
use super::outcome::Decided;

/// The longest term of a grant: a node that lives keeps from others what it does not spend for no
/// longer.
pub(super) const TERM_MAX: Span = Span::from_secs(1);
/// Of a grant to a node of the owner's region.
const NEAR_TERMS: Terms = Terms { longest: TERM_MAX, useful: Span::ZERO };
/// A grant for less is not worth its call.
const TERM_MIN: Span = Span::from_millis(4);
/// The same for a node of another region: it asks again after some round trips.
pub(super) const FAR_TERM_MAX: Span = Span::from_secs(4);
/// A bucket's usual term is longer, where a holder in another region is so far away that it has no
/// use for it; by no more than this.
const FAR_USEFUL_MAX: Span = Span::from_secs(1);
/// A grant is for at least so many round trips.
const TERM_ROUND_TRIPS: u64 = 8;
/// The same of a window in another region: three quarters of them, less the one that the call
/// takes, are half a round trip in which hits are spent.
const FAR_WINDOW_ROUND_TRIPS: u64 = 2;
/// The same of a bucket, whose term is no longer later: as long as the next call.
const FAR_BUCKET_ROUND_TRIPS: u64 = 3;
/// Of what is left of a limit a node may hold one part in so many times the nodes.
const PARTS_PER_NODE: u32 = 2;
/// What a call asks for that wants nothing.
const NOTHING: (u32, u32) = (0, 0);
/// How often a node looks for grants that have ended, while it holds any.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a node that leaves waits at most for owners to take back what it holds: the longest
/// term of a grant.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(1);
/// Grants that are given back at a time as a node leaves.
const GIVE_BACKS_MAX: usize = 1_024;

/// Why a leased rule is decided as strict whatever the number of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGrants {
    #[error("a log, which has the time of each hit, grants none in advance")]
    Log,
    #[error("a queue, which gives each hit its time, grants none in advance")]
    Queue,
    #[error("a grant would end within {} ms", TERM_MIN.as_millis_ceil())]
    Short,
}

/// The most nodes among which a leased rule with these limits is decided from granted hits. Among
/// more a node's part is less than one hit, so the rule is decided as strict.
///
/// # Errors
///
/// It is decided as strict in any case, for this reason.
pub fn granting_nodes_max(limits: &[Quota]) -> Result<u32, NoGrants> {
    let mut room = u32::MAX;
    for quota in limits {
        let unused = grant::offer(&State::Absent, quota, NEAR_TERMS, Timestamp::EPOCH);
        let no_offer = if quota.queue().is_some() { NoGrants::Queue } else { NoGrants::Log };
        let offer = unused.ok_or(no_offer)?;
        if offer.term < TERM_MIN {
            return Err(NoGrants::Short);
        }
        room = room.min(offer.room);
    }
    Ok(room / PARTS_PER_NODE)
}

// === impl Decider: the holder ===

impl Decider {
    /// Admits a check from granted hits, if there are enough.
    pub(super) fn decide_if_granted(
        &self,
        limits: &Limits,
        hits: Hits,
        now: Timestamp,
    ) -> Option<Decided> {
        let Shared { node, held_grants, .. } = &*self.shared;
        // A node that is cut off, or whose clocks stood still, finds out by its lease.
        if !node.ownership.has_lease() {
            return None;
        }
        let spent = held_grants.spend(limits, hits, now, node.clock.monotonic())?;
        if spent.asks {
            self.ask_for_more(limits.clone());
        }
        Some((spent.verdicts, VerdictSource::Grant))
    }

    /// Hits that were granted to this node, by what became of them, and how many it holds.
    pub fn granted_hits(&self) -> (&GrantedHits, u64) {
        (&self.shared.held_grants.hits, self.shared.held_grants.held())
    }

    /// Whether a check that is sent alone asks for more.
    pub(super) fn asks_alone(&self, limits: &Limits) -> bool {
        let Shared { node, held_grants, .. } = &*self.shared;
        limits.leased.is_some() && held_grants.is_in_use(limits, node.clock.monotonic())
    }

    /// Whether a call may ask for hits while one that does not is on its way.
    pub(super) fn may_ask_now(&self, limits: &Limits) -> bool {
        limits.leased.is_some()
            && limits.counters.iter().all(|counter| grant::can_grant(&counter.quota))
            && self.shared.held_grants.may_ask(limits)
    }

    /// What a call with these checks asks for, if `asks`, as (wanted, held). Otherwise it wants
    /// nothing, and says so: its owner recalls what others hold when it refuses a leased check.
    pub(super) fn ask(
        &self,
        limits: &Limits,
        hits: &[Hits],
        asks: bool,
        asked: Monotonic,
    ) -> Option<(u32, u32)> {
        limits.leased.as_ref()?;
        if !limits.counters.iter().all(|counter| grant::can_grant(&counter.quota)) {
            return None;
        }
        if !asks {
            return Some(NOTHING);
        }
        let waiting = hits.iter().map(|hits| hits.charge()).fold(0, u64::saturating_add);
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        Some(self.shared.held_grants.ask(limits, waiting, asked).unwrap_or(NOTHING))
    }

    /// Enters what a call brought. `last` are the verdicts of its last check.
    pub(super) fn asked(&self, limits: &Limits, last: Option<&[Verdict]>, grant: Option<NewGrant>) {
        let Shared { node, held_grants, .. } = &*self.shared;
        let (now, monotonic) = (node.clock.now(), node.clock.monotonic());
        let unspent = held_grants.asked(limits, last, grant, now, monotonic);
        unspent.into_iter().for_each(|it| self.give_back(it));
        self.shared.grants_held.notify_one();
    }

    /// Sends hits back that will not be spent. The message may be lost: then they stay charged, as
    /// if they had been spent.
    pub(super) fn give_back(&self, unspent: Unspent) {
        let Some(Peers { mesh, .. }) = &self.shared.peers else { return };
        if let Some((peer, call)) = returned(mesh, &unspent) {
            mesh.notify(&peer.id, StreamClass::Checks, call);
        }
        if unspent.refunded > 0
            && let Ok(runtime) = Handle::try_current()
        {
            let decider = self.clone();
            runtime.spawn(async move { decider.pass_on_refund(&unspent).await });
        }
    }

    /// Sends hits back and waits until their owners have them.
    async fn give_back_confirmed(&self, unspent: Vec<Unspent>) {
        let Some(Peers { mesh, .. }) = &self.shared.peers else { return };
        let give_back = |unspent: Unspent| async move {
            // Of an owner that cannot be reached they stay charged.
            if let Some((peer, call)) = returned(mesh, &unspent) {
                let _ = mesh.call_peer(&peer, StreamClass::Checks, call, GIVE_BACK_TIMEOUT).await;
            }
            if unspent.refunded > 0 {
                self.pass_on_refund(&unspent).await;
            }
        };
        stream::iter(unspent).for_each_concurrent(GIVE_BACKS_MAX, give_back).await;
    }

    /// Gives the owner of the key what clients gave back here and was not spent again. It stays
    /// charged if the owner does not answer in time, or the window has ended.
    async fn pass_on_refund(&self, Unspent { limits, refunded, refunded_until, .. }: &Unspent) {
        let (hits, now) = (Hits::new(-i64::from(*refunded)), self.shared.node.clock.now());
        if now >= *refunded_until {
            return;
        }
        if self.decide_leased_if_owned(limits, hits, now).is_some() {
            self.announce_refund(limits.scope, &limits.counters, hits);
        } else {
            let _ = self.forward(limits, Sending::Check(hits), self.patience(limits)).await;
        }
    }

    /// The limit of this key was reset for this node, which gives back what it holds: what it spent
    /// of that from now on would count as before the reset.
    pub(super) fn reset_held(&self, key: KeyHash) {
        let Shared { node, held_grants, .. } = &*self.shared;
        let unspent = held_grants.reset(key, node.clock.monotonic());
        unspent.into_iter().for_each(|it| self.give_back(it));
    }

    /// An owner refused a check of another node while this one may hold hits of the key. Gives them
    /// back.
    pub fn recalled(&self, key: KeyHash) {
        let Shared { node, held_grants, .. } = &*self.shared;
        let unspent = held_grants.recalled(key, node.clock.monotonic());
        unspent.into_iter().for_each(|it| self.give_back(it));
    }

    /// The same of a check of this node, for which it holds too few. Returns whether there were
    /// any.
    pub(super) fn held_too_few(&self, key: KeyHash) -> bool {
        let unspent = self.shared.held_grants.too_few(key);
        let holds_any = !unspent.is_empty();
        unspent.into_iter().for_each(|it| self.give_back(it));
        holds_any
    }

    /// Gives everything back, before this node leaves, also what calls on their way bring. Ends
    /// when the owners have it, or after [`GIVE_BACK_TIMEOUT`].
    pub async fn give_all_back(&self) {
        let held_grants = &self.shared.held_grants;
        let giving = async {
            self.give_back_confirmed(held_grants.leave()).await;
            loop {
                let is_asking = held_grants.is_asking();
                self.give_back_confirmed(held_grants.leave()).await;
                if !is_asking {
                    return;
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(GIVE_BACK_TIMEOUT, giving).await;
    }

    /// Gives back what was not spent in its term, until `stop`.
    pub async fn give_ended_back(self, stop: CancellationToken) {
        loop {
            let look = async {
                if self.shared.held_grants.is_empty() {
                    self.shared.grants_held.notified().await;
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = look => {}
            }
            let ended = self.shared.held_grants.ended(self.shared.node.clock.monotonic());
            for unspent in ended {
                self.give_back(unspent);
            }
        }
    }
}

/// The message that gives hits back, and to whom; `None` if that incarnation of their owner is not
/// connected.
fn returned(mesh: &Mesh, unspent: &Unspent) -> Option<(Arc<Peer>, Call)> {
    let Unspent { limits: Limits { scope, counters, .. }, owner, id, hits, .. } = unspent;
    let peer = mesh.peer(&owner.node).filter(|peer| peer.generation == owner.generation)?;
    let (scope, counters) = (*scope, counters.clone());
    Some((peer, Call::GiveBack(GiveBack { scope, counters, grant: *id, unspent: *hits })))
}

/// Of a grant to a node of another region, which has no use for one that is shorter than `useful`.
fn far_terms(useful: Span) -> Terms {
    Terms { longest: FAR_TERM_MAX, useful: useful.min(FAR_USEFUL_MAX) }
}

/// Whether owners in another region grant hits of these limits when a call that leaves now arrives:
/// a window that is about to end, or a bucket that drains too soon, has no term that is of use.
pub(super) fn is_granted_far(limits: &Limits, round_trip: Span, now: Timestamp) -> bool {
    let shortest = far_shortest(limits, round_trip);
    let arrives = now.plus(Span::from_nanos(round_trip.as_nanos() / 2));
    let term = |counter: &Counter| {
        grant::offer(&State::Absent, &counter.quota, far_terms(shortest), arrives).map(|it| it.term)
    };
    limits.counters.iter().all(|counter| term(counter).is_some_and(|term| term >= shortest))
}

fn far_shortest(limits: &Limits, round_trip: Span) -> Span {
    let are_windows = limits.counters.iter().all(|counter| !grant::is_bucket(&counter.quota));
    let least = if are_windows { FAR_WINDOW_ROUND_TRIPS } else { FAR_BUCKET_ROUND_TRIPS };
    TERM_MIN.max(Span::from_nanos(round_trip.as_nanos().saturating_mul(least)))
}

/// What a node of `region` asks the owner `peer` for.
pub(super) fn ask_of(
    region: &str,
    peer: &Peer,
    limits: &Limits,
    (wanted, held): (u32, u32),
) -> GrantAsk {
    let shortest = if peer.region == region {
        TERM_MIN.max(Span::from_nanos(peer.rtt_ns().saturating_mul(TERM_ROUND_TRIPS)))
    } else {
        far_shortest(limits, Span::from_nanos(peer.rtt_ns()))
    };
    GrantAsk { wanted, held, shortest }
}

/// The grant of a reply from `peer` to the check `id`.
pub(super) fn granted_by(peer: &Peer, id: u64, grant: Grant, asked: Monotonic) -> NewGrant {
    let owner = Holder { node: peer.id.clone(), generation: peer.generation };
    NewGrant { owner, id, hits: grant.hits, term: grant.term, asked }
}

// === impl Decider: the owner ===

impl Decider {
    /// Decides a check for each of `hits`, if this node owns the key, and makes the grant that is
    /// asked for by the holder of `to` under this number. Refunds of a strict rule, too, take
    /// nothing that was granted before the rule became strict.
    pub(super) fn decide_leased_each_if_owned(
        &self,
        limits: &Limits,
        hits: &[Hits],
        to: Option<(&Holder, u64)>,
        ask: Option<GrantAsk>,
        now: Timestamp,
    ) -> Option<(Verdicts, Option<Granted>)> {
        let Shared { node, grant_ledger, counters: stats, .. } = &*self.shared;
        let Limits { scope, counters, .. } = limits;
        let token = limits.key()?.token;
        if to.is_none() && hits.iter().all(|hits| hits.refund() == 0) {
            let owns = || node.ownership.decides(*scope, token);
            let leased = node.store.check_leased_if(counters, hits, None, &[], now, owns)?;
            self.announce_moved_windows();
            return Some((leased.verdicts, None));
        }
        let beside = to.map_or(0, |(holder, _)| self.holders_beside(holder, limits));
        // A peer that forwards a check of a leased rule says so by what it asks for.
        let is_leased = limits.leased.is_some() || ask.is_some();
        let (unknown, since) = self.unknown_grants_of((*scope, is_leased), now);
        let owns = || self.decides_since(*scope, token, since);
        let charged = grant_ledger.enter(counters, to, now, |has_room, known| {
            let holder = to.map(|(holder, _)| holder).filter(|_| has_room);
            let ask = ask.zip(holder).map(|(GrantAsk { wanted, held, shortest }, holder)| {
                let (divisor, terms) = self.grant_bounds(*scope, holder, beside, shortest);
                Ask { wanted, held, divisor, terms, shortest }
            });
            let outstanding = unknown.beside(counters, &known.of_refund());
            let leased =
                node.store.check_leased_if(counters, hits, ask, &outstanding, now, owns)?;
            let is_refused = leased.verdicts.iter().any(|verdict| !verdict.allowed);
            let Leased { verdicts, granted, refunded } = leased;
            let left = self.note_left(limits, refunded.iter().copied().enumerate(), known, now);
            Some(Charged { is_refused, granted, refunded, ..Charged::of((verdicts, left)) })
        })?;
        self.announce_moved_windows();
        let Charged { result: (verdicts, left), granted, .. } = charged;
        if let Some(granted) = &granted {
            stats.hits_granted.fetch_add(u64::from(granted.hits), Ordering::Relaxed);
        }
        self.take_later(limits, left, unknown, now);
        Some((verdicts, granted))
    }

    /// Decides a check of a client of this node, if this node owns the key. The second result is
    /// whether others hold hits for want of which it was refused.
    pub(super) fn decide_leased_if_owned(
        &self,
        limits: &Limits,
        hits: Hits,
        now: Timestamp,
    ) -> Option<(Verdicts, bool)> {
        let key = limits.key()?;
        let (verdicts, _) = self.decide_leased_each_if_owned(limits, &[hits], None, None, now)?;
        let is_refused = verdicts.iter().any(|verdict| !verdict.allowed);
        let may_end_early = is_refused && self.recall(key, None, now);
        Some((verdicts, may_end_early))
    }

    /// Charges what it costs that work was done. `charge` is passed what is outstanding of each
    /// counter: whether the rule is leased is not known here.
    pub(super) fn charge_beside_grants<T>(
        &self,
        limits: &Limits,
        now: Timestamp,
        charge: impl FnOnce(&[Outstanding]) -> Option<T>,
    ) -> Option<T> {
        let Shared { grant_ledger, peers, .. } = &*self.shared;
        if peers.is_none() {
            return charge(&[]);
        }
        let Limits { scope, counters, .. } = limits;
        let (unknown, _) = self.unknown_grants(*scope, now);
        let charged = grant_ledger.enter(counters, None, now, |_, known| {
            let result = charge(&unknown.beside(counters, &known.of_refund()))?;
            Some(Charged::of(result))
        });
        charged.map(|charged| charged.result)
    }

    /// Some check was refused: recalls what others than `except` hold. Returns whether they hold
    /// anything.
    pub(super) fn recall(&self, key: KeyHash, except: Option<&Holder>, now: Timestamp) -> bool {
        let Some(Peers { mesh, .. }) = &self.shared.peers else { return false };
        let (holders, are_held) = self.shared.grant_ledger.recall(key, except, now);
        for (node, key) in holders {
            mesh.notify(&node, StreamClass::Checks, Call::Recall(key));
        }
        are_held
    }

    /// A peer gives back what it did not spend.
    pub fn given_back(&self, from: (&NodeId, Generation), unspent: &GiveBack) {
        let holder = Holder { node: from.0.clone(), generation: from.1 };
        let limits = (unspent.scope, &unspent.counters[..]);
        self.take_back(limits, &holder, unspent.grant, unspent.unspent);
    }

    /// The grant of a call that no replica has: its holder does not learn of it.
    pub(super) fn revoke(&self, check: &Check, holder: &Holder) {
        self.take_back((check.scope, &check.counters), holder, check.id, u32::MAX);
    }

    fn take_back(
        &self,
        (scope, counters): (Scope, &[Counter]),
        holder: &Holder,
        id: u64,
        unspent: u32,
    ) {
        let Shared { node, grant_ledger, waiting_refunds, counters: stats, .. } = &*self.shared;
        let Some(token) = counters.first().map(|counter| counter.key.token) else { return };
        let now = node.clock.now();
        let settle = |Returned { marks, granted_until, hits, awaited }: Returned<'_>| {
            for key in awaited {
                waiting_refunds.unspent(*key, hits.into());
            }
            let owns = || node.ownership.decides(scope, token);
            // Of all terms that may begin now.
            let terms = if scope == Scope::Global { far_terms(FAR_USEFUL_MAX) } else { NEAR_TERMS };
            let ends = (terms, granted_until);
            node.store.give_back_if(counters, marks, hits, ends, now, owns)
        };
        let taken = grant_ledger.give_back(counters, holder, id, unspent, settle);
        stats.taken_back.fetch_add(u64::from(taken.hits), Ordering::Relaxed);
        if taken.ends_refusals {
            self.announce_refund(scope, counters, Hits::new(-i64::from(taken.hits)));
        }
    }

    /// The nodes that hold hits of the key while `holder`, an edge, asks for some: there may be a
    /// thousand edges, of which few use a key.
    fn holders_beside(&self, holder: &Holder, limits: &Limits) -> u32 {
        let Shared { node, grant_ledger, .. } = &*self.shared;
        let is_member = node.topology.load().view.get(&holder.node).is_some();
        limits.key().filter(|_| !is_member).map_or(0, |key| grant_ledger.holders(key))
    }

    /// Of what is left of a limit `holder` may hold one part in so many, [`PARTS_PER_NODE`] for
    /// each node of its region and those that are `beside` them, and for how long. Where regions
    /// share no limits a global one has holders in all of them.
    fn grant_bounds(
        &self,
        scope: Scope,
        holder: &Holder,
        beside: u32,
        shortest: Span,
    ) -> (u32, Terms) {
        let topology = self.shared.node.topology.load();
        let member = topology.view.get(&holder.node);
        let region = member.map_or(&topology.region, |member| &member.region);
        let is_shared = scope == Scope::Region || topology.homes().everywhere().len() > 1;
        let nodes = if is_shared {
            topology.owners_in(region)
        } else {
            u32::try_from(topology.view.owners().count()).unwrap_or(u32::MAX)
        };
        let terms = if *region == topology.region { NEAR_TERMS } else { far_terms(shortest) };
        (nodes.saturating_add(beside).max(1).saturating_mul(PARTS_PER_NODE), terms)
    }
}
