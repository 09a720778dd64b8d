//! Requests in flight: `concurrency` and `node_concurrency` of a rule.
//!
//! A request in flight is a [reservation](super::reserve) of one that costs nothing. It is made
//! when the request begins and released when it has ended, and its time begins anew every
//! [`RENEWED_EVERY`] while it lasts. So a node that dies gives its places back within [`TTL`], and
//! with `durability: replicated` the next owner of a key knows who is in flight.
//!
//! ```text
//! in flight = reservations of the descriptor that are neither released nor over
//! admit     ⇔ in flight < limit
//! ```
//!
//! `node_concurrency` is the same at this node alone, without an owner.
//!
//! **Example.** `concurrency: 20` over three nodes: the 21st request is refused wherever it comes,
//! until one of the others has ended. A node with seven of them is killed: with it end its
//! connections, and ten seconds later their places are free.
//!
//! **Bound.** A place is one of the reservations of a store, a quarter of `keys_max`, until [`TTL`]
//! after its request was renewed last, also when it has ended: at 1,000 requests a second some
//! 10,000. A request that outlives its
//! place goes on, beside others: when no owner has renewed it for [`TTL`]. A request that was cut
//! off is given [`CUT_OFF_GRACE`] to end at the application before its place is free.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::policy::{Mode, OnUnavailable};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    self, Counter, DescriptorHash, KeyHash, ReservationId, Reserved, Verdicts,
};
use tidegate_limiter::units::{Hits, Span};
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::stats::RuleStats;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::check::{CheckRequest, CheckResponse, Decide, Status, VerdictSource};
use super::decider::{Decider, Shared};
use super::fallback;
use super::limits::Limits;
use super::plan::{descriptor_hash, replaced};
use super::reserve::{Answer, Asked, COMMIT_PATIENCE, Part};

/// How long a request counts as in flight that is not renewed.
const TTL: Span = Span::from_secs(10);
/// How often it is renewed: three times within [`TTL`].
const RENEWED_EVERY: Duration = Duration::from_secs(3);
/// How long a request that was cut off may still be at the application.
const CUT_OFF_GRACE: Duration = Duration::from_millis(250);
/// For how long a call that asks for a place may be on its way.
const LATE_MAX: Span = Span::from_secs(5);
/// The time to wait that a refusal names: when a request ends is not known.
const RETRY_AFTER: Span = Span::from_secs(1);

/// Limits requests in flight, as a proxy sees it.
pub trait LimitInFlight: Decide {
    /// A place for a request, until it is dropped.
    fn enter(&self, request: CheckRequest<'_>) -> impl Future<Output = Entered> + Send;
}

/// What the limits of requests in flight say of one.
#[derive(Debug)]
pub enum Entered {
    /// It may pass; `None` where no such limit applies.
    Admitted(Option<Place>),
    Refused(CheckResponse),
}

/// The place of a request in flight. Dropping it makes it free again.
#[derive(Debug)]
pub struct Place {
    ended: Option<oneshot::Sender<Ended>>,
    how: Ended,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// With the last byte of its response.
    Whole,
    /// Its client has gone, or its server has failed.
    CutOff,
}

impl Place {
    /// The request has ended with the last byte of its response.
    pub fn is_done(&mut self) {
        self.how = Ended::Whole;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            // The task has ended when the runtime does.
            let _ = ended.send(self.how);
        }
    }
}

// === impl Decider ===

impl LimitInFlight for Decider {
    async fn enter(&self, request: CheckRequest<'_>) -> Entered {
        if !self.shared.rules.book.load().limits_in_flight() {
            return Entered::Admitted(None);
        }
        let book = self.shared.rules.book.load_full();
        let id = self.next_reservation();
        let found = self.limited_in_flight(&book, &request, id);
        // Whatever becomes of the request, also when its client goes while an owner is asked.
        let mut entering_places = Entering { decider: self, places: places_of(&found) };
        let entering = found.iter().map(async |found| match found {
            Some((rule, places)) => Some(self.enter_each(rule, places).await),
            None => None,
        });
        let entered = join_all(entering).await;
        entering_places.places.clear();
        let mut held: Vec<Part> = Vec::new();
        let statuses = found.iter().zip(entered).map(|(found, entered)| {
            let (Some((rule, _)), Some(entered)) = (found, entered) else {
                return Status::unlimited(None);
            };
            let mut verdicts = Verdicts::new();
            for OnePlace { verdict, held: places } in entered {
                verdicts.extend(verdict);
                held.extend(places);
            }
            let allowed = rule.shadow || verdicts.iter().all(|verdict| verdict.allowed);
            let leading = verdicts.iter().position(|verdict| !verdict.allowed).or(Some(0));
            if !allowed {
                RuleStats::add(&rule.stats.denied, 1);
            }
            let (rule, source) = (Some(rule.clone()), VerdictSource::InFlight);
            Status { rule, allowed, verdicts, leading, source, metadata: None }
        });
        let response = CheckResponse::new(statuses.collect(), false);
        if !response.allowed {
            self.leave_later(held);
            return Entered::Refused(response);
        }
        Entered::Admitted(self.keep(held))
    }
}

