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
use std::num::NonZeroU32;

use http::header::HeaderName;
use ipnet::IpNet;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use tidegate_limiter::units::Span;

use super::value::duration;

/// Most descriptors of the mapping; other listeners refuse requests with more.
pub const DESCRIPTORS_MAX: usize = 16;
/// Most entries of a descriptor.
pub const ENTRIES_MAX: usize = 16;
/// Default of [`Hits::max`]: enough for costs in kilobytes, and too little to use up most shared
/// limits with one request.
const HITS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);
/// Longest `hold_max`; proxies time out after a minute.
pub const HOLD_MAX: Span = Span::from_secs(60);

/// `[auth]`. Without a `domain` forward-auth is off and `/auth` answers 404.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields, default)]
pub struct Auth {
    /// The domain whose rules apply.
    pub domain: Option<String>,
    pub descriptors: Vec<AuthDescriptor>,
    /// The number of proxies in front that append to `X-Forwarded-For`; 0 ignores the header.
    pub trusted_hops: Option<u8>,
    /// The proxies in these networks, instead of a number.
    pub trusted_proxies: Option<Vec<IpNet>>,
    /// Prefix length by which IPv6 clients are grouped, 0 to 128.
    ///
    /// Default 64: a customer usually has a whole /64.
    pub ipv6_prefix: u8,
    pub original: OriginalFrom,
    /// What a request costs.
    ///
    /// Default none: one hit.
    pub hits: Option<Hits>,
    /// How long a request may be delayed by a queue algorithm, at most 60s.
    ///
    /// Default `10s`: clients still wait for it, and nginx ends a subrequest only after 60 s. Raise
    /// it together with the queue.
    #[serde(deserialize_with = "duration")]
    pub hold_max: Span,
    /// Status of a denied request, 400 to 599.
    ///
    /// Default none: the status of `[http]`. nginx's `auth_request` accepts only 2xx, 401 and 403
    /// and converts everything else to 500: set 403 here (or `/auth?denied=403` in its
    /// `proxy_pass`) and `error_page 403 =429` in nginx.
    pub denied_status: Option<u16>,
}

/// The cost of a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hits {
    /// The header with the number of hits. The proxy must overwrite or remove it in the request of
    /// a client, which could otherwise choose its cost.
    #[serde(deserialize_with = "header_name")]
    pub header: HeaderName,
    /// The highest number that a header may contain; a request with a higher one is refused.
    #[serde(default = "hits_max")]
    pub max: NonZeroU32,
}

/// One descriptor of the mapping.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthDescriptor {
    /// Its entries, outermost first.
    pub entries: Vec<AuthEntry>,
}

/// Which proxies may determine the client's address.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// [`Auth::trusted_hops`].
    Hops(u8),
    /// [`Auth::trusted_proxies`].
    Proxies(&'a [IpNet]),
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

impl Auth {
    pub fn trust(&self) -> Trust<'_> {
        let hops = Trust::Hops(self.trusted_hops.unwrap_or(0));
        self.trusted_proxies.as_deref().map_or(hops, Trust::Proxies)
    }

    /// The first mistake; each message includes the fix.
    fn check(&self) -> Result<(), String> {
        let domain = self.domain.as_deref();
        let count = self.descriptors.len();
        let mut sizes = self.descriptors.iter().map(|descriptor| descriptor.entries.len());
        let mut entries = self.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let (has_hops, has_proxies) = (self.trusted_hops.is_some(), self.trusted_proxies.is_some());
        Err(if domain.is_none() && count > 0 {
            "auth.descriptors needs auth.domain: name the domain whose rules apply".to_owned()
        } else if domain == Some("") {
            "auth.domain is empty: name the domain whose rules apply, or leave it out".to_owned()
        } else if domain.is_some() && count == 0 {
            // Without descriptors every request would pass.
            "auth.domain without [[auth.descriptors]] limits nothing: add at least one descriptor"
                .to_owned()
        } else if count > DESCRIPTORS_MAX {
            format!(
                "auth.descriptors has {count} descriptors; at most {DESCRIPTORS_MAX} are allowed"
            )
        } else if let Some(n) = sizes.find(|size| !(1..=ENTRIES_MAX).contains(size)) {
            format!("a descriptor of [auth] has {n} entries; 1 to {ENTRIES_MAX} are allowed")
        } else if has_hops && has_proxies {
            "auth.trusted_hops and auth.trusted_proxies exclude each other: keep one".to_owned()
        } else if !has_hops && !has_proxies && entries.any(|e| e.value == AuthValue::ClientAddress)
        {
            "source \"client_address\" needs auth.trusted_hops (1: the proxy that calls /auth \
             appends the client to X-Forwarded-For; 0: the caller is the client) or \
             auth.trusted_proxies"
                .to_owned()
        } else if self.ipv6_prefix > 128 {
            format!("auth.ipv6_prefix is {}; 0 to 128 are allowed, 64 is usual", self.ipv6_prefix)
        } else if self.hold_max > HOLD_MAX {
            format!("auth.hold_max is {}; at most {HOLD_MAX} is allowed", self.hold_max)
        } else if let Some(status) = self.denied_status.filter(|s| !(400..=599).contains(s)) {
            format!(
                "auth.denied_status is {status}; 400 to 599 are allowed (nginx understands only \
                 401 and 403)"
            )
        } else {
            return Ok(());
        })
    }
}

