//! Ports for processes, which get theirs before they start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range that the kernel gives to outgoing connections (from 32,768 on): a port from that
/// range may be the source port of a connection by the time a process binds it.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

static TAKEN: AtomicU16 = AtomicU16::new(0);

/// An address of the loopback that is free for TCP and UDP, and that no other call returned.
pub fn free() -> SocketAddr {
    // Test binaries that run at the same time begin at different ports.
    let start = u16::try_from(std::process::id() % u32::from(COUNT / 40)).unwrap() * 40;
    for _ in 0..COUNT {
        let offset = TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (start + offset % COUNT) % COUNT;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(addr).is_ok() && UdpSocket::bind(addr).is_ok() {
            return addr;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
