//! The keys of the load: a few kinds, each with its own rule.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, DescriptorHash, KeyHasher};
use tidegate_limiter::units::Span;
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
    /// New keys that fill the stores.
    Junk,
    /// `scope: global`, strict, `on_unavailable: deny`.
    Global,
    /// As `Global`, `durability: replicated`, a limit that is not reached.
    GlobalDurable,
    /// As `Global`, `on_unavailable: local`.
    GlobalShared,
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
/// The first of [`CHECKED`] have requests of one hit, for one limit.
pub(crate) const SIMPLE: usize = 6;
/// Number of keys of each checked kind.
pub(crate) const KEYS_PER_KIND: u64 = 6;
/// Window of [`Kind::Brief`], in seconds.
pub(crate) const BRIEF_SECONDS: u64 = 5;
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
            Self::Junk => "junk",
            Self::Global => "global",
            Self::GlobalDurable => "global-durable",
            Self::GlobalShared => "global-shared",
        }
    }

    /// Of several limits the first.
    pub(crate) const fn limit(self) -> u32 {
        match self {
            Self::Strict | Self::Durable | Self::Shared | Self::Layered => 60,
            Self::Weighted => 80,
            // Not reached by the usual load, so every lost hit is visible.
            Self::Bucket => 500,
            Self::Brief => 20,
            Self::Eventual => 100,
            Self::Junk => 5,
            Self::Global => 150,
            Self::GlobalDurable => 5_000,
            Self::GlobalShared => 90,
        }
    }

    pub(crate) const fn window(self) -> Span {
        match self {
            Self::Brief => Span::from_secs(BRIEF_SECONDS),
            _ => DAY,
        }
    }

    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Bucket => Algorithm::Gcra,
            // Its states hold times: a copy from a clock far ahead is refused.
            Self::Durable | Self::GlobalDurable => Algorithm::SlidingWindowLog,
            _ => Algorithm::FixedWindow,
        }
    }

    pub(crate) const fn scope(self) -> Scope {
        match self {
            Self::Global | Self::GlobalDurable | Self::GlobalShared => Scope::Global,
            _ => Scope::Region,
        }
    }

    /// Whether an answer waits for a replica.
    pub(crate) fn is_durable(self) -> bool {
        matches!(self, Self::Durable | Self::GlobalDurable)
    }

    /// Whether each node has a share of the limit while the owner does not answer.
    pub(crate) fn has_shares(self) -> bool {
        matches!(self, Self::Shared | Self::GlobalShared)
    }

    /// Whether the key's owner decides every hit.
    pub(crate) fn is_strict(self) -> bool {
        self != Self::Eventual
    }

    /// The quota of the rule.
    pub(crate) fn quota(self) -> Quota {
        Quota::simple(self.algorithm(), self.limit(), self.window()).expect("a valid quota")
    }

    /// The checked keys of this kind in `regions`, of which each counts its own.
    fn keys(self, regions: usize) -> impl Iterator<Item = Key> {
        let regions = if self.scope() == Scope::Global { 1 } else { regions };
        (0..regions).flat_map(move |region| {
            (0..KEYS_PER_KIND).map(move |number| Key { kind: self, number, region })
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
}

/// The checked kinds, by the number of regions.
pub(crate) fn kinds(regions: usize) -> &'static [Kind] {
    if regions > 1 { &CHECKED_IN_REGIONS } else { &CHECKED }
}

/// The checked keys of all kinds, by the number of regions.
pub(crate) fn checked(regions: usize) -> impl Iterator<Item = Key> {
    kinds(regions).iter().flat_map(move |kind| kind.keys(regions))
}

/// The rules before and after a reload, by the number of regions: the same limits, and one
/// more rule that no request uses.
pub(crate) fn books(regions: usize) -> [Arc<Book>; 2] {
    // A seed keeps its run only with the rules it had: each hash table of a process has other keys.
    let rules = if regions > 1 { format!("{RULES}{GLOBAL_RULES}") } else { RULES.to_owned() };
    [rules.clone(), format!("{rules}{ONE_MORE}")].map(|text| {
        let source = Source { name: "sim.yaml".to_owned(), bytes: text.into_bytes() };
        Arc::new(load::parse(&[source], &Options::default()).expect("valid rules"))
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

const ONE_MORE: &str = "  - key: reloaded
    rate_limit: {unit: day, requests_per_unit: 1}
";

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.number)?;
        if self.region > 0 { write!(f, "@{}", self.region) } else { Ok(()) }
    }
}
