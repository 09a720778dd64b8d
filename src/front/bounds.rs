//! The bounds of the listeners, and what happens at each.
//!
//! | limit | default | at the limit |
//! |---|---|---|
//! | connections | 10,000 per listener | accepting pauses until one ends; counted |
//! | connections of one address | 1,000 per listener | a further one is closed at once; counted |
//! | request header | 64 KiB | 431 (HTTP/1), stream reset (HTTP/2) |
//! | time for a header | 5 s | the connection is cut; counted |
//! | time for the client to take a response | 10 s | the connection is cut within 25 s; counted |
//! | renderings of a status page that wait to be sent | 16 | the newest is sent once more |
//! | time without a request | 75 s | the connection is closed; counted |
//! | age of a gRPC connection | none | the client is asked to open another (GOAWAY) |
//! | request body | 64 KiB | 413, `OUT_OF_RANGE` |
//! | time for a body and a decision | 5 s | 408 or 503, `DEADLINE_EXCEEDED` |
//! | streams of an HTTP/2 connection | 256 | further streams wait at the client |
//! | descriptors, entries, bytes of a key or value | 32, 16, 1,024 | 400, `INVALID_ARGUMENT` |
//! | drain | 10 s | connections still open are dropped; counted |
//!
//! So clients can make a listener hold at most connections × (header + body), 1.2 GiB with the
//! defaults, each byte of it sent within five seconds; an HTTP/2 connection holds at most its
//! window of 256 KiB. What waits to be sent to clients that do not read is on top: for a stream the
//! response, which is small for a check and shared between streams for a status page.
//!
//! Bounds that deployments change come from `[limits]`; the others are constants here.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tidegate_limiter::descriptor::Descriptor;

use crate::config::Config;

/// How long a connection may stay without a request in flight.
///
/// Longer than the 60 s after which nginx closes a pooled connection: the client must close first,
/// or its next request can arrive at a closing socket.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Time for the body of a request to arrive and for its decision, each.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a client to take a response: what Prometheus gives a scrape. It is measured in periods
/// of this length, and checked with the header timeout, so it can be 25 s.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of a request header. Forward-auth carries the cookies of other applications, so this
/// follows what proxies allow (nginx 32 KiB, Envoy 60 KiB).
pub const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// Most requests in flight on one HTTP/2 connection. tonic removes hyper's cap of 200, so it is set
/// here. An Envoy worker sends all its checks over one connection.
pub const STREAMS_MAX: u32 = 256;

/// Connections from here are from this machine: its proxies, and operators.
const LOOPBACK: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
];

/// The bounds of one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub connections_max: usize,
    /// Most connections of one client address, or IPv6 /64; 0 is no bound.
    pub connections_per_address_max: usize,
    /// Networks whose connections that bound does not apply to.
    pub exempt: Arc<[IpNet]>,
    /// Most bytes of a request body or gRPC message.
    pub body_bytes_max: usize,
    pub descriptors_max: usize,
    /// Most entries per descriptor.
    pub entries_max: usize,
    /// Most bytes of a domain, key or value.
    pub value_bytes_max: usize,
    /// How long a client may take over one request header.
    pub header_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
    /// Time for a body, and for a decision.
    pub request_timeout: Duration,
    /// Time for the client to take a response; it may take twice as long, and a header timeout.
    pub send_timeout: Duration,
    /// How old a connection may become; `None` is no bound.
    pub max_age: Option<MaxAge>,
    /// How long requests in flight may take after a drain began.
    pub drain_timeout: Duration,
    /// Most requests in flight on one HTTP/2 connection.
    pub streams_max: u32,
    pub header_bytes_max: u32,
}

/// The age at which a client is asked to open another connection, so that long-lived ones find the
/// nodes that a load balancer knows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxAge {
    /// Give or take a tenth.
    pub after: Duration,
    /// How long requests in flight may take from then on; the connection is cut at the end.
    pub grace: Duration,
}

/// Why a request is refused for its form. Nothing was counted for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No domain. The text is envoyproxy/ratelimit's, which clients may know.
    #[error("rate limit domain must not be empty")]
    DomainEmpty,
    /// No descriptors. The text is envoyproxy/ratelimit's, which clients may know.
    #[error("rate limit descriptor list must not be empty")]
    DescriptorsEmpty,
    /// No rules were loaded yet. The text is envoyproxy/ratelimit's, which clients may know.
    #[error("no rate limit configuration loaded")]
    NotLoaded,
    #[error("the domain has {bytes} bytes; at most {max} are allowed (limits.value_bytes_max)")]
    DomainTooLong { bytes: usize, max: usize },
    #[error(
        "the request has {count} descriptors; at most {max} are allowed (limits.descriptors_max)"
    )]
    DescriptorsTooMany { count: usize, max: usize },
    #[error(
        "descriptor {index} has {count} entries; at most {max} are allowed (limits.entries_max)"
    )]
    EntriesTooMany {
        /// Index of the descriptor, from 0.
        index: usize,
        count: usize,
        max: usize,
    },
    #[error(
        "descriptor {index} has a key or value of {bytes} bytes; at most {max} are allowed \
         (limits.value_bytes_max)"
    )]
    ValueTooLong {
        /// Index of the descriptor, from 0.
        index: usize,
        bytes: usize,
        max: usize,
    },
}

