//! The cluster map in force, for `tidegate members`, and the global one, for `tidegate regions`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_limiter::units::Span;
use tidegate_ownership::cluster_map::{Epoch, Identity, MapMember, MapState, Voters};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{ClusterMap, MemberId};

use super::core::Core;
use super::edge::Edge;
use crate::admin::MembersReport;
use crate::admin::report::{MapMemberReport, MapMemberState, MapReport, RegionsReport, Votes};

/// A member that was heard longer ago counts as gone in what an operator reads.
const HEARD_WITHIN: Span = Span::from_secs(2);

/// The map by which `core` decides, with what it observes of the members.
pub(super) fn report(core: &Core) -> MembersReport {
    let topology = core.topology.load();
    let followed = || {
        let map = core.edge.as_ref()?.follower.map();
        // An edge hears no members; which cores it follows is in its status.
        (map.epoch > Epoch(0)).then(|| of(&map, &BTreeMap::new()))
    };
    let map = core.joined.as_ref().and_then(|joined| {
        let map = joined.ownership_driver.map();
        let heard = joined.ownership_driver.heard();
        let leader = if joined.membership.is_leader() {
            Some(topology.me.clone())
        } else {
            let is_heard = |id: &NodeId| map.get(id).is_some_and(|one| is_heard(one, &heard));
            joined.membership.leader().filter(is_heard)
        };
        (map.epoch > Epoch(0)).then(|| MapReport {
            leader: leader.map(|leader| leader.to_string()),
            ..of(&map, &heard)
        })
    });
    MembersReport {
        node: topology.me.to_string(),
        region: topology.region.clone(),
        is_standalone: core.mesh().is_none(),
        is_cut_off: core.edge.as_ref().map(Edge::is_cut_off),
        map: map.or_else(followed),
    }
}

/// The global map by which `core` decides.
pub(super) fn regions(core: &Core) -> RegionsReport {
    let topology = core.topology.load();
    let global = core.joined.as_ref().and_then(|joined| joined.global.as_ref());
    let map = global.and_then(|global| {
        let map = global.membership.maps().borrow().clone();
        let is_leader = global.membership.is_leader();
        let leader = if is_leader { Some(topology.me.clone()) } else { global.membership.leader() };
        (map.epoch > Epoch(0)).then(|| MapReport {
            leader: leader.map(|leader| leader.to_string()),
            ..of(&map, &global.heard())
        })
    });
    let homes = topology.homes();
    RegionsReport {
        node: topology.me.to_string(),
        region: topology.region.clone(),
        failover: global.map(|global| global.failover().to_owned()),
        homes: homes.regions().to_vec(),
        has_lease: core.ownership.has_region_lease() && homes.has_own(),
        map,
    }
}

pub(super) fn cluster_id(core: &Core) -> Option<String> {
    let map = match (&core.joined, &core.edge) {
        (Some(joined), _) => joined.ownership_driver.map(),
        (None, Some(edge)) => Arc::new(edge.follower.map()),
        (None, None) => return None,
    };
    (map.epoch > Epoch(0)).then(|| map.cluster.to_string())
}

/// Members by the map of which nothing was heard of late.
pub(super) fn silent(core: &Core) -> BTreeSet<NodeId> {
    let Some(joined) = &core.joined else { return BTreeSet::new() };
    let (map, heard) = (joined.ownership_driver.map(), joined.ownership_driver.heard());
    let silent = map.present().filter(|member| !is_heard(member, &heard));
    silent.map(|member| member.identity.node.clone()).collect()
}

/// Without a leader, which no map names.
fn of(map: &ClusterMap, heard: &BTreeMap<MemberId, Span>) -> MapReport {
    let ClusterMap { voters, members, .. } = map;
    let is_present = |voter: &&Identity| {
        map.present().any(|member| member.identity == **voter && is_heard(member, heard))
    };
    let has_entry = |voter: &&Identity| members.iter().any(|member| member.identity == **voter);
    let of_member = |member: &MapMember| MapMemberReport {
        node: member.identity.node.to_string(),
        state: match member.state {
            MapState::Up => MapMemberState::Up,
            MapState::Draining => MapMemberState::Draining,
            MapState::Down if voters.contains(&member.identity) => MapMemberState::Lost,
            MapState::Down => MapMemberState::Down,
        },
        votes: votes(voters, &member.identity),
        zone: Some(member.zone.clone()),
        addr: Some(member.addr.to_string()),
        member: Some(member.id.0),
        heard_ms_ago: heard.get(&member.id).map(|ago| ago.as_nanos() / 1_000_000),
    };
    let of_voter = |voter: &Identity| MapMemberReport {
        node: voter.node.to_string(),
        state: MapMemberState::Lost,
        votes: votes(voters, voter),
        ..MapMemberReport::default()
    };
    let lost = voters.all().filter(|voter| !has_entry(voter)).map(of_voter);
    let mut rows: Vec<MapMemberReport> = members.iter().map(of_member).chain(lost).collect();
    // Stable: a member comes before the voter that it succeeds under the same name.
    rows.sort_by(|a, b| a.node.cmp(&b.node));
    MapReport {
        cluster: map.cluster.to_string(),
        epoch: map.epoch.0,
        version: map.version,
        voters: voters.current.len(),
        voters_present: voters.current.iter().filter(is_present).count(),
        voters_change: voters.are_joint(),
        leader: None,
        members: rows,
    }
}

