//! The checks of `scripts/chaos` on histories whose faults are known.

#![allow(dead_code, reason = "the parts of the program that the checks need, and no more")]

#[path = "../chaos/checks.rs"]
mod checks;
#[path = "../chaos/group.rs"]
mod group;
#[path = "../chaos/history.rs"]
mod history;

use std::time::Duration;

use checks::{Findings, NodeMetadata, check};
use group::{Fields, Group, Key};
use history::{Answer, Event};

const RIGHT: Answer = Answer::Owner { is_allowed: true };
const REFUSED: Answer = Answer::Owner { is_allowed: false };
const POLICY: Answer = Answer::Policy { is_allowed: false };

#[test]
fn a_key_is_without_a_right_answer_from_its_first_wrong_one_to_the_next_right_one() {
    let history = [
        event(Group::Count, 1_000, RIGHT),
        event(Group::Count, 2_000, POLICY),
        event(Group::Count, 3_000, error()),
        event(Group::Count, 4_500, RIGHT),
        event(Group::Count, 5_000, POLICY),
        event(Group::Count, 5_100, REFUSED),
    ];
    let found = check(&history, &NodeMetadata::default());
    // From when it was sent to when it was answered, a millisecond later.
    assert_eq!(found.without_right_answer, millis(2_501));
    assert_eq!((found.by_policy, found.errors.len()), (2, 1));
}

#[test]
fn a_wrong_answer_that_no_right_one_follows_lasts_until_the_end() {
    let history = [event(Group::Count, 1_000, POLICY), event(Group::Strict, 9_000, RIGHT)];
    assert_eq!(check(&history, &NodeMetadata::default()).without_right_answer, millis(8_001));
}

#[test]
fn nodes_in_a_minority_owe_no_right_answer_and_dead_ones_no_answer() {
    let mut minority = event(Group::Count, 1_000, POLICY);
    minority.is_in_majority = false;
    let mut dead = event(Group::Count, 1_000, error());
    dead.is_meant_to_answer = false;
    let end = event(Group::Strict, 9_000, RIGHT);
    let found = check(&[minority, dead, end], &NodeMetadata::default());
    assert_eq!(found.without_right_answer, Duration::ZERO);
    assert_eq!(found.errors, Vec::<String>::new());
    assert_eq!(found.by_policy, 1);
}

#[test]
fn an_acknowledged_hit_that_is_not_counted_is_lost_and_one_that_was_not_sent_is_double() {
    let answers = [&[RIGHT; 7][..], &[POLICY, POLICY, error()]].concat();
    let history: Vec<Event> =
        answers.into_iter().map(|answer| event(Group::Count, 1_000, answer)).collect();
    for (counted, lost, double) in [(6, 1, 0), (7, 0, 0), (10, 0, 0), (11, 0, 1)] {
        let node_metadata = NodeMetadata {
            counted: [(key(Group::Count), counted)].into(),
            ..NodeMetadata::default()
        };
        let found = check(&history, &node_metadata);
        assert_eq!((found.lost, found.double), (lost, double), "{counted} counted");
    }
}

#[test]
fn hits_beyond_a_limit_are_summed_by_group_over_all_nodes() {
    let limit = usize::try_from(Group::Local.limit()).expect("small");
    let mut history = vec![event(Group::Local, 1_000, RIGHT); limit];
    history.push(event(Group::Local, 2_000, Answer::Policy { is_allowed: true }));
    history.push(event(Group::Local, 3_000, REFUSED));
    history.push(event(Group::Strict, 3_000, RIGHT));
    let Findings { admitted_max, admitted_beyond, .. } = check(&history, &NodeMetadata::default());
    assert_eq!(admitted_max[&Group::Local], Group::Local.limit() + 1);
    assert_eq!((admitted_beyond[&Group::Local], admitted_beyond[&Group::Strict]), (1, 0));
}

#[test]
fn a_key_is_refused_early_unless_unanswered_hits_explain_it() {
    let limit = usize::try_from(Group::Strict.limit()).expect("small");
    let mut history = vec![event(Group::Strict, 1_000, RIGHT); limit - 3];
    history.extend([POLICY, error(), REFUSED].map(|answer| event(Group::Strict, 2_000, answer)));
    assert_eq!(check(&history, &NodeMetadata::default()).refused_early[&Group::Strict], 1);
}

#[test]
fn only_what_was_acknowledged_right_before_a_crash_may_be_lost() {
    let crash = millis(5_000);
    let history = [
        event(Group::Count, 1_000, RIGHT),
        event(Group::Count, 4_990, RIGHT),
        event(Group::Count, 4_990, POLICY),
        event(Group::Count, 5_010, RIGHT),
    ];
    let node_metadata =
        NodeMetadata { crashes: vec![crash], lag: millis(50), ..NodeMetadata::default() };
    assert_eq!(check(&history, &node_metadata).may_be_lost, [(Group::Count, 1)].into());
}

#[test]
fn an_owner_without_a_majority_is_seen_while_the_cut_lasts() {
    let mut of_minority = event(Group::Strict, 3_000, RIGHT);
    of_minority.is_in_majority = false;
    let healed = Event { sent: millis(4_000), ..of_minority.clone() };
    let refused = Event { answer: REFUSED, ..of_minority.clone() };
    let of_majority = event(Group::Strict, 3_000, RIGHT);
    let node_metadata =
        NodeMetadata { cut: Some(millis(2_000)..millis(4_000)), ..NodeMetadata::default() };
    let found = check(&[of_minority, healed, refused, of_majority], &node_metadata);
    assert_eq!(found.admitted_by_minority, 1);
}

#[test]
fn an_answer_shows_whether_an_owner_or_the_fallback_gave_it() {
    let fields =
        |is_allowed, limit, remaining, reset_s| Fields { is_allowed, limit, remaining, reset_s };
    // A share of the limit is a policy's.
    assert!(Group::Local.is_by_policy(fields(true, 4, 3, 100)));
    assert!(!Group::Local.is_by_policy(fields(true, 20, 3, 100)));
    // So is a refusal that lasts for a whole window, or of a limit that was not reached.
    let window = Group::Strict.window_s();
    assert!(Group::Strict.is_by_policy(fields(false, 20, 0, window)));
    assert!(!Group::Strict.is_by_policy(fields(false, 20, 0, window - 1)));
    assert!(!Group::Strict.is_by_policy(fields(true, 20, 19, window)));
    assert!(Group::Count.is_by_policy(fields(false, 1_000_000, 0, window)));
}

// === histories ===

fn event(group: Group, sent_ms: u64, answer: Answer) -> Event {
    Event {
        sent: millis(sent_ms),
        answered: millis(sent_ms + 1),
        token: 0,
        is_meant_to_answer: true,
        is_in_majority: true,
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
