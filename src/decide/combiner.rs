//! Checks of one key that leave for its owner together.
//!
//! Of the checks of one key the first is sent at once. While its call is on its way the others
//! wait, and when the reply comes, all that wait leave as the next call; their owner decides them
//! one after the other, as if each had come alone. So a key costs a node one call per round trip
//! whatever its rate, and a check that is alone waits for nothing.
//!
//! A *hot* key is one whose last call was of several checks. When none of them is on its way, its
//! next check waits for a turn of the runtime, because clients that wait for replies send their
//! next checks together: without it each such round would cost two calls, one of them of one check.
//!
//! **Worked example.** The owner is 1 ms away and a key is checked 32,000 times a second. The first
//! check leaves at 0 ms, and 32 others arrive before its reply does, at 1 ms. They leave then, and
//! their replies come at 2 ms: a check takes 1.5 ms on average where it took 1 ms, and there are
//! 1,000 calls a second where there were 32,000.
//!
//! **Bounds.** A check waits at most a [`WAIT_DIVISOR`]th of its deadline for the call before it:
//! then what waits leaves, although that call has no reply. A call holds as many checks as have
//! [`COMBINED_VERDICTS_MAX`] verdicts: when so many wait, they leave at once. A key has an entry
//! here only while a call is on its way, so there are no more of them than checks in progress. One
//! hot key is remembered for each of the [`SHARDS`].
//!
//! Source: the idea is *flat combining* (Hendler, Incze, Shavit, Tzafrir, 2010), over a network;
//! `docs/adr/0049-request-combining.md` has what was weighed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_cluster::mesh::wire::{COMBINED_VERDICTS_MAX, TraceContext};
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::Hits;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::limits::Limits;
use super::outcome::{Forwarded, NoVerdict};

/// The part of its deadline that a check waits for the call before it.
pub(super) const WAIT_DIVISOR: u32 = 4;

const SHARDS: usize = 64;

/// What is sent to the owner of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sending {
    /// A check of a client, or one that looks.
    Check(Hits),
    /// Nothing but that this node asks for more hits: of a leased rule.
    Ask,
}

/// A check that waits for the call before it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) sending: Sending,
    /// When its caller stops waiting.
    pub(super) deadline: Instant,
    /// If it is recorded.
    pub(super) trace: Option<Arc<TraceContext>>,
    pub(super) reply: oneshot::Sender<Result<Forwarded, NoVerdict>>,
}

pub(super) type Reply = oneshot::Receiver<Result<Forwarded, NoVerdict>>;

/// Checks that leave as one call.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) limits: Limits,
    /// At least one.
    pub(super) checks: Vec<Waiting>,
}

/// What a check that has to be sent does.
#[derive(Debug)]
pub(super) enum Joined {
    /// No call is on its way: send it, with [`Combiner::others`] if it is hot, and call
    /// [`Combiner::ended`] afterwards.
    First { is_hot: bool },
    /// It waits with others. The first that waits calls [`Combiner::hurry`] when it has waited for
    /// too long.
    Waits { reply: Reply, is_first: bool },
    /// It waits, and as many wait now as one call holds. Send them, and call [`Combiner::ended`]
    /// afterwards.
    Full(Reply, Leaving),
    /// What is on its way has other limits for the same key, as after a reload of the rules: send
    /// it alone, and call nothing.
    Apart,
}

/// The keys with calls on their way to their owners.
#[derive(Debug)]
pub(super) struct Combiner {
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    keys: HashMap<KeyHash, InFlight>,
    /// The last key whose calls ended with one of several checks, until it has one of one check.
    hot: Option<KeyHash>,
}

#[derive(Debug)]
struct InFlight {
    limits: Limits,
    /// Calls without a reply; one, unless one was slow or the next ones full.
    calls: usize,
    waiting: Vec<Waiting>,
    /// The last call is of several checks.
    is_hot: bool,
}

impl Sending {
    pub(super) fn hits(self) -> Hits {
        match self {
            Self::Check(hits) => hits,
            Self::Ask => Hits::PEEK,
        }
    }

    /// Whether its call may ask for hits. A look asks for none: what is granted counts as
    /// used, and the next check may be at another node.
    pub(super) fn may_ask(self) -> bool {
        match self {
            Self::Check(hits) => hits.charge() > 0,
            Self::Ask => true,
        }
    }
}

