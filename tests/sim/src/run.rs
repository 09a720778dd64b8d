//! One run: forms a cluster, loads it, lets go wrong what is to go wrong, waits, and looks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::check;
use crate::coverage::Situation;
use crate::guarantee::Guarantee;
use crate::log::Log;
use crate::report::Report;
use crate::scenario::{FORMING_MS, LOAD_MS, SETTLING_MS, Scenario};
use crate::world::World;

/// What panicked in any task: tokio keeps it to itself.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// How long the final look may take.
const LOOK_MS: u64 = 500;

/// Runs `scenario`, which has to hold `guarantee`, and says what came of it.
pub(crate) fn run(scenario: &Scenario, guarantee: Guarantee, log: &Log) -> Report {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
    }));
    // A panic on this thread is told like one in a task.
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(scenario, log.clone()).map_err(|error| error.to_string())?;
        if let Err(error) = live(&mut world, scenario, guarantee) {
            world.report.violation(error);
        }
        Ok::<_, String>(std::mem::take(&mut world.report))
    }));
    let mut report = Report::default();
    match lived {
        Ok(Ok(lived)) => report = lived,
        Ok(Err(error)) => report.violation(format!("the world could not be made: {error}")),
        Err(_) => report.violation("the run ended early"),
    }
    for panic in PANICS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        report.violation(format!("a task panicked: {panic}"));
    }
    report.is_complete = true;
    for violation in &report.violations {
        log.say(format_args!("VIOLATION {violation}"));
    }
    log.flush();
    report
}

fn live(world: &mut World<'_>, scenario: &Scenario, guarantee: Guarantee) -> Result<(), String> {
    form(world, scenario)?;
    world.traffic.on.store(true, Ordering::Relaxed);
    let begin = world.time.millis();
    let mut incidents = scenario.incidents.iter().peekable();
    while world.time.millis() < begin + LOAD_MS {
        let since = world.time.millis() - begin;
        while let Some(incident) = incidents.next_if(|incident| incident.at_ms <= since) {
            world.happen(&incident.fault)?;
        }
        world.step()?;
    }
    world.traffic.on.store(false, Ordering::Relaxed);
    pass(world, SETTLING_MS / 2)?;
    // A node is told of an eventual key from when it uses it on; one that started late has not.
    world.ask_everywhere(|kind| !kind.is_strict(), 1);
    pass(world, SETTLING_MS / 2)?;
    let looked_from = world.ask_everywhere(|_| true, 0);
    pass(world, LOOK_MS)?;
    if scenario.incidents.is_empty() {
        world.report.reached.insert(Situation::Calm);
    }
    check::all(world, scenario, guarantee, looked_from);
    Ok(())
}

/// Lets time pass.
fn pass(world: &mut World<'_>, millis: u64) -> Result<(), String> {
    (0..millis).try_for_each(|_| world.step())
}

/// Starts the first nodes and waits until they have found each other.
fn form(world: &mut World<'_>, scenario: &Scenario) -> Result<(), String> {
    for node in 0..scenario.starters {
        world.start(node)?;
    }
    while !world.have_all_joined(scenario.starters) {
        if world.time.millis() > FORMING_MS {
            return Err(format!("{} nodes did not find each other", scenario.starters));
        }
        world.step()?;
    }
    Ok(())
}
