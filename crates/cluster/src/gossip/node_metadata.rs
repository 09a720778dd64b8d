//! The metadata of a node, as key-value pairs in chitchat.

use chitchat::{ChitchatId, NodeState};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::{MEMBERS_MAX, Member, MemberState, Voter, VoterSet};

const KEY_REGION: &str = "region";
const KEY_ZONE: &str = "zone";
const KEY_STATE: &str = "state";
const KEY_RULE_BOOK: &str = "rule_book";
const KEY_HTTP: &str = "http";
/// The key is part of the wire format.
const KEY_VOTER_SET: &str = "electorate";
const STATE_UP: &str = "up";
const STATE_DRAINING: &str = "draining";

/// What a node publishes about itself; the rest of a [`Member`] follows from its identity.
pub(super) fn key_values(own: &Member) -> Vec<(String, String)> {
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
        (KEY_VOTER_SET, format_voter_set(&own.voter_set)),
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
        voter_set: pairs.get(KEY_VOTER_SET).map(parse_voter_set).unwrap_or_default(),
    })
}

/// `id/region` of each voter, followed by `/milliseconds` if it is lost, separated by spaces.
fn format_voter_set(voter_set: &VoterSet) -> String {
    let voter = |Voter { id, region, lost_at }: &Voter| match lost_at {
        Some(at) => format!("{id}/{region}/{}", at.as_nanos() / 1_000_000),
        None => format!("{id}/{region}"),
    };
    voter_set.voters.iter().map(voter).collect::<Vec<_>>().join(" ")
}

/// Words that are not of that form are skipped.
fn parse_voter_set(text: &str) -> VoterSet {
    let voter = |word: &str| {
        let mut parts = word.split('/');
        let (id, region) = (NodeId::new(parts.next()?).ok()?, NodeId::new(parts.next()?).ok()?);
        let lost_at = match parts.next() {
            Some(ms) => Some(Timestamp::EPOCH.plus(Span::from_millis(ms.parse().ok()?))),
            None => None,
        };
        Some(Voter { id, region: region.into(), lost_at })
    };
    VoterSet { voters: text.split(' ').filter_map(voter).take(MEMBERS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_set_is_parsed_as_it_was_formatted() {
        let voter = |id: &str, region: &str, lost_at| Voter {
            id: NodeId::new(id).expect("a valid id"),
            region: region.to_owned(),
            lost_at,
        };
        let lost_at = Some(Timestamp::EPOCH.plus(Span::from_millis(5)));
        let voters = vec![voter("a", "eu", lost_at), voter("b-1", "us", None)];
        let voter_set = VoterSet { voters };
        assert_eq!(parse_voter_set(&format_voter_set(&voter_set)), voter_set);
        assert_eq!(parse_voter_set(""), VoterSet::default());
        let partly = parse_voter_set("a/eu/5 B!/eu/5 c//5 d/eu/x e/eu f");
        let ids: Vec<_> = partly.voters.iter().map(|voter| voter.id.as_str()).collect();
        assert_eq!(ids, ["a", "e"]);
    }
}
