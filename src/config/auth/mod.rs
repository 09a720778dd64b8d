//! `[auth]`: how a request that a reverse proxy asks about becomes descriptors.
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
//! A descriptor whose header is absent is left out, as Envoy leaves it out; when none remains the
//! request passes. Everything is validated while it is read, so that a mistake is one line at start
//! and never a surprise in traffic.

mod entry;

use entry::parse_header_name;
pub use entry::{AuthEntry, AuthValue};
use http::header::HeaderName;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// Most descriptors a mapping may make; a request with more would be refused at every other door.
pub const DESCRIPTORS_MAX: usize = 16;
/// Most entries of one of its descriptors.
pub const ENTRIES_MAX: usize = 16;
/// Longest time a request may be held at `/auth`; proxies give up on their own after a minute.
pub const HOLD_MAX_MS: u64 = 60_000;

/// The whole section. Without a `domain` forward-auth is off and `/auth` answers 404.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "AuthParts")]
pub struct Auth {
    /// The domain whose rules apply.
    pub domain: Option<String>,
    /// What the request's own words become; one descriptor each.
    pub descriptors: Vec<AuthDescriptor>,
    /// Whose word about the client's address is believed.
    pub trust: Trust,
    /// IPv6 clients count by this prefix, because one customer usually holds a whole /64.
    pub ipv6_prefix: Ipv6Prefix,
    /// Which headers tell the original method, path and host.
    pub original: OriginalFrom,
    /// The header that says how many hits a request costs; none: one.
    pub hits_header: Option<HeaderName>,
    /// How long a request may be held when a queue answers "later".
    pub hold_max: HoldMax,
    /// Status of a refusal; none: the one of `[http]`.
    ///
    /// nginx's `auth_request` lets only 2xx, 401 and 403 through and turns everything else into
    /// 500: say 403 here (or `/auth?denied=403` in its `proxy_pass`) and `error_page 403 =429`
    /// there.
    pub denied_status: Option<u16>,
}

/// One descriptor of the mapping.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthDescriptor {
    /// Its entries, outermost first.
    pub entries: Vec<AuthEntry>,
}

/// Whose word about the client's address is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This many proxies stand in front and each appends to `X-Forwarded-For`; 0 believes nobody.
    Hops(u8),
    /// The proxies in these networks.
    Proxies(Vec<IpNet>),
}

/// Which headers tell the original method, path and host.
///
/// A proxy overwrites its own family of headers and passes a client's copy of the other one on, so
/// believing both would let a client choose the path that it is limited by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginalFrom {
    /// Whichever family is there; a request that carries both is refused with a 400.
    #[default]
    Auto,
    /// `X-Original-URI` and `X-Original-Method`: what nginx configurations set.
    XOriginal,
    /// `X-Forwarded-Uri`, `-Method` and `-Host`: what Traefik and Caddy set.
    XForwarded,
    /// The request itself; what follows `/auth` is the path.
    Request,
}

/// Prefix length by which IPv6 clients are grouped; 64 unless told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix(pub u8);

/// How long a request may be held, in milliseconds; 10 s unless told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldMax(pub u64);

