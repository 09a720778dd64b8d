//! The receiving side: which states of a peer are merged.
//!
//! A state is merged only if the peer may hold its key and a correct node could hold that state.
//! The check does not need the rule. A node's clock may be `ahead_max` ahead of this one's
//! ([`Options`](super::Options)), so a state may have seen a time that much later, and may expire
//! no later than its kind can:
//!
//! ```text
//! seen    ≤ now + ahead_max                      (State::last_update_from_expiry)
//! expires ≤ now + ahead_max + 2 × the longest window     or, of a bucket, + the longest drain
//! ```
//!
//! A state of the distant future would displace present counts and deny its key for years; one that
//! expires too early would be dropped while it still counts.

use tidegate_limiter::engine::{State, first_hit_window};
use tidegate_limiter::policy::Scope;
use tidegate_limiter::quota::{DRAIN_MAX, WINDOW_MAX};
use tidegate_limiter::store::{KeyHash, MergeOutcome, StoredCounter};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::HandoffReply;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::Member;
use tidegate_ownership::route::Topology;

use super::replicator::{ReceivedFrom, Replicator};
use crate::count;
use crate::mesh::wire::{Reply, STATE_ENTRIES_MAX, StateEntry};

/// A TAT is rounded up to a nanosecond.
const ROUNDING: Span = Span::from_nanos(1);

impl Replicator {
    /// Merges states that a peer sent: copies, or keys of a handoff. Replies [`Reply::Done`] if
    /// this node now holds all of them, [`Reply::Unconfirmed`] if some were refused or did not fit.
    /// A peer that is not in this node's view is to send them again later.
    pub fn receive(&self, from: &NodeId, entries: Vec<StateEntry>) -> Reply {
        if entries.len() > STATE_ENTRIES_MAX {
            return Reply::Malformed;
        }
        let topology = self.topology.load();
        let Some(member) = topology.view.get(from) else {
            count(&self.counters.refused, entries.len() as u64);
            return Reply::Handoff(HandoffReply::Later);
        };
        let (now, ahead_max) = (self.clock.now(), self.options.ahead_max);
        let (mut holds_all, mut refused) = (true, 0);
        let settles =
            |entry: &&StateEntry| is_settled(&entry.state) && self.keeps_free(entry.key, now);
        let contested: Vec<u64> = entries.iter().filter(settles).map(|it| it.key.token).collect();
        for StateEntry { key, mut state, expires } in entries {
            let is_plausible = is_plausible(key, &state, expires, now, ahead_max);
            if !may_hold(member, key, &topology) || !is_plausible {
                refused += 1;
                holds_all = false;
                continue;
            }
            if contested.contains(&key.token) || self.may_be_taken_back(key) {
                holds_all = false;
                continue;
            }
            count(&self.counters.received, 1);
            first_hit_window::end_credit(&mut state);
            match self.store.merge(StoredCounter { key, state, expires }, now) {
                // The owner forwards the change to its replicas; a replica forwards nothing.
                MergeOutcome::Merged { changed: true } if will_own(key, &topology) => {
                    self.store.enqueue_replication(key);
                }
                MergeOutcome::Merged { .. } | MergeOutcome::Expired => {}
                MergeOutcome::Full | MergeOutcome::WrongKind => holds_all = false,
            }
        }
        count(&self.counters.refused, refused);
        self.record_received(from, refused, &topology);
        if holds_all { Reply::Done } else { Reply::Unconfirmed }
    }
}

impl Replicator {
    /// Whether this node decides the key of a reservation, which is live. Only the owner settles
    /// it. A copy in which it is settled is late, of a node that has lost the key: the join of the
    /// counters beside it with those here would hide its cost, or what was counted here. So nothing
    /// of it is merged, and the reservation is there for the same commit at this node.
    fn keeps_free(&self, key: KeyHash, now: Timestamp) -> bool {
        self.decides.decides(key.scope(), key.token) && self.store.is_reserved(key, now)
    }

    /// Whether commits are counted here that may have to be taken back, as this node has no lease
    /// for them. With the counts of the next owner that could not be told apart.
    fn may_be_taken_back(&self, key: KeyHash) -> bool {
        self.store.has_unconfirmed(key.token) && !self.decides.has_lease(key.scope())
    }

