//! What is given back of a request that is not passed on: what its limits have counted.

use smallvec::smallvec;
use tidegate::decide::{CheckRequest, CheckResponse, Decide, Given, Status, VerdictSource};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::engine::Retry;
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::units::{Hits, Span};

use super::support::{Table, admitted, refused, rule, status, unmatched};

const SECOND: Span = Span::from_secs(1);
const MINUTE: Span = Span::from_secs(60);

fn of(algorithm: Algorithm, queue: Option<u32>, reset: Span) -> Status {
    let parts =
        QuotaParts { algorithm, limit: 10, window: MINUTE, burst: 10, sub_windows: 1, queue };
    let mut rule = rule(None, &[]);
    rule.limits.push(Quota::new(parts).expect("valid"));
    status(rule, &[admitted(10, 5, reset)], 0)
}

fn from(source: VerdictSource) -> Status {
    Status { source, ..of(Algorithm::TokenBucket, None, MINUTE) }
}

/// The positions of the descriptors of which hits are given back.
async fn given_back(statuses: &[Status], given: Given) -> Vec<usize> {
    let table = Table::new([("http", CheckResponse { allowed: true, statuses: smallvec![] })]);
    let values: Vec<String> = (0..statuses.len()).map(|at| at.to_string()).collect();
    let descriptors: Vec<Descriptor<'_>> = values
        .iter()
        .map(|value| Descriptor {
            entries: vec![Entry { key: "at", value }],
            hits: None,
            limit: None,
        })
        .collect();
    let request = CheckRequest {
        domain: "http",
        descriptors: &descriptors,
        hits: Hits::new(3),
        for_envoy: false,
    };
    let answer = CheckResponse { allowed: true, statuses: statuses.into() };
    table.give_back(request, &answer, given).await;
    let checks = table.checks();
    assert!(checks.len() <= 1 && checks.iter().all(|check| check.hits == -3), "{checks:?}");
    let given = checks.iter().flat_map(|check| &check.descriptors);
    given.map(|entries| entries[0].1.parse().expect("a position")).collect()
}

#[tokio::test]
async fn only_what_was_counted_is_given_back() {
    let at_once = Given { passed: Span::ZERO, turns: true };
    let mut quota = rule(None, &[(10, 60)]);
    quota.quota_mode = true;
    let quota = status(quota, &[refused(10, MINUTE, Retry::After(MINUTE))], 0);
    let statuses = [
        quota,
        from(VerdictSource::Local),
        // It was replaced, or has no rule.
        unmatched(),
        from(VerdictSource::Owner),
        from(VerdictSource::Fallback),
        from(VerdictSource::Grant),
    ];
    assert_eq!(given_back(&statuses, at_once).await, [1, 3, 5]);
    assert_eq!(given_back(&statuses[..1], at_once).await, [] as [usize; 0]);
}

#[tokio::test]
async fn the_hits_of_a_window_that_has_ended_are_not_taken_off_the_next() {
    let later = Given { passed: SECOND, turns: true };
    let sooner = Given { passed: Span::from_millis(999), turns: true };
    let two = status(
        rule(None, &[(10, 60), (10, 1)]),
        &[admitted(10, 5, MINUTE), admitted(10, 5, SECOND)],
        0,
    );
    let statuses = [
        of(Algorithm::FixedWindow, None, SECOND),
        of(Algorithm::FirstHitWindow, None, SECOND),
        of(Algorithm::FixedWindow, None, MINUTE),
        two,
        of(Algorithm::Gcra, None, SECOND),
        of(Algorithm::TokenBucket, None, MINUTE),
        of(Algorithm::SlidingWindowLog, None, MINUTE),
        of(Algorithm::SlidingWindowCounter, None, MINUTE),
    ];
    assert_eq!(given_back(&statuses, later).await, [2, 5]);
    assert_eq!(given_back(&statuses, sooner).await, [0, 1, 2, 3, 4, 5]);
    let at_once = Given { passed: Span::from_millis(5), turns: true };
    assert_eq!(given_back(&statuses, at_once).await, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// The requests behind a turn have later ones, so one that has passed is not given out again.
#[tokio::test]
async fn a_turn_that_has_passed_is_used() {
    let statuses =
        [of(Algorithm::LeakyBucket, Some(3), MINUTE), of(Algorithm::LeakyBucket, None, MINUTE)];
    for (turns, given) in [(true, &[0, 1][..]), (false, &[1])] {
        assert_eq!(given_back(&statuses, Given { passed: SECOND, turns }).await, given);
    }
}
