//! Arbitrary bytes from a load balancer that begins connections with a header of the PROXY
//! protocol. Invariants: no panic; a header is read to its end, within its bound, and nothing after
//! it; one that is cut off is none; an address is the same in both versions.

#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use tidegate::front::proxy_protocol::{BINARY_BYTES_MAX, TEXT_BYTES_MAX, read};
use tidegate_fuzz::block_on;

/// The signature of version 2, its command and family, and a length.
const BINARY_HEAD: usize = 16;

fuzz_target!(|bytes: &[u8]| {
    let Some((addr, used)) = header(bytes) else { return };
    if bytes.starts_with(b"PROXY ") {
        assert!(used <= TEXT_BYTES_MAX && bytes[..used].ends_with(b"\r\n"));
        assert_eq!(bytes[..used].windows(2).filter(|pair| pair == b"\r\n").count(), 1);
    } else {
        let length = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
        assert!(used == BINARY_HEAD + length && length <= BINARY_BYTES_MAX);
    }
    for cut in 0..used {
        assert_eq!(header(&bytes[..cut]), None);
    }
    if let Some(addr) = addr {
        for again in [text(addr), binary(addr)] {
            assert_eq!(header(&again), Some((Some(addr), again.len())));
        }
    }
});

/// The address in a valid header, and its length.
fn header(bytes: &[u8]) -> Option<(Option<SocketAddr>, usize)> {
    let mut rest = bytes;
    let addr = block_on(read(&mut rest)).ok()?;
    Some((addr, bytes.len() - rest.len()))
}

fn text(addr: SocketAddr) -> Vec<u8> {
    let family = if addr.is_ipv4() { "TCP4" } else { "TCP6" };
    let (ip, port) = (addr.ip(), addr.port());
    format!("PROXY {family} {ip} {ip} {port} 1\r\n").into_bytes()
}

fn binary(addr: SocketAddr) -> Vec<u8> {
    let (family, ip) = match addr.ip() {
        IpAddr::V4(ip) => (0x11, ip.octets().to_vec()),
        IpAddr::V6(ip) => (0x21, ip.octets().to_vec()),
    };
    let rest = [&ip[..], &ip, &addr.port().to_be_bytes(), &[0, 1]].concat();
    let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n\x21"[..], &[family], &length, &rest].concat()
}
