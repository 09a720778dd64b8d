//! Two releases of the product, of which the newer speaks more versions of the mesh protocol.
//!
//! In some seeds the nodes of some regions start with the older one, and with the newer one
//! whenever they start again: an upgrade in the order of the faults. New nodes are of the newer
//! release. The newer version is in force in a region once the last of its nodes has been upgraded;
//! a node of the older release could not join any more. In some seeds the older release knows no
//! combined checks, and so no grants; in others it is the one before.

use tidegate_cluster::mesh::codec::{COMBINED_CHECKS, VERSION, VERSIONS};
use tidegate_ownership::Versions;

use crate::dice::Dice;
use crate::scenario::Scenario;

#[derive(Debug)]
pub(crate) struct Releases {
    /// The nodes that start with the older release; empty in a seed without an upgrade.
    older: Vec<usize>,
    /// The newest version that the older release speaks.
    highest: u8,
}

/// The newest versions of older releases.
const OLDER: [u8; 2] = [COMBINED_CHECKS - 1, VERSION - 1];
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
            return Self { older: Vec::new(), highest: VERSION };
        }
        // A node of the older release cannot join once all others of its region are upgraded.
        let mut are_older: Vec<bool> =
            layout.names.iter().map(|_| dice.chance(OLDER_PPM)).collect();
        are_older[0] = true;
        let is_older = |node: &usize| are_older[layout.of_nodes[*node]];
        Self { older: (0..*initial_nodes).filter(is_older).collect(), highest: dice.pick(&OLDER) }
    }

    /// What a process of `node` speaks, after so many earlier ones.
    pub(crate) fn versions(&self, node: usize, starts: u32) -> Versions {
        let is_older = starts == 0 && self.older.contains(&node);
        if is_older { Versions { highest: self.highest, ..VERSIONS } } else { VERSIONS }
    }

    /// Whether `version` came with the newer release.
    pub(crate) fn is_newer(&self, version: u8) -> bool {
        version > self.highest
    }
}
