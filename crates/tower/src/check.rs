//! What a layer asks, and who answers: [`Limiter`].

use std::borrow::Cow;
use std::fmt;

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use crate::verdict::Verdict;

/// Decides checks, and counts what it allows.
///
/// An answer that needs no waiting is [`Answer::Now`]: then the layer allocates no task state and
/// sets no timer. The layer drops an [`Answer::Later`] that takes longer than its deadline.
pub trait Limiter: Send + Sync + 'static {
    /// Decides all descriptors of `check`: allowed if each of their limits allows it.
    fn check(&self, check: &Check<'_>) -> Answer;
}

/// A verdict, or the wait for one.
#[expect(clippy::large_enum_variant, reason = "most answers are there, without an allocation")]
pub enum Answer {
    Now(Result<Verdict, CheckError>),
    Later(BoxFuture<'static, Result<Verdict, CheckError>>),
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Selects the rules.
    pub domain: &'a str,
    /// At least one.
    pub descriptors: &'a [Descriptor],
    /// What each descriptor is charged: 0 only looks, below zero gives hits back.
    pub hits: i64,
}

/// Keys with their values, in the order of the rule: they name the counter of a request.
///
/// ```
/// use tidegate_tower::Descriptor;
///
/// let descriptor = Descriptor::new("path", "/login").with("user", "ann");
/// assert_eq!(descriptor.entries().collect::<Vec<_>>(), [("path", "/login"), ("user", "ann")]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor(SmallVec<[(Cow<'static, str>, String); 1]>);

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The limiter does not take the check, such as one with an overlong value. It is refused: if
    /// it were allowed, a client could send a value that evades the limit.
    #[error("not taken by the rate limiter: {0}")]
    Invalid(String),
    /// No limiter decided.
    #[error("no decision: {0}")]
    Undecided(String),
}

impl Descriptor {
    /// One key with its value.
    pub fn new(key: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        Self(smallvec::smallvec![(key.into(), value.into())])
    }

    /// The same with a further key below the others.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.0.push((key.into(), value.into()));
        self
    }

    /// Keys and values, outermost first.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(result) => f.debug_tuple("Now").field(result).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}
