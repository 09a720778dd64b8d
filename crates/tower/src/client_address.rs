//! The client's address behind trusted proxies.
//!
//! Each proxy appends the address that it was called from to `X-Forwarded-For`, so the right end of
//! the field was written by own proxies and the left end by the client. With `trusted_hops` own
//! proxies the client is that many from the right; what is further left is never used.
//!
//! *Example*, `trusted_hops = 2`: a client at 203.0.113.7 sends `X-Forwarded-For: 1.1.1.1`. A load
//! balancer at 10.0.0.9 makes it `1.1.1.1, 203.0.113.7`, the nginx behind it `1.1.1.1, 203.0.113.7,
//! 10.0.0.9`. The second from the right is 203.0.113.7.
//!
//! The same as on a node, and in the clients of other languages; `clients/vectors` has the cases.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bits of an IPv6 address that are one client: a customer usually has a whole /64 to pick
/// addresses from.
const IPV6_PREFIX: u32 = 64;

/// The address of the client of `peer`, who sent the request.
///
/// `forwarded_for` are the values of all `X-Forwarded-For` fields in their order, which together
/// are one list. A list that is too short, or an element that is no address, leaves the peer: a
/// client cannot choose a counter with them. `peer` is `None` where a connection has no address,
/// such as that of a Unix socket.
pub fn client_address<'a>(
    peer: Option<IpAddr>,
    forwarded_for: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted_hops: u8,
) -> Option<IpAddr> {
    let peer = peer.map(|peer| peer.to_canonical());
    let Some(hops) = usize::from(trusted_hops).checked_sub(1) else { return peer };
    let mut list = forwarded_for.rev().flat_map(|list| list.rsplit(|&byte| byte == b','));
    list.nth(hops).and_then(parse_hop).or(peer)
}

/// The value under which a client is counted: its IPv4 address, or its IPv6 network.
///
/// ```
/// use tidegate_tower::group;
///
/// assert_eq!(group("203.0.113.7".parse()?), "203.0.113.7");
/// assert_eq!(group("2001:db8:1:2:3:4:5:6".parse()?), "2001:db8:1:2::/64");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn group(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(v4) => dotted(v4.octets()),
        IpAddr::V6(v6) => {
            let mask = u128::MAX << (128 - IPV6_PREFIX);
            format!("{}/{IPV6_PREFIX}", Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// As `Ipv4Addr` is displayed, at a part of the cost: this is done for each request.
fn dotted(octets: [u8; 4]) -> String {
    let mut text = String::with_capacity("255.255.255.255".len());
    for (index, octet) in octets.into_iter().enumerate() {
        if index > 0 {
            text.push('.');
        }
        text.push_str(itoa::Buffer::new().format(octet));
    }
    text
}

/// One element of the list: an address, with or without a port, brackets or quotes.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let text = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare
        .parse::<IpAddr>()
        .or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()))
        .ok()?;
    Some(address.to_canonical())
}