impl Combiner {
    /// A check of these limits is to be sent.
    pub(super) fn join(
        &self,
        limits: &Limits,
        sending: Sending,
        deadline: Instant,
        trace: Option<&Arc<TraceContext>>,
    ) -> Joined {
        let Some(key) = limits.key() else { return Joined::Apart };
        let mut shard = self.shard(key).lock();
        let is_hot = shard.hot == Some(key);
        let in_flight = match shard.keys.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (limits, waiting) = (limits.clone(), Vec::new());
                new.insert(InFlight { limits, calls: 1, waiting, is_hot: false });
                return Joined::First { is_hot };
            }
        };
        if in_flight.limits != *limits {
            return Joined::Apart;
        }
        let (reply, receiver) = oneshot::channel();
        in_flight.waiting.push(Waiting { sending, deadline, trace: trace.cloned(), reply });
        if in_flight.waiting.len() < checks_max(limits) {
            return Joined::Waits { reply: receiver, is_first: in_flight.waiting.len() == 1 };
        }
        in_flight.calls += 1;
        Joined::Full(receiver, in_flight.leave(0))
    }

    /// The checks that have come while the first one waited for its turn.
    pub(super) fn others(&self, key: KeyHash) -> Vec<Waiting> {
        let mut shard = self.shard(key).lock();
        let in_flight = shard.keys.get_mut(&key);
        in_flight.map(|it| it.leave(1).checks).unwrap_or_default()
    }

    /// A check has waited for long enough: what waits leaves, if anything does. Call
    /// [`Combiner::ended`] after it.
    pub(super) fn hurry(&self, key: KeyHash) -> Option<Leaving> {
        let mut shard = self.shard(key).lock();
        let in_flight = shard.keys.get_mut(&key).filter(|it| !it.waiting.is_empty())?;
        in_flight.calls += 1;
        Some(in_flight.leave(0))
    }

    /// A call has ended. What waits is the next one, for which to call this again.
    pub(super) fn ended(&self, key: KeyHash) -> Option<Leaving> {
        let Shard { keys, hot } = &mut *self.shard(key).lock();
        let in_flight = keys.get_mut(&key)?;
        if !in_flight.waiting.is_empty() {
            return Some(in_flight.leave(0));
        }
        in_flight.calls -= 1;
        if in_flight.calls == 0 {
            if in_flight.is_hot {
                *hot = Some(key);
            } else if *hot == Some(key) {
                *hot = None;
            }
            keys.remove(&key);
        }
        None
    }

    fn shard(&self, key: KeyHash) -> &Mutex<Shard> {
        let at = key.token % self.shards.len() as u64;
        &self.shards[usize::try_from(at).unwrap_or(0)]
    }
}

impl Default for Combiner {
    fn default() -> Self {
        Self { shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect() }
    }
}

/// The most checks of one call.
fn checks_max(limits: &Limits) -> usize {
    COMBINED_VERDICTS_MAX / limits.counters.len().max(1)
}

