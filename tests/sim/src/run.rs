//! One run: forms a cluster, applies load, injects the faults, waits for convergence and checks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::check;
use crate::coverage::Situation;
use crate::fault::{Awaited, Fault};
use crate::guarantee::Guarantee;
use crate::log::Log;
use crate::report::Report;
use crate::scenario::{FORMING_MS, Family, SETTLING_MS, Scenario};
use crate::world::World;

/// Panics of all tasks; tokio does not propagate them.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// When the requests for some global keys end, from the start of the load.
const REST_AFTER_MS: u64 = 4_000;
/// Time for the final read.
const FINAL_READ_MS: u64 = 500;
/// Longest time from the last fault until the cluster is in an awaited state.
const STATE_MAX_MS: u64 = 30_000;
/// Of the voters: each time that a disk takes longer for a write of the leader than an election,
/// the next one begins to wait for `cluster.replace_after`.
const LIVE_VOTERS_MAX_MS: u64 = STATE_MAX_MS + 3 * 10_000;
/// Of ranges of a node that crashed, where nothing else keeps a majority from agreeing. It takes a
/// second to be noticed, and a disk may take two for a write.
const TAKEOVER_MAX_MS: u64 = 6_000;
/// How long a voter keeps to a grant, in quarters of `global.lease`.
const HOLD_QUARTERS: u64 = 5;
const STATE_POLL_MS: u64 = 10;

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
    // Moves by the time that is waited.
    let mut begin = world.time.millis();
    let mut incidents = scenario.incidents.iter().peekable();
    while world.time.millis() < begin + scenario.load_ms {
        let since = world.time.millis() - begin;
        world.traffic.rests.store(since > REST_AFTER_MS, Ordering::Relaxed);
        while let Some(incident) = incidents.next_if(|incident| incident.at_ms <= since) {
            world.inject(&incident.fault)?;
            if let Fault::Await(awaited) = incident.fault {
                begin += wait_until(world, awaited, settled_max_ms(scenario, awaited))?;
            }
        }
        world.step()?;
    }
    if scenario.family != Family::Requests {
        world.upgrade_left_behind()?;
        let waited = wait_until(world, Awaited::Settled, STATE_MAX_MS)?;
        if scenario.layout.has_global_keys() {
            let most_ms = settled_max_ms(scenario, Awaited::GlobalSettled) - waited;
            wait_until(world, Awaited::GlobalSettled, most_ms)?;
        }
    }
    world.traffic.on.store(false, Ordering::Relaxed);
    advance(world, SETTLING_MS / 2)?;
    // A node receives the counts of an eventual key from its first request for it on. A node that
    // started late had none.
    // Of a limit with reservations there is room at all of them when those have ended.
    let probes_from = world.request_from_all(|kind| !kind.is_strict() || kind.is_reserved(), 1);
    advance(world, SETTLING_MS / 2)?;
    world.record_counts_at_rest();
    let final_read_from = world.request_from_all(|_| true, 0);
    let is_far = scenario.layout.has_global_keys();
    advance(world, FINAL_READ_MS + if is_far { scenario.global_deadline_ms } else { 0 })?;
    if is_far {
        // The voters may have changed since: a node asks new ones for the lease of its region.
        wait_until(world, Awaited::GlobalSettled, SETTLING_MS)?;
    }
    if scenario.incidents.is_empty() {
        world.report.reached.insert(Situation::NoFaults);
    }
    check::all(world, scenario, guarantee, check::Reads { probes_from, final_read_from });
    Ok(())
}

/// Longest time from the last fault until the cluster is in the state `awaited`. When its regions
/// have settled, a region that was lost may have to be struck off first, which takes
/// `global.down_after` and a hold; then it is added again, which takes a hold.
fn settled_max_ms(scenario: &Scenario, awaited: Awaited) -> u64 {
    match (awaited, scenario.family) {
        (
            Awaited::AllHomes | Awaited::GlobalSettled,
            Family::Regions { lease_ms, down_after_ms },
        ) => {
            let hold_ms = lease_ms * HOLD_QUARTERS / 4;
            STATE_MAX_MS + down_after_ms + 2 * hold_ms
        }
        (Awaited::TakenOver, _) => TAKEOVER_MAX_MS,
        (Awaited::LiveVoters, _) => LIVE_VOTERS_MAX_MS,
        _ => STATE_MAX_MS,
    }
}

/// Advances the simulation until the cluster is in the state `awaited`, at most for `most_ms`.
/// Returns for how long.
fn wait_until(world: &mut World<'_>, awaited: Awaited, most_ms: u64) -> Result<u64, String> {
    let begin = world.time.millis();
    // Where a voter has crashed and the others lose what they send each other, that has to end.
    if awaited == Awaited::AllOwned && !world.can_agree() {
        return Ok(0);
    }
    while let Some(missing) = world.missing(awaited) {
        if world.time.millis() > begin + most_ms {
            return Err(format!("not {awaited:?} within {most_ms} ms: {missing}"));
        }
        advance(world, STATE_POLL_MS)?;
    }
    Ok(world.time.millis() - begin)
}

/// Advances the simulation.
fn advance(world: &mut World<'_>, millis: u64) -> Result<(), String> {
    let until = world.time.millis() + millis;
    while world.time.millis() < until {
        world.step()?;
    }
    Ok(())
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