/// Whether `member` is this node, or was heard of late. Without a majority the map does not change,
/// and goes on to name members that are dead.
fn is_heard(member: &MapMember, heard: &BTreeMap<MemberId, Span>) -> bool {
    heard.get(&member.id).is_none_or(|ago| *ago <= HEARD_WITHIN)
}

fn votes(voters: &Voters, identity: &Identity) -> Votes {
    let was = voters.replaced.contains(identity);
    match voters.current.contains(identity) {
        true if was || !voters.are_joint() => Votes::Yes,
        true => Votes::Joining,
        false if was => Votes::Leaving,
        false => Votes::No,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::Versions;
    use tidegate_ownership::cluster_map::ClusterId;
    use tidegate_ownership::identity::{Generation, NodeId};

    use super::*;

    fn identity(name: &str, birth: u64) -> Identity {
        Identity { node: NodeId::new(name).expect("a valid name"), birth }
    }

    fn member(id: u64, name: &str, state: MapState) -> MapMember {
        MapMember {
            id: MemberId(id),
            identity: identity(name, 1),
            start: 1,
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 7600).into(),
            zone: "z1".to_owned(),
            versions: Versions::default(),
            state,
        }
    }

    fn map(current: &[(&str, u64)], replaced: &[(&str, u64)]) -> ClusterMap {
        let all = |voters: &[(&str, u64)]| {
            voters.iter().map(|(name, birth)| identity(name, *birth)).collect()
        };
        ClusterMap {
            cluster: ClusterId(5),
            epoch: Epoch(7),
            voters: Voters { current: all(current), replaced: all(replaced), changed_at: Epoch(7) },
            members: vec![
                member(1, "a", MapState::Up),
                member(2, "b", MapState::Draining),
                member(3, "c", MapState::Down),
                member(4, "d", MapState::Up),
            ],
            ..ClusterMap::default()
        }
    }

    /// Each row as `node state votes member`.
    fn rows(report: &MapReport) -> Vec<String> {
        let row = |row: &MapMemberReport| {
            let member = row.member.map_or_else(|| "-".to_owned(), |id| id.to_string());
            format!("{} {} {:?} {member}", row.node, row.state.name(), row.votes)
        };
        report.members.iter().map(row).collect()
    }

    #[test]
    fn voters_that_are_no_members_are_lost() {
        // c was evicted, d is another node than the one that voted, e has not been seen yet.
        let map = map(&[("a", 1), ("b", 1), ("c", 1), ("d", 9), ("e", 0)], &[]);
        let report = of(&map, &BTreeMap::from([(MemberId(2), Span::from_millis(40))]));
        assert_eq!(
            rows(&report),
            [
                "a up Yes 1",
                "b draining Yes 2",
                "c lost Yes 3",
                "d up No 4",
                "d lost Yes -",
                "e lost Yes -"
            ]
        );
        assert_eq!((report.voters, report.voters_present, report.voters_change), (5, 2, false));
        let heard: Vec<_> = report.members.iter().map(|member| member.heard_ms_ago).collect();
        assert_eq!(heard[..2], [None, Some(40)]);
    }

    #[test]
    fn a_change_of_voters_says_who_joins_and_who_leaves() {
        let report = of(
            &map(&[("a", 1), ("b", 1), ("d", 1)], &[("a", 1), ("b", 1), ("c", 1)]),
            &BTreeMap::new(),
        );
        assert_eq!(
            rows(&report),
            ["a up Yes 1", "b draining Yes 2", "c lost Leaving 3", "d up Joining 4"]
        );
        assert_eq!((report.voters, report.voters_present, report.voters_change), (3, 3, true));
    }

    #[test]
    fn a_voter_that_is_not_heard_any_more_is_not_present() {
        let map = map(&[("a", 1), ("b", 1), ("d", 1)], &[]);
        let heard = |secs: u64| BTreeMap::from([(MemberId(2), Span::from_secs(secs))]);
        assert_eq!(of(&map, &heard(1)).voters_present, 3);
        assert_eq!(of(&map, &heard(9)).voters_present, 2);
    }

    #[test]
    fn an_evicted_member_without_a_vote_is_down() {
        assert_eq!(rows(&of(&map(&[("a", 1)], &[]), &BTreeMap::new()))[2], "c down No 3");
    }
}
