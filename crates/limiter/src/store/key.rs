//! The 128-bit hash that identifies a counter.
//!
//! `token` is the keyed hash of domain and entries alone, so that every limit of one descriptor has
//! the same owner and the same shard and a list of limits is decided under one lock. `tag` adds
//! what distinguishes the limits of one descriptor: window, algorithm, mode. The limit itself is
//! not in it: a rule that is raised from 100 to 200 keeps its count. The lowest bits of the tag are
//! flags for code that holds a counter without its rule ([`KeyHash::is_eventual`] and others).
//!
//! The hash is SipHash-1-3 with 128 bits of output under a secret that the nodes of a cluster
//! share, so clients cannot aim keys at one owner, one shard or the counter of another client. Each
//! part is hashed with its length in front: (`a`, `b_c`) and (`a_b`, `c`) do not collide.

use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::descriptor::Entry;
use crate::policy::{Mode, Scope};
use crate::quota::{Algorithm, Quota};
use crate::units::{Span, Timestamp};

/// The identity of one counter.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct KeyHash {
    /// Position on the hash ring: determines the owner and the shard.
    pub token: u64,
    /// Which of the descriptor's counters it is.
    pub tag: u64,
}

/// One limit of a descriptor and the key it counts under. The counters of one check share their
/// `token` and differ in their `tag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    pub key: KeyHash,
    pub quota: Quota,
}

/// The name of a reservation: 128 bits that cannot be guessed ([`KeyHasher::reservation`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u128);

const EVENTUAL: u64 = 1;
const GLOBAL: u64 = 1 << 1;
const SHARE: u64 = 1 << 2;
const LONG: u64 = 1 << 3;
/// The bits of a tag that are flags; the others are hash.
const FLAGS: u64 = EVENTUAL | GLOBAL | SHARE | LONG;
/// The bits of a tag that name the domain, if the hasher was told to name it.
const DOMAIN: u64 = 0xff << DOMAIN_SHIFT;
const DOMAIN_SHIFT: u32 = 4;
/// The bits of the tag of a reservation that it has from the hash of its descriptor.
const BESIDE: u64 = 0xfff << (DOMAIN_SHIFT + 8);
/// How many domains are told apart.
pub(super) const DOMAINS: usize = 256;
/// Shortest window that is kept over a restart.
const LONG_MIN: Span = Span::from_secs(3_600);

/// The text is no [`ReservationId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reservation id has 32 hexadecimal digits")]
pub struct ParseReservationIdError;

/// Hashes descriptors under the cluster's secret.
#[derive(Clone)]
pub struct KeyHasher {
    secret: [u8; 16],
    /// State after hashing the prefix of every bare key.
    bare: SipHasher13,
    /// Whether keys name their domain.
    names_domains: bool,
}

/// The hash of a descriptor, before a quota picks one of its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DescriptorHash {
    token: u64,
    base: u64,
    /// `None` where keys do not name it.
    domain: Option<u8>,
}

/// What distinguishes the limits of one descriptor: the same for all keys of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterKind {
    hash: u64,
    flags: u64,
}

impl KeyHasher {
    /// A hasher under `secret`, which all nodes of a cluster share.
    pub fn new(secret: [u8; 16]) -> Self {
        let mut bare = SipHasher13::new_with_key(&secret);
        bare.write(&u64::MAX.to_le_bytes());
        Self { secret, bare, names_domains: false }
    }

    /// The same, and whether its keys name their domain, so that a store can bound the keys of each
    /// ([`Store::with_domain_keys`](super::Store::with_domain_keys)). Its keys are others, so the
    /// nodes of a cluster have it all or not at all.
    #[must_use]
    pub fn with_domains(self, names_domains: bool) -> Self {
        Self { names_domains, ..self }
    }

