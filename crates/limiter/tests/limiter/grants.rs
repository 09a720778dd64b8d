//! Grants against a counter that decides each hit when it passes: that counter never refuses one,
//! whichever node spends them, at any time, and whatever is given back.

use proptest::prelude::*;
use tidegate_limiter::engine::grant::{self, Mark, Offer};
use tidegate_limiter::engine::{self, State};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::{Ask, Counter, Granted, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const LONGEST: Span = Span::from_millis(400);
const HOLDERS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A holder asks for a part of what is there.
    Grant {
        holder: usize,
        wanted: u32,
        divisor: u32,
    },
    /// A holder admits hits by itself.
    Spend {
        holder: usize,
        hits: u32,
    },
    /// A holder gives back what it has of its oldest grant.
    GiveBack {
        holder: usize,
    },
    /// The owner decides a check.
    Check(u32),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let holder = 0..HOLDERS;
    prop_oneof![
        3 => (holder.clone(), 1..40_u32, 1..5_u32)
            .prop_map(|(holder, wanted, divisor)| Op::Grant { holder, wanted, divisor }),
        6 => (holder.clone(), 1..12_u32).prop_map(|(holder, hits)| Op::Spend { holder, hits }),
        2 => holder.prop_map(|holder| Op::GiveBack { holder }),
        2 => (1..8_u32).prop_map(Op::Check),
        4 => prop_oneof![0..3_000_000_u64, 0..300_000_000_u64].prop_map(Op::Wait),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    let granted: Vec<_> =
        Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::SlidingWindowLog).collect();
    let algorithm = prop::sample::select(granted);
    (algorithm, 1..60_u32, 1..4_u64, 1..90_u32, prop::sample::select(vec![1_u8, 4, 10])).prop_map(
        |(algorithm, limit, secs, burst, sub_windows)| {
            let is_sliding = algorithm == Algorithm::SlidingWindowCounter;
            let is_window = is_sliding || algorithm == Algorithm::FixedWindow;
            Quota::new(QuotaParts {
                algorithm,
                limit,
                window: Span::from_secs(secs),
                burst: if is_window { limit } else { burst },
                sub_windows: if is_sliding { sub_windows } else { 1 },
                queue: None,
            })
            .expect("a valid quota")
        },
    )
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    holder: usize,
    mark: Mark,
    left: u32,
    ends: Timestamp,
}

/// The owner's state, that of a counter which sees every hit when it passes, and the grants.
struct World {
    quota: Quota,
    owner: State,
    seen: State,
    grants: Vec<Grant>,
    now: Timestamp,
}

impl World {
    fn new(quota: Quota) -> Self {
        Self { quota, owner: State::Absent, seen: State::Absent, grants: Vec::new(), now: START }
    }

    fn apply(&mut self, op: Op) {
        let Self { quota, now, .. } = *self;
        match op {
            Op::Grant { holder, wanted, divisor } => {
                let offer = grant::offer(&self.owner, &quota, LONGEST, now);
                let Offer { room, term } = offer.expect("neither a log nor a queue");
                let hits = wanted.min(room / divisor);
                if hits == 0 {
                    return;
                }
                let mark = grant::charge(&mut self.owner, &quota, hits, term, now);
                let mark = mark.expect("what was offered can be charged");
                self.grants.push(Grant { holder, mark, left: hits, ends: now.plus(term) });
            }
            Op::Spend { holder, hits } => {
                let mut wanted = hits;
                for grant in self.grants.iter_mut().filter(|it| it.holder == holder) {
                    let hits = if grant.ends > now { wanted.min(grant.left) } else { 0 };
                    grant.left -= hits;
                    wanted -= hits;
                }
                self.passes(hits - wanted);
            }
            Op::GiveBack { holder } => {
                let Some(at) = self.grants.iter().position(|it| it.holder == holder) else {
                    return;
                };
                let Grant { mark, left, .. } = self.grants.remove(at);
                let back = grant::give_back(&mut self.owner, &quota, mark, left, LONGEST, now);
                assert!(back <= left);
                self.grants.iter_mut().for_each(|other| other.mark.lower(&quota, back));
            }
            Op::Check(hits) => {
                let asked = Hits::new(i64::from(hits));
                // It would count what it refuses, for a counter of its own as well.
                if engine::preview(&self.owner, &quota, asked, now).allowed {
                    engine::decide(&mut self.owner, &quota, asked, now);
                    self.passes(hits);
                }
            }
            Op::Wait(nanos) => self.now = now.plus(Span::from_nanos(nanos)),
        }
    }

