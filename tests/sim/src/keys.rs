//! The keys of the load: a few kinds, each with its own rule.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::{Counter, DescriptorHash, KeyHash, KeyHasher};
use tidegate_limiter::units::Span;
use tidegate_ownership::shares;
use tidegate_rules::book::Book;
use tidegate_rules::load::{self, Options, Source};

/// The domain of every request.
pub(crate) const DOMAIN: &str = "sim";

/// A kind of key; each is one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Strict, a window of a day, `on_unavailable: deny`.
    Strict,
    /// As `Strict`, with a token bucket.
    Bucket,
    /// Strict, `durability: replicated`: the response waits for a replica.
    Durable,
    /// Strict, `on_unavailable: local`: each node has a share of the limit.
    Shared,
    /// Strict, with windows that end during a run.
    Brief,
    /// Strict, requests of several hits, and refunds.
    Weighted,
    /// Strict, two limits that are charged together or not at all.
    Layered,
    /// Eventual: decided by the node that receives the request.
    Eventual,
    /// Leased, a window of a day.
    Leased,
    /// Leased, a limit that is not reached, so every lost hit is visible; checks of several hits.
    LeasedLarge,
    /// Leased, a limit of which a node's part is less than one hit.
    LeasedSmall,
    /// Leased, with windows that end during a run.
    LeasedBrief,
    /// As `LeasedBrief`, a sliding window of some slices.
    LeasedSliced,
    /// As `LeasedBrief`, a bucket.
    LeasedBucket,
    /// Leased, `durability: replicated`.
    LeasedDurable,
    /// Leased, `on_unavailable: local`.
    LeasedShared,
    /// Leased, or strict after some reloads.
    Switched,
    /// Leased, or eventual after some reloads.
    Loosened,
    /// Strict, a window of a day, with reservations.
    Reserved,
    /// As `Reserved`, `durability: replicated`.
    ReservedDurable,
    /// As `Reserved`, leased.
    ReservedLeased,
    /// As `Reserved`, eventual.
    ReservedEventual,
    /// New keys that fill the stores.
    Junk,
    /// `scope: global`, strict, `on_unavailable: deny`.
    Global,
    /// As `Global`, `durability: replicated`, a limit that is not reached.
    GlobalDurable,
    /// As `Global`, `on_unavailable: local`.
    GlobalShared,
    /// As `Global`, leased: each region has a share.
    GlobalLeased,
    /// As `GlobalLeased`, with windows that end during a run.
    GlobalBrief,
}

/// Which keys a scenario has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) regions: usize,
    /// Those of leased rules as well.
    pub(crate) are_leased: bool,
    /// Those with reservations as well.
    pub(crate) are_reserved: bool,
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    /// The region that counts it; 0 for a global key.
    pub(crate) region: usize,
}

/// Kinds whose keys are checked individually.
const CHECKED: [Kind; 8] = [
    Kind::Strict,
    Kind::Bucket,
    Kind::Durable,
    Kind::Shared,
    Kind::Brief,
    Kind::Eventual,
    Kind::Weighted,
    Kind::Layered,
];
/// The same where there are several regions.
const CHECKED_IN_REGIONS: [Kind; 5] =
    [Kind::Strict, Kind::Durable, Kind::Global, Kind::GlobalDurable, Kind::GlobalShared];
/// The kinds of leased rules.
const LEASED: [Kind; 10] = [
    Kind::Leased,
    Kind::LeasedLarge,
    Kind::LeasedSmall,
    Kind::LeasedBrief,
    Kind::LeasedSliced,
    Kind::LeasedBucket,
    Kind::LeasedDurable,
    Kind::LeasedShared,
    Kind::Switched,
    Kind::Loosened,
];
/// The same where there are several regions.
const LEASED_IN_REGIONS: [Kind; 6] = [
    Kind::Leased,
    Kind::LeasedLarge,
    Kind::LeasedBrief,
    Kind::Switched,
    Kind::GlobalLeased,
    Kind::GlobalBrief,
];
/// The kinds with reservations.
pub(crate) const RESERVED: [Kind; 4] =
    [Kind::Reserved, Kind::ReservedDurable, Kind::ReservedLeased, Kind::ReservedEventual];
