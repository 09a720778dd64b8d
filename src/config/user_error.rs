//! A mistake that the person at the keyboard can put right: what is wrong and what to do about it.

use std::io;
use std::net::SocketAddr;

/// One line for standard error; the process ends with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {fix}")]
pub struct UserError {
    /// What is wrong, and where: file and line, variable, address.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

impl UserError {
    /// A mistake and its remedy.
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }

    /// A listening address that cannot be had. `key` is its place in the configuration, such as
    /// `http.listen`.
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
        let variable = super::text::variable(key);
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
}

impl From<super::Error> for UserError {
    fn from(error: super::Error) -> Self {
        let (what, fix) = error.into_parts();
        Self { what, fix }
    }
}
