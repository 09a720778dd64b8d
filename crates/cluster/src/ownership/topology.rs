//! The rings that follow from what a node knows: the map of its region, the members of the others
//! by gossip, and the homes of global keys.

use tidegate_ownership::ClusterMap;
use tidegate_ownership::cluster_map::{MapMember, MapState};
use tidegate_ownership::homes::{Gained, Homes};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{Member, MemberState, UNKNOWN_RULES, View};
use tidegate_ownership::region_right::RegionRight;
use tidegate_ownership::route::Topology;

pub(crate) struct Known<'a> {
    /// This node.
    pub(crate) me: &'a NodeId,
    pub(crate) region: &'a str,
    pub(crate) vnodes: u32,
    pub(crate) map: &'a ClusterMap,
    pub(crate) view: &'a View,
    pub(crate) homes: Homes,
    pub(crate) edges: u32,
}

impl Known<'_> {
    /// The members of this region by the map, those of other regions by gossip. This node is not
    /// admitted.
    pub(crate) fn topology(self) -> Topology {
        let Self { me, region, vnodes, map, view, homes, edges } = self;
        let others = view.members().iter().filter(|member| member.region != *region).cloned();
        let own = map
            .present()
            .map(|member| with_metadata(region, member, view.get(&member.identity.node)));
        let members = View::new(own.chain(others));
        let sharing = map.members.iter().map(|member| member.identity.node.clone());
        Topology::new(me.clone(), region.to_owned(), members, vnodes)
            .with_homes(homes)
            .sharing_among(sharing)
            .with_edges(edges)
    }
}

/// The homes of global keys, as configured or, where they may change, as agreed on. Until the
/// agreement is known they are those of the configuration, which decide nothing: a region that took
/// itself for the only one would have all shares of a limit for itself.
pub(crate) fn homes(
    right: Option<&RegionRight>,
    map: &ClusterMap,
    region: &str,
    all: &[String],
) -> Homes {
    match right {
        None => Homes::new(region.to_owned(), map.homes.names.clone()),
        Some(right) if right.map().homes.names.is_empty() => {
            Homes::new(region.to_owned(), all.to_vec()).agreed(Gained::Unknown)
        }
        Some(right) => right.homes().among(all),
    }
}

fn with_metadata(region: &str, member: &MapMember, known: Option<&Member>) -> Member {
    Member {
        id: member.identity.node.clone(),
        generation: known
            .map_or(member.generation, |known| known.generation.max(member.generation)),
        addr: member.addr,
        region: region.to_owned(),
        zone: member.zone.clone(),
        state: match member.state {
            MapState::Up => MemberState::Up,
            MapState::Draining | MapState::Down => MemberState::Draining,
        },
        rule_book: known.map_or(UNKNOWN_RULES, |known| known.rule_book),
        http: known.and_then(|known| known.http),
        has_lease: known.is_some_and(|known| known.has_lease),
    }
}
