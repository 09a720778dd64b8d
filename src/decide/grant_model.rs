//! Grants are never over, and none of their hits is counted twice or created: checked for every
//! order of events of an owner, the node that follows it and two holders within stated bounds.
//!
//! Messages are lost, doubled and arrive in any order; holders restart without what they hold; an
//! owner dies, and the next one has its counts and not its ledger, or it hands over and gets the
//! key back; the clock of one holder is a tenth too slow, that of the other a tenth too fast;
//! windows end and the rule changes. In each state that is reached
//!
//! - a counter that sees each hit when it passes has had room for all of them (its first-hit window
//!   begins when that of the owner does, which may be with a grant),
//! - the owner has counted what has passed and what may still pass,
//! - of each call no more was spent and taken back than it was granted, and it was granted once,
//! - a window has counted what its owner admitted and granted and did not take back, and
//! - what a holder received is spent, given back, late or held.
//!
//! Each rule of grants is necessary: without it one of these does not hold, which is checked too.
//!
//! `TIDEGATE_MODEL_DEEPER=1` explores one more event.

mod moves;
mod setting;
mod world;

use std::collections::BTreeSet;

use moves::Move;
use parking_lot::Mutex;
use setting::{Bounds, Rule};
use stateright::{Checker, HasDiscoveries, Model, Property};
use tidegate_limiter::engine::grant::Terms;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::Span;
use world::{Setting, World};

/// Every order of moves from the start.
struct Orders(World);

impl Model for Orders {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        vec![self.0.clone()]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        moves.extend(world.moves());
    }

    fn next_state(&self, world: &World, next: Move) -> Option<World> {
        world.after(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never over", |_, world: &World| !world.truth.is_over),
            Property::always("all is counted", |_, world: &World| world.is_covered()),
            Property::always("granted once", |_, world: &World| world.is_granted_once()),
            Property::always("it adds up", |_, world: &World| world.adds_up()),
            Property::always("accounted for", |_, world: &World| world.is_accounted_for()),
            Property::always("by its own rule", |_, world: &World| !world.truth.is_foreign),
        ]
    }
}

/// A limit of 4 a second: a holder gets two hits, the next one another.
fn window(tick_ms: u64) -> Setting {
    let quota = |limit| Quota::simple(Algorithm::FixedWindow, limit, Span::from_secs(1));
    Setting {
        quotas: [4, 3].map(|limit| quota(limit).expect("valid")),
        divisor: 2,
        tick: Span::from_millis(tick_ms),
        terms: Terms { longest: Span::from_secs(1), useful: Span::ZERO },
        without: None,
        reached: Mutex::default(),
    }
}

/// As `window`, one that begins with the first hit or grant.
fn first_hit_window(tick_ms: u64) -> Setting {
    let quota = |limit| Quota::simple(Algorithm::FirstHitWindow, limit, Span::from_secs(1));
    Setting { quotas: [4, 3].map(|limit| quota(limit).expect("valid")), ..window(tick_ms) }
}

/// A hit each 4 ms, so a term of 7.8 ms, and four hits for a holder.
fn bucket() -> Setting {
    let quota = |limit| Quota::simple(Algorithm::Gcra, limit, Span::from_secs(1));
    Setting {
        quotas: [250, 125].map(|limit| quota(limit).expect("valid")),
        divisor: 62,
        tick: Span::from_millis(4),
        ..window(4)
    }
}

const NOTHING: Bounds = Bounds {
    ticks: 0,
    asks: 0,
    time_outs: 0,
    doubled: 0,
    checks: 0,
    unconfirmed: 0,
    restarts: 0,
    crashes: 0,
    handovers: 0,
    reloads: 0,
    refunds: 0,
};

/// A few of each.
const EVERYTHING: Bounds = Bounds {
    ticks: 2,
    asks: 2,
    time_outs: 1,
    doubled: 1,
    checks: 2,
    unconfirmed: 1,
    restarts: 1,
    crashes: 1,
    handovers: 2,
    reloads: 1,
    refunds: 1,
};

/// Windows end, and nothing fails.
const TIME: Bounds = Bounds { ticks: 4, asks: 3, checks: 2, ..NOTHING };
/// The owner changes.
const OWNERS: Bounds =
    Bounds { ticks: 1, asks: 2, doubled: 1, checks: 1, crashes: 1, handovers: 2, ..NOTHING };
/// Holders fail, and messages to them.
const HOLDERS: Bounds =
    Bounds { ticks: 1, asks: 3, time_outs: 2, doubled: 1, checks: 1, restarts: 1, ..NOTHING };
/// Clients give hits back, more than they were admitted too.
const REFUNDS: Bounds =
    Bounds { ticks: 2, asks: 2, checks: 2, refunds: 2, handovers: 1, crashes: 1, ..NOTHING };
/// Others are refused.
const RECALLS: Bounds = Bounds { asks: 2, checks: 4, doubled: 1, time_outs: 1, ..NOTHING };

/// Two grants of a bucket, of which the first is given back at once, and the second 14 ms later:
/// then a third one has to raise the bucket to the end of its term.
const LATE_MARK: [Move; 14] = [
    Move::Ask(0),
    ARRIVES,
    Move::TimeOut(0),
    Move::Ask(1),
    ARRIVES,
    ARRIVES,
    Move::TimeOut(1),
    Move::Tick,
    Move::Tick,
    Move::Tick,
    Move::Tick,
    Move::Tick,
    Move::Tick,
    Move::Tick,
];
const ARRIVES: Move = Move::Deliver { index: 0, stays: false };
const MARKS: Bounds = Bounds { ticks: 7, asks: 3, time_outs: 2, ..NOTHING };

