//! Errors and warnings of rules: what is wrong, where, and what to do about it.
//!
//! Printed as `file:line:column: key: fact; advice`, which editors and terminals turn into a link.
//! Where envoyproxy/ratelimit rejects the same thing, the fact uses its exact words, so that
//! searches and alerts keep working.

use std::fmt;

use tidegate_limiter::quota::{self, Algorithm};

use super::keys::{self, Section};
use super::yaml::{self, Mark};

/// Why rules cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file or folder with the error.
    pub file: Box<str>,
    /// Where in the file, if it is one position.
    pub at: Option<Mark>,
    /// The key with the error, if it is one.
    pub key: Option<&'static str>,
    pub reason: Reason,
}

impl Error {
    pub(super) fn new(
        file: &str,
        at: Option<Mark>,
        key: Option<&'static str>,
        reason: Reason,
    ) -> Self {
        Self { file: file.into(), at, key, reason }
    }
}

/// What is wrong with the rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    // Files.
    #[error("cannot be read: {0}")]
    Unreadable(Box<str>),
    #[error("{0}")]
    TooManyFiles(&'static str),
    #[error("holds no rule file any more")]
    Emptied,
    #[error("error loading config file: {0}")]
    Yaml(yaml::Error),

    // Structure.
    #[error("error loading config file: expected {expected}, found {found}")]
    Type { expected: &'static str, found: Box<str> },
    #[error("config error, key is not of type string: {0}")]
    KeyType(Box<str>),
    #[error("config error, unknown key '{key}'")]
    UnknownKey { key: Box<str>, section: Option<Section> },
    #[error("does not belong in {section}")]
    Misplaced { key: &'static keys::Key, section: Section },
    #[error("config error, yaml file contains list of type other than map: {0}")]
    ListOf(Box<str>),
    #[error("error checking config")]
    Fraction(Box<str>),

    // Descriptors.
    #[error("config file cannot have empty domain")]
    EmptyDomain,
    #[error("duplicate domain '{0}' in config file")]
    DuplicateDomain(Box<str>),
    #[error("descriptor has empty key")]
    EmptyKey,
    #[error("duplicate descriptor composite key '{0}'")]
    DuplicateDescriptor(Box<str>),
    #[error("is longer than 1024 bytes")]
    LongText,
    #[error("the rules hold {0}")]
    BookFull(&'static str),
    #[error(
        "share_threshold can only be used with wildcard values (containing '*'), but found key '{0}'"
    )]
    ShareWithoutWildcard(Box<str>),
    #[error("is given twice for one rule, and differently")]
    Contradiction,

    // Limits.
    #[error("invalid rate limit unit '{0}'")]
    Unit(Box<str>),
    #[error("should not specify rate limit unit when unlimited")]
    UnitWhenUnlimited,
    #[error("unit and window exclude each other")]
    UnitAndWindow,
    /// A window is written with its own length.
    #[error("multiplies a unit, and there is a window")]
    MultiplierAndWindow,
    #[error("'{text}' is neither a part of the limit, 0% to 99%, nor a number below {capacity}")]
    SoftLimit { text: Box<str>, capacity: u32 },
    #[error("'{0}' is no duration")]
    Duration(Box<str>),
    #[error("'{word}' is not one of {choices}")]
    Choice { word: Box<str>, choices: Box<str> },
    #[error("{number} is outside {min} to {max}")]
    Range { number: i64, min: i64, max: i64 },
    #[error("{0}")]
    Quota(quota::Error),
    #[error("{} cannot be counted in mode eventual", .0.name())]
    NotEventual(Algorithm),
    #[error("scope global is for strict and leased rules; all regions share an eventual one")]
    GlobalEventual,
    /// An eventual limit has no owner that could wait for a replica.
    #[error("an eventual limit is not replicated before its answer")]
    DurableEventual,
    #[error("a list of limits holds 1 to 8, not {0}")]
    LimitCount(usize),
    #[error("unlimited stands in a list of limits")]
    UnlimitedInList,
    /// They would use the same counter.
    #[error("two limits of one rule have the same algorithm and the same window")]
    SameCounter,
    #[error("should not have an empty replaces entry")]
    EmptyReplaces,
    #[error("envoyproxy/ratelimit has no such key")]
    OnlyOurs,
    #[error("envoyproxy/ratelimit accepts one limit, not a list")]
    OnlyOneLimit,
    #[error(
        "duplicate descriptor composite key '{0}' for envoyproxy/ratelimit, which joins key and \
         value by an underscore: line {1} has it too"
    )]
    CompositeKey(Box<str>, u32),
    #[error("replaces should not contain name of same descriptor")]
    ReplacesItself,
    #[error("error parsing metadata: {0}")]
    Metadata(Box<str>),
}

