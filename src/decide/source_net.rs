//! The address of a client, as a firewall blocks it: an IPv4 address or an IPv6 prefix.
//!
//! A value of a descriptor is text from outside. It becomes a [`SourceNet`] only if it is an
//! address, and nothing but a [`SourceNet`] is ever passed on to a firewall.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv6Net};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An IPv4 address or an IPv6 prefix, as [`group`](crate::front::client_addr::group) writes them:
/// `203.0.113.7`, `2001:db8:1:2::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceNet {
    V4(Ipv4Addr),
    /// Its host bits are zero.
    V6(Ipv6Net),
}

/// Addresses that are never blocked: those of no host, of this one, and of a link, with which
/// neighbours are found.
pub const NEVER_BLOCKED: [IpNet; 5] = [
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8),
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 128),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// Text that is neither an address nor an IPv6 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an IP address or an IPv6 prefix")]
pub struct NotASource;

impl SourceNet {
    /// The prefix of length `ipv6_prefix` that it is in; an IPv4 address stays as it is. None if it
    /// is a shorter prefix.
    ///
    /// So all sources of one firewall are disjoint: IPv6 prefixes of one length.
    pub fn grouped(self, ipv6_prefix: u8) -> Option<Self> {
        match self {
            Self::V4(_) => Some(self),
            Self::V6(net) if net.prefix_len() < ipv6_prefix => None,
            Self::V6(net) => {
                Ipv6Net::new(net.addr(), ipv6_prefix).ok().map(|net| Self::V6(net.trunc()))
            }
        }
    }

    /// Whether any address is in both.
    pub fn overlaps(self, net: &IpNet) -> bool {
        let own: IpNet = self.into();
        own.contains(net) || net.contains(&own)
    }
}

impl From<IpAddr> for SourceNet {
    fn from(addr: IpAddr) -> Self {
        match addr.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4),
            IpAddr::V6(v6) => Self::V6(v6.into()),
        }
    }
}

impl From<SourceNet> for IpNet {
    fn from(source: SourceNet) -> Self {
        match source {
            SourceNet::V4(v4) => IpAddr::V4(v4).into(),
            SourceNet::V6(net) => net.into(),
        }
    }
}

impl FromStr for SourceNet {
    type Err = NotASource;

    fn from_str(text: &str) -> Result<Self, NotASource> {
        if let Ok(addr) = text.parse::<IpAddr>() {
            return Ok(addr.into());
        }
        let net: Ipv6Net = text.parse().map_err(|_| NotASource)?;
        // A prefix of IPv4 addresses in disguise: its /64 would be that of the loopback.
        if net.addr().to_ipv4_mapped().is_some() {
            return Err(NotASource);
        }
        Ok(Self::V6(net.trunc()))
    }
}

impl fmt::Display for SourceNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(v4) => v4.fmt(f),
            Self::V6(net) if net.prefix_len() == 128 => net.addr().fmt(f),
            Self::V6(net) => net.fmt(f),
        }
    }
}

impl Serialize for SourceNet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SourceNet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| serde::de::Error::custom(format_args!("{text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grouped(text: &str, ipv6_prefix: u8) -> Option<String> {
        let source = text.parse::<SourceNet>().ok()?;
        source.grouped(ipv6_prefix).map(|source| source.to_string())
    }

    #[test]
    fn only_addresses_and_long_enough_ipv6_prefixes_are_sources() {
        for (text, ipv6_prefix, expected) in [
            ("203.0.113.7", 64, Some("203.0.113.7")),
            ("::ffff:203.0.113.7", 64, Some("203.0.113.7")),
            ("2001:db8:1:2:3:4:5:6", 64, Some("2001:db8:1:2::/64")),
            ("2001:db8:1:2:3:4:5:6", 128, Some("2001:db8:1:2:3:4:5:6")),
            ("2001:db8:1:2::/64", 64, Some("2001:db8:1:2::/64")),
            ("2001:db8:1:2::7/64", 64, Some("2001:db8:1:2::/64")),
            ("2001:db8:1:2::/64", 48, Some("2001:db8:1::/48")),
            // It would block more than its own prefix, or less.
            ("2001:db8:1::/48", 64, None),
            ("::/0", 64, None),
            ("::ffff:203.0.113.0/120", 64, None),
            // Networks of IPv4 are none.
            ("203.0.113.0/24", 64, None),
            ("0.0.0.0/0", 64, None),
            ("", 64, None),
            ("203.0.113.7 ", 64, None),
            ("203.0.113.7, 10.0.0.1", 64, None),
            ("203.0.113.7:80", 64, None),
            ("0xcb.0.113.7", 64, None),
            ("203.0.113.07", 64, None),
            ("fe80::1%eth0", 64, None),
            ("[2001:db8::1]", 64, None),
            ("2001:db8::1}; flush ruleset; {", 64, None),
            ("example.com", 64, None),
        ] {
            assert_eq!(grouped(text, ipv6_prefix).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_prefix_overlaps_what_is_in_it_and_what_it_is_in() {
        let source: SourceNet = "2001:db8:1:2::/64".parse().unwrap();
        for (net, expected) in [
            ("2001:db8::/32", true),
            ("2001:db8:1:2::7/128", true),
            ("2001:db8:1:3::/64", false),
            ("0.0.0.0/0", false),
        ] {
            assert_eq!(source.overlaps(&net.parse().unwrap()), expected, "{net}");
        }
        let source: SourceNet = "203.0.113.7".parse().unwrap();
        assert!(source.overlaps(&"203.0.113.0/24".parse().unwrap()));
        assert!(!source.overlaps(&"203.0.114.0/24".parse().unwrap()));
    }
}
