//! The right of a region to decide the global keys that are at home in it.
//!
//! Without `global.founders` a region always has it: homes never change. With them, the homes are
//! agreed on in the *global map*, whose voters are one node of each region, and a region that is
//! lost loses its homes to the others. A node then needs two leases to decide a global key: that of
//! its own region, for the range, and one for its region, granted by a majority of the global
//! voters.
//!
//! ```text
//! decides(key) = own lease runs, and the range is held            (ring_ownership)
//!            and the region's lease runs                          k-th largest (ping sent + span)
//!            and the key is at home here by the newest global map
//!            and (it was before,  or  a majority of the global voters has reported the change)
//! ```
//!
//! A global voter *reports* a change of the homes once every grant that it gave to a region which
//! the change takes keys from has expired. A region that is struck off got its last grant long
//! before, so this is at once; a region that is added takes keys from all others, so it is a hold
//! later. The rest is as for leases inside a region: a grant names the epoch of its voter and
//! counts once this node has reached that epoch, and a hold is a quarter longer than a grant.
//!
//! **Why it holds.** Let `q` decide a key under the change at epoch e, which `p`, of another
//! region, decides by an older map f. `p` counts grants of a majority of the voters of f; a
//! majority of those of e has reported e; both share a voter `v` (if voters were replaced in
//! between, by the joint phase). The grant of `v` to `p` was given before `v` knew e, because later
//! ones name e. So `v` waited for its end before it reported. If `v` is `p` itself, `p` follows e
//! before it reports.
//!
//! **Clocks.** Regions refuse counts of each other that are of the future, so a home whose clocks
//! are far from those of the others gets no grant: a voter [`accepts_clock`] of the home that is
//! nearest to its own. It takes a region that restarts with other clocks while it is cut off. Nor
//! does the voter hear it any more, so it is struck off when most voters do not.
//!
//! **Example**, a span of 5 s, homes `eu` and `us`, a witness `w`. `eu` is cut off at 0. Its nodes
//! decide global keys until 5 s at the latest. At 10 s `us` and `w` agree on a map with `us` alone;
//! both gave `eu` its last grant 10 s ago, so they report it at once, and `us` decides all global
//! keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_limiter::units::{Monotonic, Span, Timestamp};

use crate::cluster_map::{ClusterMap, Epoch, HomeRegions, Identity, MemberId};
use crate::grants::hold;
use crate::homes::{Gained, Homes};
use crate::lease::{Lease, QuorumRule, VoteGrant};

/// What a node knows of the right of its region.
#[derive(Clone, Debug)]
pub struct RegionRight {
    region: String,
    lease: Lease,
    map: Arc<ClusterMap>,
    /// The newest epoch that each global voter has reported.
    reports: BTreeMap<Identity, Epoch>,
    gained: Gained,
}

/// A region has no admissions to tell apart: maps between which it was struck off have other
/// [`HomeRegions`].
const ANY_ADMISSION: MemberId = MemberId(0);

impl RegionRight {
    /// A node of `region` that knows no global map; each grant is valid for `span`.
    pub fn new(me: Identity, region: String, span: Span) -> Self {
        Self {
            region,
            lease: Lease::new(me, span, QuorumRule::Majority),
            map: Arc::default(),
            reports: BTreeMap::new(),
            gained: Gained::Unknown,
        }
    }

    /// A newer global map is known, or that of another cluster.
    pub fn follow(&mut self, map: &Arc<ClusterMap>) {
        let (is_settled, before) = (self.gained == Gained::All, &self.map);
        let is_same = before.cluster == map.cluster;
        if !is_same || map.homes.changed_at != before.homes.changed_at {
            let is_next = is_same && map.homes.replaced_at == before.homes.changed_at;
            self.gained = if is_next && is_settled {
                Gained::NotYet(before.homes.names.clone())
            } else {
                Gained::Unknown
            };
        }
        if !is_same {
            self.reports.clear();
        }
        self.map = map.clone();
        self.reports.retain(|voter, _| map.voters.contains(voter));
        self.lease.forget_others(map);
        self.settle();
    }

    /// `voter` answered a ping that was sent at `ping_sent`, with the epoch that it reports and, if
    /// it grants this region a lease, the epoch that it knows.
    pub fn pong_received(
        &mut self,
        voter: &Identity,
        ping_sent: Monotonic,
        report: Epoch,
        granted: Option<Epoch>,
    ) {
        if let Some(epoch) = granted {
            // Not the epoch of the voters as in a region: a region that does not follow a
            // change of the homes keeps keys that are at home elsewhere by then.
            let grant = VoteGrant { member: ANY_ADMISSION, voters_since: epoch };
            self.lease.grant_received(voter, ping_sent, grant, self.map.epoch);
        }
        self.report_received(voter, report);
    }

    /// This node, or a peer, reports `epoch` as a global voter.
    pub fn report_received(&mut self, voter: &Identity, epoch: Epoch) {
        if self.map.voters.contains(voter) {
            let known = self.reports.entry(voter.clone()).or_default();
            *known = epoch.max(*known);
            self.settle();
        }
    }

