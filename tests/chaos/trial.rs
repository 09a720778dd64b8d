//! One fault: cluster, load, injection and checks.

use std::path::Path;
use std::time::Duration;

use tidegate_testkit::random::Random;
use tokio_util::sync::CancellationToken;

use crate::checks::{self, Findings};
use crate::cluster::{Cluster, Setup};
use crate::faults::{CONVERGENCE_MAX, Fault, FaultOptions};
use crate::group::Group;
use crate::network::Network;

/// The result of one fault.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) fault: Fault,
    pub(crate) findings: Findings,
    pub(crate) convergence: Duration,
    /// Guarantees that did not hold.
    pub(crate) violations: Vec<String>,
}

/// Duration of the load before and after the fault.
const LOAD_BEFORE: Duration = Duration::from_secs(2);
const LOAD_AFTER: Duration = Duration::from_secs(2);
/// Number of errors in a violation.
const ERRORS_SHOWN: usize = 3;

/// Runs `fault` on five new nodes.
pub(crate) async fn run(
    fault: Fault,
    duration: Duration,
    fault_options: FaultOptions,
    mut random: Random,
    (network, runs): (&Network, &Path),
) -> Trial {
    fault.wait_for_window(duration).await;
    let mut setup = Setup::new(runs, network);
    let link = fault.prepare(&mut setup).await;
    let mut cluster = setup.start(network, random.apart(), duration).await;

    let stop = CancellationToken::new();
    let clients = cluster.load.spawn(fault.groups(), &mut random, &stop);
    tokio::time::sleep(LOAD_BEFORE).await;
    fault.inject(&mut cluster, fault_options).await;
    let convergence = cluster.await_convergence().await;
    cluster.load.reset_majority();
    tokio::time::sleep(LOAD_AFTER).await;
    stop.cancel();
    clients.join_all().await;

    cluster.observations.lag = fault.bounds().lag;
    cluster.count().await;
    cluster.reach_limits(fault.groups()).await;
    drop(link);
    let history = cluster.load.history();
    cluster.check_fallback_counts(&history).await;
    let findings = checks::check(&history, &cluster.observations);
    let violations = violations(fault, &findings, convergence, cluster);
    Trial { fault, findings, convergence, violations }
}

fn violations(
    fault: Fault,
    found: &Findings,
    convergence: Duration,
    cluster: Cluster,
) -> Vec<String> {
    let bounds = fault.bounds();
    let mut violations = cluster.violations;
    let mut require = |holds: bool, message: &dyn Fn() -> String| {
        if !holds {
            violations.push(message());
        }
    };
    require(found.without_exact_answer <= bounds.without_exact_answer, &|| {
        format!(
            "a key had no exact answer for {:.1?}, permitted: {:?}",
            found.without_exact_answer, bounds.without_exact_answer
        )
    });
    require(convergence <= CONVERGENCE_MAX, &|| {
        format!("views agreed only after {convergence:.1?}")
    });
    require(found.errors.is_empty(), &|| {
        let shown = found.errors.iter().take(ERRORS_SHOWN).cloned().collect::<Vec<_>>().join("; ");
        format!("{} errors: {shown}", found.errors.len())
    });
    let permitted_loss = |group| found.may_be_lost.get(&group).copied().unwrap_or_default();
    let permitted = permitted_loss(Group::Count);
    require(found.lost <= permitted, &|| {
        format!("{} hits lost, {permitted} permitted", found.lost)
    });
    require(found.double == 0, &|| format!("{} hits counted twice", found.double));
    require(found.admitted_by_minority == 0, &|| {
        format!("{} hits admitted by owners without a majority", found.admitted_by_minority)
    });
    for (group, beyond) in &found.admitted_beyond {
        let permitted = match group {
            Group::Durable if bounds.keeps_durable => 0,
            Group::Strict | Group::Window | Group::Count | Group::Durable | Group::Global => {
                permitted_loss(*group)
            }
            // The shares come on top of the owner's limit.
            Group::Local => group.limit() * group.keys() as u64,
        };
        require(*beyond <= permitted, &|| {
            format!(
                "{beyond} hits beyond the limits of {} keys, {permitted} permitted",
                group.name()
            )
        });
    }
    for (group, early) in found.refused_early.iter().filter(|(_, early)| **early > 0) {
        require(false, &|| format!("{early} hits of {} keys refused early", group.name()));
    }
    violations
}
