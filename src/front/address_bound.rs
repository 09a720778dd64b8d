//! The bound on the connections of one client address at a listener.
//!
//! Without it one host takes every connection that the listener accepts, and all others wait.
//! Loopback addresses and trusted proxies are exempt: behind each of them are many clients, and to
//! refuse a proxy is to refuse all of its clients.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_cluster::per_address::{PerAddress, Slot};

use super::bounds::Bounds;

/// The connections of a listener, by address.
#[derive(Debug)]
pub(super) struct AddressBound {
    /// `None` without a bound.
    counted: Option<Arc<PerAddress>>,
    exempt: Arc<[IpNet]>,
}

/// A connection within the bound; it counts until this is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Admitted {
    _slot: Option<Slot>,
}

impl AddressBound {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let max = bounds.connections_per_address_max;
        let counted = (max > 0).then(|| PerAddress::new(max));
        Self { counted, exempt: bounds.exempt.clone() }
    }

    /// Counts a connection from `peer`; `None` when its address has as many as it may.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<Admitted> {
        let peer = peer.to_canonical();
        let counted =
            self.counted.as_ref().filter(|_| !self.exempt.iter().any(|net| net.contains(&peer)));
        let Some(counted) = counted else { return Some(Admitted { _slot: None }) };
        counted.acquire(peer).map(|slot| Admitted { _slot: Some(slot) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// How many of three connections from `peer` are admitted.
    fn admitted(bound: &AddressBound, peer: &str) -> usize {
        let peer = peer.parse().expect("an address");
        let connections: Vec<_> = (0..3).filter_map(|_| bound.admit(peer)).collect();
        connections.len()
    }

    #[test]
    fn loopback_and_trusted_proxies_are_exempt() {
        let mut config = Config::default();
        config.limits.connections_per_address_max = 2;
        let proxies = ["10.0.0.0/8", "2001:db8:7::/48"].map(|net| net.parse().expect("a network"));
        config.auth.trusted_proxies = Some(proxies.into());
        let bound = AddressBound::new(&Bounds::from(&config));
        for (peer, expected) in [
            ("203.0.113.7", 2),
            ("::ffff:203.0.113.7", 2),
            ("2001:db8:1:2::1", 2),
            ("127.0.0.1", 3),
            ("127.8.9.1", 3),
            ("::1", 3),
            ("::ffff:127.0.0.1", 3),
            ("10.1.2.3", 3),
            ("::ffff:10.1.2.3", 3),
            ("2001:db8:7:1::1", 3),
        ] {
            assert_eq!(admitted(&bound, peer), expected, "{peer}");
        }
    }

    #[test]
    fn a_bound_of_zero_is_none() {
        let bounds = Bounds { connections_per_address_max: 0, ..Bounds::default() };
        assert_eq!(admitted(&AddressBound::new(&bounds), "203.0.113.7"), 3);
    }
}
