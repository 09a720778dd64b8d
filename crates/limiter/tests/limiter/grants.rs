//! Grants against a counter that decides each hit when it passes: that counter never refuses one,
//! whichever node spends them, at any time, and whatever is given back.

use proptest::prelude::*;
use tidegate_limiter::engine::grant::{self, Mark, Offer, Outstanding, Terms};
use tidegate_limiter::engine::{self, State, Tat};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::{Ask, Counter, Granted, KeyHash, OnFull, Options, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const LONGEST: Span = Span::from_millis(400);
/// Of holders in the region of the owner.
const NEAR: Terms = Terms { longest: LONGEST, useful: Span::ZERO };
/// Of holders that are far away.
const FAR: Terms = Terms { longest: LONGEST, useful: Span::from_millis(350) };
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
    /// The owner decides a check by the rule of a holder.
    Check {
        holder: usize,
        hits: u32,
    },
    /// A client gives hits back at a holder, which puts them into its grants.
    RefundGranted {
        holder: usize,
        hits: u32,
    },
    /// The same at the owner, by the rule of a holder.
    Refund {
        holder: usize,
        hits: u32,
    },
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let holder = 0..HOLDERS;
    prop_oneof![
        3 => (holder.clone(), 1..40_u32, 1..5_u32)
            .prop_map(|(holder, wanted, divisor)| Op::Grant { holder, wanted, divisor }),
        6 => (holder.clone(), 1..12_u32).prop_map(|(holder, hits)| Op::Spend { holder, hits }),
        2 => holder.clone().prop_map(|holder| Op::GiveBack { holder }),
        2 => (holder.clone(), 1..8_u32).prop_map(|(holder, hits)| Op::Check { holder, hits }),
        1 => (holder.clone(), 1..12_u32)
            .prop_map(|(holder, hits)| Op::RefundGranted { holder, hits }),
        2 => (holder, 1..40_u32).prop_map(|(holder, hits)| Op::Refund { holder, hits }),
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
            let windows = [Algorithm::FixedWindow, Algorithm::FirstHitWindow];
            let is_window = is_sliding || windows.contains(&algorithm);
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
    hits: u32,
    ends: Timestamp,
}

/// The owner's state, that of a counter which sees every hit when it passes, and the grants.
struct World {
    /// Those of the holders in turn.
    quotas: [Quota; 2],
    owner: State,
    seen: State,
    grants: Vec<Grant>,
    /// The latest end of all grants, unless another owner has made some of them.
    granted_until: Timestamp,
    is_only_owner: bool,
    /// Of grants of another owner.
    others: Terms,
    now: Timestamp,
}

impl World {
    fn new(quotas: [Quota; 2]) -> Self {
        let (owner, seen, grants) = (State::Absent, State::Absent, Vec::new());
        let (granted_until, is_only_owner, others, now) = (START, true, FAR, START);
        Self { quotas, owner, seen, grants, granted_until, is_only_owner, others, now }
    }

    fn quota(&self, holder: usize) -> Quota {
        self.quotas[holder % self.quotas.len()]
    }

    /// One of them is far away.
    fn terms(holder: usize) -> Terms {
        if holder == 2 { FAR } else { NEAR }
    }

    fn apply(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Grant { holder, wanted, divisor } => {
                let quota = self.quota(holder);
                let offer = grant::offer(&self.owner, &quota, Self::terms(holder), now);
                let Offer { room, term } = offer.expect("neither a log nor a queue");
                let hits = wanted.min(room / divisor);
                if hits == 0 {
                    return;
                }
                let mark = grant::charge(&mut self.owner, &quota, hits, term, now);
                let mark = mark.expect("what was offered can be charged");
                let ends = now.plus(term);
                if self.is_only_owner {
                    self.granted_until = self.granted_until.max(ends);
                }
                self.grants.push(Grant { holder, mark, left: hits, hits, ends });
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
                let quota = self.quota(holder);
                let ends = (self.others, self.granted_until);
                let back = grant::give_back(&mut self.owner, &quota, mark, left, ends, now);
                assert!(back <= left);
                let later = self.grants.iter_mut().skip(at);
                later.for_each(|later| later.mark.lower(&quota, back));
            }
            Op::Check { holder, hits } => {
                let (quota, asked) = (self.quota(holder), Hits::new(i64::from(hits)));
                // It would count what it refuses, for a counter of its own as well.
                if engine::preview(&self.owner, &quota, asked, now).allowed {
                    engine::decide(&mut self.owner, &quota, asked, now);
                    self.passes(hits);
                }
            }
            Op::RefundGranted { holder, hits } => {
                let mut open = hits;
                let held = |it: &&mut Grant| it.holder == holder && it.ends > now;
                for grant in self.grants.iter_mut().filter(held) {
                    let back = open.min(grant.hits - grant.left);
                    grant.left += back;
                    open -= back;
                }
                self.is_refunded(u64::from(hits - open));
            }
            Op::Refund { holder, hits } => {
                let quota = self.quota(holder);
                let open = self.grants.iter().filter(|it| it.mark.is_open(&quota, now));
                let outstanding = Outstanding {
                    hits: open.map(|it| u64::from(it.hits)).sum(),
                    until: self.grants.iter().map(|it| it.ends).max().unwrap_or(START),
                };
                let refunded =
                    grant::refund(&mut self.owner, &quota, hits.into(), outstanding, now);
                assert!(refunded.taken + refunded.left <= u64::from(hits));
                let mut later = 0;
                for Grant { mark, hits, .. } in self.grants.iter_mut().rev() {
                    mark.refunded(&quota, &refunded, later);
                    later += u64::from(*hits);
                }
                self.is_refunded(refunded.taken);
            }
            Op::Wait(nanos) => self.now = now.plus(Span::from_nanos(nanos)),
        }
    }

    fn is_refunded(&mut self, hits: u64) {
        let hits = Hits::new(-i64::try_from(hits).expect("few"));
        let quota = self.quotas[0];
        if hits < Hits::PEEK {
            engine::decide(&mut self.seen, &quota, hits, self.now);
        }
    }

    /// A first-hit window of the owner may begin with a grant, before any of its hits passes.
    fn open_window(&mut self, quota: &Quota) {
        let is_open = self.seen.expires_at(quota) > self.now;
        if let (State::FirstHitWindow { opened, .. }, false) = (&self.owner, is_open) {
            self.seen = State::FirstHitWindow { opened: *opened, used: 0, credit: 0 };
        }
    }

    /// `hits` are admitted now, by the larger of the bursts.
    fn passes(&mut self, hits: u32) {
        let [a, b] = self.quotas;
        let quota = if a.burst() < b.burst() { b } else { a };
        let hits = Hits::new(i64::from(hits));
        self.open_window(&quota);
        let verdict = engine::decide(&mut self.seen, &quota, hits, self.now);
        assert!(verdict.allowed, "{} over: {verdict:?}", verdict.excess);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn nothing_is_over(
        quota in quota(),
        is_only_owner in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World { is_only_owner, ..World::new([quota; 2]) };
        for op in ops {
            world.apply(op);
        }
    }

    /// Rules of nodes that have not reloaded yet, or clients, name two bursts for one bucket.
    #[test]
    fn nothing_is_over_with_two_bursts(
        algorithm in prop::sample::select(
            vec![Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra]
        ),
        (limit, secs) in (1..60_u32, 1..4_u64),
        bursts in [1..90_u32, 1..900_u32],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let quotas = bursts.map(|burst| {
            let (window, sub_windows, queue) = (Span::from_secs(secs), 1, None);
            let parts = QuotaParts { algorithm, limit, window, burst, sub_windows, queue };
            Quota::new(parts).expect("a valid quota")
        });
        let mut world = World::new(quotas);
        for op in ops {
            world.apply(op);
        }
    }

    /// What is granted and given back at once leaves nothing charged but one term of a bucket.
    #[test]
    fn what_is_given_back_at_once_is_there_again(quota in quota(), wanted in 1..40_u32) {
        let mut world = World { others: NEAR, ..World::new([quota; 2]) };
        let before = grant::offer(&world.owner, &quota, NEAR, START).expect("granted").room;
        world.apply(Op::Grant { holder: 0, wanted, divisor: 1 });
        world.apply(Op::GiveBack { holder: 0 });
        let after = grant::offer(&world.owner, &quota, NEAR, START).expect("granted").room;
        prop_assert_eq!(before, after);
    }
}

/// Of bursts of 8 and 1,280 at 10 a second the terms are 6 ms and [`LONGEST`].
#[test]
fn what_one_rule_gives_back_is_not_what_a_longer_term_needs() {
    let bursts = [8, 1_280].map(|burst| QuotaParts {
        algorithm: Algorithm::Gcra,
        limit: 10,
        window: Span::from_secs(1),
        burst,
        sub_windows: 1,
        queue: None,
    });
    let mut world = World::new(bursts.map(|it| Quota::new(it).expect("valid")));
    world.apply(Op::Grant { holder: 0, wanted: 3, divisor: 1 });
    world.apply(Op::Grant { holder: 1, wanted: 10, divisor: 1 });
    world.apply(Op::GiveBack { holder: 0 });
    world.apply(Op::Wait(399_999_999));
    world.apply(Op::Spend { holder: 1, hits: 10 });
    for _ in 0..1_280 {
        world.apply(Op::Check { holder: 1, hits: 1 });
    }
}

/// Nothing has passed yet, and the bucket is at the end of the term of a grant, 4 hits from now.
#[test]
fn a_refund_takes_nothing_of_what_a_bucket_was_raised_by() {
    let quota = QuotaParts {
        algorithm: Algorithm::Gcra,
        limit: 10,
        window: Span::from_secs(1),
        burst: 1_280,
        sub_windows: 1,
        queue: None,
    };
    let mut world = World::new([Quota::new(quota).expect("valid"); 2]);
    world.apply(Op::Grant { holder: 0, wanted: 10, divisor: 1 });
    world.apply(Op::Refund { holder: 0, hits: 40 });
    world.apply(Op::Wait(399_999_999));
    world.apply(Op::Spend { holder: 0, hits: 10 });
    for _ in 0..1_280 {
        world.apply(Op::Check { holder: 0, hits: 1 });
    }
}

/// The example of the module. A refund takes hits that have nothing to do with those of the grants.
#[test]
fn what_is_granted_can_be_given_back_after_a_refund_of_all_else() {
    let month = Span::from_secs(30 * 86_400);
    let quota = Quota::simple(Algorithm::LeakyBucket, 60, month).expect("valid");
    let mut world = World { others: NEAR, ..World::new([quota; 2]) };
    for holder in 0..3 {
        world.apply(Op::Grant { holder, wanted: 4, divisor: 1 });
    }
    world.apply(Op::Check { holder: 0, hits: 40 });
    world.apply(Op::Refund { holder: 0, hits: 40 });
    for holder in 0..3 {
        world.apply(Op::GiveBack { holder });
    }
    let left = engine::preview(&world.owner, &quota, Hits::PEEK, world.now).remaining;
    assert!(left >= 59, "{left}: all but what a term is worth");
}

/// What a refund leaves is asserted too: it has the base of the bucket as low as nothing counted.
#[test]
fn what_is_granted_can_be_given_back_in_any_order() {
    let day = Span::from_secs(86_400);
    let quota = Quota::simple(Algorithm::TokenBucket, 1_280, day).expect("valid");
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        for refunded in [0, 40] {
            let mut world = World { others: NEAR, ..World::new([quota; 2]) };
            for holder in 0..3 {
                world.apply(Op::Grant { holder, wanted: 39, divisor: 1 });
            }
            if refunded > 0 {
                world.apply(Op::Check { holder: 0, hits: refunded });
                world.apply(Op::Refund { holder: 0, hits: refunded });
            }
            for holder in order {
                world.apply(Op::GiveBack { holder });
            }
            let left = engine::preview(&world.owner, &quota, Hits::PEEK, world.now).remaining;
            // A hit of a day's 1,280 is worth more than a term here.
            assert!(left >= 1_279, "{left} with {refunded} refunded, in the order {order:?}");
        }
    }
}

