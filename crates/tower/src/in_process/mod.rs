//! Limits of this process: the engine, the store and the rule files of a node, without a cluster.
//!
//! Each process counts for itself: with `n` processes behind a load balancer a client gets up to
//! `n` times the limit. `mode`, `scope`, `durability` and `on_unavailable` of a rule, which are
//! about several nodes, have no effect here.
//!
//! A check takes no lock but that of its shard and allocates only what it returns. Memory is
//! bounded by [`Options::keys_max`], and some 1 KB for each rule that was applied; a full store
//! never evicts a counter that matters.
//!
//! *Example*: 10 a minute and 100 an hour on one descriptor. The eleventh request of a minute is
//! refused by the first, and the second is not charged for it.

mod clock;
mod decide;
mod fields;
mod policies;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_limiter::store::{KeyHasher, OnFull, Options, Stats, Store};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_rules::Error;
use tidegate_rules::book::Book;
use tidegate_rules::load::{self, Source};

use self::clock::Clock;
use self::policies::Rules;
use crate::check::{Answer, Check, Limiter};
use crate::verdict::Verdict;

/// The default of the most counters: some 50 MB when all are in use.
const KEYS_MAX: usize = 1_000_000;

/// Decides checks in this process.
///
/// ```
/// use tidegate_tower::{Check, Descriptor, InProcess, Timestamp};
///
/// let limiter = InProcess::from_yaml(
///     "domain: http
/// descriptors:
///   - key: user
///     rate_limit: {unit: minute, requests_per_unit: 2}
/// ",
/// )?;
/// let ann = [Descriptor::new("user", "ann")];
/// let check = Check { domain: "http", descriptors: &ann, hits: 1 };
/// let now = Timestamp::from_secs(1_767_225_600);
/// let allowed = [(); 3].map(|()| limiter.check_at(&check, now).allowed);
/// assert_eq!(allowed, [true, true, false]);
/// # Ok::<(), tidegate_tower::rules::Error>(())
/// ```
pub struct InProcess {
    rules: ArcSwap<Rules>,
    hasher: KeyHasher,
    store: Store,
    clock: Clock,
}

impl InProcess {
    /// Limits by `book`, for a million counters.
    pub fn new(book: Book) -> Self {
        let options = Options { keys_max: KEYS_MAX, on_full: OnFull::Share, shards: None };
        Self::with_options(book, options)
    }

    /// Limits by `book` within other bounds.
    pub fn with_options(book: Book, options: Options) -> Self {
        Self {
            rules: ArcSwap::from_pointee(Rules::new(book)),
            hasher: KeyHasher::new(secret()),
            store: Store::new(options),
            clock: Clock::start(),
        }
    }

    /// Limits by the rule files in a folder, or by one file.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is not valid; the text has file, line and key.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(Self::new(load::load(path.as_ref(), &load::Options::default())?))
    }

    /// Limits by the text of one rule file.
    ///
    /// # Errors
    ///
    /// If it is not valid; the text has line and key.
    pub fn from_yaml(yaml: &str) -> Result<Self, Error> {
        let source = Source { name: "rules".to_owned(), bytes: yaml.into() };
        Ok(Self::new(load::parse(&[source], &load::Options::default())?))
    }

    /// Replaces the rules. Counters stay: a limit that only grew or shrank keeps its counts.
    /// Requests that are being decided use the rules that they began with.
    pub fn replace_rules(&self, mut book: Book) {
        book.carry_stats(&self.rules.load().book);
        self.rules.store(Rules::new(book).into());
    }

    /// The rules in force, with the statistics of each.
    pub fn rules(&self) -> Arc<Book> {
        Arc::clone(&self.rules.load().book)
    }

    /// The counters held, and how many were refused or shared because the store was full.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Decides a check at `now`. All checks of a limiter should use one clock.
    #[inline]
    pub fn check_at(&self, check: &Check<'_>, now: Timestamp) -> Verdict {
        let rules = self.rules.load();
        let hits = Hits::new(check.hits);
        let statuses = decide::decide(&rules.book, &self.hasher, &self.store, check, hits, now);
        fields::verdict(&statuses, &rules)
    }
}

impl Limiter for InProcess {
    fn check(&self, check: &Check<'_>) -> Answer {
        Answer::Now(Ok(self.check_at(check, self.clock.now())))
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

/// Keys the hash of counters, so that clients cannot choose values that share one. The standard
/// library seeds its hash maps from the randomness of the system.
fn secret() -> [u8; 16] {
    let mut secret = [0; 16];
    for half in secret.chunks_exact_mut(8) {
        half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    secret
}