impl Bounds {
    /// Checks the form of a request.
    ///
    /// # Errors
    ///
    /// The first bound that the request exceeds.
    pub fn admit(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Result<(), Refusal> {
        if domain.is_empty() {
            return Err(Refusal::DomainEmpty);
        }
        if descriptors.is_empty() {
            return Err(Refusal::DescriptorsEmpty);
        }
        if domain.len() > self.value_bytes_max {
            let (bytes, max) = (domain.len(), self.value_bytes_max);
            return Err(Refusal::DomainTooLong { bytes, max });
        }
        if descriptors.len() > self.descriptors_max {
            let (count, max) = (descriptors.len(), self.descriptors_max);
            return Err(Refusal::DescriptorsTooMany { count, max });
        }
        for (index, descriptor) in descriptors.iter().enumerate() {
            if descriptor.entries.len() > self.entries_max {
                let (count, max) = (descriptor.entries.len(), self.entries_max);
                return Err(Refusal::EntriesTooMany { index, count, max });
            }
            let longest = descriptor
                .entries
                .iter()
                .map(|entry| entry.key.len().max(entry.value.len()))
                .max()
                .unwrap_or(0);
            if longest > self.value_bytes_max {
                let max = self.value_bytes_max;
                return Err(Refusal::ValueTooLong { index, bytes: longest, max });
            }
        }
        Ok(())
    }
}

impl From<&Config> for Bounds {
    fn from(config: &Config) -> Self {
        let proxies = config.auth.trusted_proxies.iter().flatten();
        let proxies = proxies.chain(&config.proxy.proxy_protocol_from);
        let limits = &config.limits;
        Self {
            connections_max: limits.connections_max,
            connections_per_address_max: limits.connections_per_address_max,
            exempt: LOOPBACK.iter().chain(proxies).copied().collect(),
            body_bytes_max: limits.body_bytes_max,
            descriptors_max: limits.descriptors_max,
            entries_max: limits.entries_max,
            value_bytes_max: limits.value_bytes_max,
            header_timeout: limits.header_timeout.to_std(),
            idle_timeout: IDLE_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            send_timeout: SEND_TIMEOUT,
            max_age: None,
            drain_timeout: limits.drain_timeout.to_std(),
            streams_max: STREAMS_MAX,
            header_bytes_max: HEADER_BYTES_MAX,
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self::from(&Config::default())
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::descriptor::Entry;

    use super::*;

    fn descriptor<'a>(entries: &[(&'a str, &'a str)]) -> Descriptor<'a> {
        let entries = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
        Descriptor { entries, hits: None, limit: None }
    }

    #[test]
    fn each_bound_admits_its_limit_and_refuses_one_more() {
        let bounds =
            Bounds { descriptors_max: 2, entries_max: 2, value_bytes_max: 4, ..Bounds::default() };
        let small = descriptor(&[("k", "v")]);
        let full = descriptor(&[("kkkk", "vvvv"), ("kkkk", "")]);
        assert_eq!(bounds.admit("dddd", &[full.clone(), small.clone()]), Ok(()));

        for (domain, descriptors, refusal) in [
            ("", vec![small.clone()], Refusal::DomainEmpty),
            ("d", vec![], Refusal::DescriptorsEmpty),
            ("ddddd", vec![small.clone()], Refusal::DomainTooLong { bytes: 5, max: 4 }),
            ("d", vec![small.clone(); 3], Refusal::DescriptorsTooMany { count: 3, max: 2 }),
            (
                "d",
                vec![small.clone(), descriptor(&[("k", "v"); 3])],
                Refusal::EntriesTooMany { index: 1, count: 3, max: 2 },
            ),
            (
                "d",
                vec![descriptor(&[("k", "vvvvv")])],
                Refusal::ValueTooLong { index: 0, bytes: 5, max: 4 },
            ),
            (
                "d",
                vec![descriptor(&[("kkkkk", "")])],
                Refusal::ValueTooLong { index: 0, bytes: 5, max: 4 },
            ),
        ] {
            assert_eq!(bounds.admit(domain, &descriptors), Err(refusal));
        }
    }
}