/// The mark of the first grant is renewed by a refund. The hits of the second are not in it: when
/// they are given back, a third grant with a later end raises the bucket.
#[test]
fn what_a_later_grant_has_raised_stays_after_a_refund() {
    let quota = Quota::simple(Algorithm::Gcra, 100, Span::from_secs(1)).expect("valid");
    let mut world = World { others: NEAR, ..World::new([quota; 2]) };
    world.apply(Op::Grant { holder: 0, wanted: 2, divisor: 1 });
    world.apply(Op::Grant { holder: 1, wanted: 38, divisor: 1 });
    world.apply(Op::Check { holder: 0, hits: 5 });
    world.apply(Op::Refund { holder: 0, hits: 5 });
    world.apply(Op::GiveBack { holder: 1 });
    world.apply(Op::Grant { holder: 2, wanted: 10, divisor: 1 });
    world.apply(Op::GiveBack { holder: 0 });
    world.apply(Op::Wait(349_999_999));
    world.apply(Op::Spend { holder: 2, hits: 10 });
    for _ in 0..100 {
        world.apply(Op::Check { holder: 0, hits: 1 });
    }
}

/// A holder that stood still gives back late, what a refund has left for it.
#[test]
fn what_comes_back_after_its_end_is_there_after_a_refund() {
    let quota = Quota::simple(Algorithm::TokenBucket, 1_280, Span::from_secs(86_400));
    let mut world = World { others: NEAR, ..World::new([quota.expect("valid"); 2]) };
    world.apply(Op::Grant { holder: 0, wanted: 39, divisor: 1 });
    world.apply(Op::Check { holder: 1, hits: 400 });
    world.apply(Op::Wait(LONGEST.as_nanos() + 1_000_000));
    world.apply(Op::Refund { holder: 1, hits: 400 });
    world.apply(Op::GiveBack { holder: 0 });
    let left = engine::preview(&world.owner, &world.quota(0), Hits::PEEK, world.now).remaining;
    assert!(left >= 1_278, "{left}: all but two terms, each of which is worth less than a hit");
}

