//! `[auth]`: how a forward-auth request becomes descriptors.
//!
//! ```toml
//! [auth]
//! domain = "edge"
//! trusted_hops = 1                  # one proxy (the caller of /auth) appends to X-Forwarded-For
//!
//! [[auth.descriptors]]
//! entries = [{ key = "remote_address", source = "client_address" }]
//!
//! [[auth.descriptors]]
//! entries = [
//!   { key = "user", header = "x-user" },
//!   { key = "path", source = "path_prefix", segments = 2 },
//! ]
//! ```
//!
//! A descriptor whose header is absent is omitted, as in Envoy; a request without descriptors
//! passes. The section is validated while it is read, so that a mistake is one line at start.

use std::fmt;

use http::header::HeaderName;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};
use tidegate_limiter::units::Span;

use super::value::duration;

/// Most descriptors of the mapping; other listeners refuse requests with more.
pub const DESCRIPTORS_MAX: usize = 16;
/// Most entries of a descriptor.
pub const ENTRIES_MAX: usize = 16;
/// Longest `hold_max`; proxies time out after a minute.
pub const HOLD_MAX: Span = Span::from_secs(60);

/// `[auth]`. Without a `domain` forward-auth is off and `/auth` answers 404.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "AuthParts")]
pub struct Auth {
    /// The domain whose rules apply.
    pub domain: Option<String>,
    pub descriptors: Vec<AuthDescriptor>,
    pub trust: Trust,
    /// Prefix length by which IPv6 clients are grouped, 0 to 128.
    ///
    /// Default 64: a customer usually has a whole /64.
    pub ipv6_prefix: u8,
    pub original: OriginalFrom,
    /// Header with the hits that a request costs.
    ///
    /// Default none: one hit.
    pub hits_header: Option<HeaderName>,
    /// How long a request may be delayed by a queue algorithm, at most 60s.
    ///
    /// Default `10s`: clients still wait for it, and nginx ends a subrequest only after 60 s. Raise
    /// it together with the queue.
    pub hold_max: Span,
    /// Status of a denied request, 400 to 599.
    ///
    /// Default none: the status of `[http]`. nginx's `auth_request` accepts only 2xx, 401 and 403
    /// and converts everything else to 500: set 403 here (or `/auth?denied=403` in its
    /// `proxy_pass`) and `error_page 403 =429` in nginx.
    pub denied_status: Option<u16>,
}

/// One descriptor of the mapping.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthDescriptor {
    /// Its entries, outermost first.
    pub entries: Vec<AuthEntry>,
}

/// Which proxies may determine the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The number of proxies in front that append to `X-Forwarded-For`; 0 ignores the header.
    Hops(u8),
    /// The proxies in these networks.
    Proxies(Vec<IpNet>),
}

/// Which headers contain the original method, path and host.
///
/// A proxy overwrites its own family of headers and forwards a client's copy of the other, so
/// accepting both would let a client choose the path it is limited by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginalFrom {
    /// Whichever family is present; a request with both is refused (400).
    #[default]
    Auto,
    /// `X-Original-URI` and `X-Original-Method`: the convention of nginx.
    XOriginal,
    /// `X-Forwarded-Uri`, `-Method` and `-Host`: the convention of Traefik and Caddy.
    XForwarded,
    /// The request itself; the path is what follows `/auth`.
    Request,
}

/// One entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "EntryParts")]
pub struct AuthEntry {
    pub key: String,
    pub value: AuthValue,
}

/// Where the value of an entry comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthValue {
    /// A request header; if it is absent or empty, the descriptor is omitted.
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
    /// A fixed value.
    Constant(String),
}

