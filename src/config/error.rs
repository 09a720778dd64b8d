//! What can be wrong with a configuration. Every text is one line: where, what, and what to do.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from, so that a mistake is reported where it can be put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable, by name.
    Variable(String),
    /// A `--set key=value`, by key.
    Flag(String),
    /// The configuration file, which does not say what it has to.
    Missing(PathBuf),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(key) => write!(f, "--set {key}"),
            Self::Missing(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("configuration"),
        }
    }
}

/// Why there is no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration file, a folder it names or a flag cannot be read.
    #[error("{what}; {fix}")]
    Unreadable {
        /// What cannot be read, and why.
        what: String,
        /// What to do.
        fix: String,
    },
    /// The file is no TOML.
    #[error("{at}: {problem}; write it as TOML (https://toml.io)")]
    Syntax {
        /// Where the parser stopped.
        at: Origin,
        /// What it found.
        problem: String,
    },
    /// A section or key that does not exist.
    #[error("{at}: unknown {key}; {fix}")]
    Unknown {
        /// Where it stands.
        at: Origin,
        /// The key as it was written.
        key: String,
        /// What was probably meant, or what exists.
        fix: String,
    },
    /// A value of the wrong type or out of range.
    #[error("{at}: {key}: {problem}; {fix}")]
    BadValue {
        /// Where it stands.
        at: Origin,
        /// The key it was given to.
        key: String,
        /// What is wrong with it.
        problem: String,
        /// What would be right.
        fix: String,
    },
    /// Keys that are right by themselves and do not go together.
    #[error("{at}: {problem}")]
    Together {
        /// Where they stand.
        at: Origin,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl Error {
    /// What is wrong, and what to do about it.
    pub(super) fn into_parts(self) -> (String, String) {
        let whole = self.to_string();
        let fix = match self {
            Self::Unreadable { fix, .. }
            | Self::Unknown { fix, .. }
            | Self::BadValue { fix, .. } => fix,
            Self::Together { .. } => "make file, environment and flags agree".to_owned(),
            Self::Syntax { .. } => "write it as TOML (https://toml.io)".to_owned(),
        };
        let what = whole.strip_suffix(&fix).and_then(|rest| rest.strip_suffix("; "));
        (what.unwrap_or(&whole).to_owned(), fix)
    }
}