/// Ten hits are granted and have not passed. A hit of the window before weighs half, so a refund
/// that took the newest ones first would make room for more.
#[test]
fn a_refund_leaves_what_is_outstanding_in_its_slice() {
    let quota = Quota::simple(Algorithm::SlidingWindowCounter, 100, Span::from_secs(1));
    let mut world = World::new([quota.expect("valid"); 2]);
    world.apply(Op::Check { holder: 0, hits: 60 });
    world.apply(Op::Wait(1_500_000_000));
    world.apply(Op::Grant { holder: 0, wanted: 10, divisor: 1 });
    world.apply(Op::Refund { holder: 0, hits: 8 });
    world.apply(Op::Spend { holder: 0, hits: 10 });
    for _ in 0..100 {
        world.apply(Op::Check { holder: 0, hits: 1 });
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
        assert_eq!(grant::offer(&State::Absent, &quota, NEAR, START), None);
    }
}

/// The example of the module.
#[test]
fn of_an_idle_bucket_what_one_term_is_worth_is_not_given_back() {
    let quota = Quota::simple(Algorithm::TokenBucket, 100, Span::from_secs(1)).expect("valid");
    let mut state = State::Absent;
    let Offer { room, term } = grant::offer(&state, &quota, NEAR, START).expect("granted");
    assert_eq!((room, term), (99, Span::from_nanos(7_812_500)));
    let mark = grant::charge(&mut state, &quota, 16, term, START).expect("fits");
    let peek = |state: &State, now| engine::preview(state, &quota, Hits::PEEK, now).remaining;
    assert_eq!(peek(&state, START), 83);
    let later = START.plus(Span::from_millis(6));
    let ends = (NEAR, START.plus(term));
    assert_eq!(grant::give_back(&mut state, &quota, mark, 16, ends, later), 15);
}