    /// The clock of this node stood still before `now`: the lease begins anew.
    pub fn clock_stood_still(&mut self, now: Monotonic) {
        self.lease.begin_anew(now);
    }

    /// When the lease of the region ends; [`Monotonic::START`] without one.
    pub fn lease_until(&self) -> Monotonic {
        if self.map.homes.contains(&self.region) {
            self.lease.end(&self.map, ANY_ADMISSION)
        } else {
            Monotonic::START
        }
    }

    /// The homes by the newest map, and which of the keys may be decided here.
    pub fn homes(&self) -> Homes {
        let homes = Homes::new(self.region.clone(), self.map.homes.names.clone());
        homes.agreed(self.gained.clone())
    }

    pub fn map(&self) -> &Arc<ClusterMap> {
        &self.map
    }

    fn settle(&mut self) {
        let changed_at = self.map.homes.changed_at;
        let has_reported =
            |voter: &Identity| self.reports.get(voter).is_some_and(|epoch| *epoch >= changed_at);
        if self.map.voters.is_majority(has_reported) {
            self.gained = Gained::All;
        }
    }
}

/// The grants of one global voter, whether it votes at the moment or not.
#[derive(Clone, Debug)]
pub struct RegionGrants {
    hold: Span,
    started: Monotonic,
    map: Arc<ClusterMap>,
    /// The last grant of each region.
    last: BTreeMap<String, Monotonic>,
    /// Grants from before a change of the homes, of regions that lose keys by it.
    revoked: BTreeMap<String, Monotonic>,
    reported: Epoch,
}

impl RegionGrants {
    /// A voter that starts at `now` and has forgotten its grants; `span` is the validity of one.
    pub fn new(now: Monotonic, span: Span) -> Self {
        Self {
            hold: hold(span),
            started: now,
            map: Arc::default(),
            last: BTreeMap::new(),
            revoked: BTreeMap::new(),
            reported: Epoch(0),
        }
    }

    /// A newer map is known, or that of another cluster, whose epochs are not comparable.
    pub fn follow(&mut self, now: Monotonic, map: &Arc<ClusterMap>) {
        let (before, after) = (&self.map.homes, &map.homes);
        if map.cluster != self.map.cluster {
            (self.started, self.reported) = (now, Epoch(0));
        } else if after.changed_at != before.changed_at {
            let is_next = after.replaced_at == before.changed_at;
            let losers =
                self.last.iter().filter(|(name, _)| !is_next || loses_keys(name, before, after));
            self.revoked.extend(losers.map(|(name, granted)| (name.clone(), *granted)));
        }
        self.map = map.clone();
    }

    /// Grants `region` a lease, if it is a home by the newest map. Returns the epoch of that map.
    pub fn grant(&mut self, now: Monotonic, region: &str) -> Option<Epoch> {
        if !self.map.homes.contains(region) {
            return None;
        }
        self.last.insert(region.to_owned(), now);
        Some(self.map.epoch)
    }

    /// The epoch to report at `now`, when `saved` is that of the map that this voter will know
    /// after a restart. Never decreases within one cluster.
    pub fn report(&mut self, now: Monotonic, saved: Epoch) -> Epoch {
        let hold = self.hold;
        self.revoked.retain(|_, granted| now < granted.plus(hold));
        let is_settled = now >= self.started.plus(hold) && self.map.epoch <= saved;
        if self.revoked.is_empty() && is_settled {
            self.reported = self.map.epoch.max(self.reported);
        }
        self.reported
    }
}

/// Whether a voter whose decision clock shows `own` grants a lease to a home whose nodes decide by
/// `theirs`, where `others` are those of other homes (`own` for one that is not heard): not if one
/// is nearer to its own, and further than `apart` from `theirs`. So of two homes that refuse each
/// other's counts every voter takes a side, that of a home its own.
pub fn accepts_clock(
    own: Timestamp,
    theirs: Timestamp,
    mut others: impl Iterator<Item = Timestamp>,
    apart: Span,
) -> bool {
    !others
        .any(|other| other.distance(theirs) > apart && other.distance(own) < theirs.distance(own))
}

