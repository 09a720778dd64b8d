//! What `/status` and `/owner` answer. Names are only ever added: scripts read them.

use serde::{Deserialize, Serialize};

/// The cluster as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The node that answers.
    pub node: NodeReport,
    /// The cluster's name.
    pub cluster: String,
    /// Names the ring, 16 hexadecimal digits: equal on two nodes exactly when they see the same
    /// nodes own keys.
    pub epoch: String,
    /// Whether the node may be sent traffic; if not, why not.
    pub not_ready: Option<String>,
    /// Every member, this node among them, by id.
    pub members: Vec<MemberReport>,
    /// The rules this node holds.
    pub rule_book: RuleBookReport,
    /// The counters this node holds.
    pub store: StoreReport,
    /// What it owns; none of a node that stands alone.
    #[serde(default)]
    pub ownership: Option<OwnershipReport>,
    /// How its clock stands to the other members'.
    #[serde(default)]
    pub clock: ClockReport,
    /// How it keeps counts on disk; none without `storage.path`.
    #[serde(default)]
    pub storage: Option<StorageReport>,
}

/// The node that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its id.
    pub id: String,
    /// Its region.
    pub region: String,
    /// Its zone.
    pub zone: String,
    /// Grows at each start.
    pub generation: u64,
    /// Version of the program.
    pub version: String,
    /// Seconds since its start.
    pub uptime_s: u64,
}

/// A member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its id.
    pub id: String,
    /// Its region.
    pub region: String,
    /// Its zone.
    pub zone: String,
    /// Grows at each start.
    pub generation: u64,
    /// Where its mesh is, `IP:PORT`.
    pub addr: Option<String>,
    /// Where its HTTP door is, `IP:PORT`.
    pub http: Option<String>,
    /// How it stands with it.
    pub state: MemberState,
    /// Fingerprint of its rules, 16 hexadecimal digits; none while it is not known.
    pub rule_book: Option<String>,
    /// How far its clock is ahead of this node's; none while it is not known.
    pub clock_offset_ms: Option<i64>,
    /// Its share of its region's ring, 0 to 1.
    pub ring_share: f64,
    /// The last round trip to it over the mesh.
    pub rtt_us: Option<u64>,
}

/// How it stands with a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Seen by gossip, no hello yet.
    #[default]
    Joining,
    /// The node that answers.
    #[serde(rename = "self")]
    This,
    /// Its hello was accepted.
    Up,
    /// Gossip lost sight of it.
    Down,
    /// It is leaving.
    Draining,
}

impl MemberState {
    /// As JSON and tables spell it.
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

/// The rules a node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleBookReport {
    /// 16 hexadecimal digits, equal on two nodes exactly when their rules are.
    pub fingerprint: String,
    /// How many rules.
    pub rules: usize,
    /// Why the folder's present content is not in force.
    pub last_error: Option<String>,
    /// Whether every member that is up holds the same rules.
    pub agrees: bool,
}

/// The counters a node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Counters now.
    pub keys: u64,
    /// Most it may hold.
    pub keys_max: u64,
    /// Bytes now, approximately.
    pub bytes: u64,
    /// New keys that shared a bucket because the store was full.
    pub shared: u64,
    /// New keys that were refused because the store was full.
    pub refused: u64,
}

/// What a node owns on the ring of its region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnershipReport {
    /// Whether a majority recognises it; without that it owns nothing.
    pub has_lease: bool,
    /// Grows whenever the members change.
    pub epoch_number: u64,
    /// 16 hexadecimal digits, equal on two nodes exactly when they recognise the same members.
    pub epoch_name: String,
    /// The share of the ring that it decides now, 0 to 1; its share of the ring once all is
    /// settled.
    pub decides: f64,
    /// Members that were lost without leaving and still count for the majority.
    pub missed: Vec<String>,
}

/// How a node's clock stands to the other members'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// How far the members' median clock is ahead of it.
    pub median_ms: i64,
    /// Whether that is more than `cluster.max_skew`, so that the median gives the time of windows.
    pub is_skewed: bool,
}

/// How a node keeps counts on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageReport {
    /// The file.
    pub path: String,
    /// Why it is not written; none while it is.
    pub problem: Option<String>,
    /// Seconds since it was last brought up to date; none before the first time.
    pub written_s_ago: Option<u64>,
    /// Counters in it.
    pub keys: u64,
    /// Counters read from it at the start.
    pub loaded: u64,
    /// Counters of it that were not believed at the start, or found no room.
    pub skipped: u64,
    /// Counters written since the start.
    pub written: u64,
    /// Times that it was brought up to date since the start.
    pub rounds: u64,
    /// Times that it could not be written.
    pub failed: u64,
}

/// Who decides a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerReport {
    /// Hash of domain and entries under the cluster's secret, 16 hexadecimal digits: its place on
    /// the ring.
    pub token: String,
    /// Id of the rule that matches; none: nothing limits it.
    pub rule: Option<String>,
    /// `strict` or `eventual`; none when no rule matches.
    pub mode: Option<String>,
    /// `region` or `global`; none when no rule matches or it is eventual.
    pub scope: Option<String>,
    /// The owners: one for each region, or one in all for a global rule. Of an eventual rule, those
    /// that gather its columns.
    pub owners: Vec<OwnerOf>,
}

/// The owner in one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerOf {
    /// The region that it decides for; `*` is all of them.
    pub region: String,
    /// Its id.
    pub node: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_spelled_alike_in_json_and_in_tables() {
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
    }
}
