//! The region in which a global key is decided: its *home*.
//!
//! A key of `scope: global` has one home among the regions, by rendezvous hashing: the region with
//! the highest hash of region and token. In its home it is a key like any other: the region's ring
//! names its owner, the region's voters grant the lease. No ring and no owner's ping spans regions,
//! so a region that is cut off decides no keys but those whose home it is; with `global.founders`
//! only until the lease of the region ends ([`region_right`](crate::region_right)).
//!
//! Example: of regions `eu` and `us` each is the home of half of the keys. With `ap` added, a third
//! of the keys of each moves there, and no key moves between `eu` and `us`.
//!
//! Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

/// The regions among which global keys are divided, and which of them is this node's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Homes {
    own: String,
    /// Sorted.
    regions: Vec<String>,
    /// Regions that are no homes and may become some: sorted.
    absent: Vec<String>,
    /// Both, sorted.
    everywhere: Arc<[String]>,
    /// `None` where homes never change.
    gained: Option<Gained>,
}

/// Whether keys may be decided here that were at home in another region before the last change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Gained {
    /// All that are at home here.
    All,
    /// Only those that were at home here among these regions, sorted, as well.
    NotYet(Vec<String>),
    /// None, whether they were at home here or not: what was before is not known.
    Unknown,
}

impl Homes {
    /// Without `regions`, or with only one, every key is at home in `own`.
    pub fn new(own: String, mut regions: Vec<String>) -> Self {
        if regions.is_empty() {
            regions.push(own.clone());
        }
        regions.sort();
        regions.dedup();
        let everywhere = regions.as_slice().into();
        Self { own, regions, absent: Vec::new(), everywhere, gained: None }
    }

    /// These homes, and those of `all` that are none now and may return.
    #[must_use]
    pub fn among(mut self, all: &[String]) -> Self {
        self.absent = all.iter().filter(|name| !self.regions.contains(name)).cloned().collect();
        self.absent.sort();
        self.absent.dedup();
        let mut everywhere = [&self.regions[..], &self.absent].concat();
        everywhere.sort();
        self.everywhere = everywhere.into();
        self
    }

    /// These homes and `region`, as seen from the same region.
    #[must_use]
    pub fn and(&self, region: &str) -> Self {
        let regions = self.regions.iter().map(String::as_str).chain([region]);
        Self::new(self.own.clone(), regions.map(str::to_owned).collect())
    }

    /// These homes, as agreed on, of which only some keys may be decided here yet.
    #[must_use]
    pub fn agreed(mut self, gained: Gained) -> Self {
        self.gained = Some(gained);
        self
    }

    /// Whether the keys of a region that is lost move to others.
    pub fn fail_over(&self) -> bool {
        self.gained.is_some()
    }

    /// The home of the global key at `token`.
    pub fn home(&self, token: u64) -> &str {
        home(&self.regions, token)
    }

    /// Where the global key at `token` is at home if its home is lost; `None` when there is no
    /// other region.
    pub fn second_home(&self, token: u64) -> Option<&str> {
        let first = self.home(token);
        let others = self.regions.iter().filter(|region| *region != first);
        others.max_by_key(|region| weight(region, token)).map(String::as_str)
    }

    /// The regions that are no homes and of which each would be the home of the key if it were one.
    pub fn claimants(&self, token: u64) -> impl Iterator<Item = &str> {
        let present = weight(self.home(token), token);
        let claims = move |region: &&String| weight(region, token) > present;
        self.absent.iter().filter(claims).map(String::as_str)
    }

    /// The regions that are no homes and of which each would be the home of the key, or its second
    /// one, if it were one.
    pub fn heirs(&self, token: u64) -> impl Iterator<Item = &str> {
        let second = self.second_home(token).map(|region| weight(region, token));
        let inherits = move |region: &&String| second < Some(weight(region, token));
        self.absent.iter().filter(inherits).map(String::as_str)
    }

    /// The home of a key that was at home here before the last change, while those that gained it
    /// may not decide it yet.
    pub fn moved_to(&self, token: u64) -> Option<&str> {
        match &self.gained {
            Some(Gained::NotYet(before)) if home(before, token) == self.own => {
                Some(self.home(token)).filter(|home| *home != self.own)
            }
            _ => None,
        }
    }

    /// Whether the global key at `token` is at home in this node's region.
    pub fn is_here(&self, token: u64) -> bool {
        self.home(token) == self.own
    }

    /// Whether the global key at `token` may be decided in this node's region, while it has a
    /// lease.
    pub fn decides(&self, token: u64) -> bool {
        let is_gained = || match &self.gained {
            None | Some(Gained::All) => true,
            Some(Gained::NotYet(before)) => home(before, token) == self.own,
            Some(Gained::Unknown) => false,
        };
        self.is_here(token) && is_gained()
    }

    /// Whether it is agreed which keys may be decided here, or this region is no home.
    pub fn are_agreed(&self) -> bool {
        !self.has_own() || self.gained != Some(Gained::Unknown)
    }

    /// Whether this node's region is the home of any key.
    pub fn has_own(&self) -> bool {
        self.regions.binary_search(&self.own).is_ok()
    }

    /// Sorted.
    pub fn regions(&self) -> &[String] {
        &self.regions
    }

    /// Regions that are no homes and may become some, sorted.
    pub fn absent(&self) -> &[String] {
        &self.absent
    }