    /// **Bound:** one entry for each member of the view, and as many of former ones.
    fn record_received(&self, from: &NodeId, refused: u64, topology: &Topology) {
        let last = self.clock.monotonic();
        let mut received_from = self.received_from.lock();
        if received_from.len() > 2 * topology.view.members().len() {
            received_from.retain(|id, _| topology.view.get(id).is_some());
        }
        let first = ReceivedFrom { last, refused: 0 };
        let received = received_from.entry(from.clone()).or_insert(first);
        received.last = last;
        received.refused += refused;
    }
}

fn is_settled(state: &State) -> bool {
    state.reservation().is_some_and(|reservation| reservation.is_settled)
}

/// Whether this node owns the key, now, when its home is lost, or when this region is a home again.
pub(super) fn will_own(key: KeyHash, topology: &Topology) -> bool {
    let (scope, token, homes) = (key.scope(), key.token, topology.homes());
    let is_claimed = || homes.claimants(token).any(|region| region == topology.region);
    let is_next = || topology.region_owner(&topology.region, token) == Some(&topology.me);
    topology.owns(scope, token)
        || scope == Scope::Global && (topology.is_second_owner(token) || is_next() && is_claimed())
}

/// Whether a member may hold this key, and send its state to this region: those of other regions
/// only global keys, where homes move.
fn may_hold(member: &Member, key: KeyHash, topology: &Topology) -> bool {
    member.region == topology.region || key.scope() == Scope::Global && topology.homes().fail_over()
}