/// The first of [`CHECKED`] have requests of one hit, for one limit.
pub(crate) const SIMPLE: usize = 6;
/// Number of keys of each checked kind.
pub(crate) const KEYS_PER_KIND: u64 = 6;
/// The same of the kinds of leased rules and with reservations: fewer, so that a key has a rate.
pub(crate) const FEW_KEYS_PER_KIND: u64 = 2;
/// Window of [`Kind::Brief`], in seconds.
pub(crate) const BRIEF_SECONDS: u64 = 5;
/// Windows of leased kinds that end during a run.
const LEASED_BRIEF: Span = Span::from_secs(2);
/// Slices of [`Kind::LeasedSliced`].
pub(crate) const SLICES: u8 = 4;
const DAY: Span = Span::from_secs(86_400);

impl Kind {
    /// Descriptor key.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Bucket => "bucket",
            Self::Durable => "durable",
            Self::Shared => "shared",
            Self::Brief => "brief",
            Self::Weighted => "weighted",
            Self::Layered => "layered",
            Self::Eventual => "eventual",
            Self::Leased => "leased",
            Self::LeasedLarge => "leased-large",
            Self::LeasedSmall => "leased-small",
            Self::LeasedBrief => "leased-brief",
            Self::LeasedSliced => "leased-sliced",
            Self::LeasedBucket => "leased-bucket",
            Self::LeasedDurable => "leased-durable",
            Self::LeasedShared => "leased-shared",
            Self::Switched => "switched",
            Self::Loosened => "loosened",
            Self::Reserved => "reserved",
            Self::ReservedDurable => "reserved-durable",
            Self::ReservedLeased => "reserved-leased",
            Self::ReservedEventual => "reserved-eventual",
            Self::Junk => "junk",
            Self::Global => "global",
            Self::GlobalDurable => "global-durable",
            Self::GlobalShared => "global-shared",
            Self::GlobalLeased => "global-leased",
            Self::GlobalBrief => "global-brief",
        }
    }

    /// Of several limits the first.
    pub(crate) const fn limit(self) -> u32 {
        match self {
            Self::Strict | Self::Durable | Self::Shared | Self::Layered => 60,
            Self::Weighted | Self::LeasedBrief | Self::LeasedBucket | Self::GlobalBrief => 80,
            // Those with reservations are reached by what is reserved most of the time.
            Self::Leased
            | Self::LeasedDurable
            | Self::LeasedShared
            | Self::Reserved
            | Self::ReservedDurable
            | Self::ReservedLeased
            | Self::ReservedEventual => 120,
            Self::LeasedLarge => 20_000,
            // Not reached by the usual load, so every lost hit is visible.
            Self::Bucket => 500,
            Self::Brief => 20,
            Self::LeasedSliced | Self::Switched | Self::Loosened | Self::Eventual => 100,
            Self::LeasedSmall | Self::Junk => 5,
            Self::Global | Self::GlobalLeased => 150,
            Self::GlobalDurable => 5_000,
            Self::GlobalShared => 90,
        }
    }

    pub(crate) const fn window(self) -> Span {
        match self {
            Self::Brief | Self::GlobalBrief => Span::from_secs(BRIEF_SECONDS),
            Self::LeasedBrief | Self::LeasedSliced | Self::LeasedBucket => LEASED_BRIEF,
            _ => DAY,
        }
    }

    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Bucket | Self::LeasedBucket => Algorithm::Gcra,
            Self::LeasedSliced => Algorithm::SlidingWindowCounter,
            // Its states hold times: a copy from a clock far ahead is refused.
            Self::Durable | Self::GlobalDurable => Algorithm::SlidingWindowLog,
            _ => Algorithm::FixedWindow,
        }
    }

    pub(crate) const fn scope(self) -> Scope {
        match self {
            Self::Global
            | Self::GlobalDurable
            | Self::GlobalShared
            | Self::GlobalLeased
            | Self::GlobalBrief => Scope::Global,
            _ => Scope::Region,
        }
    }

    /// Whether an answer waits for a replica.
    pub(crate) fn is_durable(self) -> bool {
        matches!(self, Self::Durable | Self::GlobalDurable | Self::LeasedDurable)
            || self == Self::ReservedDurable
    }

    /// Whether each node has a share of the limit while the owner does not answer.
    pub(crate) fn has_shares(self) -> bool {
        matches!(self, Self::Shared | Self::GlobalShared | Self::LeasedShared)
    }

    /// Whether the key's owner decides every hit, or has charged it before.
    pub(crate) fn is_strict(self) -> bool {
        !matches!(self, Self::Eventual | Self::ReservedEventual)
    }

    pub(crate) fn is_reserved(self) -> bool {
        RESERVED.contains(&self)
    }

    /// Whether the rule is leased, at least at the start.
    pub(crate) fn is_leased(self) -> bool {
        LEASED.contains(&self) || self.is_divided() || self == Self::ReservedLeased
    }

    /// Whether each region decides a share of the limit.
    pub(crate) fn is_divided(self) -> bool {
        matches!(self, Self::GlobalLeased | Self::GlobalBrief)
    }

    /// Whether counts end during a run.
    pub(crate) fn is_brief(self) -> bool {
        matches!(self, Self::Brief | Self::LeasedBrief | Self::LeasedSliced | Self::LeasedBucket)
            || self == Self::GlobalBrief
    }

    /// The quota of the rule.
    pub(crate) fn quota(self) -> Quota {
        let (algorithm, limit) = (self.algorithm(), self.limit());
        let sub_windows = if self == Self::LeasedSliced { SLICES } else { 1 };
        let parts = QuotaParts {
            algorithm,
            limit,
            window: self.window(),
            burst: limit,
            sub_windows,
            queue: None,
        };
        Quota::new(parts).expect("a valid quota")
    }

    /// The checked keys of this kind in `regions`, of which each counts its own.
    fn keys(self, regions: usize) -> impl Iterator<Item = Key> {
        let regions = if self.scope() == Scope::Global { 1 } else { regions };
        let are_few = self.is_leased() || self.is_reserved();
        let numbers = if are_few { FEW_KEYS_PER_KIND } else { KEYS_PER_KIND };
        (0..regions).flat_map(move |region| {
            (0..numbers).map(move |number| Key { kind: self, number, region })
        })
    }
}

