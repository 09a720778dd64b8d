//! The client's address behind trusted proxies.
//!
//! Each proxy appends the address that it was called from to `X-Forwarded-For`, so the right end of
//! the header was written by our own proxies and the left end by the client. The header is
//! therefore read **from the right**, past the trusted proxies, up to the first address that is not
//! trusted. Addresses that a client writes itself are further left and are never used.
//!
//! *Example*, `trusted_hops = 2` (a load balancer at 10.0.0.9, then the nginx that calls us): a
//! client at 203.0.113.7 sends `X-Forwarded-For: 1.1.1.1`. The load balancer makes it `1.1.1.1,
//! 203.0.113.7`, nginx `1.1.1.1, 203.0.113.7, 10.0.0.9`. The second from the right is 203.0.113.7.
//!
//! IPv6 clients are grouped by prefix (a customer usually has a whole /64 to pick addresses from),
//! and IPv4-mapped IPv6 addresses (`::ffff:203.0.113.7`) are treated as IPv4.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::config::auth::Trust;

/// Most addresses of `X-Forwarded-For` that are read, from the right. A real chain has two or
/// three.
pub const HOPS_MAX: usize = 32;

/// The client's address as far as `trust` reaches.
///
/// `forwarded_for` are the values of all `X-Forwarded-For` headers in the order received, which
/// together are one list. `real_ip` is `X-Real-IP`; it counts only without `X-Forwarded-For` and
/// only from a trusted peer. Values that do not parse fall back to `peer`, so that a client cannot
/// choose a counter with them.
pub fn client_address<'a>(
    peer: IpAddr,
    forwarded_for: impl DoubleEndedIterator<Item = &'a [u8]>,
    real_ip: Option<&[u8]>,
    trust: &Trust<'_>,
) -> IpAddr {
    let peer = peer.to_canonical();
    let proxies: &[_] = if let Trust::Proxies(networks) = trust { networks } else { &[] };
    let is_proxy = |addr: IpAddr| proxies.iter().any(|network| network.contains(&addr));
    if !is_proxy(peer) && !matches!(trust, Trust::Hops(1..)) {
        return peer;
    }
    let mut hops =
        forwarded_for.rev().flat_map(|list| list.rsplit(|&byte| byte == b',')).peekable();
    if hops.peek().is_none() {
        return real_ip.and_then(parse_hop).unwrap_or(peer);
    }
    match trust {
        Trust::Hops(n) => {
            let client = hops.nth(usize::from(*n).saturating_sub(1));
            client.and_then(parse_hop).unwrap_or(peer)
        }
        Trust::Proxies(_) => {
            let mut client = peer;
            for hop in hops.take(HOPS_MAX) {
                match parse_hop(hop) {
                    Some(addr) if is_proxy(addr) => client = addr,
                    Some(addr) => return addr,
                    None => return peer,
                }
            }
            client
        }
    }
}