impl<'de> Deserialize<'de> for Auth {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // The derived function, which `remote` makes one of the type itself.
        let auth = Self::deserialize(from)?;
        auth.check().map_err(D::Error::custom)?;
        Ok(auth)
    }
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            domain: None,
            descriptors: Vec::new(),
            trusted_hops: None,
            trusted_proxies: None,
            ipv6_prefix: 64,
            original: OriginalFrom::default(),
            hits: None,
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
    type Error = String;

    fn try_from(parts: EntryParts) -> Result<Self, String> {
        let EntryParts { key, header, source, value, segments } = parts;
        let entry = format!("entry {key:?} of [auth]");
        if key.is_empty() {
            return Err("an entry of [auth] has no key".to_owned());
        }
        let segments_alone =
            || Err(format!("{entry}: segments (1 to 32) goes with source = \"path_prefix\" alone"));
        if segments.is_some() && source.as_deref() != Some("path_prefix") {
            return segments_alone();
        }
        let value = match (header, source.as_deref(), value) {
            (Some(name), None, None) => AuthValue::Header(parse_header_name(&name)?),
            (None, None, Some(value)) => AuthValue::Constant(value),
            (None, Some("client_address"), None) => AuthValue::ClientAddress,
            (None, Some("path"), None) => AuthValue::Path,
            (None, Some("path_prefix"), None) => match segments {
                Some(n @ 1..=32) => AuthValue::PathPrefix(n),
                _ => return segments_alone(),
            },
            (None, Some("method"), None) => AuthValue::Method,
            (None, Some("host"), None) => AuthValue::Host,
            (None, Some(name), None) => {
                return Err(format!(
                    "{entry} has the unknown source {name:?}; sources are client_address, path, \
                     path_prefix, method, host"
                ));
            }
            _ => return Err(format!("{entry} must have exactly one of header, source, value")),
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

fn hits_max() -> NonZeroU32 {
    HITS_MAX
}

fn parse_header_name(name: &str) -> Result<HeaderName, String> {
    HeaderName::try_from(name).map_err(|_| format!("{name:?} in [auth] is not a header name"))
}

fn header_name<'de, D: Deserializer<'de>>(from: D) -> Result<HeaderName, D::Error> {
    parse_header_name(&String::deserialize(from)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(toml: &str) -> Result<Auth, String> {
        toml::from_str(toml).map_err(|error: toml::de::Error| error.message().to_owned())
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
        let hits = auth.hits.expect("hits");
        assert_eq!((hits.header.as_str(), hits.max.get()), ("x-hits", 1_000));
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
            ("hits = { header = \"x-hits\", max = 0 }".into(), "nonzero"),
        ] {
            let error = read(&toml).expect_err(&toml);
            assert!(error.contains(says), "{toml}\nsays: {error}\nnot: {says}");
        }
    }
}
