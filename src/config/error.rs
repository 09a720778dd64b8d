//! Configuration errors. Every message is one line: where, what, and the fix.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::text::{one_line, variable};

/// Where a value was set, so that the error points to the place to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file.
    File {
        /// The path as given.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable, by name.
    Variable(String),
    /// A `--set key=value`, by key.
    Flag(String),
    /// The configuration file, which lacks a required key.
    Missing(PathBuf),
    /// Not set; the default applies.
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

/// Why the configuration could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration file, a folder it names or a flag cannot be read.
    #[error("{what}; {fix}")]
    Unreadable { what: String, fix: String },
    /// The file is not TOML.
    #[error("{at}: {problem}; write it as TOML (https://toml.io)")]
    Syntax { at: Origin, problem: String },
    /// A section or key that does not exist.
    #[error("{at}: unknown {key}; {fix}")]
    Unknown { at: Origin, key: String, fix: String },
    /// A value of the wrong type or out of range.
    #[error("{at}: {key}: {problem}; {fix}")]
    BadValue { at: Origin, key: String, problem: String, fix: String },
    /// Keys that are valid one by one and contradict each other.
    #[error("{at}: {problem}")]
    Conflict { at: Origin, problem: String },
}

impl Error {
    /// A value that serde rejected with `message`.
    pub(super) fn bad_value(at: Origin, key: String, message: &str) -> Self {
        let problem = one_line(message);
        let fix = advice(&problem).to_owned();
        Self::BadValue { at, key, problem, fix }
    }

    /// An invalid value of the variable `name`.
    pub(crate) fn bad_variable(name: &str, key: &str, problem: &str, fix: &str) -> Self {
        let at = Origin::Variable(name.to_owned());
        let (key, problem, fix) = (key.to_owned(), problem.to_owned(), fix.to_owned());
        Self::BadValue { at, key, problem, fix }
    }
}

/// The fix for a message of serde.
fn advice(problem: &str) -> &'static str {
    let hints = [
        ("socket address", "use IP:PORT, such as 127.0.0.1:8080"),
        ("unknown variant", "use one of those"),
        ("unknown field", "use one of those"),
        ("a duration", "use numbers with units, such as \"400ms\", \"90s\", \"1h30m\" or \"7d\""),
        ("expected a boolean", "use true or false"),
        ("expected a sequence", "use a list, such as [\"a\", \"b\"]"),
        ("expected a string", "use text in quotes"),
        ("expected path string", "use text in quotes"),
        ("expected struct", "write it as a section, [name], with keys below it"),
        ("expected usize", "use a whole number"),
        ("expected u", "use a whole number"),
        ("expected i", "use a whole number"),
    ];
    let hint = hints.iter().find(|(part, _)| problem.contains(part));
    hint.map_or("see cluster.toml for valid values", |(_, advice)| advice)
}

/// A mistake of the user, printed as one line on standard error; the process exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {fix}")]
pub struct UserError {
    /// The problem and its place: file and line, variable, address.
    pub what: String,
    pub fix: String,
}

impl UserError {
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }

    /// For `map_err`: `what` failed with the error that follows.
    pub fn context<E: fmt::Display>(what: &str, fix: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::new(format!("{what}: {error}"), fix)
    }

    /// An address that cannot be bound. `key` is its key, such as `http.listen`.
    ///
    /// ```
    /// use std::io;
    /// use tidegate::config::UserError;
    ///
    /// let taken = io::Error::from(io::ErrorKind::AddrInUse);
    /// assert_eq!(
    ///     UserError::cannot_listen("http.listen", "127.0.0.1:8080".parse()?, &taken).to_string(),
    ///     "http.listen 127.0.0.1:8080: address already in use; stop the other process or set \
    ///      TIDEGATE_HTTP__LISTEN",
    /// );
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn cannot_listen(key: &str, addr: SocketAddr, error: &io::Error) -> Self {
        let variable = variable(key);
        let (problem, fix) = match error.kind() {
            io::ErrorKind::AddrInUse => (
                "address already in use".to_owned(),
                format!("stop the other process or set {variable}"),
            ),
            io::ErrorKind::AddrNotAvailable => (
                "this machine has no such address".to_owned(),
                format!("set {variable} to one of its own, or to 0.0.0.0:{}", addr.port()),
            ),
            io::ErrorKind::PermissionDenied => (
                "permission denied".to_owned(),
                format!("set {variable} to a port above 1023, or grant CAP_NET_BIND_SERVICE"),
            ),
            _ => (error.to_string(), format!("set {variable} to an address that can be bound")),
        };
        Self::new(format!("{key} {addr}: {problem}"), fix)
    }

    /// The Unix socket of a listener cannot be made.
    pub fn cannot_listen_at(key: &str, path: &Path, error: &io::Error) -> Self {
        let variable = variable(key);
        let (problem, fix) = match error.kind() {
            io::ErrorKind::AddrInUse => (
                "another process listens on it, or it is a file".to_owned(),
                format!("stop the other process or set {variable}"),
            ),
            _ => (error.to_string(), format!("set {variable} to a path that can be written")),
        };
        Self::new(format!("{key} {}: {problem}", path.display()), fix)
    }
}
