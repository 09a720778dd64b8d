//! The right to own ranges, granted by a majority of the voters for a limited time.
//!
//! Every answered ping to a voter may carry a *vote grant*. It is valid for the lease span from the
//! moment the ping was *sent*; the promise of the voter ([`Grants`](crate::grants::Grants)) starts
//! later and lasts longer, so it never ends before this node stops relying on it. The lease ends
//! when the grants of a majority have expired:
//!
//! ```text
//! end = k-th largest (ping sent + span) over the voters,   k = n / 2 + 1
//! ```
//!
//! While the voters change, the end is the earlier one of both voter sets. Example, three voters, a
//! span of 600 ms: `a` pings at 0 and 100 ms; `b` answers both, `c` only the first. `a` votes for
//! itself at any time, so the two largest are `a` and `b`, and the lease ends at 700 ms.
//!
//! A grant names the [`MemberId`] it is for: a node that was evicted and admitted again does not
//! continue its old lease. It also names the epoch since which the voters are those that the voter
//! knows. A grant of voters that this node has not heard of is kept and does not count yet: only
//! with that map does this node know of whom a majority is needed. Until it does, the grant before
//! counts to its end. Every other change leaves the lease as it is, however late a node learns it:
//! a member that takes ranges over waits for all others to follow its map.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_limiter::units::{Monotonic, Span};

use crate::cluster_map::{ClusterMap, Epoch, Identity, MemberId};

/// A voter's consent to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VoteGrant {
    pub member: MemberId,
    /// [`Voters::changed_at`](crate::cluster_map::Voters::changed_at) of the newest map that the
    /// voter knew.
    pub voters_since: Epoch,
}

/// Whether a lease needs a majority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuorumRule {
    /// A member decides only while a majority of the voters grants it a lease.
    #[default]
    Majority,
    /// A member of the newest map that it knows goes on deciding what it holds, also when the
    /// voters have evicted it and others have taken over. The map itself changes by majorities
    /// only.
    None,
}

/// The lease of one member.
///
/// Input: [`Lease::grant_received`] for each answered ping. There is no timeout and no output:
/// [`Lease::end`] is computed from the grants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    me: Identity,
    span: Span,
    rule: QuorumRule,
    /// Grants in answer to earlier pings do not count.
    since: Monotonic,
    /// The latest grant of each voter, and when its ping was sent.
    grants: SentGrants,
    /// The latest that names voters which were not known when it arrived.
    ahead: SentGrants,
}

type SentGrants = BTreeMap<Identity, (Monotonic, VoteGrant)>;

impl Lease {
    /// A lease of `me` without any grant; each grant is valid for `span`.
    pub fn new(me: Identity, span: Span, rule: QuorumRule) -> Self {
        let (grants, ahead) = (BTreeMap::new(), BTreeMap::new());
        Self { me, span, rule, since: Monotonic::START, grants, ahead }
    }

    /// `voter` answered the ping that was sent at `ping_sent` with a grant. `known` is the epoch of
    /// the newest map that this node knows.
    pub fn grant_received(
        &mut self,
        voter: &Identity,
        ping_sent: Monotonic,
        grant: VoteGrant,
        known: Epoch,
    ) {
        let is_ahead = grant.voters_since > known;
        let grants = if is_ahead { &mut self.ahead } else { &mut self.grants };
        let is_older = grants.get(voter).is_some_and(|(sent, _)| *sent > ping_sent);
        if !is_older && ping_sent >= self.since {
            grants.insert(voter.clone(), (ping_sent, grant));
        }
    }

    /// When the lease of `member` ends, or ended, under the voters of `map`; [`Monotonic::START`]
    /// without grants of a majority.
    pub fn end(&self, map: &ClusterMap, member: MemberId) -> Monotonic {
        if self.rule == QuorumRule::None {
            return Monotonic::NEVER;
        }
        let until_by = |grants: &SentGrants, voter: &Identity| match grants.get(voter) {
            Some((sent, grant)) if grant.member == member && grant.voters_since <= map.epoch => {
                sent.plus(self.span)
            }
            _ => Monotonic::START,
        };
        let until = |voter: &Identity| {
            if *voter == self.me {
                return Monotonic::NEVER;
            }
            until_by(&self.grants, voter).max(until_by(&self.ahead, voter))
        };
        map.voters.majority_value(until).unwrap_or(Monotonic::START)
    }

    /// Drops all grants, and those that are under way: the clock stood still, so they end later by
    /// it than the voters think. `now` is after it went on.
    pub fn begin_anew(&mut self, now: Monotonic) {
        self.grants.clear();
        self.ahead.clear();
        self.since = now;
    }