/// Whether an honest node whose clock is at most `ahead_max` ahead could send this state at `now`.
/// Per-actor counters are not replicated: synchronisation checks their actors.
pub fn is_plausible(
    key: KeyHash,
    state: &State,
    expires: Timestamp,
    now: Timestamp,
    ahead_max: Span,
) -> bool {
    let ahead = now.plus(ahead_max);
    let last = match state {
        // Two rounding steps: of the TAT to a nanosecond and of the expiry.
        State::Tat(_) => ahead.plus(DRAIN_MAX).plus(Span::from_nanos(32)),
        _ => ahead.plus(WINDOW_MAX).plus(WINDOW_MAX),
    };
    let is_seen =
        state.last_update_from_expiry(expires).is_some_and(|seen| seen <= ahead.plus(ROUNDING));
    key.is_owned() && is_seen && expires <= last
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_limiter::descriptor::Entry;
    use tidegate_limiter::engine::{AHEAD_MAX, ActorCounters, Tat};
    use tidegate_limiter::policy::Mode;
    use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
    use tidegate_limiter::store::{Counter, KeyHasher, OnFull, Options, Store};
    use tidegate_limiter::units::Hits;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn counter(quota: Quota) -> Counter {
        let descriptor = KeyHasher::new([1; 16]).descriptor("d", &[Entry { key: "k", value: "v" }]);
        Counter { key: descriptor.counter(&quota, Mode::Strict, Scope::Region), quota }
    }

    /// Every kind of quota, the slowest and the longest included.
    fn quota() -> impl Strategy<Value = Quota> {
        let secs = prop_oneof![1..100_u64, 3_600..90_000_u64, Just(400 * 86_400_u64)];
        let parts = (
            prop::sample::select(Algorithm::ALL.to_vec()),
            prop_oneof![1..20_u32, 9_000..=10_000_u32],
            secs,
            prop::sample::select(vec![1_u8, 4, 60]),
            prop_oneof![1..50_u32, Just(40_000)],
        );
        parts.prop_filter_map("no quota", |(algorithm, limit, secs, slices, burst)| {
            let is_bucket = matches!(
                algorithm,
                Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra
            );
            let is_sliding = algorithm == Algorithm::SlidingWindowCounter;
            let parts = QuotaParts {
                algorithm,
                limit,
                window: Span::from_secs(secs),
                burst: if is_bucket { burst } else { limit },
                sub_windows: if is_sliding { slices } else { 1 },
                queue: None,
            };
            Quota::new(parts).ok()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn states_of_honest_nodes_are_plausible(
            quota in quota(),
            checks in prop::collection::vec((-3..9_i64, 0..30_000_000_000_u64), 1..30),
            skew_ms in -5_000..=5_000_i64,
            nanos in 0..2_000_u64,
        ) {
            let store =
                Store::new(Options { keys_max: 10, on_full: OnFull::Refuse, shards: Some(1) });
            let skew = Span::from_millis(skew_ms.unsigned_abs());
            let mut now = NOW.plus(Span::from_nanos(nanos));
            let counter = counter(quota);
            for (hits, wait) in checks {
                now = now.plus(Span::from_nanos(wait));
                let theirs = if skew_ms > 0 { now.plus(skew) } else { now.minus(skew) };
                store.check(&[counter], Hits::new(hits), theirs);
                if let Some(sent) = store.get(counter.key, theirs) {
                    let (key, state, expires) = (sent.key, &sent.state, sent.expires);
                    let is_plausible = is_plausible(key, state, expires, now, AHEAD_MAX);
                    prop_assert!(is_plausible, "{sent:?} at {now:?}");
                }
            }
        }

        #[test]
        fn states_of_the_distant_future_are_implausible(
            quota in quota(),
            hits in 1..9_i64,
            ahead in 6..1_000_000_000_u64,
        ) {
            // A window that began before now cannot be distinguished from one that is current, nor
            // can a bucket that is less full than the fullest.
            let (window, drain) = (quota.window(), DRAIN_MAX);
            let undetectable = match quota.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => drain,
                Algorithm::SlidingWindowLog | Algorithm::FirstHitWindow => Span::ZERO,
                Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => window,
            };
            let then = NOW.plus(undetectable).plus(Span::from_secs(ahead));
            let store =
                Store::new(Options { keys_max: 10, on_full: OnFull::Refuse, shards: Some(1) });
            let counter = counter(quota);
            store.check(&[counter], Hits::new(hits), then);
            if let Some(sent) = store.get(counter.key, then) {
                let is_plausible =
                    is_plausible(sent.key, &sent.state, sent.expires, NOW, AHEAD_MAX);
                prop_assert!(!is_plausible, "{sent:?}");
            }
        }
    }

    #[test]
    fn an_expiry_that_no_quota_gives_is_implausible() {
        let key = counter(Quota::simple(Algorithm::Gcra, 1, WINDOW_MAX).expect("valid")).key;
        let is_plausible =
            |state: State, expires| is_plausible(key, &state, expires, NOW, AHEAD_MAX);
        let soon = NOW.plus(Span::from_secs(60));
        let index = 1_700_000_000 / 60;
        let window = |index| State::FixedWindow { index, used: 7 };
        assert!(is_plausible(window(index), Timestamp::from_secs(u64::from(index + 1) * 60)));
        assert!(!is_plausible(window(index), Timestamp::NEVER), "it would never expire");
        assert!(!is_plausible(window(0), soon), "a window of 54 years");
        assert!(!is_plausible(window(u32::MAX), Timestamp::from_nanos(7)), "a window of no length");
        let counter = State::SlidingCounter { index: u32::MAX, prev: 1, cur: 1 };
        assert!(!is_plausible(counter, NOW.plus(WINDOW_MAX)), "its window begins in months");
        let tat = State::Tat(Tat::new(soon.as_nanos(), 0));
        assert!(is_plausible(tat.clone(), soon));
        assert!(!is_plausible(tat.clone(), NOW), "it would expire while it counts");
        assert!(!is_plausible(tat, Timestamp::NEVER));
        assert!(!is_plausible(State::Log(Box::default()), Timestamp::NEVER));
    }

    #[test]
    fn per_actor_counters_and_shares_are_not_replicated() {
        let quota = Quota::simple(Algorithm::FixedWindow, 1, Span::from_secs(60)).expect("valid");
        let (key, soon) = (counter(quota).key, NOW.plus(Span::from_secs(60)));
        let actor_counters = State::ActorCounters(Box::new(ActorCounters::new(&quota)));
        assert!(!is_plausible(key, &actor_counters, soon, NOW, AHEAD_MAX));
        let state = State::Tat(Tat::new(soon.as_nanos(), 0));
        assert!(is_plausible(key, &state, soon, NOW, AHEAD_MAX));
        assert!(!is_plausible(key.share(), &state, soon, NOW, AHEAD_MAX));
    }
}
