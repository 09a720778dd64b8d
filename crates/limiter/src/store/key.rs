//! The 128-bit name of a counter.
//!
//! `token` is the keyed hash of domain and entries alone, so that every limit of one descriptor has
//! the same owner and the same shard and a list of limits is decided under one lock. `tag` adds
//! what tells the limits of one descriptor apart: window, algorithm, mode. The limit itself is not
//! in it: a rule that is raised from 100 to 200 keeps its count. The lowest bits of the tag say
//! what whoever holds the counter without its rule has to know ([`KeyHash::is_eventual`] and the
//! others).
//!
//! The hash is SipHash-1-3 with 128 bits of output under a secret that the nodes of a cluster
//! share, so that nobody outside can aim keys at one owner, one shard or another's counter. Each
//! part is hashed with its length in front: (`a`, `b_c`) and (`a_b`, `c`) never meet.

use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::descriptor::Entry;
use crate::policy::{Mode, Scope};
use crate::quota::Quota;
use crate::units::Span;

/// The name of one counter.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct KeyHash {
    /// Where it lives: decides the owner and the shard.
    pub token: u64,
    /// Which of the descriptor's counters it is.
    pub tag: u64,
}

const EVENTUAL: u64 = 1;
const GLOBAL: u64 = 1 << 1;
const SHARE: u64 = 1 << 2;
const LONG: u64 = 1 << 3;
/// The bits of a tag that say something; the others are hash.
const SAYS: u64 = EVENTUAL | GLOBAL | SHARE | LONG;
/// Windows from here on are kept over a restart.
const LONG_MIN: Span = Span::from_secs(3_600);

/// Hashes descriptors under the cluster's secret.
#[derive(Clone)]
pub struct KeyHasher {
    secret: [u8; 16],
    /// Has read what every bare key begins with.
    bare: SipHasher13,
}

/// The hash of a descriptor, before a quota picks one of its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorHash {
    token: u64,
    base: u64,
}

/// What tells the limits of one descriptor apart: the same for all keys that one limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    spread: u64,
    says: u64,
}

impl KeyHasher {
    /// A hasher under `secret`, which all nodes of a cluster share.
    pub fn new(secret: [u8; 16]) -> Self {
        let mut bare = SipHasher13::new_with_key(&secret);
        bare.write(&u64::MAX.to_le_bytes());
        Self { secret, bare }
    }

    /// Hashes domain and entries.
    pub fn descriptor(&self, domain: &str, entries: &[Entry<'_>]) -> DescriptorHash {
        let mut sip = SipHasher13::new_with_key(&self.secret);
        write_part(&mut sip, domain);
        for entry in entries {
            write_part(&mut sip, entry.key);
            write_part(&mut sip, entry.value);
        }
        let hash = sip.finish128();
        DescriptorHash { token: hash.h1, base: hash.h2 }
    }

    /// Hashes a key that names no descriptor: a client brings its limit along, and any bytes may
    /// stand in it. Never the hash of a descriptor, whose parts begin with a domain.
    pub fn bare(&self, key: &[u8]) -> DescriptorHash {
        let hash = self.bare.hash(key);
        DescriptorHash { token: hash.h1, base: hash.h2 }
    }

    /// A number that two nodes share only if they share the secret; it tells nothing about it.
    pub fn fingerprint(&self) -> u64 {
        let mut sip = SipHasher13::new_with_key(&self.secret);
        write_part(&mut sip, "tidegate key secret fingerprint");
        sip.finish128().h1
    }
}

impl DescriptorHash {
    /// Where every counter of this descriptor lives.
    pub const fn token(self) -> u64 {
        self.token
    }

    /// The counter of this descriptor that `quota` counts in when a rule is held in `mode`.
    pub fn counter(self, quota: &Quota, mode: Mode, scope: Scope) -> KeyHash {
        self.counter_of(Kind::of(quota, mode, scope))
    }

    /// The counter of this descriptor that counts as `kind` says.
    pub const fn counter_of(self, kind: Kind) -> KeyHash {
        KeyHash { token: self.token, tag: (self.base ^ kind.spread) & !SAYS | kind.says }
    }
}

impl Kind {
    /// What tells the counters of `quota` from others, when a rule is held in `mode`.
    ///
    /// Everything that decides the form of the state is in it. Nodes whose rules differ for a
    /// moment count apart; they never overwrite each other's state with one of another form.
    pub fn of(quota: &Quota, mode: Mode, scope: Scope) -> Self {
        let form = (quota.algorithm() as u64)
            | u64::from(quota.queue().is_some()) << 8
            | u64::from(quota.sub_windows()) << 16;
        let kind = spread(quota.window().as_nanos()).wrapping_add(form);
        let says = (u64::from(mode == Mode::Eventual) * EVENTUAL)
            | (u64::from(scope == Scope::Global) * GLOBAL)
            | (u64::from(quota.window() >= LONG_MIN) * LONG);
        Self { spread: spread(kind), says }
    }
}

impl KeyHash {
    /// The counter beside this one in which a node counts its own share while the owner is out of
    /// reach. It must not be the owner's counter: a takeover would start from a share.
    #[must_use]
    pub fn share(self) -> Self {
        Self { token: self.token, tag: self.tag | SHARE }
    }

    /// Whether it is counted in columns, which travel by synchronisation.
    pub const fn is_eventual(self) -> bool {
        self.tag & EVENTUAL != 0
    }

