//! What a member says about itself, as chitchat keeps it: short texts under short names.

use chitchat::{ChitchatId, NodeState};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::VoterSet;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{MEMBERS_MAX, Member, MemberState};

use super::NodeMetadata;

const KEY_REGION: &str = "region";
const KEY_ZONE: &str = "zone";
const KEY_STATE: &str = "state";
const KEY_RULE_BOOK: &str = "rule_book";
const KEY_HTTP: &str = "http";
const KEY_ELECTORATE: &str = "electorate";
const STATE_UP: &str = "up";
const STATE_DRAINING: &str = "draining";

pub(super) fn key_values(node_metadata: &NodeMetadata) -> Vec<(String, String)> {
    let state = match node_metadata.state {
        MemberState::Up => STATE_UP,
        MemberState::Draining => STATE_DRAINING,
    };
    let http = node_metadata.http.map_or_else(String::new, |addr| addr.to_string());
    [
        (KEY_REGION, node_metadata.region.clone()),
        (KEY_ZONE, node_metadata.zone.clone()),
        (KEY_RULE_BOOK, format!("{:016x}", node_metadata.rule_book)),
        (KEY_HTTP, http),
        (KEY_ELECTORATE, write_electorate(&node_metadata.voter_set)),
        // Last: a member whose state is known has told everything.
        (KEY_STATE, state.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// The member that a live node's facts describe; `None` while they are incomplete.
pub(super) fn member(id: &ChitchatId, node_metadata: &NodeState) -> Option<Member> {
    let state = match node_metadata.get(KEY_STATE)? {
        STATE_UP => MemberState::Up,
        STATE_DRAINING => MemberState::Draining,
        _ => return None,
    };
    Some(Member {
        id: NodeId::new(&id.node_id).ok()?,
        generation: Generation(id.generation_id),
        addr: id.gossip_advertise_addr,
        region: node_metadata.get(KEY_REGION)?.to_owned(),
        zone: node_metadata.get(KEY_ZONE)?.to_owned(),
        state,
        rule_book: u64::from_str_radix(node_metadata.get(KEY_RULE_BOOK)?, 16).ok()?,
        http: node_metadata.get(KEY_HTTP).and_then(|addr| addr.parse().ok()),
        voter_set: node_metadata.get(KEY_ELECTORATE).map(read_electorate).unwrap_or_default(),
    })
}

/// `id/region` of each, with `/milliseconds` behind it if it was lost, and spaces between.
fn write_electorate(voter_set: &VoterSet) -> String {
    let one = |(id, region, lost): &(NodeId, String, Option<Timestamp>)| match lost {
        Some(lost) => format!("{id}/{region}/{}", lost.as_nanos() / 1_000_000),
        None => format!("{id}/{region}"),
    };
    voter_set.members.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// What is not of that form is left out.
fn read_electorate(text: &str) -> VoterSet {
    let one = |word: &str| {
        let mut parts = word.split('/');
        let (id, region, lost) = (parts.next()?, parts.next()?, parts.next());
        let lost = match lost {
            Some(ms) => Some(Timestamp::EPOCH.plus(Span::from_millis(ms.parse().ok()?))),
            None => None,
        };
        Some((NodeId::new(id).ok()?, NodeId::new(region).ok()?.as_str().to_owned(), lost))
    };
    VoterSet { members: text.split(' ').filter_map(one).take(MEMBERS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_counts_is_read_as_it_was_written() {
        let id = |id: &str| NodeId::new(id).expect("a valid id");
        let at = |ms| Some(Timestamp::EPOCH.plus(Span::from_millis(ms)));
        let members = vec![(id("a"), "eu".to_owned(), at(5)), (id("b-1"), "us".to_owned(), None)];
        let voter_set = VoterSet { members };
        assert_eq!(read_electorate(&write_electorate(&voter_set)), voter_set);
        assert_eq!(read_electorate(""), VoterSet::default());
        let partly = read_electorate("a/eu/5 B!/eu/5 c//5 d/eu/x e/eu f");
        let ids: Vec<_> = partly.members.iter().map(|(id, ..)| id.as_str()).collect();
        assert_eq!(ids, ["a", "e"]);
    }
}
