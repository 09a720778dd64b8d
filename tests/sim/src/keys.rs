//! What is asked: a few kinds of keys, each with a rule of its own.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::Span;
use tidegate_rules::book::Book;
use tidegate_rules::load::{self, Options, Source};

/// The domain of every ask.
pub(crate) const DOMAIN: &str = "sim";

/// A kind of key; each is one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Strict, a window of a day, refused while nobody can decide: exact or refused.
    Strict,
    /// The same as a bucket.
    Bucket,
    /// Strict, and an answer waits until a replica has the count.
    Durable,
    /// Strict; while nobody can decide, each node has its share.
    Shared,
    /// Strict, with windows that end during the run.
    Brief,
    /// Decided by every node on the spot.
    Eventual,
    /// Made up by the thousand to fill the stores.
    Junk,
}

/// A kind of key and which one of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
}

/// Kinds whose keys are checked one by one.
pub(crate) const CHECKED: [Kind; 6] =
    [Kind::Strict, Kind::Bucket, Kind::Durable, Kind::Shared, Kind::Brief, Kind::Eventual];
/// Keys of each checked kind.
pub(crate) const KEYS_PER_KIND: u64 = 6;
/// Seconds of a window of [`Kind::Brief`].
pub(crate) const BRIEF_SECONDS: u64 = 5;
const DAY: Span = Span::from_secs(86_400);

impl Kind {
    /// The key of its descriptors.
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
            // Never reached by the usual load: shows every single hit that is forgotten.
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

    /// Whether every hit is decided by the key's one owner.
    pub(crate) fn is_strict(self) -> bool {
        self != Self::Eventual
    }

    /// What one exact node would apply.
    pub(crate) fn quota(self) -> Quota {
        Quota::simple(self.algorithm(), self.limit(), self.window()).expect("a valid quota")
    }

    /// All keys of this kind that are checked.
    pub(crate) fn keys(self) -> impl Iterator<Item = Key> {
        (0..KEYS_PER_KIND).map(move |number| Key { kind: self, number })
    }
}

/// All keys that are checked.
pub(crate) fn checked() -> impl Iterator<Item = Key> {
    CHECKED.into_iter().flat_map(Kind::keys)
}

/// The rules, before a reload and after it: the same limits, and one more rule that nobody asks.
pub(crate) fn books() -> [Arc<Book>; 2] {
    [RULES.to_owned(), format!("{RULES}{ONE_MORE}")].map(|text| {
        let source = Source { name: "sim.yaml".to_owned(), bytes: text.into_bytes() };
        Arc::new(load::parse(&[source], &Options::default()).expect("valid rules"))
    })
}

/// A cell for a node's book.
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