/// Whether keys of `region` are at home elsewhere after the change: it was struck off, or others
/// were added.
fn loses_keys(region: &str, before: &HomeRegions, after: &HomeRegions) -> bool {
    !after.contains(region) || !after.names.iter().all(|name| before.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_map::{ClusterId, Voters};
    use crate::identity::NodeId;

    const SPAN: Span = Span::from_secs(5);

    fn secs(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn voter(name: &str) -> Identity {
        Identity { node: NodeId::new(name).expect("a valid name"), birth: 1 }
    }

    /// Three voters, and these homes since `changed_at`.
    fn map(epoch: u64, names: &[&str], changed_at: u64, replaced_at: u64) -> Arc<ClusterMap> {
        let homes = HomeRegions {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            changed_at: Epoch(changed_at),
            replaced_at: Epoch(replaced_at),
        };
        Arc::new(ClusterMap {
            cluster: ClusterId(1),
            epoch: Epoch(epoch),
            voters: Voters::of(["e", "u", "w"].map(voter)),
            homes,
            ..ClusterMap::default()
        })
    }

    /// A token at home in `eu` while `us` is a home as well.
    fn token_of_eu() -> u64 {
        let both = Homes::new("eu".into(), vec!["eu".into(), "us".into()]);
        (0..64).map(|n| n << 58).find(|token| both.is_here(*token)).expect("half of them")
    }

    #[test]
    fn a_region_that_is_struck_off_is_replaced_when_its_last_grants_have_expired() {
        let both = map(1, &["eu", "us"], 1, 0);
        let mut grants = RegionGrants::new(secs(0), SPAN);
        let report = |grants: &mut RegionGrants, at| grants.report(secs(at), Epoch(9));
        grants.follow(secs(0), &both);
        assert_eq!(report(&mut grants, 6), Epoch(0), "what it granted before is unknown");
        assert_eq!(report(&mut grants, 7), Epoch(1));
        for region in ["eu", "us"] {
            assert_eq!(grants.grant(secs(10), region), Some(Epoch(1)));
        }
        grants.follow(secs(12), &map(2, &["us"], 2, 1));
        assert_eq!(
            (grants.grant(secs(12), "eu"), grants.grant(secs(12), "us")),
            (None, Some(Epoch(2)))
        );
        assert_eq!(report(&mut grants, 16), Epoch(1));
        assert_eq!(report(&mut grants, 17), Epoch(2), "6.25 s after the last one");
        grants.follow(secs(20), &map(3, &["us"], 2, 1));
        assert_eq!(report(&mut grants, 20), Epoch(3), "no key changed its home");
        grants.follow(secs(21), &map(4, &["eu", "us"], 4, 2));
        assert_eq!(report(&mut grants, 21), Epoch(4), "nothing was granted since");
        grants.grant(secs(30), "us");
        grants.follow(secs(31), &map(5, &["ap", "eu", "us"], 5, 4));
        assert_eq!(report(&mut grants, 36), Epoch(4));
        assert_eq!(report(&mut grants, 37), Epoch(5));
    }

    #[test]
    fn of_homes_that_are_apart_a_voter_accepts_the_nearest() {
        let [own, near, far] = [100, 104, 110].map(Timestamp::from_secs);
        let accepts = |theirs, others: &[Timestamp]| {
            accepts_clock(own, theirs, others.iter().copied(), Span::from_secs(5))
        };
        assert!(accepts(far, &[]), "the only home");
        assert!(accepts(far, &[Timestamp::from_secs(105)]), "they accept each other's counts");
        assert!(!accepts(far, &[near]) && accepts(near, &[far]));
        assert!(!accepts(far, &[own]), "a voter of a home");
        let behind = Timestamp::from_secs(95);
        assert!(accepts(near, &[behind, far]) && !accepts(behind, &[near]));
    }

    #[test]
    fn gained_keys_are_decided_once_a_majority_has_reported() {
        let token = token_of_eu();
        let mut us = RegionRight::new(voter("x"), "us".into(), SPAN);
        us.follow(&map(1, &["eu", "us"], 1, 0));
        assert!(!us.homes().decides(token) && us.lease_until() == Monotonic::START);
        for name in ["e", "u"] {
            us.pong_received(&voter(name), secs(1), Epoch(1), Some(Epoch(1)));
        }
        assert_eq!(us.lease_until(), secs(6));
        let own = (0..64).map(|n| n << 58).find(|token| us.homes().is_here(*token)).expect("one");
        assert!(us.homes().decides(own) && !us.homes().decides(token));
        us.follow(&map(2, &["us"], 2, 1));
        assert!(us.homes().decides(own), "it was at home here before");
        assert!(us.homes().is_here(token) && !us.homes().decides(token));
        us.report_received(&voter("u"), Epoch(2));
        assert!(!us.homes().decides(token), "one of three");
        us.report_received(&voter("w"), Epoch(3));
        assert!(us.homes().decides(token));
    }

    #[test]
    fn after_a_change_that_was_missed_nothing_is_decided_until_the_next_is_reported() {
        let mut us = RegionRight::new(voter("x"), "us".into(), SPAN);
        us.follow(&map(1, &["eu", "us"], 1, 0));
        us.report_received(&voter("u"), Epoch(1));
        us.report_received(&voter("w"), Epoch(1));
        let own = (0..64).map(|n| n << 58).find(|token| us.homes().is_here(*token)).expect("one");
        assert!(us.homes().decides(own));
        // It was struck off at 2, and others decided its keys.
        us.follow(&map(3, &["eu", "us"], 3, 2));
        assert!(!us.homes().decides(own));
        let mut eu = RegionRight::new(voter("y"), "eu".into(), SPAN);
        eu.follow(&map(3, &["us"], 3, 2));
        eu.pong_received(&voter("e"), secs(1), Epoch(3), Some(Epoch(3)));
        eu.pong_received(&voter("u"), secs(1), Epoch(3), Some(Epoch(3)));
        assert_eq!(eu.lease_until(), Monotonic::START, "no home");
    }
}