    /// Whether it is a node's own share ([`KeyHash::share`]), which concerns nobody else.
    pub const fn is_share(self) -> bool {
        self.tag & SHARE != 0
    }

    /// Whether its window is an hour or more, so that it is kept over a restart.
    pub const fn is_long(self) -> bool {
        self.tag & LONG != 0
    }

    /// Whether it is decided by an owner: neither eventual nor a share.
    pub const fn is_owned(self) -> bool {
        self.tag & (EVENTUAL | SHARE) == 0
    }

    /// Which ring its owner is on.
    pub const fn scope(self) -> Scope {
        if self.tag & GLOBAL == 0 { Scope::Region } else { Scope::Global }
    }
}

impl std::fmt::Debug for KeyHasher {
    /// Never prints the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyHasher").field("fingerprint", &self.fingerprint()).finish()
    }
}

fn write_part(sip: &mut SipHasher13, part: &str) {
    sip.write(&(part.len() as u64).to_le_bytes());
    sip.write(part.as_bytes());
}

/// A bijection of `u64` that spreads small differences over all bits (`SplitMix64`'s finalizer).
const fn spread(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Algorithm, QuotaParts};
    use crate::units::Span;

    fn hash(domain: &str, entries: &[(&str, &str)]) -> DescriptorHash {
        let entries: Vec<_> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
        KeyHasher::new([7; 16]).descriptor(domain, &entries)
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(hash("d", &[("a", "b_c")]), hash("d", &[("a_b", "c")]));
        assert_ne!(hash("d", &[("a", ""), ("b", "")]), hash("d", &[("a", "b")]));
        assert_ne!(hash("da", &[("b", "c")]), hash("d", &[("ab", "c")]));
    }

    #[test]
    fn a_bare_key_is_hashed_behind_its_mark_as_one_text() {
        let secret = [7; 16];
        for length in 0..40_u8 {
            let key: Vec<u8> = (0..length).collect();
            let text = [&u64::MAX.to_le_bytes()[..], &key].concat();
            let hash = SipHasher13::new_with_key(&secret).hash(&text);
            let expected = DescriptorHash { token: hash.h1, base: hash.h2 };
            assert_eq!(KeyHasher::new(secret).bare(&key), expected, "{length} bytes");
        }
    }

    #[test]
    fn limits_of_one_descriptor_share_the_place_and_nothing_else() {
        let descriptor = hash("d", &[("a", "b")]);
        let quota = |algorithm, secs| {
            Quota::simple(algorithm, 10, Span::from_secs(secs)).expect("a valid quota")
        };
        let strict = |quota: &Quota| descriptor.counter(quota, Mode::Strict, Scope::Region);
        let minute = strict(&quota(Algorithm::FixedWindow, 60));
        let sliced = QuotaParts {
            algorithm: Algorithm::SlidingWindowCounter,
            sub_windows: 6,
            ..quota(Algorithm::FixedWindow, 60).into()
        };
        let others = [
            strict(&quota(Algorithm::FixedWindow, 3600)),
            strict(&quota(Algorithm::Gcra, 60)),
            strict(&quota(Algorithm::SlidingWindowCounter, 60)),
            strict(&Quota::new(sliced).expect("a valid quota")),
            descriptor.counter(&quota(Algorithm::FixedWindow, 60), Mode::Eventual, Scope::Region),
            descriptor.counter(&quota(Algorithm::FixedWindow, 60), Mode::Strict, Scope::Global),
            minute.share(),
        ];
        assert!(others.iter().all(|other| other.token == minute.token));
        let mut tags: Vec<u64> = others.iter().chain([&minute]).map(|key| key.tag).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), others.len() + 1);
    }

    #[test]
    fn a_key_says_what_its_holder_has_to_know_without_the_rule() {
        let hash = hash("d", &[("a", "b")]);
        let quota = |secs| {
            Quota::simple(Algorithm::Gcra, 10, Span::from_secs(secs)).expect("a valid quota")
        };
        let minute = hash.counter(&quota(60), Mode::Strict, Scope::Region);
        assert!(minute.is_owned() && !minute.is_long() && minute.scope() == Scope::Region);
        let week = hash.counter(&quota(604_800), Mode::Strict, Scope::Global);
        assert!(week.is_owned() && week.is_long() && week.scope() == Scope::Global);
        let eventual = hash.counter(&quota(60), Mode::Eventual, Scope::Region);
        assert!(eventual.is_eventual() && !eventual.is_owned());
        assert!(week.share().is_share() && !week.share().is_owned());
    }

    #[test]
    fn a_raised_limit_keeps_its_counter() {
        let descriptor = hash("d", &[("a", "b")]);
        let quota = |limit| {
            Quota::simple(Algorithm::FixedWindow, limit, Span::from_secs(60)).expect("valid")
        };
        let counter = |limit| descriptor.counter(&quota(limit), Mode::Strict, Scope::Region);
        assert_eq!(counter(10), counter(20));
    }

    #[test]
    fn another_secret_is_another_hash() {
        let entries = [Entry { key: "a", value: "b" }];
        let one = KeyHasher::new([1; 16]);
        let two = KeyHasher::new([2; 16]);
        assert_ne!(one.descriptor("d", &entries), two.descriptor("d", &entries));
        assert_ne!(one.fingerprint(), two.fingerprint());
    }
}