/// By which the marks of grants are set.
#[test]
fn a_refund_at_the_store_says_where_it_left_a_bucket() {
    let quota = Quota::simple(Algorithm::Gcra, 100, Span::from_secs(1)).expect("valid");
    let counter = Counter { key: KeyHash { token: 7, tag: 2 }, quota };
    let store = Store::new(Options { keys_max: 64, on_full: OnFull::Refuse, shards: Some(1) });
    let hits = [40, -10].map(Hits::new);
    let outstanding = [Outstanding { hits: 5, until: START }];
    let made = store.check_leased_if(&[counter], &hits, None, &outstanding, START, || true);
    let refunded = made.expect("owned").refunded[0];
    assert_eq!((refunded.taken, refunded.left), (10, 0));
    assert_eq!(refunded.tat, Some(Tat::new(START.plus(Span::from_millis(300)).as_nanos(), 0)));
}

/// A window that is over gets nothing back, and the bucket beside it does. The marks of later
/// grants are lowered by as much.
#[test]
fn of_several_limits_what_each_got_back_is_returned() {
    let counter = |tag, algorithm| {
        let quota = Quota::simple(algorithm, 100, Span::from_secs(1)).expect("valid");
        Counter { key: KeyHash { token: 7, tag }, quota }
    };
    let counters = [counter(1, Algorithm::FixedWindow), counter(2, Algorithm::Gcra)];
    let store = Store::new(Options { keys_max: 64, on_full: OnFull::Refuse, shards: Some(1) });
    let (terms, shortest) = (NEAR, Span::ZERO);
    let ask = Ask { wanted: 10, held: 0, divisor: 2, terms, shortest };
    let charged = START.plus(Span::from_millis(998));
    let made = store.check_leased_if(&counters, &[Hits::PEEK], Some(ask), &[], charged, || true);
    let Granted { hits, marks, .. } = made.and_then(|made| made.granted).expect("there is room");
    let later = START.plus(Span::from_millis(1_001));
    assert_eq!(hits, 10);
    let back = store.give_back_if(&counters, &marks, hits, (NEAR, START), later, || true);
    assert_eq!(back[..], [0, 9]);
}
