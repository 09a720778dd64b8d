//! Ownership in metrics and in the status report.

use tidegate_limiter::policy::Scope;

use super::core::Core;
use super::readings::{counter, gauge, labelled, read, signed};
use crate::admin::report::OwnershipReport;
use crate::observe::names;
use crate::observe::samples::Reading;

/// Metrics; none for a standalone node.
pub(super) fn readings(core: &Core, readings: &mut Vec<Reading>) {
    let Some(joined) = &core.joined else { return };
    let ownership = &core.ownership;
    let owned_ranges = ownership.owned_ranges(Scope::Region);
    let has_lease = ownership.has_lease(Scope::Region);
    let decides = if has_lease { owned_ranges.decides.share_ppm() } else { 0 };
    let counters = &joined.ownership_driver.counters;
    readings.extend([
        gauge(
            names::LEASE,
            "1 while this node has a lease from a majority and may own keys",
            i64::from(has_lease),
        ),
        gauge(
            names::RING_OWNED_PPM,
            "Share of its region's ring that this node decides, parts per million",
            i64::from(decides),
        ),
        gauge(
            names::EPOCH_NUMBER,
            "Epoch number of its region's ring",
            signed(owned_ranges.epoch.number),
        ),
        gauge(
            names::MEMBERS_LOST,
            "Members that failed and still count as voters",
            signed(joined.ownership_driver.lost_voters().len() as u64),
        ),
    ]);
    for (name, text, value) in [
        (names::LEASES_LOST, "Leases that expired", &counters.leases_lost),
        (
            names::LEASES_INTERRUPTED,
            "Leases regained after an interruption, with all owned ranges dropped",
            &counters.leases_interrupted,
        ),
        (
            names::HANDOFF_COPIED,
            "Counters copied to their next owner before a handoff",
            &counters.copied,
        ),
        (names::HANDOFF_FAILED, "Handoff steps that failed and were restarted", &counters.failed),
    ] {
        readings.push(counter(name, text, read(value)));
    }
    for (direction, value) in [
        ("given", &counters.handed_over),
        ("taken", &counters.taken_over),
        ("refused", &counters.refused),
    ] {
        let text = "Ranges handed to another node, received from one, and releases refused";
        let label = ("direction", direction);
        readings.push(labelled(names::HANDOFF_RANGES, text, label, read(value)));
    }
}

/// The report; `None` for a standalone node.
pub(super) fn report(core: &Core) -> Option<OwnershipReport> {
    let joined = core.joined.as_ref()?;
    let ownership = &core.ownership;
    let owned_ranges = ownership.owned_ranges(Scope::Region);
    let has_lease = ownership.has_lease(Scope::Region);
    let decides = if has_lease { owned_ranges.decides.share_ppm() } else { 0 };
    Some(OwnershipReport {
        has_lease,
        epoch_number: owned_ranges.epoch.number,
        epoch_name: format!("{:016x}", owned_ranges.epoch.name),
        decides: f64::from(decides) / 1_000_000.0,
        missed: joined.ownership_driver.lost_voters().iter().map(ToString::to_string).collect(),
    })
}
