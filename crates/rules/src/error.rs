//! What is wrong with the rules, where, and what to do about it.
//!
//! Printed as `file:line:column: key: fact; advice`, which editors and terminals turn into a link.
//! Where envoyproxy/ratelimit refuses the same thing, the fact is in its very words, so that what
//! people search for and alert on keeps working.

use std::fmt;

use tidegate_limiter::quota::{self, Algorithm};

use super::keys::{self, Place};
use super::yaml::{self, Mark};

/// Why some files make no rule book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file or folder at fault.
    pub file: Box<str>,
    /// Where in the file, when it is one place.
    pub at: Option<Mark>,
    /// The key at fault, when it is one.
    pub key: Option<&'static str>,
    /// What is wrong.
    pub reason: Reason,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    // --- the files ---
    /// The system refuses to read it.
    #[error("cannot be read: {0}")]
    Unreadable(Box<str>),
    /// More files, or deeper folders, than a rule book takes.
    #[error("{0}")]
    TooManyFiles(&'static str),
    /// Every rule file is gone.
    #[error("holds no rule file any more")]
    Emptied,
    /// The file is no YAML.
    #[error("error loading config file: {0}")]
    Yaml(yaml::Error),

    // --- the shape ---
    /// Something else than what the key takes.
    #[error("error loading config file: expected {expected}, found {found}")]
    Type {
        /// What the key takes.
        expected: &'static str,
        /// What stands there.
        found: Box<str>,
    },
    /// A key that is no text.
    #[error("config error, key is not of type string: {0}")]
    KeyType(Box<str>),
    /// A key that nothing knows.
    #[error("config error, unknown key '{key}'")]
    UnknownKey {
        /// What was written.
        key: Box<str>,
        /// Where it was written.
        place: Option<Place>,
    },
    /// A key of ours where it means nothing.
    #[error("does not belong in {place}")]
    Misplaced {
        /// What was written.
        key: &'static keys::Key,
        /// Where it was written.
        place: Place,
    },
    /// A list of something else than mappings.
    #[error("config error, yaml file contains list of type other than map: {0}")]
    ListOf(Box<str>),
    /// A number that is no integer.
    #[error("error checking config")]
    Fraction(Box<str>),

    // --- the descriptors ---
    /// A file without `domain`.
    #[error("config file cannot have empty domain")]
    EmptyDomain,
    /// A domain in two files.
    #[error("duplicate domain '{0}' in config file")]
    DuplicateDomain(Box<str>),
    /// A descriptor without `key`.
    #[error("descriptor has empty key")]
    EmptyKey,
    /// One descriptor twice.
    #[error("duplicate descriptor composite key '{0}'")]
    DuplicateDescriptor(Box<str>),
    /// A name that no request can carry.
    #[error("is longer than 1024 bytes")]
    LongText,
    /// More than a book holds.
    #[error("the rules hold {0}")]
    BookFull(&'static str),
    /// `share_threshold` without a wildcard.
    #[error(
        "share_threshold can only be used with wildcard values (containing '*'), but found key '{0}'"
    )]
    ShareWithoutWildcard(Box<str>),
    /// Two places of one rule say different things.
    #[error("is given twice for one rule, and differently")]
    Contradiction,

    // --- the limits ---
    /// A `unit` that is none, or none at all.
    #[error("invalid rate limit unit '{0}'")]
    Unit(Box<str>),
    /// `unit` or `window` on an unlimited rule.
    #[error("should not specify rate limit unit when unlimited")]
    UnitWhenUnlimited,
    /// `unit` and `window` at once.
    #[error("unit and window exclude each other")]
    UnitAndWindow,
    /// A `window` that is no duration.
    #[error("'{0}' is no duration")]
    Duration(Box<str>),
    /// A word that the key does not know.
    #[error("'{word}' is not one of {choices}")]
    Choice {
        /// What was written.
        word: Box<str>,
        /// What the key knows.
        choices: &'static str,
    },
    /// A number outside the range of the key.
    #[error("{number} is outside {min} to {max}")]
    Range {
        /// What was written.
        number: i64,
        /// The least that the key takes.
        min: i64,
        /// The most that the key takes.
        max: i64,
    },
    /// The parts make no quota.
    #[error("{0}")]
    Quota(quota::Error),
    /// An algorithm that cannot be merged column by column.
    #[error("{} cannot be counted in mode eventual", .0.name())]
    NotEventual(Algorithm),
    /// `scope: global` on an eventual rule.
    #[error("scope global is for mode strict; an eventual rule is shared by all regions anyway")]
    GlobalEventual,
    /// An eventual limit has no owner whose answer could wait for a replica.
    #[error("an eventual limit is not replicated before its answer")]
    DurableEventual,
    /// A list of limits that is empty or too long.
    #[error("a list of limits holds 1 to 8, not {0}")]
    LimitCount(usize),
    /// `unlimited` among other limits.
    #[error("unlimited stands in a list of limits")]
    UnlimitedInList,
    /// Two limits that would count in one counter.
    #[error("two limits of one rule have the same algorithm and the same window")]
    SameCounter,
    /// A `replaces` without a name.
    #[error("should not have an empty replaces entry")]
    EmptyReplaces,
    /// A key of ours, where envoyproxy/ratelimit is to read the file too.
    #[error("envoyproxy/ratelimit does not know it")]
    OnlyOurs,
    /// A list of limits, likewise.
    #[error("envoyproxy/ratelimit knows one limit alone, and no list of them")]
    OnlyOneLimit,
    /// A `replaces` with the rule's own name.
    #[error("replaces should not contain name of same descriptor")]
    ReplacesItself,
    /// `metadata` that Envoy could not be told.
    #[error("error parsing metadata: {0}")]
    Metadata(Box<str>),
}