    /// Hashes domain and entries.
    pub fn descriptor(&self, domain: &str, entries: &[Entry<'_>]) -> DescriptorHash {
        let mut sip = SipHasher13::new_with_key(&self.secret);
        write_part(&mut sip, domain);
        // The lowest byte, of a hash that clients cannot choose.
        let domain = self.names_domains.then(|| sip.finish128().h1.to_le_bytes()[0]);
        for entry in entries {
            write_part(&mut sip, entry.key);
            write_part(&mut sip, entry.value);
        }
        let hash = sip.finish128();
        DescriptorHash { token: hash.h1, base: hash.h2, domain }
    }

    /// Hashes a key that is not a descriptor: arbitrary bytes from a client that sends its limit
    /// along. Never equals the hash of a descriptor, which begins with the length of a domain.
    pub fn bare(&self, key: &[u8]) -> DescriptorHash {
        let hash = self.bare.hash(key);
        DescriptorHash { token: hash.h1, base: hash.h2, domain: self.names_domains.then_some(0) }
    }

    /// Hashes the name and the key of a request that carries its limit, and `part`, what else tells
    /// its counters apart. Never equals the hash of a descriptor or of a bare key.
    pub fn carried(&self, name: &str, key: &str, part: [u64; 3]) -> DescriptorHash {
        let mut sip = SipHasher13::new_with_key(&self.secret);
        sip.write(&(u64::MAX - 1).to_le_bytes());
        write_part(&mut sip, name);
        let domain = self.names_domains.then(|| sip.finish128().h1.to_le_bytes()[0]);
        write_part(&mut sip, key);
        for part in part {
            sip.write(&part.to_le_bytes());
        }
        let hash = sip.finish128();
        DescriptorHash { token: hash.h1, base: hash.h2, domain }
    }

    /// The name of a reservation that cannot be guessed without the secret, from bytes that no
    /// other reservation of the cluster has.
    pub fn reservation(&self, unique: &[u8]) -> ReservationId {
        let mut sip = SipHasher13::new_with_key(&self.secret);
        write_part(&mut sip, "tidegate reservation");
        sip.write(unique);
        ReservationId(sip.finish128().as_u128())
    }

    /// A number that two nodes share only if they share the secret, and name domains or do not.
    /// Does not reveal the secret.
    pub fn fingerprint(&self) -> u64 {
        let mut sip = SipHasher13::new_with_key(&self.secret);
        write_part(&mut sip, "tidegate key secret fingerprint");
        if self.names_domains {
            write_part(&mut sip, "with domains");
        }
        sip.finish128().h1
    }
}

impl DescriptorHash {
    /// The token of every counter of this descriptor.
    pub const fn token(self) -> u64 {
        self.token
    }

    /// The same descriptor as the name of its requests in flight: at another place of the ring, so
    /// that they do not count as hits.
    #[must_use]
    pub const fn in_flight(self) -> Self {
        const IN_FLIGHT: u64 = 0x7d1f_9c3a_52e4_60b7;
        let (token, base) = (spread(self.token ^ IN_FLIGHT), spread(self.base ^ IN_FLIGHT));
        Self { token, base, ..self }
    }

    /// The same for those at one node alone: at a place of their own, because what is reserved of
    /// a token counts for all counters of the token.
    #[must_use]
    pub const fn in_flight_at_node(self) -> Self {
        const AT_NODE: u64 = 0x3b8e_05d4_c96a_127f;
        let (token, base) = (spread(self.token ^ AT_NODE), spread(self.base ^ AT_NODE));
        Self { token, base, ..self }
    }

    /// The same descriptor after it was begun anew at `at`, by hand: at the same place of the ring,
    /// with other counters.
    #[must_use]
    pub const fn begun_anew(self, at: Timestamp) -> Self {
        Self { base: spread(self.base ^ spread(at.as_nanos())), ..self }
    }

    /// Both halves, for digests.
    pub(super) const fn parts(self) -> (u64, u64) {
        (self.token, self.base)
    }

    /// What its reservations are beside.
    pub(super) const fn beside(self) -> Beside {
        Beside { token: self.token, part: self.base & BESIDE }
    }

    /// The counter of this descriptor for `quota`, `mode` and `scope`.
    pub fn counter(self, quota: &Quota, mode: Mode, scope: Scope) -> KeyHash {
        self.counter_of(CounterKind::of(quota, mode, scope))
    }

    /// The counter of this descriptor of one kind, for callers that cache the kind.
    pub const fn counter_of(self, kind: CounterKind) -> KeyHash {
        let tag = (self.base ^ kind.hash) & !FLAGS | kind.flags;
        let tag = match self.domain {
            None => tag,
            Some(domain) => tag & !DOMAIN | (domain as u64) << DOMAIN_SHIFT,
        };
        KeyHash { token: self.token, tag }
    }
}

impl CounterKind {
    /// The kind of the counters of `quota`.
    ///
    /// It covers everything that determines the kind of the state. Nodes whose rules differ for a
    /// moment count separately; they never overwrite a state with one of another kind.
    pub fn of(quota: &Quota, mode: Mode, scope: Scope) -> Self {
        let flags = (u64::from(mode == Mode::Eventual) * EVENTUAL)
            | (u64::from(scope == Scope::Global) * GLOBAL)
            | (u64::from(quota.window() >= LONG_MIN) * LONG);
        Self { hash: Self::hash_of(quota), flags }
    }