impl Key {
    pub(crate) fn hash(self, hasher: &KeyHasher) -> DescriptorHash {
        let value = self.number.to_string();
        let entries = [Entry { key: self.kind.name(), value: &value }];
        hasher.descriptor(DOMAIN, &entries)
    }

    /// The counter of a strict key; of several limits that of the first.
    pub(crate) fn counter(self, hasher: &KeyHasher) -> Counter {
        let quota = self.kind.quota();
        Counter { key: self.hash(hasher).counter(&quota, Mode::Strict, self.kind.scope()), quota }
    }

    /// The counters that share its limit: one of each of `homes`, or one in all.
    pub(crate) fn counters(self, hasher: &KeyHasher, homes: &[String]) -> Vec<Counter> {
        let whole = self.counter(hasher);
        if !self.kind.is_divided() {
            return vec![whole];
        }
        let shares = (0..).zip(shares::of_key(homes, whole.key.token));
        let count = u32::try_from(homes.len()).expect("a few");
        let share = |(rank, share): (u32, shares::RegionShare<'_>)| Counter {
            key: KeyHash { token: share.token, ..whole.key },
            quota: whole.quota.part(rank, count).expect("large enough"),
        };
        shares.map(share).collect()
    }
}

/// The checked kinds, by the number of regions.
pub(crate) fn kinds(regions: usize) -> &'static [Kind] {
    if regions > 1 { &CHECKED_IN_REGIONS } else { &CHECKED }
}

/// The kinds of leased rules, by the number of regions.
pub(crate) fn leased_kinds(regions: usize) -> &'static [Kind] {
    if regions > 1 { &LEASED_IN_REGIONS } else { &LEASED }
}

