//! The tokens of a global key of which each region decides a share.
//!
//! The share of a region is a global key of its own, at home in that region, so its token has to be
//! one of which the region is the [home](crate::homes): the first hash of token, region and number
//! 0, 1, 2, ... that is. The home of the key itself keeps the key's own token.
//!
//! ```text
//! token of the share of r = first of hash(token, r, 0), hash(token, r, 1), ... with home r
//! ```
//!
//! The homes are those among all regions that are homes or may become some. So the tokens stay the
//! same while a region is struck off, and the region that its homes move to decides its share.
//!
//! **Order.** By the weights that choose the home, the home first: in this order the shares of a
//! limit get its remainder.
//!
//! **Example.** Regions `ap`, `eu`, `us`, and a key at home in `eu`. `eu` keeps the token; of `us`
//! every third hash is at home there, so two or three are tried.

use std::cmp::Reverse;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::homes::weight;

/// The token of one region's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionShare<'a> {
    pub region: &'a str,
    pub token: u64,
}

/// Numbers that are tried. With 16 regions one in e^4000 keys has no token among as many hashes;
/// the share of that region is decided in another one then.
const NUMBERS: u32 = 65_536;

/// The shares of the key at `token` among `regions`, of which none is twice, the home first.
pub fn of_key(regions: &[String], token: u64) -> Vec<RegionShare<'_>> {
    let mut ordered: Vec<&str> = regions.iter().map(String::as_str).collect();
    // Of equal weights the last one is the home.
    ordered.reverse();
    ordered.sort_by_key(|region| Reverse(weight(region, token)));
    let token_of = |(rank, region): (usize, &str)| match rank {
        0 => token,
        _ => first_at_home(regions, region, token),
    };
    let tokens: Vec<u64> = ordered.iter().copied().enumerate().map(token_of).collect();
    let shares = ordered.into_iter().zip(tokens);
    shares.map(|(region, token)| RegionShare { region, token }).collect()
}

fn first_at_home(regions: &[String], region: &str, token: u64) -> u64 {
    let is_at_home = |token: &u64| {
        let own = weight(region, *token);
        regions.iter().all(|other| other == region || weight(other, *token) < own)
    };
    let mut candidates = (0..NUMBERS).map(|number| hash(region, token, number));
    candidates.find(is_at_home).unwrap_or_else(|| hash(region, token, NUMBERS))
}

fn hash(region: &str, token: u64, number: u32) -> u64 {
    let mut sip = SipHasher13::new_with_key(b"tidegate r share");
    sip.write_u64(token);
    sip.write_u32(number);
    sip.write(region.as_bytes());
    sip.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::homes::Homes;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("r{number:02}")).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        /// Also while some of the regions are no homes: then it is one that is left.
        #[test]
        fn each_region_has_a_share_at_home_in_it(
            token: u64, count in 1_usize..9, absent in proptest::collection::vec(any::<bool>(), 9),
        ) {
            let all = names(count);
            let homes = Homes::new(all[0].clone(), all.clone());
            let shares = of_key(&all, token);
            let regions: BTreeSet<&str> = shares.iter().map(|share| share.region).collect();
            let tokens: BTreeSet<u64> = shares.iter().map(|share| share.token).collect();
            prop_assert_eq!((regions.len(), tokens.len()), (count, count));
            prop_assert_eq!((shares[0].region, shares[0].token), (homes.home(token), token));
            for share in &shares {
                prop_assert_eq!(homes.home(share.token), share.region);
            }
            let left = all.iter().zip(&absent).filter(|(_, is_absent)| !**is_absent);
            let left: Vec<String> = left.map(|(name, _)| name.clone()).collect();
            if !left.is_empty() {
                let homes = Homes::new(all[0].clone(), left.clone()).among(&all);
                prop_assert_eq!(of_key(homes.everywhere(), token), shares.clone());
                for share in shares.iter().filter(|it| left.iter().any(|name| name == it.region)) {
                    prop_assert_eq!(homes.home(share.token), share.region);
                }
            }
        }

        #[test]
        fn different_keys_have_different_shares(one: u64, other: u64, count in 1_usize..9) {
            prop_assume!(one != other);
            let all = names(count);
            let tokens = |token| -> BTreeSet<u64> {
                of_key(&all, token).iter().map(|share| share.token).collect()
            };
            prop_assert!(tokens(one).is_disjoint(&tokens(other)));
        }
    }

    #[test]
    fn each_region_is_first_of_as_many_keys() {
        let all = names(3);
        let tokens = (0..3_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut of_ranks = vec![[0_u32; 3]; 3];
        for token in tokens {
            for (rank, share) in of_key(&all, token).iter().enumerate() {
                let region = all.iter().position(|name| name == share.region).expect("one");
                of_ranks[rank][region] += 1;
            }
        }
        assert!(
            of_ranks.iter().flatten().all(|count| (850..1_150).contains(count)),
            "{of_ranks:?}"
        );
    }

    /// Placement is part of the protocol: nodes of two versions in one cluster must agree.
    #[test]
    fn placement_is_pinned() {
        let all = ["ap", "eu", "us"].map(str::to_owned);
        let shares = of_key(&all, 7);
        let shares: Vec<String> =
            shares.iter().map(|share| format!("{} {:016x}", share.region, share.token)).collect();
        let expected = ["ap 0000000000000007", "us 1ee35f965395e658", "eu 815883fe106d5bb9"];
        assert_eq!(shares, expected);
    }
}