    /// The same kind for any window that the quota may have, if its state is an instant: of a
    /// first-hit window or a bucket. For requests that send their limit along and may change it
    /// from one to the next: a client that changes the window goes on with the same count.
    ///
    /// Such counters are kept over a restart, whatever their window. No reservation is beside them.
    pub fn of_any_window(quota: &Quota, mode: Mode, scope: Scope) -> Self {
        let kind = Self::of(quota, mode, scope);
        match quota.algorithm() {
            Algorithm::FirstHitWindow
            | Algorithm::TokenBucket
            | Algorithm::LeakyBucket
            | Algorithm::Gcra => Self { hash: Self::hash_with(quota, 0), flags: kind.flags | LONG },
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => kind,
        }
    }

    /// What the quota alone adds to the tag.
    fn hash_of(quota: &Quota) -> u64 {
        Self::hash_with(quota, quota.window().as_nanos())
    }

    fn hash_with(quota: &Quota, window_ns: u64) -> u64 {
        let form = (quota.algorithm() as u64)
            | u64::from(quota.queue().is_some()) << 8
            | u64::from(quota.sub_windows()) << 16;
        spread(spread(window_ns).wrapping_add(form))
    }
}

/// What a reservation is beside: the counters of one descriptor. One that was begun anew has others
/// at the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Beside {
    token: u64,
    /// [`BESIDE`] of its hash.
    part: u64,
}

impl Beside {
    pub(super) const fn of_reservation(key: KeyHash) -> Self {
        Self { token: key.token, part: key.tag & BESIDE }
    }

    /// Any of the counters has it, whatever its limit.
    pub(super) fn of_counter(counter: &Counter) -> Self {
        let Counter { key, quota } = counter;
        Self { token: key.token, part: (key.tag ^ CounterKind::hash_of(quota)) & BESIDE }
    }
}

impl KeyHash {
    /// The counter in which a node counts its local share of the limit while the owner is
    /// unreachable. Distinct from the owner's counter, so that a takeover does not start from a
    /// share.
    #[must_use]
    pub fn share(self) -> Self {
        Self { token: self.token, tag: self.tag | SHARE }
    }

    /// The same at a place of its own: for shares beside which the owner's reservations, of which
    /// this node may have copies, are not to count.
    #[must_use]
    pub const fn share_apart(self) -> Self {
        const SHARES: u64 = 0x91c2_6e7d_0f5b_a843;
        Self { token: spread(self.token ^ SHARES), tag: self.tag | SHARE }
    }

    /// The key of the reservation `id` beside these counters: it has their owner and shard, and is
    /// kept over a restart.
    ///
    /// It is the same for any counter of the descriptor, so that an id that was given out is found
    /// after a reload that changes some limits of a list, and by nodes that have other rules for a
    /// moment. It is another one when the descriptor is begun anew, or has another scope.
    pub fn of_reservation(counters: &[Counter], id: ReservationId) -> Self {
        const KEPT: u64 = FLAGS | BESIDE;
        let Some(first) = counters.first() else { return Self::default() };
        let half = |half: u128| u64::try_from(half & u128::from(u64::MAX)).unwrap_or_default();
        let hash = spread(half(id.0).wrapping_add(spread(half(id.0 >> 64))));
        let Beside { token, part } = Beside::of_counter(first);
        Self { token, tag: hash & !KEPT | part | first.key.tag & GLOBAL | LONG }
    }

    /// The number of its domain, if the hasher has named it; otherwise any.
    pub(super) const fn domain(self) -> usize {
        (self.tag & DOMAIN) as usize >> DOMAIN_SHIFT
    }

    /// Whether it has per-actor counters, which are synchronised.
    pub const fn is_eventual(self) -> bool {
        self.tag & EVENTUAL != 0
    }

    /// Whether it is a local share ([`KeyHash::share`]), which is never sent.
    pub const fn is_share(self) -> bool {
        self.tag & SHARE != 0
    }

    /// Whether its window is at least an hour, so that it is kept over a restart.
    pub const fn is_long(self) -> bool {
        self.tag & LONG != 0
    }

    /// Whether an owner decides it: neither eventual nor a local share.
    pub const fn is_owned(self) -> bool {
        self.tag & (EVENTUAL | SHARE) == 0
    }

    /// The ring of its owner.
    pub const fn scope(self) -> Scope {
        if self.tag & GLOBAL == 0 { Scope::Region } else { Scope::Global }
    }
}

impl ReservationId {
    /// The same for the descriptor of a request that has the same counters as `number` before it:
    /// each keeps its own amount free.
    #[must_use]
    pub const fn of_repeated(self, number: u64) -> Self {
        Self(self.0.wrapping_add(number as u128))
    }