/// What became of one place.
struct OnePlace {
    /// `None` where `on_unavailable` lets the request pass.
    verdict: Option<Verdict>,
    /// What the request holds, or may hold: without an answer that is not known.
    held: SmallVec<[Part; 1]>,
}

/// The places of a request whose owners are being asked. They are left when this is dropped: the
/// client has gone, or the answers took too long.
struct Entering<'d> {
    decider: &'d Decider,
    places: Vec<Part>,
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.decider.leave_later(std::mem::take(&mut self.places));
    }
}

fn places_of(found: &[Option<Limited>]) -> Vec<Part> {
    found.iter().flatten().flat_map(|(_, places)| places.iter().cloned()).collect()
}

/// A rule that matches, and what it counts.
type Matched = (Arc<Rule>, DescriptorHash);
/// A rule that limits requests in flight, and the places that it takes.
type Limited = (Arc<Rule>, Places);
/// The limits of one rule: at all nodes, and at this one.
type Places = SmallVec<[Part; 2]>;

impl Decider {
    /// The rule of each descriptor that limits requests in flight, and its places. As with limits
    /// on hits, values may share a counter, and a rule that another one replaces does not apply.
    fn limited_in_flight(
        &self,
        book: &Book,
        request: &CheckRequest<'_>,
        id: ReservationId,
    ) -> SmallVec<[Option<Limited>; 2]> {
        let hasher = &self.shared.node.hasher;
        let found = request.descriptors.iter().map(|descriptor| {
            let found = book.find(request.domain, &descriptor.entries)?;
            let hash = descriptor_hash(hasher, request.domain, &descriptor.entries, &found);
            Some((found.rule.clone(), hash))
        });
        let found: SmallVec<[Option<Matched>; 2]> = found.collect();
        let replaced = replaced(found.iter().flatten().map(|(rule, _)| &**rule));
        let is_replaced =
            |rule: &Rule| rule.name.as_ref().is_some_and(|name| replaced.contains(name));
        let mut ids = id;
        let places = found.iter().map(|found| {
            let (rule, hash) = found.as_ref()?;
            if !rule.in_flight.is_limited() || is_replaced(rule) {
                return None;
            }
            // Descriptors that share a counter take a place each.
            ids = ids.of_repeated(1);
            Some((rule.clone(), places(rule, *hash, ids)))
        });
        places.collect()
    }

    async fn enter_each(&self, rule: &Rule, places: &[Part]) -> Vec<OnePlace> {
        join_all(places.iter().map(|place| self.enter_one(rule, place))).await
    }

    async fn enter_one(&self, rule: &Rule, place: &Part) -> OnePlace {
        let Shared { counters, .. } = &*self.shared;
        let holds = |verdict: &Verdict, place: &Part| {
            verdict.allowed.then(|| place.clone()).into_iter().collect()
        };
        let asked = self.ask_place(place, self.patience(&place.limits)).await;
        if let Some(verdict) = asked.and_then(|asked| asked.verdicts.first().copied()) {
            return OnePlace { held: holds(&verdict, place), verdict: Some(of_flight(verdict)) };
        }
        RuleStats::add(&rule.stats.unavailable, 1);
        counters.fallback.fetch_add(1, Ordering::Relaxed);
        // The owner may have given it the place nevertheless.
        let mut held: SmallVec<[Part; 1]> = smallvec::smallvec![place.clone()];
        let quota = place.limits.counters.first().map(|counter| counter.quota);
        let verdict = match rule.on_unavailable {
            OnUnavailable::Allow => None,
            OnUnavailable::Deny => quota.map(|quota| fallback::denied(&quota)),
            OnUnavailable::Local => match self.share_of_place(place) {
                None => None,
                Some(share) => {
                    let asked = self.ask_place(&share, Duration::ZERO).await;
                    let verdict = asked.and_then(|reserved| reserved.verdicts.first().copied());
                    held.extend(verdict.filter(|verdict| verdict.allowed).map(|_| share));
                    verdict.filter(|verdict| !verdict.allowed)
                }
            },
        };
        OnePlace { verdict: verdict.map(of_flight), held }
    }