impl InFlight {
    /// All that wait leave, in a call with `beside` other checks.
    fn leave(&mut self, beside: usize) -> Leaving {
        self.is_hot = self.waiting.len() + beside > 1;
        Leaving { limits: self.limits.clone(), checks: std::mem::take(&mut self.waiting) }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::policy::{Durability, Scope};
    use tidegate_limiter::quota::{Algorithm, Quota};
    use tidegate_limiter::store::Counter;
    use tidegate_limiter::units::Span;

    use super::*;

    fn limits(token: u64, limit: u32, counters: u64) -> Limits {
        let quota = Quota::simple(Algorithm::Gcra, limit, Span::from_secs(1)).expect("valid");
        let counter = |tag| Counter { key: KeyHash { token, tag }, quota };
        let counters = (0..counters).map(counter).collect();
        let (scope, durability) = (Scope::Region, Durability::Async);
        Limits { scope, durability, leased: None, is_share: false, counters }
    }

    fn limits_of_same_shard() -> Limits {
        limits(7 + SHARDS as u64, 10, 1)
    }

    fn join(combiner: &Combiner, limits: &Limits, hits: u32) -> Joined {
        let sending = Sending::Check(Hits::new(i64::from(hits)));
        combiner.join(limits, sending, Instant::now(), None)
    }

    fn hits(leaving: Option<Leaving>) -> Vec<i64> {
        let checks = leaving.map(|it| it.checks).unwrap_or_default();
        checks.iter().map(|check| check.sending.hits().get()).collect()
    }

    #[tokio::test]
    async fn what_arrives_during_a_call_leaves_after_it_in_order() {
        let (combiner, limits) = (Combiner::default(), limits(7, 10, 1));
        let key = limits.key().expect("one counter");
        assert!(matches!(join(&combiner, &limits, 1), Joined::First { .. }));
        let waits: Vec<_> = [2, 3].map(|hits| join(&combiner, &limits, hits)).into();
        assert!(waits.iter().all(|joined| matches!(joined, Joined::Waits { .. })));
        assert_eq!(hits(combiner.ended(key)), [2, 3]);
        let fourth = join(&combiner, &limits, 4);
        assert!(matches!(fourth, Joined::Waits { .. }), "the second call is on its way");
        assert_eq!(hits(combiner.ended(key)), [4]);
        assert!(hits(combiner.ended(key)).is_empty());
        assert!(
            matches!(join(&combiner, &limits, 5), Joined::First { .. }),
            "nothing is on its way"
        );
    }

    #[tokio::test]
    async fn the_next_check_of_a_hot_key_leaves_with_those_that_come_in_its_turn() {
        let (combiner, limits) = (Combiner::default(), limits(7, 10, 1));
        let key = limits.key().expect("one counter");
        let first = || match join(&combiner, &limits, 1) {
            Joined::First { is_hot } => is_hot,
            other => panic!("nothing is on its way: {other:?}"),
        };
        assert!(!first());
        let _waits = [2, 3].map(|hits| join(&combiner, &limits, hits));
        assert_eq!(hits(combiner.ended(key)), [2, 3]);
        assert!(hits(combiner.ended(key)).is_empty());
        let cold = limits_of_same_shard();
        assert!(matches!(join(&combiner, &cold, 1), Joined::First { is_hot: false }));
        assert!(hits(combiner.ended(cold.key().expect("one counter"))).is_empty());
        assert!(first(), "the last call was of two checks");
        let _waits = join(&combiner, &limits, 4);
        let others: Vec<_> =
            combiner.others(key).iter().map(|it| it.sending.hits().get()).collect();
        assert_eq!(others, [4]);
        assert!(hits(combiner.ended(key)).is_empty());
        assert!(first(), "it left with one other");
        assert!(combiner.others(key).is_empty());
        assert!(hits(combiner.ended(key)).is_empty());
        assert!(!first(), "it left alone");
    }

    #[tokio::test]
    async fn another_key_and_other_limits_wait_for_nothing() {
        let combiner = Combiner::default();
        assert!(matches!(join(&combiner, &limits(7, 10, 1), 1), Joined::First { .. }));
        assert!(matches!(join(&combiner, &limits(8, 10, 1), 1), Joined::First { .. }));
        assert!(matches!(join(&combiner, &limits(7, 11, 1), 1), Joined::Apart));
        assert!(matches!(join(&combiner, &limits(7, 10, 2), 1), Joined::Apart));
    }

    #[tokio::test]
    async fn a_slow_call_holds_up_the_next_one_no_longer_than_they_say() {
        let (combiner, limits) = (Combiner::default(), limits(7, 10, 1));
        let key = limits.key().expect("one counter");
        assert!(matches!(join(&combiner, &limits, 1), Joined::First { .. }));
        assert!(hits(combiner.hurry(key)).is_empty(), "nothing waits");
        let _second = join(&combiner, &limits, 2);
        assert_eq!(hits(combiner.hurry(key)), [2]);
        let _third = join(&combiner, &limits, 3);
        assert_eq!(hits(combiner.ended(key)), [3], "after the first of two calls");
        assert!(hits(combiner.ended(key)).is_empty());
        let _fourth = join(&combiner, &limits, 4);
        assert_eq!(hits(combiner.ended(key)), [4], "one call was still on its way");
        assert!(hits(combiner.ended(key)).is_empty());
        assert!(matches!(join(&combiner, &limits, 5), Joined::First { .. }));
    }

    #[tokio::test]
    async fn a_full_call_leaves_at_once() {
        for counters in [1, 3] {
            let (combiner, limits) = (Combiner::default(), limits(7, 10, counters));
            let key = limits.key().expect("one counter");
            let fits = COMBINED_VERDICTS_MAX / usize::try_from(counters).expect("small");
            assert!(matches!(join(&combiner, &limits, 1), Joined::First { .. }));
            for _ in 1..fits {
                assert!(matches!(join(&combiner, &limits, 1), Joined::Waits { .. }));
            }
            let Joined::Full(_, leaving) = join(&combiner, &limits, 1) else {
                panic!("{fits} checks fill a call")
            };
            assert_eq!(leaving.checks.len(), fits);
            assert!(hits(combiner.ended(key)).is_empty());
            assert!(
                matches!(join(&combiner, &limits, 1), Joined::Waits { .. }),
                "one is on its way"
            );
        }
    }
}
