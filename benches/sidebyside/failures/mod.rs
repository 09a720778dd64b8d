//! What three nodes of Gubernator and of tidegate do when something goes wrong: the same scenarios,
//! by the same protocol, with the defaults of both.
//!
//! Facts are observed and not judged. Each row has what was sent, what a limiter that forgets
//! nothing would do, and what each server did. The results have the key `failures` in
//! `docs/benchmarks.json`.

mod client;
mod network;
mod scenarios;
mod servers;

use std::io;
use std::path::Path;

use self::scenarios::{Scenario, Trial};
use self::servers::Kind;
use crate::measure::{self, Plan};
use crate::progress;
use crate::results::{FailureRow, Observation};

pub const PART: &str = "failures";

/// Runs all scenarios, one after the other: each with clusters of its own.
pub fn run(plan: &Plan, folder: &Path) -> Vec<FailureRow> {
    let is_wanted = |scenario: &Scenario| measure::only().is_none_or(|t| scenario.name.contains(t));
    let wanted = scenarios::all(plan.is_quick).into_iter().filter(is_wanted);
    wanted.enumerate().map(|(index, scenario)| row(index, scenario, plan, folder)).collect()
}

fn row(index: usize, scenario: Scenario, plan: &Plan, folder: &Path) -> FailureRow {
    let observe = |kind: Kind| {
        let folder = folder.join(format!("failure-{index}-{}", kind.name()));
        let trial = Trial { kind, folder, is_quick: plan.is_quick };
        let server = kind.name().to_owned();
        let outcome = match kind.absent() {
            Some(why) => Err(io::Error::other(why)),
            None => (scenario.run)(&trial),
        };
        let (seen, absent) = match outcome {
            Ok(seen) => (seen, None),
            Err(why) => (String::new(), Some(why.to_string())),
        };
        let shown = absent.as_ref().map_or_else(|| seen.clone(), |why| format!("absent: {why}"));
        progress(&format!("{}: {server}: {shown}", scenario.name));
        Observation { server, seen, absent }
    };
    // A thread of its own, because a scenario may move it to another network namespace.
    let observed = std::thread::scope(|scope| {
        let start = |kind| scope.spawn(move || observe(kind));
        let panicked = |kind: Kind| Observation {
            server: kind.name().into(),
            absent: Some("the scenario panicked".into()),
            ..Observation::default()
        };
        if scenario.is_at_once {
            let running = Kind::ALL.map(|kind| (kind, start(kind)));
            let end = |(kind, thread): (Kind, std::thread::ScopedJoinHandle<'_, _>)| {
                thread.join().unwrap_or_else(|_| panicked(kind))
            };
            running.map(end).into()
        } else {
            let one = |kind| start(kind).join().unwrap_or_else(|_| panicked(kind));
            Kind::ALL.map(one).into()
        }
    });
    FailureRow { name: scenario.name, sent: scenario.sent, exact: scenario.exact, observed }
}
