//! The cluster map: who is a member of a region, and who votes.
//!
//! A map is one value that a majority of the voters has agreed on. Each change makes a new map with
//! the next [`Epoch`]; maps of one cluster form a single sequence, so two nodes at one epoch have
//! equal maps. Nothing else adds, removes or counts members: a node that is not in the map owns
//! nothing, however alive it is.
//!
//! **Identity.** A name alone does not identify a voter, because a node whose disk was wiped has
//! forgotten what it promised. [`Identity`] is the name and a *birth*, a random number drawn with
//! the disk (without a disk at each start). A [`MemberId`] names one admission to the map: a
//! node that leaves the map and returns, or restarts, gets another one, and what was held under the
//! old one is void.
//!
//! **Voters change through a joint phase.** While [`Voters::replaced`] is not empty, a majority of
//! the old voters *and* a majority of the new ones is needed. Example: `a b c` become `a b d`. In
//! the joint phase `{a b}` suffices, being a majority of both; `{a d}` does not. When the phase may
//! end is decided by [`autopilot`](crate::autopilot).

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::identity::{Generation, NodeId};
use crate::versions::Versions;

/// The version of a cluster map; the first map of a cluster has epoch 1.
///
/// The upper 16 bits count how often the cluster was recovered by hand after it had lost a majority
/// of its voters, so a recovered map is newer than every map that the lost voters may have agreed
/// on.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// Names one cluster; drawn when it is founded.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

/// A node with its memory: a name, and a number that is drawn anew whenever the node starts without
/// what it wrote before.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    pub node: NodeId,
    /// [`Identity::UNKNOWN_BIRTH`] for a founder that has not been seen yet.
    pub birth: u64,
}

/// One admission of a node to the map. Unique in a cluster and never used again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct MemberId(pub u64);

/// The nodes whose grants make a lease, and whose agreement changes the map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Voters {
    /// Sorted; 1, 3, 5 or 7.
    pub current: Vec<Identity>,
    /// The voters before, while the change to `current` is in progress; otherwise empty.
    pub replaced: Vec<Identity>,
    /// The epoch at which the last change began.
    pub changed_at: Epoch,
}

/// A member of a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MapMember {
    pub id: MemberId,
    pub identity: Identity,
    /// Drawn by the process when it starts: a restart is another admission, because the counts in
    /// memory are lost.
    pub start: u64,
    /// As of its admission; gossip may have a newer one.
    pub generation: Generation,
    /// The advertised mesh address (UDP).
    pub addr: SocketAddr,
    /// Replicas and voters are placed in different zones where there are some.
    pub zone: String,
    /// The versions of the wire format that it speaks.
    pub versions: Versions,
    pub state: MapState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MapState {
    /// Owns keys.
    Up,
    /// Owns no keys and still answers calls: it is about to leave.
    Draining,
    /// Evicted: it is not a member any more. Kept so that limits are divided among it as well,
    /// until it is forgotten.
    Down,
}

/// The regions that are homes of global keys ([`Homes`](crate::homes::Homes)).
///
/// In the map of a region they are those of the configuration, the same in every region. With
/// `global.founders` they are agreed on in the global map instead, and change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HomeRegions {
    /// Sorted; at most [`REGIONS_MAX`].
    pub names: Vec<String>,
    /// The epoch since which they are these.
    pub changed_at: Epoch,
    /// The epoch since which they were those of before.
    pub replaced_at: Epoch,
}

/// Members and voters of one region, or the nodes that stand for their regions in the global map;
/// immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterMap {
    pub cluster: ClusterId,
    pub epoch: Epoch,
    pub voters: Voters,
    /// Sorted by name, one per name; at most [`MAP_MEMBERS_MAX`].
    pub members: Vec<MapMember>,
    /// The newest id that was given.
    pub last_member: MemberId,
    /// The regions that own global keys.
    pub homes: HomeRegions,
    /// The version of the wire format that every member speaks, evicted ones included until they
    /// are forgotten. What came with a newer one is not used yet. It never falls: a node that does
    /// not speak it cannot become a member any more. 0 in the global map.
    pub version: u8,
    /// Whether counters of earlier starts are where their nodes can fold them.
    pub collection: Collection,
}

