//! `[blocked_sources]`: which clients a firewall may drop, because they ask for many times their
//! limit.
//!
//! ```toml
//! [blocked_sources]
//! entry = "remote_address"
//! ```

use ipnet::IpNet;
use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::value::duration;

/// Most networks of [`BlockedSources::allow`].
pub const ALLOW_MAX: usize = 1_024;

/// `[blocked_sources]`. Without `entry` no source is watched.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockedSources {
    /// The key of the descriptor entry whose value is the address of the client. It must be an
    /// address that the listener or a trusted proxy has established: whoever chooses the value
    /// chooses who is blocked.
    ///
    /// Default none: off.
    pub entry: Option<String>,
    /// How many times its limit a source asks for, 2 to 1,000,000.
    ///
    /// Default 10: clients that retry at once, without a pause, stay below it.
    pub factor: u32,
    /// For how long it does so before it is blocked, 1s to 1h.
    ///
    /// Default `10s`: a burst passes by itself.
    #[serde(deserialize_with = "duration")]
    pub after: Span,
    /// Refused hits a second below which a source is never blocked, however small its limit, 1 to
    /// 1,000,000.
    ///
    /// Default 10: fewer are no load that a firewall has to keep away.
    pub refused_per_second_min: u32,
    /// For how long a source is blocked, 1s to 24h. It is blocked anew while its requests still
    /// arrive and are too many.
    ///
    /// Default `1m`.
    #[serde(deserialize_with = "duration")]
    pub block_for: Span,
    /// Length of the prefix by which IPv6 clients are blocked, 32 to 128. A descriptor that names a
    /// shorter prefix blocks nobody.
    ///
    /// Default 64, as `auth.ipv6_prefix`: a customer usually has a whole /64.
    pub ipv6_prefix: u8,
    /// Networks that are never blocked, at most 1,024. Loopback, link-local and
    /// `auth.trusted_proxies` never are.
    ///
    /// Default none. Name load balancers, monitoring, and the networks of operators.
    pub allow: Vec<IpNet>,
}

impl Default for BlockedSources {
    fn default() -> Self {
        Self {
            entry: None,
            factor: 10,
            after: Span::from_secs(10),
            refused_per_second_min: 10,
            block_for: Span::from_secs(60),
            ipv6_prefix: 64,
            allow: Vec::new(),
        }
    }
}
