//! The responses of `/status`, `/members`, `/owner` and `/drain`. Scripts read them: fields are
//! only added.

use serde::{Deserialize, Serialize};
use tidegate_rules::stats::RuleCounts;

pub use crate::storage::Status as StorageReport;

/// The state behind `/status`, `/members` and `/owner`.
pub trait Inspect: Send + Sync + 'static {
    /// The current view of the cluster.
    fn status(&self) -> StatusReport;

    /// The cluster map that is in force here.
    fn members(&self) -> MembersReport;

    /// The global map that is in force here.
    fn regions(&self) -> RegionsReport;

    /// The owner of a descriptor, given as key/value pairs, outermost first.
    fn owner(&self, domain: &str, entries: &[(String, String)]) -> OwnerReport;
}

/// How a drain has ended; the response of `POST /drain?wait=true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Whether all ranges were handed over.
    pub handed_over: bool,
    /// Why not all of them were.
    pub reason: Option<String>,
    /// Whether the voters that stay are a majority without it.
    #[serde(default = "yes")]
    pub leaves_majority: bool,
    /// Of the process that drained; 0 of an earlier release.
    #[serde(default)]
    pub generation: u64,
}

/// A node of an earlier release does not say.
fn yes() -> bool {
    true
}

/// One node's view of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    pub node: NodeReport,
    pub cluster: String,
    /// Names the cluster of this node's region, 32 hexadecimal digits; drawn when it was founded.
    /// None while it is unknown, and for a standalone node.
    #[serde(default)]
    pub cluster_id: Option<String>,
    /// Fingerprint of the ring, 16 hexadecimal digits: equal on two nodes exactly when their rings
    /// have the same nodes.
    pub epoch: String,
    /// Why the node is not ready; none if it is.
    pub not_ready: Option<String>,
    /// Every member, including this node, by id.
    pub members: Vec<MemberReport>,
    pub rule_book: RuleBookReport,
    /// What the responding node counted of the rules that were checked most: at most
    /// [`RULES_MAX`], and then one with the sum of the others.
    #[serde(default)]
    pub rules: Vec<RuleReport>,
    pub store: StoreReport,
    /// Of a core: the edges that are connected to it. None for a standalone node.
    #[serde(default)]
    pub edges: Option<EdgesReport>,
    /// Of an edge: the cores that it follows.
    #[serde(default)]
    pub follows: Option<FollowsReport>,
    /// None for a standalone node, and for an edge, which owns nothing.
    #[serde(default)]
    pub ownership: Option<OwnershipReport>,
    #[serde(default)]
    pub clock: ClockReport,
    /// None for a standalone node.
    #[serde(default)]
    pub certificate: Option<CertificateReport>,
    /// None without `node.data_dir`.
    #[serde(default)]
    pub storage: Option<StorageReport>,
}

/// The responding node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub id: String,
    pub region: String,
    pub zone: String,
    /// `core`, or `edge`; a standalone node is a core.
    #[serde(default = "core_role")]
    pub role: String,
    /// Increases at each start.
    pub generation: u64,
    pub version: String,
    pub uptime_s: u64,
}

fn core_role() -> String {
    "core".to_owned()
}

/// Most edges of an [`EdgesReport`].
pub const EDGES_SHOWN_MAX: usize = 100;

/// The edges of a core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgesReport {
    /// Edges that are connected to this core now.
    pub connected: usize,
    /// The most that may be.
    pub connected_max: usize,
    /// About how many edges the region has, as this core tells from those that follow it.
    pub in_region: u32,
    /// The first [`EDGES_SHOWN_MAX`] of those that are connected, by id.
    pub first: Vec<EdgeReport>,
}

/// An edge that is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    pub id: String,
    pub region: String,
    /// Whether it answers.
    pub is_up: bool,
}

/// The cores that an edge follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowsReport {
    /// By id.
    pub cores: Vec<String>,
    /// No core answers: what has to be decided by an owner is answered by `on_unavailable`.
    pub is_cut_off: bool,
}