/// Whether the members have pushed their copies of what earlier starts counted, in eventual keys,
/// to the owners of the keys. Then a node finds there all that its earlier starts counted.
///
/// An evicted member may return with copies that nobody else has, so nothing is collected until it
/// has been forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Collection {
    /// The epoch at which the members changed last, and with them the owners.
    pub members_at: Epoch,
    /// Whether all members have pushed since.
    pub is_complete: bool,
}

/// The most members of a region, evicted ones that are not forgotten included. At the bound a node
/// that wants to join waits.
pub const MAP_MEMBERS_MAX: usize = 512;
/// The most voters of a region.
pub const VOTERS_MAX: usize = 7;
/// The most regions that are homes of global keys.
pub const REGIONS_MAX: usize = 64;

impl Epoch {
    /// The first epoch after a recovery by hand.
    #[must_use]
    pub fn recovered(self) -> Self {
        Self(((self.0 >> RECOVERY_SHIFT).saturating_add(1)) << RECOVERY_SHIFT)
    }

    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// How often the cluster was recovered by hand before this epoch.
    pub fn recoveries(self) -> u64 {
        self.0 >> RECOVERY_SHIFT
    }
}

const RECOVERY_SHIFT: u32 = 48;

impl MemberId {
    /// The last id that counts as given after a recovery by hand: larger than every id that the
    /// lost voters may have given without the knowledge of the node that recovers.
    #[must_use]
    pub fn recovered(self) -> Self {
        Self(((self.0 >> 32).saturating_add(1)) << 32)
    }
}

impl Identity {
    /// Stands for a founder that has not been seen: it never votes, and counts for the majority.
    pub const UNKNOWN_BIRTH: u64 = 0;
}

impl HomeRegions {
    /// The first ones, of a cluster that is founded.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        let names: BTreeSet<String> = names.into_iter().collect();
        let (changed_at, replaced_at) = (Epoch(1), Epoch(0));
        Self { names: names.into_iter().collect(), changed_at, replaced_at }
    }

    pub fn contains(&self, region: &str) -> bool {
        self.names.binary_search_by(|name| name.as_str().cmp(region)).is_ok()
    }

    /// These `names`, sorted, from `epoch` on.
    #[must_use]
    pub fn followed_by(&self, names: Vec<String>, epoch: Epoch) -> Self {
        Self { names, changed_at: epoch, replaced_at: self.changed_at }
    }
}

impl Voters {
    pub fn of(current: impl IntoIterator<Item = Identity>) -> Self {
        let current: BTreeSet<Identity> = current.into_iter().collect();
        Self { current: current.into_iter().collect(), ..Self::default() }
    }

    /// Whether the voters for which `votes` is true are a majority: of the current voters, and in
    /// the joint phase of the replaced ones as well. False without any voter.
    pub fn is_majority(&self, votes: impl Fn(&Identity) -> bool) -> bool {
        let is_majority_of =
            |voters: &[Identity]| 2 * voters.iter().filter(|one| votes(one)).count() > voters.len();
        is_majority_of(&self.current)
            && (self.replaced.is_empty() || is_majority_of(&self.replaced))
    }

    /// The highest value that a majority reaches or exceeds; `None` without any voter.
    ///
    /// Example: of values 5, 3 and 9 it is 5.
    pub fn majority_value<T: Ord + Copy>(&self, value: impl Fn(&Identity) -> T) -> Option<T> {
        let of = |voters: &[Identity]| {
            let mut values: Vec<T> = voters.iter().map(&value).collect();
            let needed = values.len() / 2;
            values.sort_unstable_by(|a, b| b.cmp(a));
            values.get(needed).copied()
        };
        let current = of(&self.current)?;
        Some(of(&self.replaced).map_or(current, |replaced| replaced.min(current)))
    }

    /// Current and replaced voters, each once.
    pub fn all(&self) -> impl Iterator<Item = &Identity> {
        let only_replaced = self.replaced.iter().filter(|one| !self.current.contains(one));
        self.current.iter().chain(only_replaced)
    }

    pub fn contains(&self, identity: &Identity) -> bool {
        self.current.contains(identity) || self.replaced.contains(identity)
    }

    /// Whether a change of the voters is in progress.
    pub fn are_joint(&self) -> bool {
        !self.replaced.is_empty()
    }
}