/// The checked keys of all kinds.
pub(crate) fn checked(selection: Selection) -> impl Iterator<Item = Key> {
    let Selection { regions, are_leased, are_reserved } = selection;
    let leased = if are_leased { leased_kinds(regions) } else { &[] };
    let reserved = if are_reserved { &RESERVED[..] } else { &[] };
    kinds(regions).iter().chain(leased).chain(reserved).flat_map(move |kind| kind.keys(regions))
}

/// The rules: before and after a reload of the same limits with one more rule that no request uses,
/// and in each case as they are at the start and with other modes.
pub(crate) fn books(selection: Selection) -> [[Arc<Book>; 2]; 2] {
    // A seed keeps its run only with the rules it had: each hash table of a process has other keys.
    let mut rules = RULES.to_owned();
    if selection.are_leased {
        rules.push_str(LEASED_RULES);
    }
    if selection.are_reserved {
        rules.push_str(RESERVED_RULES);
    }
    if selection.regions > 1 {
        rules.push_str(GLOBAL_RULES);
        if selection.are_leased {
            rules.push_str(GLOBAL_LEASED_RULES);
        }
    }
    ["", ONE_MORE].map(|more| {
        let book = |switched: &str, loosened: &str| {
            let text = format!("{rules}{more}");
            let text = text.replace("SWITCHED", switched).replace("LOOSENED", loosened);
            let source = Source { name: "sim.yaml".to_owned(), bytes: text.into_bytes() };
            Arc::new(load::parse(&[source], &Options::default()).expect("valid rules"))
        };
        let first = book("leased", "leased");
        let other = if selection.are_leased { book("strict", "eventual") } else { first.clone() };
        [first, other]
    })
}

/// A reloadable handle to a node's rule book.
pub(crate) fn cell(book: &Arc<Book>) -> Arc<ArcSwap<Book>> {
    Arc::new(ArcSwap::new(book.clone()))
}

const RULES: &str = "
domain: sim
descriptors:
  - key: strict
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 60}
  - key: bucket
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 500, algorithm: gcra}
  - key: durable
    durability: replicated
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 60, algorithm: sliding_window_log}
  - key: shared
    on_unavailable: local
    rate_limit: {unit: day, requests_per_unit: 60}
  - key: brief
    on_unavailable: deny
    rate_limit: {window: 5s, requests_per_unit: 20}
  - key: weighted
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 80}
  - key: layered
    on_unavailable: deny
    rate_limit:
      - {unit: day, requests_per_unit: 60}
      - {window: 5s, requests_per_unit: 12}
  - key: eventual
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: junk
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 5}
";

const GLOBAL_RULES: &str = "  - key: global
    scope: global
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 150}
  - key: global-durable
    scope: global
    durability: replicated
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 5000, algorithm: sliding_window_log}
  - key: global-shared
    scope: global
    on_unavailable: local
    rate_limit: {unit: day, requests_per_unit: 90}
";

const LEASED_RULES: &str = "  - key: leased
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 120}
  - key: leased-large
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 20000}
  - key: leased-small
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: leased-brief
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 2s, requests_per_unit: 80}
  - key: leased-sliced
    mode: leased
    on_unavailable: deny
    rate_limit:
      {window: 2s, requests_per_unit: 100, algorithm: sliding_window_counter, sub_windows: 4}
  - key: leased-bucket
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 2s, requests_per_unit: 80, algorithm: gcra}
  - key: leased-durable
    mode: leased
    durability: replicated
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 120}
  - key: leased-shared
    mode: leased
    on_unavailable: local
    rate_limit: {unit: day, requests_per_unit: 120}
  - key: switched
    mode: SWITCHED
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: loosened
    mode: LOOSENED
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 100}
";

const GLOBAL_LEASED_RULES: &str = "  - key: global-leased
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 150}
  - key: global-brief
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit: {window: 5s, requests_per_unit: 80}
";

const RESERVED_RULES: &str = "  - key: reserved
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 120}
  - key: reserved-durable
    durability: replicated
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 120}
  - key: reserved-leased
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 120}
  - key: reserved-eventual
    mode: eventual
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 120}
";

const ONE_MORE: &str = "  - key: reloaded
    rate_limit: {unit: day, requests_per_unit: 1}
";

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.number)?;
        if self.region > 0 { write!(f, "@{}", self.region) } else { Ok(()) }
    }
}