/// The value under which a client is counted: its IPv4 address, or its IPv6 network.
///
/// ```
/// use tidegate::front::client_addr::group;
///
/// assert_eq!(group("203.0.113.7".parse()?, 64), "203.0.113.7");
/// assert_eq!(group("2001:db8:1:2:3:4:5:6".parse()?, 64), "2001:db8:1:2::/64");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn group(addr: IpAddr, ipv6_prefix: u8) -> String {
    match addr.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) if ipv6_prefix >= 128 => v6.to_string(),
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            format!("{}/{ipv6_prefix}", Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// One element of the list: an address, with or without a port, brackets or quotes.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let text = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let addr = bare
        .parse::<IpAddr>()
        .or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()))
        .ok()?;
    Some(addr.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, lists: &[&str], real_ip: Option<&str>, trust: &Trust<'_>) -> String {
        let lists = lists.iter().map(|list| list.as_bytes());
        let peer = peer.parse().expect("an address");
        client_address(peer, lists, real_ip.map(str::as_bytes), trust).to_string()
    }

    #[test]
    fn hops_are_counted_from_the_right() {
        let peer = "10.0.0.1";
        for (hops, lists, expected) in [
            (0, vec!["9.9.9.9"], peer),
            (1, vec!["9.9.9.9"], "9.9.9.9"),
            (1, vec!["1.1.1.1, 203.0.113.7"], "203.0.113.7"),
            (2, vec!["1.1.1.1, 203.0.113.7, 10.0.0.9"], "203.0.113.7"),
            // Several headers are one list, in order.
            (2, vec!["1.1.1.1", "203.0.113.7", "10.0.0.9"], "203.0.113.7"),
            (2, vec!["1.1.1.1, 203.0.113.7", "10.0.0.9"], "203.0.113.7"),
            // A chain shorter than `trusted_hops` is not trusted.
            (3, vec!["1.1.1.1, 2.2.2.2"], peer),
            (1, vec![], peer),
            (1, vec![""], peer),
            (1, vec!["1.1.1.1,"], peer),
            (1, vec!["unknown"], peer),
            (1, vec!["1.1.1.1, _hidden"], peer),
            (1, vec!["203.0.113.7:4711"], "203.0.113.7"),
            (1, vec!["[2001:db8::7]:4711"], "2001:db8::7"),
            (1, vec!["[2001:db8::7]"], "2001:db8::7"),
            (1, vec!["2001:db8::7"], "2001:db8::7"),
            (1, vec!["\"[2001:db8::7]:4711\""], "2001:db8::7"),
            (1, vec!["::ffff:203.0.113.7"], "203.0.113.7"),
            (1, vec!["  203.0.113.7\t"], "203.0.113.7"),
            (1, vec!["203.0.113.999"], peer),
            (1, vec!["fe80::1%eth0"], peer),
        ] {
            assert_eq!(
                client(peer, &lists, None, &Trust::Hops(hops)),
                expected,
                "{hops} {lists:?}"
            );
        }
    }

    #[test]
    fn proxies_are_skipped_from_the_right() {
        let networks = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().expect("a network"));
        let trust = Trust::Proxies(&networks);
        for (peer, lists, expected) in [
            ("203.0.113.7", vec!["1.1.1.1"], "203.0.113.7"),
            ("10.0.0.1", vec!["1.1.1.1, 203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", vec!["1.1.1.1, 203.0.113.7, 10.0.0.9"], "203.0.113.7"),
            ("10.0.0.1", vec!["10.9.9.9, 203.0.113.7, fd00::1"], "203.0.113.7"),
            ("10.0.0.1", vec!["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", vec!["203.0.113.7, garbage, 10.0.0.9"], "10.0.0.1"),
            ("::ffff:10.0.0.1", vec!["203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", vec![], "10.0.0.1"),
        ] {
            assert_eq!(client(peer, &lists, None, &trust), expected, "{peer} {lists:?}");
        }
    }

    #[test]
    fn real_ip_counts_only_from_a_trusted_peer_without_a_list() {
        let real = Some("203.0.113.7");
        let networks = ["10.0.0.0/8".parse().expect("a network")];
        let proxies = Trust::Proxies(&networks);
        assert_eq!(client("10.0.0.1", &[], real, &Trust::Hops(1)), "203.0.113.7");
        assert_eq!(client("10.0.0.1", &[], real, &proxies), "203.0.113.7");
        assert_eq!(client("10.0.0.1", &[], real, &Trust::Hops(0)), "10.0.0.1");
        assert_eq!(client("192.0.2.1", &[], real, &proxies), "192.0.2.1");
        assert_eq!(client("10.0.0.1", &["9.9.9.9"], real, &Trust::Hops(1)), "9.9.9.9");
        assert_eq!(client("10.0.0.1", &[], Some("nonsense"), &Trust::Hops(1)), "10.0.0.1");
    }

    #[test]
    fn a_spoofed_left_end_is_never_used() {
        let spoof = vec!["10.6.6.6"; 1_000].join(", ");
        let list = format!("{spoof}, 203.0.113.7");
        let networks = ["10.0.0.0/8".parse().expect("a network")];
        let proxies = Trust::Proxies(&networks);
        assert_eq!(client("10.0.0.1", &[&list], None, &proxies), "203.0.113.7");
        assert_eq!(client("10.0.0.1", &[&list], None, &Trust::Hops(1)), "203.0.113.7");
    }

    #[test]
    fn a_list_of_a_thousand_trusted_hops_is_read_to_the_bound() {
        let list = format!("203.0.113.7, {}", vec!["10.6.6.6"; 1_000].join(", "));
        let networks = ["10.0.0.0/8".parse().expect("a network")];
        let proxies = Trust::Proxies(&networks);
        assert_eq!(client("10.0.0.1", &[&list], None, &proxies), "10.6.6.6");
    }

    #[test]
    fn clients_are_grouped_by_network() {
        for (addr, prefix, expected) in [
            ("203.0.113.7", 64, "203.0.113.7"),
            ("::ffff:203.0.113.7", 64, "203.0.113.7"),
            ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"),
            ("2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::/48"),
            ("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6"),
            ("2001:db8:1:2:3:4:5:6", 0, "::/0"),
        ] {
            assert_eq!(group(addr.parse().expect("an address"), prefix), expected);
        }
    }
}
