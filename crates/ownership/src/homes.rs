//! The region in which a global key is decided: its *home*.
//!
//! A key of `scope: global` has one home among the regions, by rendezvous hashing: the region with
//! the highest hash of region and token. In its home it is a key like any other: the region's ring
//! names its owner, the region's voters grant the lease. No ring, ping or majority spans regions,
//! so a region that is cut off decides the keys whose home it is, and no others.
//!
//! Example: of regions `eu` and `us` each is the home of half of the keys. With `ap` added, a third
//! of the keys of each moves there, and no key moves between `eu` and `us`.
//!
//! Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// The regions among which global keys are divided, and which of them is this node's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Homes {
    own: String,
    /// Sorted.
    regions: Vec<String>,
}

impl Homes {
    /// Without `regions`, or with only one, every key is at home in `own`.
    pub fn new(own: String, mut regions: Vec<String>) -> Self {
        if regions.is_empty() {
            regions.push(own.clone());
        }
        regions.sort();
        regions.dedup();
        Self { own, regions }
    }

    /// The home of the global key at `token`.
    pub fn home(&self, token: u64) -> &str {
        let weight = |region: &&String| {
            let mut sip = SipHasher13::new_with_key(b"tidegate g homes");
            sip.write_u64(token);
            sip.write(region.as_bytes());
            sip.finish()
        };
        match self.regions.as_slice() {
            [only] => only,
            several => several.iter().max_by_key(weight).map_or("", String::as_str),
        }
    }

    /// Whether the global key at `token` is decided in this node's region.
    pub fn is_here(&self, token: u64) -> bool {
        self.home(token) == self.own
    }

    /// Sorted.
    pub fn regions(&self) -> &[String] {
        &self.regions
    }
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

    /// Placement is part of the protocol: nodes of two versions in one cluster must agree.
    #[test]
    fn placement_is_pinned() {
        let three = homes(&["ap", "eu", "us"]);
        let homes: Vec<_> =
            (0..12u64).map(|n| three.home(n.wrapping_mul(0x1555_5555_5555_5555))).collect();
        assert_eq!(homes.join(" "), "us eu eu eu eu eu ap us eu eu eu eu");
    }
}
