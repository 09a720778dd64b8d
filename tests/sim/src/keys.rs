//! The keys of the load: a few kinds, each with its own rule.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_limiter::quota::{Algorithm, Quota};
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
    /// Eventual: decided by the node that receives the request.
    Eventual,
    /// New keys that fill the stores.
    Junk,
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
}

/// Kinds whose keys are checked individually.
pub(crate) const CHECKED: [Kind; 6] =
    [Kind::Strict, Kind::Bucket, Kind::Durable, Kind::Shared, Kind::Brief, Kind::Eventual];
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
            Self::Eventual => "eventual",
            Self::Junk => "junk",
        }
    }

    pub(crate) const fn limit(self) -> u32 {
        match self {
            Self::Strict | Self::Durable | Self::Shared => 60,
            // Not reached by the usual load, so every lost hit is visible.
            Self::Bucket => 500,
            Self::Brief => 20,
            Self::Eventual => 100,
            Self::Junk => 5,
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
            _ => Algorithm::FixedWindow,
        }
    }

    /// Whether the key's owner decides every hit.
    pub(crate) fn is_strict(self) -> bool {
        self != Self::Eventual
    }

    /// The quota of the rule.
    pub(crate) fn quota(self) -> Quota {
        Quota::simple(self.algorithm(), self.limit(), self.window()).expect("a valid quota")
    }

    /// The checked keys of this kind.
    pub(crate) fn keys(self) -> impl Iterator<Item = Key> {
        (0..KEYS_PER_KIND).map(move |number| Key { kind: self, number })
    }
}

/// The checked keys of all kinds.
pub(crate) fn checked() -> impl Iterator<Item = Key> {
    CHECKED.into_iter().flat_map(Kind::keys)
}

/// The rules before and after a reload: the same limits, and one more rule that no request uses.
pub(crate) fn books() -> [Arc<Book>; 2] {
    [RULES.to_owned(), format!("{RULES}{ONE_MORE}")].map(|text| {
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
    rate_limit: {unit: day, requests_per_unit: 60}
  - key: shared
    on_unavailable: local
    rate_limit: {unit: day, requests_per_unit: 60}
  - key: brief
    on_unavailable: deny
    rate_limit: {window: 5s, requests_per_unit: 20}
  - key: eventual
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: junk
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 5}
";

const ONE_MORE: &str = "  - key: reloaded
    rate_limit: {unit: day, requests_per_unit: 1}
";

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.number)
    }
}
