//! One run: forms a cluster, applies load, injects the faults, waits for convergence and checks.

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

/// Panics of all tasks; tokio does not propagate them.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Time for the final read.
const FINAL_READ_MS: u64 = 500;

/// Runs `scenario` and checks it against `guarantee`.
pub(crate) fn run(scenario: &Scenario, guarantee: Guarantee, log: &Log) -> Report {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
    }));
    // A panic on this thread is reported like one in a task.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(scenario, log.clone()).map_err(|error| error.to_string())?;
        if let Err(error) = run_scenario(&mut world, scenario, guarantee) {
            world.report.violation(error);
        }
        Ok::<_, String>(std::mem::take(&mut world.report))
    }));
    let mut report = Report::default();
    match result {
        Ok(Ok(result)) => report = result,
        Ok(Err(error)) => report.violation(format!("failed to build the cluster: {error}")),
        Err(_) => report.violation("the run panicked"),
    }
    for panic in PANICS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        report.violation(format!("a task panicked: {panic}"));
    }
    report.is_complete = true;
    for violation in &report.violations {
        log.event(format_args!("VIOLATION {violation}"));
    }
    log.flush();
    report
}

fn run_scenario(
    world: &mut World<'_>,
    scenario: &Scenario,
    guarantee: Guarantee,
) -> Result<(), String> {
    form_cluster(world, scenario)?;
    world.traffic.on.store(true, Ordering::Relaxed);
    let begin = world.time.millis();
    let mut incidents = scenario.incidents.iter().peekable();
    while world.time.millis() < begin + LOAD_MS {
        let since = world.time.millis() - begin;
        while let Some(incident) = incidents.next_if(|incident| incident.at_ms <= since) {
            world.inject(&incident.fault)?;
        }
        world.step()?;
    }
    world.traffic.on.store(false, Ordering::Relaxed);
    advance(world, SETTLING_MS / 2)?;
    // A node receives the counts of an eventual key from its first request for it on. A node that
    // started late had none.
    world.request_from_all(|kind| !kind.is_strict(), 1);
    advance(world, SETTLING_MS / 2)?;
    let final_read_from = world.request_from_all(|_| true, 0);
    advance(world, FINAL_READ_MS)?;
    if scenario.incidents.is_empty() {
        world.report.reached.insert(Situation::NoFaults);
    }
    check::all(world, scenario, guarantee, final_read_from);
    Ok(())
}

/// Advances the simulation.
fn advance(world: &mut World<'_>, millis: u64) -> Result<(), String> {
    (0..millis).try_for_each(|_| world.step())
}

/// Starts the initial nodes and waits until they have joined.
fn form_cluster(world: &mut World<'_>, scenario: &Scenario) -> Result<(), String> {
    for node in 0..scenario.initial_nodes {
        world.start(node)?;
    }
    while !world.have_all_joined(scenario.initial_nodes) {
        if world.time.millis() > FORMING_MS {
            return Err(format!("{} nodes did not form a cluster in time", scenario.initial_nodes));
        }
        world.step()?;
    }
    Ok(())
}