    /// The name that another one is, such as one of another service.
    pub fn named(text: &str) -> Self {
        let mut sip = SipHasher13::new();
        write_part(&mut sip, text);
        Self(sip.finish128().as_u128())
    }
}

impl std::fmt::Display for ReservationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ReservationId {
    type Err = ParseReservationIdError;

    /// # Errors
    ///
    /// Fails unless the text is what [`Display`](std::fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(is_hex) {
            return Err(ParseReservationIdError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ParseReservationIdError)
    }
}

impl std::fmt::Debug for KeyHasher {
    /// Does not print the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyHasher").field("fingerprint", &self.fingerprint()).finish()
    }
}

fn write_part(sip: &mut SipHasher13, part: &str) {
    sip.write(&(part.len() as u64).to_le_bytes());
    sip.write(part.as_bytes());
}

/// A bijection of `u64` that spreads small differences over all bits (the finalizer of
/// `SplitMix64`).
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
    fn parts_are_separated() {
        assert_ne!(hash("d", &[("a", "b_c")]), hash("d", &[("a_b", "c")]));
        assert_ne!(hash("d", &[("a", ""), ("b", "")]), hash("d", &[("a", "b")]));
        assert_ne!(hash("da", &[("b", "c")]), hash("d", &[("ab", "c")]));
    }

    #[test]
    fn a_bare_key_is_hashed_behind_its_prefix() {
        let secret = [7; 16];
        for length in 0..40_u8 {
            let key: Vec<u8> = (0..length).collect();
            let text = [&u64::MAX.to_le_bytes()[..], &key].concat();
            let hash = SipHasher13::new_with_key(&secret).hash(&text);
            let expected = DescriptorHash { token: hash.h1, base: hash.h2, domain: None };
            assert_eq!(KeyHasher::new(secret).bare(&key), expected, "{length} bytes");
        }
    }

    #[test]
    fn limits_of_one_descriptor_share_only_the_token() {
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
    fn flags_of_a_key_follow_quota_mode_and_scope() {
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

    /// A list of limits may be changed by a reload, and nodes do not reload at the same time.
    #[test]
    fn a_reservation_has_one_key_whatever_limits_its_descriptor_has() {
        let id = ReservationId(7);
        for hasher in [KeyHasher::new([7; 16]), KeyHasher::new([7; 16]).with_domains(true)] {
            let descriptor = hasher.descriptor("d", &[Entry { key: "a", value: "b" }]);
            let counter = |descriptor: DescriptorHash, algorithm, secs| {
                let quota = Quota::simple(algorithm, 10, Span::from_secs(secs)).expect("valid");
                Counter { key: descriptor.counter(&quota, Mode::Strict, Scope::Region), quota }
            };
            let ten_minutes = counter(descriptor, Algorithm::FixedWindow, 600);
            let hour = counter(descriptor, Algorithm::Gcra, 3_600);
            let key = KeyHash::of_reservation(&[ten_minutes], id);
            for of in [&[hour][..], &[ten_minutes, hour], &[hour, ten_minutes]] {
                assert_eq!(KeyHash::of_reservation(of, id), key);
            }
            assert!(key.is_owned() && key.is_long() && key.scope() == Scope::Region);
            assert_eq!(Beside::of_reservation(key), Beside::of_counter(&hour));
            assert_eq!(descriptor.beside(), Beside::of_counter(&hour));
            let anew = descriptor.begun_anew(Timestamp::from_secs(9));
            let anew = counter(anew, Algorithm::FixedWindow, 600);
            assert_ne!(KeyHash::of_reservation(&[anew], id), key);
            assert_ne!(Beside::of_counter(&anew), Beside::of_counter(&ten_minutes));
        }
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
    fn a_limit_that_is_sent_along_may_change_its_window() {
        let kind = |algorithm, secs| {
            let quota = Quota::simple(algorithm, 10, Span::from_secs(secs)).expect("valid");
            CounterKind::of_any_window(&quota, Mode::Strict, Scope::Region)
        };
        let key = |algorithm, secs| hash("d", &[("a", "b")]).counter_of(kind(algorithm, secs));
        let instants = [Algorithm::FirstHitWindow, Algorithm::TokenBucket, Algorithm::Gcra];
        for algorithm in instants {
            assert_eq!(key(algorithm, 1), key(algorithm, 86_400));
            assert!(key(algorithm, 1).is_long() && key(algorithm, 1).is_owned());
        }
        assert_ne!(key(instants[0], 1), key(instants[1], 1));
        let numbered = Algorithm::FixedWindow;
        assert_ne!(key(numbered, 60), key(numbered, 61), "windows of one number and two lengths");
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
