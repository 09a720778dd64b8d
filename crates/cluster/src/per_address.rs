//! A bound on what one remote address holds at the same time: connections, handshakes.
//!
//! IPv6 addresses are counted by their /64: a host can usually take every address of it. An address
//! is remembered only while it holds a slot, so the map has at most as many entries as there are
//! slots in use, which the caller bounds.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// The length of an IPv6 prefix that counts as one address.
const IPV6_PREFIX: u32 = 64;

/// The slots in use, by address.
#[derive(Debug)]
pub struct PerAddress {
    /// Most slots of an address.
    max: usize,
    in_use: Mutex<HashMap<IpAddr, usize>>,
}

/// One of the slots of an address, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Slot {
    slots: Arc<PerAddress>,
    addr: IpAddr,
}

impl PerAddress {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, in_use: Mutex::default() })
    }

    /// A slot of `addr`, or `None` when all of them are in use.
    pub fn acquire(self: &Arc<Self>, addr: IpAddr) -> Option<Slot> {
        let addr = host(addr);
        let mut in_use = self.in_use.lock();
        let held = in_use.get(&addr).copied().unwrap_or(0);
        if held >= self.max {
            return None;
        }
        in_use.insert(addr, held + 1);
        Some(Slot { slots: self.clone(), addr })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut in_use = self.slots.in_use.lock();
        match in_use.get_mut(&self.addr) {
            Some(held) if *held > 1 => *held -= 1,
            _ => drop(in_use.remove(&self.addr)),
        }
    }
}

/// The address under which `addr` is counted.
fn host(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(v6) => {
            let mask = u128::MAX << (128 - IPV6_PREFIX);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_at_its_bound_leaves_the_others_alone() {
        let slots = PerAddress::new(2);
        let [first, second] = [(); 2].map(|()| slots.acquire(addr("203.0.113.7")));
        assert!(first.is_some() && second.is_some());
        assert!(slots.acquire(addr("203.0.113.7")).is_none());
        let other = slots.acquire(addr("203.0.113.8"));
        assert!(other.is_some());
        drop(first);
        let third = slots.acquire(addr("203.0.113.7"));
        assert!(third.is_some());
        assert!(slots.acquire(addr("203.0.113.7")).is_none());
    }

    #[test]
    fn an_ipv6_network_is_one_address_and_a_mapped_address_is_ipv4() {
        for (taken, same, other) in [
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:3::1"),
            ("::ffff:203.0.113.7", "203.0.113.7", "::ffff:203.0.113.8"),
        ] {
            let slots = PerAddress::new(1);
            let held = slots.acquire(addr(taken));
            assert!(held.is_some() && slots.acquire(addr(same)).is_none(), "{same}");
            assert!(slots.acquire(addr(other)).is_some(), "{other}");
        }
    }

    #[test]
    fn an_address_without_slots_is_forgotten() {
        let slots = PerAddress::new(3);
        let held: Vec<_> = (0..9).map(|n| slots.acquire([192, 0, 2, n % 3].into())).collect();
        assert!(held.iter().all(Option::is_some));
        assert_eq!(slots.in_use.lock().len(), 3);
        drop(held);
        assert_eq!(slots.in_use.lock().len(), 0);
    }
}