/// Why an `[auth]` section is invalid. Each message includes the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Descriptors without a domain.
    #[error("auth.descriptors needs auth.domain: name the domain whose rules apply")]
    DomainMissing,
    /// The domain is the empty string.
    #[error("auth.domain is empty: name the domain whose rules apply, or leave it out")]
    DomainEmpty,
    /// Without descriptors every request would pass.
    #[error("auth.domain without [[auth.descriptors]] limits nothing: add at least one descriptor")]
    DescriptorsMissing,
    /// More than [`DESCRIPTORS_MAX`] descriptors.
    #[error("auth.descriptors has {0} descriptors; at most {DESCRIPTORS_MAX} are allowed")]
    DescriptorsTooMany(usize),
    /// A descriptor with no entries or too many.
    #[error("a descriptor of [auth] has {0} entries; 1 to {ENTRIES_MAX} are allowed")]
    Entries(usize),
    #[error("auth.trusted_hops and auth.trusted_proxies exclude each other: keep one")]
    TrustTwice,
    /// The client's address is used without any trusted proxy.
    #[error(
        "source \"client_address\" needs auth.trusted_hops (1: the proxy that calls /auth appends \
         the client to X-Forwarded-For; 0: the caller is the client) or auth.trusted_proxies"
    )]
    TrustMissing,
    #[error("auth.ipv6_prefix is {0}; 0 to 128 are allowed, 64 is usual")]
    Ipv6Prefix(u8),
    #[error(
        "auth.denied_status is {0}; 400 to 599 are allowed (nginx understands only 401 and 403)"
    )]
    DeniedStatus(u16),
    #[error("auth.hold_max is {0}; at most {HOLD_MAX} is allowed")]
    Hold(Span),
    /// An entry without a source or with several.
    #[error("entry {0:?} of [auth] must have exactly one of header, source, value")]
    EntrySource(String),
    /// An entry without a key.
    #[error("an entry of [auth] has no key")]
    EntryKey,
    #[error(
        "entry {key:?} of [auth] has the unknown source {source_name:?}; sources are client_address, \
         path, path_prefix, method, host"
    )]
    SourceUnknown { key: String, source_name: String },
    /// `segments` is missing, zero, or set with another source.
    #[error("entry {0:?} of [auth]: segments (1 to 32) goes with source = \"path_prefix\" alone")]
    Segments(String),
    #[error("{0:?} in [auth] is not a header name")]
    HeaderName(String),
}

// === impl Auth ===

/// The section as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AuthParts {
    domain: Option<String>,
    descriptors: Vec<AuthDescriptor>,
    trusted_hops: Option<u8>,
    trusted_proxies: Option<Vec<IpNet>>,
    ipv6_prefix: Option<u8>,
    original: OriginalFrom,
    hits: Option<HitsParts>,
    #[serde(deserialize_with = "some_duration")]
    hold_max: Option<Span>,
    denied_status: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HitsParts {
    #[serde(deserialize_with = "header_name")]
    header: HeaderName,
}

impl TryFrom<AuthParts> for Auth {
    type Error = Error;

    fn try_from(parts: AuthParts) -> Result<Self, Error> {
        match (&parts.domain, parts.descriptors.len()) {
            (None, 0) => {}
            (None, _) => return Err(Error::DomainMissing),
            (Some(domain), _) if domain.is_empty() => return Err(Error::DomainEmpty),
            (Some(_), 0) => return Err(Error::DescriptorsMissing),
            (Some(_), n) if n > DESCRIPTORS_MAX => return Err(Error::DescriptorsTooMany(n)),
            (Some(_), _) => {}
        }
        for descriptor in &parts.descriptors {
            let n = descriptor.entries.len();
            if n == 0 || n > ENTRIES_MAX {
                return Err(Error::Entries(n));
            }
        }
        let asks_for_client = parts
            .descriptors
            .iter()
            .flat_map(|descriptor| &descriptor.entries)
            .any(|entry| entry.value == AuthValue::ClientAddress);
        let trust = match (parts.trusted_hops, parts.trusted_proxies) {
            (Some(_), Some(_)) => return Err(Error::TrustTwice),
            (None, None) if asks_for_client => return Err(Error::TrustMissing),
            (hops, None) => Trust::Hops(hops.unwrap_or(0)),
            (None, Some(networks)) => Trust::Proxies(networks),
        };
        let default = Self::default();
        let ipv6_prefix = parts.ipv6_prefix.unwrap_or(default.ipv6_prefix);
        if ipv6_prefix > 128 {
            return Err(Error::Ipv6Prefix(ipv6_prefix));
        }
        let hold_max = parts.hold_max.unwrap_or(default.hold_max);
        if hold_max > HOLD_MAX {
            return Err(Error::Hold(hold_max));
        }
        if let Some(status) = parts.denied_status
            && !(400..=599).contains(&status)
        {
            return Err(Error::DeniedStatus(status));
        }
        Ok(Self {
            domain: parts.domain,
            descriptors: parts.descriptors,
            trust,
            ipv6_prefix,
            original: parts.original,
            hits_header: parts.hits.map(|hits| hits.header),
            hold_max,
            denied_status: parts.denied_status,
        })
    }
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            domain: None,
            descriptors: Vec::new(),
            trust: Trust::Hops(0),
            ipv6_prefix: 64,
            original: OriginalFrom::default(),
            hits_header: None,
            hold_max: Span::from_secs(10),
            denied_status: None,
        }
    }
}

