//! Sequences of requests to envoyproxy/ratelimit, repeated with a standalone node.
//!
//! `sequence_cases.json` holds scenarios made by the reference's own code (commit f2fb157): a rule
//! file, process settings, and requests at given seconds, each with what the reference answered,
//! and the statistics at the end. Set `GOLDEN_DIR` to run another collection.
//!
//! A case that shows a bug of the reference is not compared with it but with what is right; which
//! bug, its form shows: a crash, an error of the Redis that is not here, or two counters that share
//! a name there. Those of our collection are named in [`DIFFERENT`].

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::golden_support::case::{Bug, Case};
use crate::golden_support::node::Node;

/// The cases of our collection that differ, each with its reason and what is answered here.
const DIFFERENT: &[(&str, Bug, &str)] = &[
    (
        "S34 boundary key collision minute/hour override",
        Bug::SharedName,
        "at the full hour the minute's counter has the name of the hour's; here the minute is \
         counted by itself, so 99 of 100 are left",
    ),
    (
        "S94 backend error",
        Bug::NoBackend,
        "there is no Redis that could refuse the connection; here the hit is counted and passes",
    ),
];

#[tokio::test]
#[expect(clippy::print_stdout, reason = "how many pass is what one runs it for")]
async fn sequences_of_requests_get_the_recorded_responses() {
    let cases = crate::golden_support::case::all();
    assert!(!cases.is_empty(), "no cases were found");
    let (mut alike, mut wrong, mut different) = (0, String::new(), String::new());
    for case in &cases {
        let listed = DIFFERENT.iter().find(|(name, ..)| *name == case.name);
        let bug = case.bug();
        if let Some((name, listed, _)) = listed {
            assert_eq!(bug, Some(*listed), "{name} is listed for another bug than it shows");
        }
        let checked = match bug {
            None => as_there(case).await,
            Some(bug) => as_is_right(case, bug).await,
        };
        match (checked, bug) {
            (Err(difference), _) => writeln!(wrong, "{}: {difference}", case.name),
            (Ok(()), Some(bug)) => {
                let reason = listed.map_or_else(|| bug.reason(), |(_, _, reason)| reason);
                writeln!(different, "{}: {reason}", case.name)
            }
            (Ok(()), None) => {
                alike += 1;
                Ok(())
            }
        }
        .expect("writing to a text");
    }
    let listed = different.lines().count();
    println!(
        "{alike} of {} sequence cases pass; {listed} show bugs of the reference:",
        cases.len()
    );
    print!("{different}");
    assert!(wrong.is_empty(), "{} differ:\n{wrong}", wrong.lines().count());
    assert_eq!(alike + listed, cases.len());
}

/// Every answer and every number is the reference's.
async fn as_there(case: &Case) -> Result<(), String> {
    let mut node = Node::start(case).await;
    for (index, step) in case.steps.iter().enumerate() {
        node.reload_for(case, step);
        let ours = node.check(step).await;
        let theirs = step.expected();
        if ours != theirs {
            return Err(format!("step {index}:\n    ours   {ours}\n    theirs {theirs}"));
        }
    }
    node.reload_rest(case);
    let (ours, theirs) = (node.statistics(), case.statistics());
    if ours == theirs { Ok(()) } else { Err(format!("counted {ours:?}, not {theirs:?}")) }
}

/// Every request is answered, and every answer is what the hits of its own descriptor, unit and
/// window make. The statistics of the reference carry the bug and are not compared.
async fn as_is_right(case: &Case, bug: Bug) -> Result<(), String> {
    let mut node = Node::start(case).await;
    let mut used: HashMap<String, u64> = HashMap::new();
    for (index, step) in case.steps.iter().enumerate() {
        node.reload_for(case, step);
        let ours = node.check(step).await;
        let is_refused = !ours["grpc_error"].is_null();
        if is_refused && ours == step.expected() {
            continue;
        }
        let statuses =
            ours["statuses"].as_array().ok_or_else(|| format!("step {index}: {ours}"))?;
        if statuses.len() != step.descriptors().len() {
            return Err(format!("step {index}: {} statuses", statuses.len()));
        }
        for (number, status) in statuses.iter().enumerate() {
            let Some(limit) = status["requests_per_unit"].as_u64() else { continue };
            if !case.counts_plainly() {
                continue;
            }
            let key = format!("{} {}", step.structured_key(number), status["unit"]);
            let used = used.entry(format!("{key} {}", step.window(&status["unit"]))).or_default();
            *used = used.saturating_add(step.hits(number));
            let right = json!([
                if *used > limit { "OVER_LIMIT" } else { "OK" },
                limit.saturating_sub(*used)
            ]);
            let answered = json!([status["code"], status["limit_remaining"]]);
            if answered != right {
                return Err(format!("step {index}, {key}: {answered}, not {right}"));
            }
        }
        if bug != Bug::SharedName && step.has_answer() {
            let limits = |answer: &Value| -> Vec<Value> {
                let statuses = answer["statuses"].as_array().into_iter().flatten();
                statuses
                    .map(|it| json!([it["requests_per_unit"], it["unit"], it["reset_s"]]))
                    .collect()
            };
            let (ours, theirs) = (limits(&ours), limits(&step.expected()));
            if ours != theirs {
                return Err(format!("step {index}: {ours:?}, not {theirs:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_listed_cases_are_there() {
    if crate::golden_support::case::is_our_collection() {
        let cases = crate::golden_support::case::all();
        for (name, ..) in DIFFERENT {
            assert!(cases.iter().any(|case| case.name == *name), "{name} is not there");
        }
        let showing: Vec<_> = cases.iter().filter(|case| case.bug().is_some()).collect();
        assert_eq!(showing.len(), DIFFERENT.len(), "each is listed by name");
    }
}