    /// All regions that are homes or may become some, sorted: those that share a limit.
    pub fn everywhere(&self) -> &Arc<[String]> {
        &self.everywhere
    }

    /// The number of all regions that are homes or may become some, and which of them, sorted, this
    /// node's region is.
    pub fn rank(&self) -> (usize, Option<usize>) {
        (self.everywhere.len(), self.everywhere.binary_search(&self.own).ok())
    }

    /// The region of this node.
    pub fn own(&self) -> &str {
        &self.own
    }
}

fn home(regions: &[String], token: u64) -> &str {
    match regions {
        [only] => only,
        several => {
            several.iter().max_by_key(|region| weight(region, token)).map_or("", String::as_str)
        }
    }
}

/// The region with the largest weight is the home.
pub(crate) fn weight(region: &str, token: u64) -> u64 {
    let mut sip = SipHasher13::new_with_key(b"tidegate g homes");
    sip.write_u64(token);
    sip.write(region.as_bytes());
    sip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(regions: &[&str]) -> Homes {
        Homes::new("eu".to_owned(), regions.iter().map(|&region| region.to_owned()).collect())
    }

    fn tokens() -> impl Iterator<Item = u64> {
        (0..3_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn homes_are_divided_evenly_and_move_only_to_a_new_region() {
        let (two, three) = (homes(&["eu", "us"]), homes(&["us", "eu", "ap"]));
        let here = tokens().filter(|token| two.is_here(*token)).count();
        assert!((1_350..1_650).contains(&here), "{here} of 3000");
        let moved = tokens().filter(|token| two.home(*token) != three.home(*token));
        let moved: Vec<&str> = moved.map(|token| three.home(token)).collect();
        assert!((850..1_150).contains(&moved.len()), "{} of 3000", moved.len());
        assert!(moved.iter().all(|home| *home == "ap"));
    }

    #[test]
    fn a_single_region_is_the_home_of_every_key() {
        assert!(tokens().all(|token| homes(&[]).is_here(token)));
        assert!(tokens().all(|token| !homes(&["us"]).is_here(token)));
    }

    #[test]
    fn a_second_home_is_the_home_once_the_first_is_gone() {
        let three = homes(&["eu", "us", "ap"]);
        for token in tokens() {
            let others: Vec<&str> =
                ["eu", "us", "ap"].into_iter().filter(|name| *name != three.home(token)).collect();
            assert_eq!(three.second_home(token), Some(homes(&others).home(token)));
        }
        assert_eq!(homes(&["us"]).second_home(7), None);
    }

    #[test]
    fn a_gained_key_is_decided_once_the_change_is_settled() {
        let two = homes(&["eu", "us"]);
        let (eu, us) = (vec!["eu".to_owned()], vec!["us".to_owned()]);
        let here = tokens().find(|token| two.is_here(*token)).expect("half of them");
        let decides = |gained| two.clone().agreed(gained).decides(here);
        assert!(decides(Gained::All) && decides(Gained::NotYet(eu)));
        assert!(!decides(Gained::NotYet(us)) && !decides(Gained::Unknown));
        let away = tokens().find(|token| !two.is_here(*token)).expect("half of them");
        assert!(!two.decides(away));
    }

    /// So a limit is divided in the same way whichever regions are homes.
    #[test]
    fn a_region_has_the_same_rank_while_others_are_no_homes() {
        let all = ["ap", "eu", "us"].map(str::to_owned);
        for present in [&["ap", "eu", "us"][..], &["eu", "us"], &["us"], &["ap", "us"]] {
            assert_eq!(homes(present).among(&all).rank(), (3, Some(1)), "{present:?}");
        }
        assert_eq!(homes(&["ap", "us"]).rank(), (2, None), "a witness");
    }

    /// Placement is part of the protocol: nodes of two versions in one cluster must agree.
    #[test]
    fn placement_is_pinned() {
        let three = homes(&["ap", "eu", "us"]);
        let homes: Vec<_> =
            (0..12u64).map(|n| three.home(n.wrapping_mul(0x1555_5555_5555_5555))).collect();
        assert_eq!(homes.join(" "), "us eu eu eu eu eu ap us eu eu eu eu");
    }

    #[test]
    fn a_region_that_may_return_claims_the_keys_that_it_would_have() {
        let all = ["ap", "eu", "us"].map(str::to_owned);
        let present = homes(&["ap", "eu"]).among(&all);
        assert_eq!(present.absent(), ["us"]);
        let returned = present.and("us");
        let mut claimed = 0;
        for token in (0..300).map(|n: u64| n << 55) {
            let claims = returned.home(token) == "us";
            assert_eq!(present.claimants(token).next(), claims.then_some("us"));
            let is_second = returned.second_home(token) == Some("us");
            assert_eq!(present.heirs(token).next(), (claims || is_second).then_some("us"));
            assert!(claims || returned.home(token) == present.home(token));
            claimed += usize::from(claims);
            let gained = Gained::NotYet(present.regions().to_vec());
            let moved = claims && present.is_here(token);
            let settling = returned.clone().agreed(gained);
            assert_eq!(settling.moved_to(token), moved.then_some("us"));
            assert_eq!(settling.agreed(Gained::All).moved_to(token), None);
        }
        assert!((60..140).contains(&claimed), "{claimed}");
    }
}
