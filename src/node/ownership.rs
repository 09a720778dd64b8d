//! What a node owns, in numbers and for people.

use tidegate_limiter::policy::Scope;

use super::core::Core;
use super::probes::{counter, gauge, labelled, read, signed};
use crate::admin::report::OwnershipReport;
use crate::observe::names;
use crate::observe::samples::Reading;

/// The numbers; none of a node that stands alone.
pub(super) fn readings(core: &Core, readings: &mut Vec<Reading>) {
    let Some(joined) = &core.joined else { return };
    let ownership = &core.decider.parts().ownership;
    let owned_ranges = ownership.owned_ranges(Scope::Region);
    let has_lease = ownership.has_lease(Scope::Region);
    let decides = if has_lease { owned_ranges.decides.share_ppm() } else { 0 };
    let counters = joined.ownership_driver.counters();
    readings.extend([
        gauge(
            names::LEASE,
            "1 while a majority recognises this node, so that it may own keys",
            i64::from(has_lease),
        ),
        gauge(
            names::RING_OWNED_PPM,
            "Parts per million of its region's ring that this node decides now",
            i64::from(decides),
        ),
        gauge(
            names::EPOCH_NUMBER,
            "Number of the epoch of its region's ring that this node stands at",
            signed(owned_ranges.epoch.number),
        ),
        gauge(
            names::MEMBERS_LOST,
            "Members that were lost without leaving and still count for the majority",
            signed(joined.ownership_driver.missed().len() as u64),
        ),
    ]);
    for (name, text, value) in [
        (
            names::LEASES_LOST,
            "Times that no majority recognised this node any more",
            &counters.leases_lost,
        ),
        (
            names::LEASES_INTERRUPTED,
            "Times that this node was recognised again and had to begin as a newcomer",
            &counters.leases_interrupted,
        ),
        (
            names::HANDOFF_COPIED,
            "Counts copied to their owners before a handover",
            &counters.copied,
        ),
        (
            names::HANDOFF_FAILED,
            "Steps of handovers that failed and were begun anew",
            &counters.failed,
        ),
    ] {
        readings.push(counter(name, text, read(value)));
    }
    for (direction, value) in [
        ("given", &counters.handed_over),
        ("taken", &counters.taken_over),
        ("refused", &counters.refused),
    ] {
        let text = "Ranges of keys handed to another node and taken from one; releases refused";
        let label = ("direction", direction);
        readings.push(labelled(names::HANDOFF_RANGES, text, label, read(value)));
    }
}

/// The report; none of a node that stands alone.
pub(super) fn report(core: &Core) -> Option<OwnershipReport> {
    let joined = core.joined.as_ref()?;
    let ownership = &core.decider.parts().ownership;
    let owned_ranges = ownership.owned_ranges(Scope::Region);
    let has_lease = ownership.has_lease(Scope::Region);
    let decides = if has_lease { owned_ranges.decides.share_ppm() } else { 0 };
    Some(OwnershipReport {
        has_lease,
        epoch_number: owned_ranges.epoch.number,
        epoch_name: format!("{:016x}", owned_ranges.epoch.name),
        decides: f64::from(decides) / 1_000_000.0,
        missed: joined.ownership_driver.missed().iter().map(ToString::to_string).collect(),
    })
}
