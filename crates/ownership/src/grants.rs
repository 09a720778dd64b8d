//! The grants that a voter has given, and which map they allow it to report.
//!
//! A voter grants a member that is in the newest map it knows. It *reports* an epoch, which says
//! "every grant of mine that is still valid is for a member of that map". A node takes over the
//! ranges of an evicted member only when a majority of the voters has reported a map without it;
//! the evicted member needed grants of a majority; two majorities share a voter, and the grants of
//! that one have expired. So no two nodes with a valid lease own one token.
//!
//! ```text
//! report(map)  only if  map is saved, and for each member granted at t:
//!                       member is in map, or now >= t + hold
//! hold = 1.25 × lease
//! ```
//!
//! The quarter covers clocks that run up to a tenth too fast or too slow, which is what chrony and
//! the kernel's adjustment allow: the holder measures its lease at 0.9 of the right speed at the
//! least (600 ms are 667), the voter its hold at 1.1 at the most (750 ms are 682).
//!
//! Example, lease 600 ms: `b` sent its last ping at 0 and crashed. The map without `b` is committed
//! at 1,050 ms. The grant has expired, so the voter reports the map at once. Had `b` pinged at
//! 900 ms, the voter would report it at 1,650 ms.

use std::collections::BTreeMap;

use tidegate_limiter::units::{Monotonic, Span};

use crate::cluster_map::{ClusterMap, Epoch, MemberId};
use crate::lease::VoteGrant;

/// The grants of one voter, whether it votes at the moment or not.
///
/// A node that starts has forgotten its grants, so it reports nothing before all that it may have
/// given have expired.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grants {
    hold: Span,
    started: Monotonic,
    /// The last grant of each member that may still rely on it.
    last: BTreeMap<MemberId, Monotonic>,
    reported: Epoch,
}

impl Grants {
    /// A voter that starts at `now`; `lease` is the validity of a grant.
    pub fn new(now: Monotonic, lease: Span) -> Self {
        Self { hold: hold(lease), started: now, last: BTreeMap::new(), reported: Epoch(0) }
    }

    /// Grants a ping of `member`, if `map`, the newest one that this voter knows, has it.
    pub fn grant(
        &mut self,
        now: Monotonic,
        member: MemberId,
        map: &ClusterMap,
    ) -> Option<VoteGrant> {
        if !map.has(member) {
            return None;
        }
        self.last.insert(member, now);
        Some(VoteGrant { member, voters_since: map.voters.changed_at })
    }

    /// The epoch that was reported last; 0 before the first.
    pub fn reported(&self) -> Epoch {
        self.reported
    }

    /// The epoch to report at `now`, when `map` is the newest one that this voter knows, and
    /// `saved` the epoch of the one that it will know after a restart. Never decreases.
    pub fn report(&mut self, now: Monotonic, map: &ClusterMap, saved: Epoch) -> Epoch {
        self.last.retain(|_, granted| now < granted.plus(self.hold));
        let is_settled = now >= self.started.plus(self.hold) && map.epoch <= saved;
        if is_settled && map.epoch > self.reported && self.last.keys().all(|id| map.has(*id)) {
            self.reported = map.epoch;
        }
        self.reported
    }
}

/// How long a voter keeps to a grant that is valid for `lease`.
pub fn hold(lease: Span) -> Span {
    Span::from_nanos(lease.as_nanos().saturating_add(lease.as_nanos() / 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_map::{Identity, MapMember, MapState};
    use crate::identity::{Generation, NodeId};
    use crate::versions::Versions;

    const LEASE: Span = Span::from_millis(600);

    fn ms(ms: u64) -> Monotonic {
        Monotonic::from_nanos(ms * 1_000_000)
    }

    fn map(epoch: u64, members: &[(u64, MapState)]) -> ClusterMap {
        let member = |(id, state): &(u64, MapState)| MapMember {
            id: MemberId(*id),
            identity: Identity {
                node: NodeId::new(&format!("n{id}")).expect("a valid name"),
                birth: 1,
            },
            start: 1,
            generation: Generation(1),
            addr: ([127, 0, 0, 1], 7000).into(),
            zone: String::new(),
            versions: Versions::default(),
            state: *state,
        };
        ClusterMap {
            epoch: Epoch(epoch),
            members: members.iter().map(member).collect(),
            ..ClusterMap::default()
        }
    }

    #[test]
    fn a_map_is_reported_when_the_grants_of_all_others_have_expired() {
        use MapState::{Down, Up};
        let both = map(1, &[(1, Up), (2, Up)]);
        let one = map(2, &[(1, Up), (2, Down)]);
        let mut grants = Grants::new(ms(0), LEASE);
        let report =
            |grants: &mut Grants, at, map: &ClusterMap| grants.report(ms(at), map, map.epoch);
        assert_eq!(report(&mut grants, 749, &both), Epoch(0), "what it granted before is unknown");
        assert_eq!(report(&mut grants, 750, &both), Epoch(1));
        let granted = grants.grant(ms(1_000), MemberId(2), &both);
        assert_eq!(granted, Some(VoteGrant { member: MemberId(2), voters_since: Epoch(0) }));
        assert_eq!(report(&mut grants, 1_749, &one), Epoch(1), "the grant may still be in use");
        assert_eq!(grants.grant(ms(1_749), MemberId(2), &one), None, "evicted");
        assert_eq!(grants.report(ms(1_750), &one, Epoch(1)), Epoch(1), "a restart forgets it");
        assert_eq!(report(&mut grants, 1_750, &one), Epoch(2));
        assert_eq!(report(&mut grants, 1_751, &both), Epoch(2), "never back");
    }

    #[test]
    fn members_that_stay_delay_no_report() {
        let mut grants = Grants::new(ms(0), LEASE);
        let before = map(1, &[(1, MapState::Up)]);
        grants.grant(ms(900), MemberId(1), &before);
        let after = map(2, &[(1, MapState::Draining), (2, MapState::Up)]);
        assert_eq!(grants.report(ms(901), &after, Epoch(2)), Epoch(2));
    }
}