/// A member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    pub id: String,
    pub region: String,
    pub zone: String,
    /// Increases at each start.
    pub generation: u64,
    /// Address of its mesh, `IP:PORT`.
    pub addr: Option<String>,
    /// Address of its HTTP listener, `IP:PORT`.
    pub http: Option<String>,
    pub state: MemberState,
    /// Fingerprint of its rules, 16 hexadecimal digits; none while unknown.
    pub rule_book: Option<String>,
    /// How far its clock is ahead of this node's; none while unknown.
    pub clock_offset_ms: Option<i64>,
    /// Share of its region's ring, 0 to 1.
    pub ring_share: f64,
    /// The last round trip to it over the mesh.
    pub rtt_us: Option<u64>,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Known by gossip, no hello yet.
    #[default]
    Joining,
    /// The responding node.
    #[serde(rename = "self")]
    This,
    /// Its hello was accepted.
    Up,
    /// A member by the map, of which nothing was heard for two seconds: it was not evicted yet, or
    /// no majority is there to evict it.
    Down,
    Draining,
}

impl MemberState {
    /// The name in JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::This => "self",
            Self::Up => "up",
            Self::Down => "down",
            Self::Draining => "draining",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleBookReport {
    /// 16 hexadecimal digits, equal on two nodes exactly when their rules are.
    pub fingerprint: String,
    pub rules: usize,
    /// Why the current content of the folder is not in force.
    pub last_error: Option<String>,
    /// Whether every member that is up holds the same rules.
    pub agrees: bool,
}

/// Most rules of a [`StatusReport`].
pub const RULES_MAX: usize = 100;

/// A rule that was checked on the responding node since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleReport {
    /// The id of the rule; `(other)` for the sum of others.
    pub rule: String,
    /// `strict`, `leased` or `eventual`; none for the sum of others.
    pub mode: Option<String>,
    #[serde(flatten)]
    pub counts: RuleCounts,
    /// Granted hits that this node may still spend.
    pub held: u64,
    /// Of an eventual rule: how far its windows that were used up are over the limit, as a part of
    /// it. None while none was.
    pub error: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    pub keys: u64,
    pub keys_max: u64,
    /// Approximate.
    pub bytes: u64,
    /// New keys that shared a bucket because the store was full.
    pub shared: u64,
    /// New keys that were refused because the store was full.
    pub refused: u64,
    /// New keys of domains that had their part of a store that was not full.
    #[serde(default)]
    pub in_full_domains: u64,
}

/// Ownership on the ring of the node's region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnershipReport {
    /// Without a lease the node owns nothing.
    pub has_lease: bool,
    /// Increases whenever the members change.
    pub epoch_number: u64,
    /// The share of the ring owned now, 0 to 1; equal to its share of the ring when no transfer is
    /// in progress.
    pub decides: f64,
    /// Members lost without leaving that still count for the majority.
    pub missed: Vec<String>,
}

/// The node's clock compared to the other members'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// How far the members' median clock is ahead.
    pub median_ms: i64,
    /// Whether that is beyond `cluster.max_skew`, so that windows use the median.
    pub is_skewed: bool,
}

/// The node's certificate for the mesh, and the files of `[tls]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The UTC date, as in `2026-11-20`.
    pub expires: String,
    pub expires_in_s: u64,
    /// Whether it is in the last third, or the last 30 days, of its time.
    pub is_renewal_due: bool,
    /// The number of connections whose peers still have an earlier certificate of this node.
    pub connections_to_renew: usize,
    /// The number of authorities whose certificates are accepted.
    pub authorities: usize,
    /// Why the present files are not in use.
    pub problem: Option<String>,
    /// Whether `tls.secret` begins with a secret that is used from the next start on.
    pub has_next_secret: bool,
}

/// The agreed members and voters of a region, as the responding node has them in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersReport {
    /// Id of the responding node.
    pub node: String,
    pub region: String,
    pub is_standalone: bool,
    /// Of an edge, which hears no members: whether the cores that it follows, and that have sent
    /// this map, have stopped answering. None for other nodes.
    #[serde(default)]
    pub is_cut_off: Option<bool>,
    /// None for a standalone node, and for one that knows no cluster yet.
    pub map: Option<MapReport>,
}