impl Reason {
    /// What to do about it; empty when the fact is enough.
    fn advice(&self) -> String {
        let fixed = match self {
            Self::Unreadable(_) => "check the path and who may read it",
            Self::TooManyFiles(_) | Self::BookFull(_) => "use fewer or shorter rules",
            Self::Emptied => "a file with nothing but a domain is an empty set of rules",
            Self::Yaml(yaml::Error::Syntax(_)) => "correct the YAML",
            Self::Yaml(yaml::Error::NotUtf8) => "save it as UTF-8",
            Self::Yaml(yaml::Error::TooLong(_)) => "split it into several files",
            Self::Yaml(_) => "use fewer or simpler anchors and aliases",
            Self::Type { expected, .. } => return format!("write {expected} here"),
            Self::KeyType(_) => "keys are words, such as domain, descriptors and key",
            Self::UnknownKey { key, section } => return keys::suggestion(key, *section),
            Self::Misplaced { key, .. } => return format!("move it to {}", keys::sections(key)),
            Self::ListOf(_) => {
                "only descriptors, rate_limit and replaces take lists, and those are of mappings"
            }
            Self::Fraction(text) => {
                return format!("{text} is no integer; put it in quotes if it is meant as text");
            }
            Self::EmptyDomain => "begin the file with `domain: NAME`",
            Self::DuplicateDomain(_) => {
                "keep the rules of a domain in one file, or allow domains to be merged"
            }
            Self::EmptyKey => "give it `key: NAME`",
            Self::DuplicateDescriptor(_) => "merge the two, or remove one",
            Self::LongText => "no request carries that much; shorten it",
            Self::ShareWithoutWildcard(_) => "remove share_threshold, or end the value in *",
            Self::Contradiction | Self::UnitAndWindow | Self::MultiplierAndWindow => {
                "keep one of them"
            }
            Self::SoftLimit { .. } => "write `soft_limit: 80%`, for example",
            Self::Unit(_) => {
                "use second, minute, hour, day, week, month or year, or `window: 90s` instead"
            }
            Self::UnitWhenUnlimited => "remove unit and window, or unlimited",
            Self::Duration(_) => "write a number with ms, s, m, h, d or w, for example 90s",
            Self::NotEventual(_) => {
                "use fixed_window or sliding_window_counter, or set mode: strict"
            }
            Self::GlobalEventual => "remove scope, or set mode: strict or leased",
            Self::DurableEventual => "remove durability, or set mode: strict",
            Self::LimitCount(_) => "give 1 to 8 limits, or leave rate_limit out",
            Self::UnlimitedInList => "remove it, or the other limits",
            Self::SameCounter => "keep the smaller one: the other never refuses first",
            Self::EmptyReplaces => "give it the name of a rule, `- name: OTHER`",
            Self::ReplacesItself => "a rule replaces other rules; remove its own name",
            Self::OnlyOurs => "remove it, or validate without --strict-compat",
            Self::OnlyOneLimit => "keep one of them, or validate without --strict-compat",
            Self::CompositeKey(..) => "rename one of them, or validate without --strict-compat",
            Self::Metadata(_) => "write texts as keys",
            Self::Choice { .. } | Self::Range { .. } | Self::Quota(_) => "",
        };
        fixed.into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fact = self.reason.to_string();
        // Some facts begin with the key.
        let key = self.key.filter(|key| !fact.starts_with(key));
        write_location(f, &self.file, self.at, key)?;
        f.write_str(&fact)?;
        match self.reason.advice() {
            advice if advice.is_empty() => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

// Without a source: the reason is part of the text.
impl std::error::Error for Error {}

/// Something that is accepted but has another effect than its author may expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub file: Box<str>,
    pub at: Option<Mark>,
    pub key: Option<&'static str>,
    pub text: Box<str>,
}

/// The first [`WARNINGS_MAX`] warnings of a load.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Vec<Warning>);

/// Most warnings of a load.
pub const WARNINGS_MAX: usize = 1_000;

impl Warnings {
    /// Adds a warning, up to [`WARNINGS_MAX`].
    pub fn add(&mut self, warning: Warning) {
        if self.0.len() < WARNINGS_MAX {
            self.0.push(warning);
        }
    }

    /// In the order of the files.
    pub fn as_slice(&self) -> &[Warning] {
        &self.0
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_location(f, &self.file, self.at, self.key)?;
        f.write_str(&self.text)
    }
}

fn write_location(
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
