//! One entry of the mapping: a key and where its value comes from.

use std::fmt;

use http::header::HeaderName;
use serde::Deserialize;

use super::Error;

/// One entry of the mapping: a key and where its value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "EntryParts")]
pub struct AuthEntry {
    /// The key that rules name.
    pub key: String,
    /// Where the value comes from.
    pub value: AuthValue,
}

/// Where the value of an entry comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthValue {
    /// A request header; absent or empty leaves the descriptor out.
    Header(HeaderName),
    /// The client's address, grouped by [`Auth::ipv6_prefix`].
    ClientAddress,
    /// The whole path, without the query.
    Path,
    /// The first segments of the path.
    PathPrefix(u8),
    /// The method.
    Method,
    /// The host, in lower case and without the port.
    Host,
    /// Always the same.
    Constant(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryParts {
    #[serde(default)]
    key: String,
    header: Option<String>,
    source: Option<String>,
    value: Option<String>,
    segments: Option<u8>,
}

impl TryFrom<EntryParts> for AuthEntry {
    type Error = Error;

    fn try_from(parts: EntryParts) -> Result<Self, Error> {
        let EntryParts { key, header, source, value, segments } = parts;
        if key.is_empty() {
            return Err(Error::EntryKey);
        }
        if segments.is_some() && source.as_deref() != Some("path_prefix") {
            return Err(Error::Segments(key));
        }
        let value = match (header, source, value) {
            (Some(name), None, None) => AuthValue::Header(parse_header_name(&name)?),
            (None, None, Some(value)) => AuthValue::Constant(value),
            (None, Some(name), None) => match (name.as_str(), segments) {
                ("client_address", _) => AuthValue::ClientAddress,
                ("path", _) => AuthValue::Path,
                ("path_prefix", Some(n @ 1..=32)) => AuthValue::PathPrefix(n),
                ("path_prefix", _) => return Err(Error::Segments(key)),
                ("method", _) => AuthValue::Method,
                ("host", _) => AuthValue::Host,
                _ => return Err(Error::SourceUnknown { key, source_name: name }),
            },
            _ => return Err(Error::EntrySource(key)),
        };
        Ok(Self { key, value })
    }
}

impl fmt::Display for AuthEntry {
    /// `user = header x-user`, for people who ask what a mapping does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = ", self.key)?;
        match &self.value {
            AuthValue::Header(name) => write!(f, "header {name}"),
            AuthValue::ClientAddress => f.write_str("client address"),
            AuthValue::Path => f.write_str("path"),
            AuthValue::PathPrefix(n) => write!(f, "first {n} segments of the path"),
            AuthValue::Method => f.write_str("method"),
            AuthValue::Host => f.write_str("host"),
            AuthValue::Constant(value) => write!(f, "{value:?}"),
        }
    }
}

/// A header's name, or what is wrong with it.
pub(super) fn parse_header_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name).map_err(|_| Error::HeaderName(name.to_owned()))
}
