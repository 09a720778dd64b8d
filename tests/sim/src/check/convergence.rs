//! After the last fault all nodes converge: one view, one owner per key, equal eventual counts.

use std::collections::BTreeSet;

use super::Case;
use crate::fault::Awaited;
use crate::keys::{self, Key};
use crate::world::Crash;

/// After a death another node owns a key, and has a replica, within this time.
const COPIED_WITHIN_MS: u64 = 2_000;

pub(super) fn check(case: &mut Case<'_, '_>) {
    let mut found = Vec::new();
    let world = &*case.world;
    for (node, process) in
        world.nodes.iter().filter_map(|node| Some((node, node.process.as_ref()?)))
    {
        if process.listener.is_none() {
            found.push(format!("{} has not joined", node.id));
        }
    }
    let mut running: Vec<&str> = world
        .nodes
        .iter()
        .take(case.scenario.layout.cores())
        .filter(|node| node.process.is_some())
        .map(|node| node.id.as_str())
        .collect();
    running.sort_unstable();
    let mut epochs = BTreeSet::new();
    for process in world.processes() {
        let topology = process.core.topology.load();
        let seen: Vec<&str> =
            topology.view.members().iter().map(|member| member.id.as_str()).collect();
        if seen != running {
            found.push(format!("{} sees {seen:?}, but {running:?} run", topology.me));
        }
        epochs.insert(topology.view.fingerprint());
    }
    if epochs.len() != 1 {
        found.push(format!("{} different view epochs", epochs.len()));
    }
    found.extend(world.missing(Awaited::AllOwned));
    if let Some(epochs) = world.changed_by_edges(case.scenario) {
        found.push(format!("edges changed the map: {epochs:?}"));
    }
    if case.scenario.layout.has_global_keys() {
        found.extend(world.missing(Awaited::GlobalSettled));
    }
    for key in keys::checked(case.scenario.selection()) {
        if key.kind.is_strict() {
            for owners in world.owners(key).into_iter().filter(|owners| *owners != 1) {
                found.push(format!("{key} has {owners} owners"));
            }
        }
        found.extend(differing_counts(case, key));
    }
    for what in found {
        case.world.report.violation(format!("after the last fault: {what}"));
    }
}

/// Whether the owner of a key and its replica may have died before another had a copy.
fn has_lost_copies(case: &Case<'_, '_>) -> bool {
    let is_core = |crash: &&Crash| !case.scenario.layout.is_edge(crash.node);
    let crashes = case.world.crashes.iter().filter(is_core);
    let mut crashes: Vec<u64> = crashes.map(|crash| crash.at_ms).collect();
    crashes.sort_unstable();
    crashes.windows(2).any(|pair| pair[1] - pair[0] <= COPIED_WITHIN_MS)
}

/// The remaining hits that the nodes returned in the final read, if they differ.
fn differing_counts(case: &Case<'_, '_>, key: Key) -> Option<String> {
    let verdicts: Vec<(usize, u32)> = case.world.history.with(|records| {
        let reads = records[case.final_read_from..].iter().filter(|record| record.key == key);
        let decided = reads.filter(|record| record.is_decided());
        decided.filter_map(|record| Some((record.node, record.response?.remaining))).collect()
    });
    let listeners = case.world.processes().filter_map(|process| process.listener.as_ref());
    let joined = listeners.filter(|listener| listener.may_request(key)).count();
    if verdicts.len() < joined {
        return Some(format!(
            "{key}: {} of {joined} nodes have a verdict: {verdicts:?}",
            verdicts.len()
        ));
    }
    let is_equal = verdicts.windows(2).all(|pair| pair[0].1 == pair[1].1);
    // All nodes together hide at most a tenth of the limit, while they know of no more hits.
    let limit = key.kind.limit();
    let is_hardly_used = verdicts.iter().all(|(_, remaining)| *remaining >= limit - limit / 10);
    // A window may end between two reads.
    let may_differ = !crate::world::outlasts_run(key.kind)
        || case.scenario.may_fill_stores()
        // A read brings a node a grant.
        || key.kind.is_leased()
        || !key.kind.is_strict() && (is_hardly_used || has_lost_copies(case));
    (!is_equal && !may_differ)
        .then(|| format!("{key}: nodes report different remaining hits: {verdicts:?}"))
}