impl Reason {
    /// What to do about it; empty when the fact says so already.
    fn advice(&self) -> String {
        match self {
            Self::Unreadable(_) => "check the path and who may read it".into(),
            Self::TooManyFiles(_) | Self::BookFull(_) => "use fewer or shorter rules".into(),
            Self::Emptied => "a file with nothing but a domain is an empty set of rules".into(),
            Self::Yaml(yaml::Error::Syntax(_)) => "correct the YAML".into(),
            Self::Yaml(yaml::Error::NotUtf8) => "save it as UTF-8".into(),
            Self::Yaml(yaml::Error::TooLong(_)) => "split it into several files".into(),
            Self::Yaml(_) => "use fewer or simpler anchors and aliases".into(),
            Self::Type { expected, .. } => format!("write {expected} here"),
            Self::KeyType(_) => "keys are words, such as domain, descriptors and key".into(),
            Self::UnknownKey { key, place } => keys::suggestion(key, *place),
            Self::Misplaced { key, .. } => format!("move it to {}", keys::places(key)),
            Self::ListOf(_) => {
                "only descriptors, rate_limit and replaces take lists, and those are of mappings"
                    .into()
            }
            Self::Fraction(text) => {
                format!("{text} is no integer; put it in quotes if it is meant as text")
            }
            Self::EmptyDomain => "begin the file with `domain: NAME`".into(),
            Self::DuplicateDomain(_) => {
                "keep the rules of a domain in one file, or allow domains to be merged".into()
            }
            Self::EmptyKey => "give it `key: NAME`".into(),
            Self::DuplicateDescriptor(_) => "merge the two, or remove one".into(),
            Self::LongText => "no request carries that much; shorten it".into(),
            Self::ShareWithoutWildcard(_) => "remove share_threshold, or end the value in *".into(),
            Self::Contradiction | Self::UnitAndWindow => "keep one of them".into(),
            Self::Unit(_) => {
                "use second, minute, hour, day, week, month or year, or `window: 90s` instead"
                    .into()
            }
            Self::UnitWhenUnlimited => "remove unit and window, or unlimited".into(),
            Self::Duration(_) => "write a number with ms, s, m, h, d or w, for example 90s".into(),
            Self::NotEventual(_) => {
                "use fixed_window or sliding_window_counter, or set mode: strict".into()
            }
            Self::GlobalEventual => "remove scope, or set mode: strict".into(),
            Self::DurableEventual => "remove durability, or set mode: strict".into(),
            Self::LimitCount(_) => "give 1 to 8 limits, or leave rate_limit out".into(),
            Self::UnlimitedInList => "remove it, or the other limits".into(),
            Self::SameCounter => "keep the smaller one: the other never refuses first".into(),
            Self::EmptyReplaces => "give it the name of a rule, `- name: OTHER`".into(),
            Self::ReplacesItself => "a rule replaces other rules; remove its own name".into(),
            Self::OnlyOurs => "remove it, or validate without --strict-compat".into(),
            Self::OnlyOneLimit => "keep one of them, or validate without --strict-compat".into(),
            Self::Metadata(_) => "write texts as keys".into(),
            Self::Choice { .. } | Self::Range { .. } | Self::Quota(_) => String::new(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fact = self.reason.to_string();
        // Some facts begin with their key.
        let key = self.key.filter(|key| !fact.starts_with(key));
        write_place(f, &self.file, self.at, key)?;
        f.write_str(&fact)?;
        match self.reason.advice() {
            advice if advice.is_empty() => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None
    }
}

/// Something that is accepted and does not do what its author may think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file.
    pub file: Box<str>,
    /// Where in it.
    pub at: Option<Mark>,
    /// The key.
    pub key: Option<&'static str>,
    /// What it does not do.
    pub text: Box<str>,
}

/// The warnings of a load: the first [`WARNINGS_MAX`], a thousand of a kind tell no more.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Vec<Warning>);

/// Most warnings that are kept.
pub const WARNINGS_MAX: usize = 1_000;

impl Warnings {
    /// Keeps a warning, unless there are enough.
    pub fn add(&mut self, warning: Warning) {
        if self.0.len() < WARNINGS_MAX {
            self.0.push(warning);
        }
    }

    /// All that were kept, in the order of the files.
    pub fn as_slice(&self) -> &[Warning] {
        &self.0
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, &self.file, self.at, self.key)?;
        f.write_str(&self.text)
    }
}

fn write_place(
    f: &mut fmt::Formatter<'_>,
    file: &str,
    at: Option<Mark>,
    key: Option<&str>,
) -> fmt::Result {
    write!(f, "{file}:")?;
    if let Some(Mark { line, column }) = at.filter(|at| *at != Mark::NONE) {
        write!(f, "{line}:{column}:")?;
    }
    match key {
        Some(key) => write!(f, " {key}: "),
        None => f.write_str(" "),
    }
}
