//! The metadata of a node, as key-value pairs in chitchat.

use chitchat::{ChitchatId, NodeState};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{Member, MemberState};

const KEY_REGION: &str = "region";
const KEY_ZONE: &str = "zone";
const KEY_STATE: &str = "state";
const KEY_RULE_BOOK: &str = "rule_book";
const KEY_HTTP: &str = "http";
/// Absent where an older release runs: such a node counts as one with a lease.
const KEY_LEASE: &str = "lease";
const NO_LEASE: &str = "no";
/// How often the node has lost another one of its region out of reach, while it reaches all; absent
/// where an older release runs.
const KEY_REACH_LOSSES: &str = "reach_losses";
const STATE_UP: &str = "up";
const STATE_DRAINING: &str = "draining";

/// What a node publishes about itself; the rest of a [`Member`] follows from its identity.
pub(super) fn key_values(own: &Member, reach_losses: Option<u64>) -> Vec<(String, String)> {
    let state = match own.state {
        MemberState::Up => STATE_UP,
        MemberState::Draining => STATE_DRAINING,
    };
    let http = own.http.map_or_else(String::new, |addr| addr.to_string());
    [
        (KEY_REGION, own.region.clone()),
        (KEY_ZONE, own.zone.clone()),
        (KEY_RULE_BOOK, format!("{:016x}", own.rule_book)),
        (KEY_HTTP, http),
        (KEY_LEASE, if own.has_lease { String::new() } else { NO_LEASE.to_owned() }),
        (KEY_REACH_LOSSES, reach_losses.map_or_else(String::new, |losses| losses.to_string())),
        // Last: a member whose state has arrived is complete.
        (KEY_STATE, state.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// The member that the pairs of a live node describe; `None` while they are incomplete.
pub(super) fn member(id: &ChitchatId, pairs: &NodeState) -> Option<Member> {
    let state = match pairs.get(KEY_STATE)? {
        STATE_UP => MemberState::Up,
        STATE_DRAINING => MemberState::Draining,
        _ => return None,
    };
    Some(Member {
        id: NodeId::new(&id.node_id).ok()?,
        generation: Generation(id.generation_id),
        addr: id.gossip_advertise_addr,
        region: pairs.get(KEY_REGION)?.to_owned(),
        zone: pairs.get(KEY_ZONE)?.to_owned(),
        state,
        rule_book: u64::from_str_radix(pairs.get(KEY_RULE_BOOK)?, 16).ok()?,
        http: pairs.get(KEY_HTTP).and_then(|addr| addr.parse().ok()),
        has_lease: pairs.get(KEY_LEASE) != Some(NO_LEASE),
    })
}

/// How often the node of these pairs has lost another one; `None` if it does not reach all, or does
/// not say so.
pub(super) fn reach_losses(pairs: &NodeState) -> Option<u64> {
    pairs.get(KEY_REACH_LOSSES)?.parse().ok()
}