    /// This node's share of a limit whose owner does not answer.
    fn share_of_place(&self, place: &Part) -> Option<Part> {
        let topology = self.shared.node.topology.load();
        let counter = place.limits.counters.first()?;
        let share = topology.share_of(place.limits.scope, counter.quota.limit());
        let quota = counter.quota.with_limit(share);
        let counters = smallvec::smallvec![Counter { key: counter.key.share_apart(), quota }];
        let limits = Limits { counters, ..place.limits.clone() };
        Some(Part { limits, key: place.key.share_apart(), ..place.clone() })
    }

    /// Reserves a place, at its owner or at this node.
    async fn ask_place(&self, place: &Part, patience: Duration) -> Option<Reserved> {
        let Shared { node, .. } = &*self.shared;
        let Part { limits, key, asked } = place;
        if let (true, Asked::Reserve { amount, ttl }) = (key.is_share(), *asked) {
            let reserve = store::Reserve { key: *key, amount, ttl };
            let now = node.clock.now();
            return node.store.reserve_if(&limits.counters, &reserve, None, now, || true);
        }
        match self.ask_owner(place, patience).await {
            Ok((Answer::Reserved(reserved), _)) => Some(reserved),
            _ => None,
        }
    }

    /// Keeps the places of a request until it has ended.
    fn keep(&self, places: Vec<Part>) -> Option<Place> {
        if places.is_empty() {
            return None;
        }
        let (ended, mut ends) = oneshot::channel();
        let decider = self.clone();
        self.give_back_in_background(async move {
            let how = loop {
                if let Ok(how) = timeout(RENEWED_EVERY, &mut ends).await {
                    break how.unwrap_or(Ended::CutOff);
                }
                join_all(places.iter().map(|place| decider.renew(place))).await;
            };
            if how == Ended::CutOff {
                sleep(CUT_OFF_GRACE).await;
            }
            join_all(places.iter().map(|place| decider.leave_place(place, Span::ZERO))).await;
        });
        Some(Place { ended: Some(ended), how: Ended::CutOff })
    }

    /// Leaves places in the background, also those that an owner may still be about to give.
    fn leave_later(&self, places: Vec<Part>) {
        if places.is_empty() {
            return;
        }
        let decider = self.clone();
        self.give_back_in_background(async move {
            join_all(places.iter().map(|place| decider.leave_place(place, LATE_MAX))).await;
        });
    }

    async fn renew(&self, place: &Part) {
        if place.key.is_share() {
            self.ask_place(place, Duration::ZERO).await;
        } else {
            // One that has ended meanwhile is a new one, if there is room.
            let _ = self.ask_until(place, RENEWED_EVERY).await;
        }
    }

    /// `remembered` is for how long the owner does not give it any more.
    async fn leave_place(&self, place: &Part, remembered: Span) {
        let Shared { node, .. } = &*self.shared;
        if place.key.is_share() {
            let commit = store::Commit { key: place.key, cost: Hits::PEEK, remembered };
            let now = node.clock.now();
            node.store.commit_if(&place.limits.counters, &commit, None, now, || true);
        } else {
            let _ = self.ask_until(&place.released(remembered), COMMIT_PATIENCE).await;
        }
    }
}

/// The places that a request takes of a rule: at all nodes, and at this one.
fn places(rule: &Rule, hash: DescriptorHash, id: ReservationId) -> Places {
    let part = |limit: u32, is_here: bool| {
        // Nothing is ever counted in it; only its limit matters.
        let window = Span::from_secs(3_600);
        let quota = Quota::simple(Algorithm::FixedWindow, limit, window).ok()?;
        let hash = if is_here { hash.in_flight_at_node() } else { hash.in_flight() };
        let key = hash.counter(&quota, Mode::Strict, rule.scope);
        let key = if is_here { key.share() } else { key };
        let counters = smallvec::smallvec![Counter { key, quota }];
        let (scope, durability) = (rule.scope, rule.durability);
        let limits = Limits { scope, durability, leased: None, is_share: false, counters };
        let key = KeyHash::of_reservation(&limits.counters, id);
        let key = if is_here { key.share() } else { key };
        Some(Part { limits, key, asked: Asked::Reserve { amount: 1, ttl: TTL } })
    };
    let limits = rule.in_flight;
    let everywhere = limits.everywhere.and_then(|limit| part(limit, false));
    let at_node = limits.at_node.and_then(|limit| part(limit, true));
    everywhere.into_iter().chain(at_node).collect()
}

/// A refusal of a request in flight: when another one ends is not known.
fn of_flight(verdict: Verdict) -> Verdict {
    let retry = if verdict.allowed { verdict.retry } else { Retry::After(RETRY_AFTER) };
    Verdict { retry, reset: RETRY_AFTER, ..verdict }
}