impl ClusterMap {
    /// Names the sequence of maps that one set of consensus engines agrees on. A recovery by hand
    /// begins another one, because its engine has forgotten the log of the engines before it: a
    /// survivor that answered from that log, or voted with it, would contradict the new one.
    pub fn lineage(&self) -> ClusterId {
        ClusterId(self.cluster.0 ^ u128::from(self.epoch.recoveries()) << 112)
    }

    /// The entry of `node`, also if it is evicted.
    pub fn get(&self, node: &NodeId) -> Option<&MapMember> {
        let at = self.members.binary_search_by(|member| member.identity.node.cmp(node)).ok()?;
        self.members.get(at)
    }

    /// The members that are not evicted, sorted by name.
    pub fn present(&self) -> impl Iterator<Item = &MapMember> {
        self.members.iter().filter(|member| member.state != MapState::Down)
    }

    /// Whether `id` is a member that is not evicted.
    pub fn has(&self, id: MemberId) -> bool {
        self.present().any(|member| member.id == id)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 >> RECOVERY_SHIFT, self.0 & ((1 << RECOVERY_SHIFT) - 1)) {
            (0, change) => write!(f, "{change}"),
            (recovery, change) => write!(f, "{recovery}.{change}"),
        }
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}", self.node, self.birth)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(name: &str) -> Identity {
        Identity { node: NodeId::new(name).expect("a valid name"), birth: 1 }
    }

    fn voters(current: &[&str], replaced: &[&str]) -> Voters {
        let of = |names: &[&str]| names.iter().map(|name| voter(name)).collect();
        Voters { current: of(current), replaced: of(replaced), ..Voters::default() }
    }

    fn is_majority(voters: &Voters, votes: &[&str]) -> bool {
        voters.is_majority(|one| votes.contains(&one.node.as_str()))
    }

    #[test]
    fn a_joint_phase_needs_both_majorities() {
        let joint = voters(&["a", "b", "d"], &["a", "b", "c"]);
        assert!(is_majority(&joint, &["a", "b"]) && is_majority(&joint, &["a", "c", "d"]));
        assert!(!is_majority(&joint, &["a", "d"]) && !is_majority(&joint, &["b", "c"]));
        assert!(!is_majority(&Voters::default(), &[]), "nobody is no majority");
        assert!(!is_majority(&voters(&["a", "b"], &[]), &["a"]), "half is no majority");
    }

    #[test]
    fn the_value_of_a_majority() {
        let value = |one: &Identity| match one.node.as_str() {
            "a" => 5,
            "b" => 3,
            "c" => 9,
            _ => 1,
        };
        assert_eq!(voters(&["a", "b", "c"], &[]).majority_value(value), Some(5));
        assert_eq!(voters(&["a", "b"], &[]).majority_value(value), Some(3));
        assert_eq!(voters(&["a", "b", "d"], &["a", "b", "c"]).majority_value(value), Some(3));
        assert_eq!(Voters::default().majority_value(value), None);
    }

    #[test]
    fn a_birth_makes_another_voter() {
        let mut reborn = voter("a");
        reborn.birth = 2;
        assert!(!voters(&["a"], &[]).contains(&reborn));
        assert!(!voters(&["a"], &[]).is_majority(|one| *one == reborn));
    }

    #[test]
    fn a_recovered_map_is_newer_than_any_of_before() {
        assert!(Epoch(7).recovered() > Epoch(1 << 40));
        assert!(Epoch(7).recovered().next() < Epoch(7).recovered().recovered());
        assert_eq!(Epoch(7).recovered().next().to_string(), "1.1");
        assert!(MemberId(7).recovered() > MemberId(1 << 31));
        assert!(MemberId(7).recovered().recovered() > MemberId(7).recovered());
    }

    #[test]
    fn a_recovery_begins_another_lineage_of_the_same_cluster() {
        let map =
            |epoch| ClusterMap { cluster: ClusterId(5), epoch, ..ClusterMap::default() }.lineage();
        let recovered = Epoch(7).recovered();
        assert_eq!(map(Epoch(7)), ClusterId(5));
        assert_eq!(map(recovered), map(recovered.next()));
        assert!(map(recovered) != map(Epoch(7)) && map(recovered) != map(recovered.recovered()));
    }
}
