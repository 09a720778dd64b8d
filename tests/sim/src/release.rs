//! Two releases of the product, of which the newer speaks one more version of the mesh protocol.
//!
//! In some seeds the nodes of some regions start with the older one, and with the newer one
//! whenever they start again: an upgrade in the order of the faults. New nodes are of the newer
//! release. The newer version is in force in a region once the last of its nodes has been upgraded;
//! a node of the older release could not join any more. A node of the older release knows no
//! combined checks, and so no grants.

use tidegate_cluster::mesh::codec::{COMBINED_CHECKS, VERSION, VERSIONS};
use tidegate_ownership::Versions;

use crate::dice::Dice;
use crate::scenario::Scenario;

#[derive(Debug)]
pub(crate) struct Releases {
    /// The nodes that start with the older release; empty in a seed without an upgrade.
    older: Vec<usize>,
}

/// What the older release speaks.
const OLDER: Versions = Versions { highest: COMBINED_CHECKS - 1, ..VERSIONS };
const _: () = assert!(VERSION == COMBINED_CHECKS, "the older release is the one before");
/// Seeds with both releases.
const UPGRADES_PPM: u32 = 250_000;
/// Regions of those that begin with the older one; the first does.
const OLDER_PPM: u32 = 500_000;

impl Releases {
    pub(crate) fn draw(scenario: &Scenario) -> Self {
        let Scenario { seed, initial_nodes, layout, .. } = scenario;
        let mut dice = Dice::new(*seed, "releases");
        // The older release knows neither reservations nor edges.
        let has_news = scenario.has_reserved_keys || layout.edges > 0;
        if !dice.chance(UPGRADES_PPM) || has_news {
            return Self { older: Vec::new() };
        }
        // A node of the older release cannot join once all others of its region are upgraded.
        let mut are_older: Vec<bool> =
            layout.names.iter().map(|_| dice.chance(OLDER_PPM)).collect();
        are_older[0] = true;
        let is_older = |node: &usize| are_older[layout.of_nodes[*node]];
        Self { older: (0..*initial_nodes).filter(is_older).collect() }
    }

    /// What a process of `node` speaks, after so many earlier ones.
    pub(crate) fn versions(&self, node: usize, starts: u32) -> Versions {
        let is_older = starts == 0 && self.older.contains(&node);
        if is_older { OLDER } else { VERSIONS }
    }

    /// Whether `version` came with the newer release.
    pub(crate) fn is_newer(version: u8) -> bool {
        version > OLDER.highest
    }
}