/// What a search has to reach; otherwise it proves nothing.
const REACHED: [&str; 14] = [
    "a call arrives twice",
    "a call has no reply",
    "a grant is not confirmed",
    "a grant is recalled",
    "a refund is put into a grant",
    "a refund is taken off by the owner",
    "a refund waits for what is outstanding",
    "a holder dies with grants",
    "a window ends while hits of it are held",
    "an owner dies with grants outstanding",
    "hits are given back in vain",
    "hits are given back to a former owner",
    "hits are taken back",
    "hits are taken back by an owner that got its key back",
];

#[test]
#[allow(clippy::print_stderr)]
fn no_order_of_events_admits_more_than_the_limit_or_loses_a_hit() {
    let deeper = std::env::var_os("TIDEGATE_MODEL_DEEPER").and_then(|it| it.into_string().ok());
    let deeper: usize = deeper.and_then(|text| text.parse().ok()).unwrap_or(0);
    let searches = [
        ("window", window(500), EVERYTHING, 6),
        ("window", window(250), TIME, 9),
        ("window", window(500), OWNERS, 8),
        ("window", window(500), HOLDERS, 8),
        ("window", window(500), RECALLS, 10),
        ("window", window(250), REFUNDS, 8),
        ("first-hit window", first_hit_window(500), EVERYTHING, 6),
        ("first-hit window", first_hit_window(250), TIME, 9),
        ("first-hit window", first_hit_window(250), REFUNDS, 8),
        ("bucket", bucket(), REFUNDS, 8),
        ("bucket", bucket(), EVERYTHING, 6),
        ("bucket", bucket(), TIME, 9),
        ("bucket", bucket(), HOLDERS, 7),
    ];
    let mut reached = BTreeSet::new();
    for (name, setting, left, depth) in searches {
        let depth = depth + deeper;
        let world = World::new(setting, left);
        let setting = world.setting.clone();
        let checker = Orders(world).checker().threads(2).target_max_depth(depth + 1);
        let checker = checker.spawn_bfs().join();
        eprintln!(
            "{} unique states within {depth} events of a {name} and {left:?}",
            checker.unique_state_count()
        );
        checker.assert_properties();
        reached.append(&mut setting.reached.lock());
    }
    let unreached: Vec<_> = REACHED.iter().filter(|name| !reached.contains(*name)).collect();
    assert!(unreached.is_empty(), "never reached: {unreached:?}");
}

/// The search finds what goes wrong without each rule.
#[test]
#[allow(clippy::print_stderr)]
fn without_any_one_rule_some_order_of_events_does() {
    let none: &[Move] = &[];
    let fine = Setting { tick: Span::from_millis(2), ..bucket() };
    let late = Bounds { ticks: 2, asks: 1, checks: 1, ..NOTHING };
    let reload = Bounds { asks: 1, reloads: 1, ..NOTHING };
    let restart = Bounds { asks: 2, time_outs: 1, restarts: 1, ..NOTHING };
    let time = Bounds { ticks: 4, asks: 1, ..NOTHING };
    let refund = Bounds { ticks: 1, asks: 1, checks: 5, refunds: 1, ..NOTHING };
    let refund_of_next = Bounds { crashes: 1, ..refund };
    let one = Bounds { ticks: 1, asks: 1, ..NOTHING };
    let lost = Bounds { asks: 1, time_outs: 1, doubled: 1, ..NOTHING };
    let crash = Bounds { asks: 1, crashes: 1, ..NOTHING };
    let cases = [
        (Rule::ChargedBefore, window(500), one, none),
        (Rule::ChargedAtTheEndOfTheTerm, bucket(), one, none),
        (Rule::ConfirmedBeforeItIsSent, window(500), crash, none),
        (Rule::GrantedOnce, window(500), lost, none),
        (Rule::CountedFromSending, window(250), time, none),
        (Rule::EndsBeforeItsTerm, window(250), time, none),
        (Rule::EndsWithItsSlice, window(250), time, none),
        (Rule::ExpiredIsNotSpent, window(250), time, none),
        (Rule::GivenBackIsNotSpent, window(500), RECALLS, none),
        (Rule::LateReplyIsNotSpent, window(500), lost, none),
        (Rule::OtherLimitsAreNotSpent, window(500), reload, none),
        (Rule::GivenBackOnce, window(500), lost, none),
        (Rule::NoMoreThanGranted, window(500), Bounds { asks: 2, ..lost }, none),
        (Rule::NotLate, window(500), late, none),
        (Rule::MarksAreLowered, fine, MARKS, &LATE_MARK[..]),
        (Rule::OfOneIncarnation, window(500), restart, none),
        (Rule::OnlyWhatIsEntered, window(500), Bounds { crashes: 1, ..lost }, none),
        (Rule::OutstandingIsNotRefunded, window(500), refund, none),
        (Rule::OutstandingIsNotRefunded, first_hit_window(500), refund, none),
        (Rule::OutstandingIsNotRefunded, bucket(), refund, none),
        (Rule::UnknownIsNotRefunded, window(500), refund_of_next, none),
    ];
    let mut not_found = Vec::new();
    for (rule, setting, left, first) in cases {
        let start = World::new(Setting { without: Some(rule), ..setting }, left);
        let start = first.iter().fold(start, |world, next| world.after(*next).expect("possible"));
        let checker = Orders(start).checker().threads(2).target_max_depth(12);
        let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discoveries();
        for (name, path) in &found {
            eprintln!("without {rule:?}: not {name:?} after {:?}", path.clone().into_actions());
        }
        if found.is_empty() {
            not_found.push(rule);
        }
    }
    assert!(not_found.is_empty(), "nothing goes wrong without {not_found:?}");
}