/// Why some parts make no `[auth]` section. Each text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Descriptors without a domain.
    #[error("auth.descriptors needs auth.domain: name the domain whose rules apply")]
    DomainMissing,
    /// The domain is the empty string.
    #[error("auth.domain is empty: name the domain whose rules apply, or leave it out")]
    DomainEmpty,
    /// A domain without descriptors would let everything pass.
    #[error("auth.domain without [[auth.descriptors]] limits nothing: add at least one descriptor")]
    DescriptorsMissing,
    /// More than [`DESCRIPTORS_MAX`] descriptors.
    #[error("auth.descriptors has {0} descriptors; at most {DESCRIPTORS_MAX} are allowed")]
    DescriptorsTooMany(usize),
    /// A descriptor with no entries or too many.
    #[error("a descriptor of [auth] has {0} entries; 1 to {ENTRIES_MAX} are allowed")]
    Entries(usize),
    /// Both kinds of trust.
    #[error("auth.trusted_hops and auth.trusted_proxies exclude each other: keep one")]
    TrustTwice,
    /// The client's address is asked for and nobody says who is in front.
    #[error(
        "source \"client_address\" needs auth.trusted_hops (1: the proxy that calls /auth appends \
         the client to X-Forwarded-For; 0: the caller is the client) or auth.trusted_proxies"
    )]
    TrustMissing,
    /// Outside 0 to 128.
    #[error("auth.ipv6_prefix is {0}; 0 to 128 are allowed, 64 is usual")]
    Ipv6Prefix(u8),
    /// Outside 400 to 599.
    #[error(
        "auth.denied_status is {0}; 400 to 599 are allowed (nginx understands only 401 and 403)"
    )]
    DeniedStatus(u16),
    /// Longer than [`HOLD_MAX_MS`].
    #[error("auth.hold_max_ms is {0}; at most {HOLD_MAX_MS} is allowed")]
    Hold(u64),
    /// An entry that names no source or several.
    #[error("entry {0:?} of [auth] must have exactly one of header, source, value")]
    EntrySource(String),
    /// An entry without a key.
    #[error("an entry of [auth] has no key")]
    EntryKey,
    /// A source that does not exist.
    #[error(
        "entry {key:?} of [auth] has the unknown source {source_name:?}; there are client_address, \
         path, path_prefix, method, host"
    )]
    SourceUnknown {
        /// The entry's key.
        key: String,
        /// What it says.
        source_name: String,
    },
    /// `segments` missing, zero, or beside another source.
    #[error("entry {0:?} of [auth]: segments (1 to 32) goes with source = \"path_prefix\" alone")]
    Segments(String),
    /// Not the name of a header.
    #[error("{0:?} in [auth] is not the name of a header")]
    HeaderName(String),
}

// === impl Auth ===

/// The section as it is written.
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
    hold_max_ms: Option<u64>,
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
        let ipv6_prefix = parts.ipv6_prefix.map_or_else(Ipv6Prefix::default, Ipv6Prefix);
        if ipv6_prefix.0 > 128 {
            return Err(Error::Ipv6Prefix(ipv6_prefix.0));
        }
        let hold_max = parts.hold_max_ms.map_or_else(HoldMax::default, HoldMax);
        if hold_max.0 > HOLD_MAX_MS {
            return Err(Error::Hold(hold_max.0));
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

impl Default for Trust {
    fn default() -> Self {
        Self::Hops(0)
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

impl Default for HoldMax {
    /// What a person still waits for, and well inside the 60 s after which nginx gives a subrequest
    /// up. Raise it together with the queue.
    fn default() -> Self {
        Self(10_000)
    }
}

fn header_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
    let name = String::deserialize(deserializer)?;
    parse_header_name(&name).map_err(serde::de::Error::custom)
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
            hold_max_ms = 500
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
        assert_eq!((auth.ipv6_prefix.0, auth.hold_max.0), (56, 500));
        assert_eq!(auth.hits_header, Some(HeaderName::from_static("x-hits")));
    }

    #[test]
    fn an_empty_section_turns_forward_auth_off() {
        let auth = read("").expect("valid");
        assert_eq!(auth.domain, None);
        assert_eq!((auth.ipv6_prefix.0, auth.hold_max.0), (64, 10_000));
    }

    #[test]
    fn every_mistake_says_what_to_write() {
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
            (entry(r#"{ key = "a", header = "x y" }"#), "not the name of a header"),
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
            ("hold_max_ms = 60001".into(), "at most 60000"),
            ("hits = { header = \"\" }".into(), "not the name of a header"),
        ] {
            let error = read(&toml).expect_err(&toml);
            assert!(error.contains(says), "{toml}\nsays: {error}\nnot: {says}");
        }
    }
}