    /// `hits` are admitted now.
    fn passes(&mut self, hits: u32) {
        let hits = Hits::new(i64::from(hits));
        let verdict = engine::decide(&mut self.seen, &self.quota, hits, self.now);
        assert!(verdict.allowed, "{} over: {verdict:?}", verdict.excess);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn nothing_is_over(quota in quota(), ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new(quota);
        for op in ops {
            world.apply(op);
        }
    }

    /// What is granted and given back at once leaves nothing charged but one term of a bucket.
    #[test]
    fn what_is_given_back_at_once_is_there_again(quota in quota(), wanted in 1..40_u32) {
        let mut world = World::new(quota);
        let before = grant::offer(&world.owner, &quota, LONGEST, START).expect("granted").room;
        world.apply(Op::Grant { holder: 0, wanted, divisor: 1 });
        world.apply(Op::GiveBack { holder: 0 });
        let after = grant::offer(&world.owner, &quota, LONGEST, START).expect("granted").room;
        prop_assert_eq!(before, after);
    }
}

#[test]
fn a_log_and_a_queue_grant_nothing() {
    let log = Quota::simple(Algorithm::SlidingWindowLog, 10, Span::from_secs(1)).expect("valid");
    let queue = Quota::new(QuotaParts {
        algorithm: Algorithm::LeakyBucket,
        limit: 10,
        window: Span::from_secs(1),
        burst: 10,
        sub_windows: 1,
        queue: Some(3),
    });
    for quota in [log, queue.expect("valid")] {
        assert_eq!(grant::offer(&State::Absent, &quota, LONGEST, START), None);
    }
}

/// The example of the module.
#[test]
fn of_an_idle_bucket_what_one_term_is_worth_is_not_given_back() {
    let quota = Quota::simple(Algorithm::TokenBucket, 100, Span::from_secs(1)).expect("valid");
    let mut state = State::Absent;
    let Offer { room, term } = grant::offer(&state, &quota, LONGEST, START).expect("granted");
    assert_eq!((room, term), (99, Span::from_nanos(7_812_500)));
    let mark = grant::charge(&mut state, &quota, 16, term, START).expect("fits");
    let peek = |state: &State, now| engine::preview(state, &quota, Hits::PEEK, now).remaining;
    assert_eq!(peek(&state, START), 83);
    let later = START.plus(Span::from_millis(6));
    assert_eq!(grant::give_back(&mut state, &quota, mark, 16, LONGEST, later), 15);
}

/// A window that is over gets nothing back, and the bucket beside it does. The marks of other
/// grants are lowered by what is returned, and may not stay above what the bucket has been since.
#[test]
fn of_several_limits_the_most_that_was_given_back_is_returned() {
    let counter = |tag, algorithm| {
        let quota = Quota::simple(algorithm, 100, Span::from_secs(1)).expect("valid");
        Counter { key: KeyHash { token: 7, tag }, quota }
    };
    let counters = [counter(1, Algorithm::FixedWindow), counter(2, Algorithm::Gcra)];
    let store = Store::new(Options { keys_max: 64, on_full: OnFull::Refuse, shards: Some(1) });
    let (longest, shortest) = (LONGEST, Span::ZERO);
    let ask = Ask { wanted: 10, held: 0, divisor: 2, longest, shortest };
    let charged = START.plus(Span::from_millis(998));
    let made = store.check_leased_if(&counters, &[Hits::PEEK], Some(ask), charged, || true);
    let Granted { hits, marks, .. } = made.and_then(|made| made.1).expect("there is room");
    let later = START.plus(Span::from_millis(1_001));
    assert_eq!(hits, 10);
    assert_eq!(store.give_back_if(&counters, &marks, hits, LONGEST, later, || true), 9);
}