/// Which regions are homes of global keys, and who stands for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionsReport {
    /// Id of the responding node.
    pub node: String,
    pub region: String,
    /// `auto` or `manual`; none without `global.founders`: then homes never change.
    pub failover: Option<String>,
    /// Sorted. Without any each region decides its global keys.
    pub homes: Vec<String>,
    /// Whether the region of the responding node may decide the global keys at home in it.
    pub has_lease: bool,
    /// The global map: its members stand for their regions, which are their zones. None while no
    /// such map is known.
    pub map: Option<MapReport>,
}

/// The cluster map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapReport {
    /// Id of the cluster, 32 hexadecimal digits.
    pub cluster: String,
    /// Increases with each change. The upper 16 bits count the recoveries by hand.
    pub epoch: u64,
    /// The version of the mesh protocol that every member speaks. It rises after the last of them
    /// was upgraded; a node that does not speak it cannot join any more.
    pub version: u8,
    /// Nodes that vote; a majority of them changes the map and grants leases.
    pub voters: usize,
    /// Those of them that are members and that the responding node has heard within two seconds:
    /// the others are lost, or have not been seen yet.
    pub voters_present: usize,
    /// Whether a change of the voters is in progress. Majorities of the voters before and after it
    /// are needed then.
    pub voters_change: bool,
    /// The node that proposes changes; none while it is unknown here, as on a node that does not
    /// vote.
    pub leader: Option<String>,
    /// Members, evicted ones that are not forgotten, and voters that are no members, by name.
    pub members: Vec<MapMemberReport>,
}

/// A member of the cluster map, or a voter that is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapMemberReport {
    pub node: String,
    pub state: MapMemberState,
    pub votes: Votes,
    /// None for a voter without an entry in the map.
    pub zone: Option<String>,
    /// Address of its mesh, `IP:PORT`; none for a voter without an entry in the map.
    pub addr: Option<String>,
    /// Names this admission to the map: another one after each restart.
    pub member: Option<u64>,
    /// How long ago the responding node received its last ping; none for itself and for nodes that
    /// are no members.
    pub heard_ms_ago: Option<u64>,
}

/// The state of an entry of the cluster map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MapMemberState {
    /// It owns keys.
    #[default]
    Up,
    /// It is about to leave.
    Draining,
    /// It was evicted, and is remembered until it is forgotten.
    Down,
    /// It votes, and is no member under the identity by which it votes.
    Lost,
}

impl MapMemberState {
    /// The name in JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Down => "down",
            Self::Lost => "lost",
        }
    }
}

/// Whether a node votes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Votes {
    #[default]
    No,
    Yes,
    /// It votes among the new voters, while a change is in progress.
    Joining,
    /// It votes among the old voters only, until the change is over.
    Leaving,
}

/// The owners of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerReport {
    /// Position on the ring, 16 hexadecimal digits: hash of domain and entries under the cluster's
    /// secret.
    pub token: String,
    /// Id of the matching rule; none: it is not limited.
    pub rule: Option<String>,
    /// `strict`, `leased` or `eventual`; none when no rule matches.
    pub mode: Option<String>,
    /// `region` or `global`; none when no rule matches or it is eventual.
    pub scope: Option<String>,
    /// One owner in each region, or a single one for a global rule. For an eventual rule, the nodes
    /// that collect its counters.
    pub owners: Vec<OwnerOf>,
}

/// The owner in one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerOf {
    /// `*` is all regions.
    pub region: String,
    pub node: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_the_same_name_in_json_and_in_tables() {
        for state in [
            MemberState::Joining,
            MemberState::This,
            MemberState::Up,
            MemberState::Down,
            MemberState::Draining,
        ] {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{}\"", state.name()));
        }
        for state in [
            MapMemberState::Up,
            MapMemberState::Draining,
            MapMemberState::Down,
            MapMemberState::Lost,
        ] {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{}\"", state.name()));
        }
    }
}
