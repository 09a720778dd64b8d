//! The checks of `scripts/chaos` on histories with known faults.

#![allow(dead_code, reason = "only the modules that the checks need")]

#[path = "../chaos/checks.rs"]
mod checks;
#[path = "../chaos/group.rs"]
mod group;
#[path = "../chaos/history.rs"]
mod history;

use std::time::Duration;

use checks::{Findings, Observations, check};
use group::{Fields, Group, Key};
use history::{Answer, Event};

const ADMITTED: Answer = Answer::Owner { is_allowed: true };
const REFUSED: Answer = Answer::Owner { is_allowed: false };
const FALLBACK: Answer = Answer::Fallback { is_allowed: false };

#[test]
fn a_key_has_no_exact_answer_from_its_first_inexact_one_to_its_last() {
    let history = [
        event(Group::Count, 1_000, ADMITTED),
        event(Group::Count, 2_000, FALLBACK),
        event(Group::Count, 3_000, error()),
        event(Group::Count, 4_500, ADMITTED),
        event(Group::Count, 5_000, FALLBACK),
        event(Group::Count, 5_100, REFUSED),
    ];
    let found = check(&history, &Observations::default());
    // An answer takes a millisecond.
    assert_eq!(found.without_exact_answer, millis(1_001));
    assert_eq!((found.fallbacks, found.errors.len()), (2, 1));
}

#[test]
fn an_outage_without_a_later_exact_answer_lasts_until_the_end() {
    let history = [event(Group::Count, 1_000, FALLBACK), event(Group::Strict, 9_000, ADMITTED)];
    assert_eq!(check(&history, &Observations::default()).without_exact_answer, millis(8_001));
}

#[test]
fn a_minority_need_not_answer_exactly_and_a_dead_node_need_not_answer() {
    let mut minority = event(Group::Count, 1_000, FALLBACK);
    minority.in_majority = false;
    let mut dead = event(Group::Count, 1_000, error());
    dead.is_available = false;
    let end = event(Group::Strict, 9_000, ADMITTED);
    let found = check(&[minority, dead, end], &Observations::default());
    assert_eq!(found.without_exact_answer, Duration::ZERO);
    assert_eq!(found.errors, Vec::<String>::new());
    assert_eq!(found.fallbacks, 1);
}

#[test]
fn an_acknowledged_hit_that_is_not_counted_is_lost_and_one_that_was_not_sent_is_double() {
    let answers = [&[ADMITTED; 7][..], &[FALLBACK, FALLBACK, error()]].concat();
    let history: Vec<Event> =
        answers.into_iter().map(|answer| event(Group::Count, 1_000, answer)).collect();
    for (counted, lost, double) in [(6, 1, 0), (7, 0, 0), (10, 0, 0), (11, 0, 1)] {
        let observations = Observations {
            counted: [(key(Group::Count), counted)].into(),
            ..Observations::default()
        };
        let found = check(&history, &observations);
        assert_eq!((found.lost, found.double), (lost, double), "{counted} counted");
    }
}

#[test]
fn hits_beyond_a_limit_are_summed_by_group_over_all_nodes() {
    let limit = usize::try_from(Group::Local.limit()).expect("small");
    let mut history = vec![event(Group::Local, 1_000, ADMITTED); limit];
    history.push(event(Group::Local, 2_000, Answer::Fallback { is_allowed: true }));
    history.push(event(Group::Local, 3_000, REFUSED));
    history.push(event(Group::Strict, 3_000, ADMITTED));
    let Findings { admitted_max, admitted_beyond, .. } = check(&history, &Observations::default());
    assert_eq!(admitted_max[&Group::Local], Group::Local.limit() + 1);
    assert_eq!((admitted_beyond[&Group::Local], admitted_beyond[&Group::Strict]), (1, 0));
}

#[test]
fn a_key_is_refused_early_unless_unanswered_hits_explain_it() {
    let limit = usize::try_from(Group::Strict.limit()).expect("small");
    let mut history = vec![event(Group::Strict, 1_000, ADMITTED); limit - 3];
    history.extend([FALLBACK, error(), REFUSED].map(|answer| event(Group::Strict, 2_000, answer)));
    assert_eq!(check(&history, &Observations::default()).refused_early[&Group::Strict], 1);
}

#[test]
fn only_what_was_acknowledged_right_before_a_crash_may_be_lost() {
    let crash = millis(5_000);
    let history = [
        event(Group::Count, 1_000, ADMITTED),
        event(Group::Count, 4_990, ADMITTED),
        event(Group::Count, 4_990, FALLBACK),
        event(Group::Count, 5_010, ADMITTED),
    ];
    let observations =
        Observations { crashes: vec![crash], lag: millis(50), ..Observations::default() };
    assert_eq!(check(&history, &observations).may_be_lost, [(Group::Count, 1)].into());
}

#[test]
fn an_owner_without_a_majority_is_seen_while_the_cut_lasts() {
    let mut of_minority = event(Group::Strict, 3_000, ADMITTED);
    of_minority.in_majority = false;
    let healed = Event { sent: millis(4_000), ..of_minority.clone() };
    let refused = Event { answer: REFUSED, ..of_minority.clone() };
    let of_majority = event(Group::Strict, 3_000, ADMITTED);
    let observations =
        Observations { cut: Some(millis(2_000)..millis(4_000)), ..Observations::default() };
    let found = check(&[of_minority, healed, refused, of_majority], &observations);
    assert_eq!(found.admitted_by_minority, 1);
}

#[test]
fn an_answer_shows_whether_it_is_from_an_owner_or_the_fallback() {
    let fields =
        |is_allowed, limit, remaining, reset_s| Fields { is_allowed, limit, remaining, reset_s };
    // The limit is a share: `local`.
    assert!(Group::Local.is_fallback(fields(true, 4, 3, 100)));
    assert!(!Group::Local.is_fallback(fields(true, 20, 3, 100)));
    // A refusal for a whole window, or below the limit: `deny`.
    let window = Group::Strict.window_s();
    assert!(Group::Strict.is_fallback(fields(false, 20, 0, window)));
    assert!(!Group::Strict.is_fallback(fields(false, 20, 0, window - 1)));
    assert!(!Group::Strict.is_fallback(fields(true, 20, 19, window)));
    assert!(Group::Count.is_fallback(fields(false, 1_000_000, 0, window)));
}

// === histories ===

fn event(group: Group, sent_ms: u64, answer: Answer) -> Event {
    Event {
        sent: millis(sent_ms),
        answered: millis(sent_ms + 1),
        node_index: 0,
        is_available: true,
        in_majority: true,
        key: key(group),
        answer,
    }
}

fn key(group: Group) -> Key {
    Key { group, index: 0 }
}

fn error() -> Answer {
    Answer::Error("refused".to_owned())
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