// === impl AuthEntry ===

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
    /// `user = header x-user`, for humans.
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

fn parse_header_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name).map_err(|_| Error::HeaderName(name.to_owned()))
}

fn some_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Span>, D::Error> {
    duration(deserializer).map(Some)
}

fn header_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
    let name = String::deserialize(deserializer)?;
    parse_header_name(&name).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(toml: &str) -> Result<Auth, String> {
        toml::from_str(toml).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_whole_mapping_is_read() {
        let auth = read(
            r#"
            domain = "edge"
            trusted_proxies = ["10.0.0.0/8", "::1/128"]
            ipv6_prefix = 56
            original = "x-forwarded"
            hits = { header = "X-Hits" }
            hold_max = "500ms"
            denied_status = 403
            [[descriptors]]
            entries = [
                { key = "user", header = "X-User" },
                { key = "remote_address", source = "client_address" },
                { key = "path", source = "path_prefix", segments = 2 },
                { key = "generic_key", value = "x" },
            ]
            "#,
        )
        .expect("a valid section");
        let shown: Vec<_> = auth.descriptors[0].entries.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "user = header x-user",
                "remote_address = client address",
                "path = first 2 segments of the path",
                "generic_key = \"x\"",
            ]
        );
        assert_eq!(auth.original, OriginalFrom::XForwarded);
        assert_eq!((auth.ipv6_prefix, auth.hold_max), (56, Span::from_millis(500)));
        assert_eq!(auth.hits_header, Some(HeaderName::from_static("x-hits")));
    }

    #[test]
    fn an_empty_section_turns_forward_auth_off() {
        let auth = read("").expect("valid");
        assert_eq!(auth.domain, None);
        assert_eq!((auth.ipv6_prefix, auth.hold_max), (64, Span::from_secs(10)));
    }

    #[test]
    fn every_error_includes_the_fix() {
        let entry = |entry: &str| {
            format!("domain = \"d\"\ntrusted_hops = 1\n[[descriptors]]\nentries = [{entry}]")
        };
        let path = r#"{ key = "path", source = "path" }"#;
        for (toml, says) in [
            (format!("[[descriptors]]\nentries = [{path}]"), "needs auth.domain"),
            ("domain = \"d\"".into(), "add at least one descriptor"),
            ("domain = \"\"".into(), "auth.domain is empty"),
            ("domian = \"d\"".into(), "unknown field `domian`"),
            (entry(""), "1 to 16"),
            (entry(r#"{ key = "a" }"#), "exactly one of header, source, value"),
            (entry(r#"{ key = "a", header = "x", value = "y" }"#), "exactly one of"),
            (entry(r#"{ header = "x" }"#), "has no key"),
            (entry(r#"{ key = "a", header = "x y" }"#), "not a header name"),
            (entry(r#"{ key = "a", source = "ip" }"#), "client_address, path"),
            (entry(r#"{ key = "a", source = "path_prefix" }"#), "segments (1 to 32)"),
            (entry(r#"{ key = "a", source = "path", segments = 2 }"#), "segments (1 to 32)"),
            (entry(&format!("{path}]\ntrusted_proxies = [")), "unknown field"),
            (
                "domain = \"d\"\n[[descriptors]]\nentries = [{ key = \"a\", source = \"client_address\" }]"
                    .into(),
                "needs auth.trusted_hops",
            ),
            ("trusted_hops = 1\ntrusted_proxies = []".into(), "exclude each other"),
            ("denied_status = 200".into(), "400 to 599"),
            ("ipv6_prefix = 129".into(), "0 to 128"),
            ("hold_max = \"61s\"".into(), "at most 1m"),
            ("hits = { header = \"\" }".into(), "not a header name"),
        ] {
            let error = read(&toml).expect_err(&toml);
            assert!(error.contains(says), "{toml}\nsays: {error}\nnot: {says}");
        }
    }
}
