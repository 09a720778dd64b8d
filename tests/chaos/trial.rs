//! One fault from start to judgement.

use std::path::Path;
use std::time::Duration;

use tidegate_testkit::random::Random;
use tokio_util::sync::CancellationToken;

use crate::arena::{Arena, Setup};
use crate::checks::{self, Findings};
use crate::faults::{Extent, Fault, ONE_VIEW_WITHIN};
use crate::group::Group;
use crate::network::Network;

/// What one fault did.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) fault: Fault,
    pub(crate) findings: Findings,
    pub(crate) one_view: Duration,
    /// What was promised and did not hold; empty: all held.
    pub(crate) broken: Vec<String>,
}

/// Load before the fault, and after it.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(2);
/// Errors that are shown.
const SHOWN: usize = 3;

/// Runs `fault` on five fresh nodes.
pub(crate) async fn run(
    fault: Fault,
    hold: Duration,
    extent: Extent,
    mut random: Random,
    (network, runs): (&Network, &Path),
) -> Trial {
    fault.wait_for_its_time(hold).await;
    let mut setup = Setup::new(runs, network);
    let link = fault.prepare(&mut setup).await;
    let mut arena = setup.start(network, random.apart(), hold).await;

    let stop = CancellationToken::new();
    let clients = arena.load.spawn(fault.groups(), &mut random, &stop);
    tokio::time::sleep(BEFORE).await;
    fault.strike(&mut arena, extent).await;
    let one_view = arena.one_view().await;
    arena.load.all_in_majority();
    tokio::time::sleep(AFTER).await;
    stop.cancel();
    clients.join_all().await;

    arena.node_metadata.lag = fault.promise().lag;
    arena.count().await;
    arena.reach_limits(fault.groups()).await;
    drop(link);
    let history = arena.load.history();
    arena.hold_policy_against(&history).await;
    let findings = checks::check(&history, &arena.node_metadata);
    let broken = judge(fault, &findings, one_view, arena);
    Trial { fault, findings, one_view, broken }
}

fn judge(fault: Fault, found: &Findings, one_view: Duration, arena: Arena) -> Vec<String> {
    let promise = fault.promise();
    let mut broken = arena.broken;
    let mut promised = |holds: bool, what: &dyn Fn() -> String| {
        if !holds {
            broken.push(what());
        }
    };
    promised(found.without_right_answer <= promise.without_right_answer, &|| {
        format!(
            "a key had no right answer for {:.1?}, promised: {:?}",
            found.without_right_answer, promise.without_right_answer
        )
    });
    promised(one_view <= ONE_VIEW_WITHIN, &|| format!("one view only after {one_view:.1?}"));
    promised(found.errors.is_empty(), &|| {
        let shown = found.errors.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
        format!("{} errors: {shown}", found.errors.len())
    });
    let may_lose = |group| found.may_be_lost.get(&group).copied().unwrap_or_default();
    let may = may_lose(Group::Count);
    promised(found.lost <= may, &|| format!("{} hits lost, {may} may be", found.lost));
    promised(found.double == 0, &|| format!("{} hits counted double", found.double));
    promised(found.admitted_by_minority == 0, &|| {
        format!("{} hits admitted by owners without a majority", found.admitted_by_minority)
    });
    for (group, beyond) in &found.admitted_beyond {
        let may = match group {
            Group::Durable if promise.spares_durable => 0,
            Group::Strict | Group::Window | Group::Count | Group::Durable => may_lose(*group),
            // A limit by shares beside the owner's own.
            Group::Local => group.limit() * group.keys() as u64,
        };
        promised(*beyond <= may, &|| {
            format!("{beyond} hits beyond the limits of {} keys, {may} may be", group.name())
        });
    }
    for (group, early) in found.refused_early.iter().filter(|(_, early)| **early > 0) {
        promised(false, &|| format!("{early} hits of {} keys refused early", group.name()));
    }
    broken
}