    /// Drops the grants of nodes that do not vote in `map`.
    pub fn forget_others(&mut self, map: &ClusterMap) {
        self.grants.retain(|voter, _| map.voters.contains(voter));
        self.ahead.retain(|voter, (_, grant)| {
            map.voters.contains(voter) || grant.voters_since > map.epoch
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_map::{MapMember, MapState, Voters};
    use crate::grants::Grants;
    use crate::identity::{Generation, NodeId};
    use crate::versions::Versions;

    const SPAN: Span = Span::from_millis(600);
    const ME: MemberId = MemberId(1);

    fn voter(name: &str) -> Identity {
        Identity { node: NodeId::new(name).expect("a valid name"), birth: 1 }
    }

    fn ms(ms: u64) -> Monotonic {
        Monotonic::from_nanos(ms * 1_000_000)
    }

    fn map(epoch: u64, current: &[&str], replaced: &[&str]) -> ClusterMap {
        let of = |names: &[&str]| names.iter().map(|name| voter(name)).collect();
        ClusterMap {
            epoch: Epoch(epoch),
            voters: Voters { current: of(current), replaced: of(replaced), ..Voters::default() },
            ..ClusterMap::default()
        }
    }

    fn granted(lease: &mut Lease, by: &str, sent: u64, voters_since: u64) {
        let grant = VoteGrant { member: ME, voters_since: Epoch(voters_since) };
        lease.grant_received(&voter(by), ms(sent), grant, Epoch(1));
    }

    #[test]
    fn a_lease_lasts_as_long_as_the_grants_of_a_majority() {
        let mut lease = Lease::new(voter("a"), SPAN, QuorumRule::Majority);
        let three = map(1, &["a", "b", "c"], &[]);
        assert_eq!(lease.end(&three, ME), Monotonic::START);
        granted(&mut lease, "b", 0, 1);
        granted(&mut lease, "c", 0, 1);
        assert_eq!(lease.end(&three, ME), ms(600));
        granted(&mut lease, "b", 100, 1);
        granted(&mut lease, "b", 50, 1);
        assert_eq!(lease.end(&three, ME), ms(700), "a late answer shortens nothing");
        let mut stranger = Lease::new(voter("d"), SPAN, QuorumRule::Majority);
        granted(&mut stranger, "b", 100, 1);
        assert_eq!(stranger.end(&three, ME), Monotonic::START, "one of three");
        granted(&mut stranger, "c", 0, 1);
        assert_eq!(stranger.end(&three, ME), ms(600));
    }

    #[test]
    fn while_the_voters_change_both_sets_have_to_grant() {
        let mut lease = Lease::new(voter("p"), SPAN, QuorumRule::Majority);
        for (by, sent) in [("b", 300), ("c", 200), ("a", 0)] {
            granted(&mut lease, by, sent, 1);
        }
        assert_eq!(lease.end(&map(1, &["a", "b", "c"], &[]), ME), ms(800));
        assert_eq!(lease.end(&map(2, &["a", "b", "d"], &["a", "b", "c"]), ME), ms(600));
        assert_eq!(lease.end(&map(3, &["d", "e", "a"], &[]), ME), Monotonic::START);
    }

    #[test]
    fn a_grant_of_other_voters_counts_once_they_are_known() {
        let mut lease = Lease::new(voter("p"), SPAN, QuorumRule::Majority);
        granted(&mut lease, "a", 0, 1);
        granted(&mut lease, "b", 0, 2);
        let voters = ["a", "b", "c"];
        assert_eq!(lease.end(&map(1, &voters, &[]), ME), Monotonic::START);
        lease.forget_others(&map(1, &["a", "c", "d"], &[]));
        assert_eq!(lease.end(&map(2, &voters, &[]), ME), ms(600));
    }

    /// The voters know the next map, and `p` will in a moment.
    #[test]
    fn a_grant_of_voters_that_are_not_known_yet_ends_no_earlier_one() {
        let mut lease = Lease::new(voter("p"), SPAN, QuorumRule::Majority);
        for (sent, voters_since) in [(0, 1), (100, 2), (200, 2)] {
            granted(&mut lease, "a", sent, voters_since);
            granted(&mut lease, "b", sent, voters_since);
        }
        let voters = ["a", "b", "c"];
        assert_eq!(lease.end(&map(1, &voters, &[]), ME), ms(600));
        assert_eq!(lease.end(&map(2, &voters, &[]), ME), ms(800));
    }

    /// `p` saves maps late: the voters have admitted others since.
    #[test]
    fn a_lease_goes_on_while_its_holder_is_behind() {
        let mut lease = Lease::new(voter("p"), SPAN, QuorumRule::Majority);
        let voters = ["a", "b", "c"];
        let mut newer = map(7, &voters, &[]);
        newer.voters.changed_at = Epoch(2);
        newer.members.push(MapMember {
            id: ME,
            identity: voter("p"),
            start: 1,
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 7000).into(),
            zone: String::new(),
            versions: Versions::default(),
            state: MapState::Up,
        });
        for by in ["a", "b"] {
            let grant = Grants::new(ms(0), SPAN).grant(ms(1), ME, &newer).expect("a member");
            lease.grant_received(&voter(by), ms(0), grant, Epoch(5));
        }
        assert_eq!(lease.end(&map(5, &voters, &[]), ME), ms(600));
    }

    #[test]
    fn a_grant_for_an_earlier_admission_does_not_count() {
        let mut lease = Lease::new(voter("p"), SPAN, QuorumRule::Majority);
        granted(&mut lease, "a", 0, 1);
        granted(&mut lease, "b", 0, 1);
        let voters = ["a", "b", "c"];
        assert_eq!(lease.end(&map(2, &voters, &[]), MemberId(2)), Monotonic::START);
    }
}
