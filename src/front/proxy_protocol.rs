//! The PROXY protocol: a load balancer that passes connections on, and not requests, says in front
//! of each whose it is.
//!
//! Versions 1 (text) and 2 (binary). It is read only from addresses that the configuration names,
//! and those must send it: a client could otherwise choose its address.
//!
//! ```text
//! PROXY TCP4 203.0.113.7 10.0.0.1 51234 443\r\n
//! ```
//!
//! Source: "The PROXY protocol", 2020-03-05, 2.1 and 2.2.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Time for the header to arrive: it is the first thing that a load balancer sends.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);
/// Longest header of version 1, with its line break.
pub const TEXT_BYTES_MAX: usize = 107;
/// Most bytes of addresses and additions in version 2: far above what is sent.
pub const BINARY_BYTES_MAX: usize = 4096;
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The address of the client, or `None` when the load balancer speaks for itself (a health check),
/// or of something else than an IP address. Reads the header and nothing after it.
///
/// # Errors
///
/// The stream begins with anything else (`InvalidData`), or ends before the header does.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<SocketAddr>> {
    // No header of either version is shorter.
    let mut start = [0; SIGNATURE.len()];
    stream.read_exact(&mut start).await?;
    if start == SIGNATURE {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        let mut rest = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
        if rest.len() > BINARY_BYTES_MAX {
            return Err(invalid());
        }
        stream.read_exact(&mut rest).await?;
        return binary(head[0], head[1], &rest);
    }
    if !start.starts_with(b"PROXY ") || start.contains(&b'\n') {
        return Err(invalid());
    }
    let mut line = start.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == TEXT_BYTES_MAX {
            return Err(invalid());
        }
        // Byte by byte, once a connection: what follows belongs to the request.
        line.push(stream.read_u8().await?);
        // One that ends otherwise would take a line of the request with it.
        if line.ends_with(b"\n") && !line.ends_with(b"\r\n") {
            return Err(invalid());
        }
    }
    text(&line)
}

fn text(line: &[u8]) -> io::Result<Option<SocketAddr>> {
    let line = std::str::from_utf8(line).map_err(|_| invalid())?;
    let words: Vec<&str> = line.trim_end_matches("\r\n").split(' ').collect();
    let (family, source, destination, ports) = match words[..] {
        // Whatever follows says nothing.
        [_, "UNKNOWN", ..] => return Ok(None),
        [_, family, source, destination, from, to] => (family, source, destination, [from, to]),
        _ => return Err(invalid()),
    };
    let [source, destination] = [source, destination].map(str::parse::<IpAddr>);
    // The type would take a sign, too.
    let port = |text: &str| text.parse::<u16>().ok().filter(|_| !text.starts_with('+'));
    let [from, to] = ports.map(port);
    match (family, source, destination, from, to) {
        ("TCP4", Ok(source @ IpAddr::V4(_)), Ok(IpAddr::V4(_)), Some(from), Some(_))
        | ("TCP6", Ok(source @ IpAddr::V6(_)), Ok(IpAddr::V6(_)), Some(from), Some(_)) => {
            Ok(Some(SocketAddr::new(source, from)))
        }
        _ => Err(invalid()),
    }
}

/// `command` is that of the connection, `family` that of its addresses.
fn binary(command: u8, family: u8, rest: &[u8]) -> io::Result<Option<SocketAddr>> {
    match (command, family) {
        (0x21, 0x11) => match rest {
            [a, b, c, d, _, _, _, _, high, low, ..] => {
                let port = u16::from_be_bytes([*high, *low]);
                Ok(Some(SocketAddr::new(Ipv4Addr::new(*a, *b, *c, *d).into(), port)))
            }
            _ => Err(invalid()),
        },
        (0x21, 0x21) => {
            let source = rest.first_chunk::<16>().ok_or_else(invalid)?;
            let port = rest.get(32..34).and_then(|port| <[u8; 2]>::try_from(port).ok());
            let port = u16::from_be_bytes(port.ok_or_else(invalid)?);
            Ok(Some(SocketAddr::new(Ipv6Addr::from(*source).into(), port)))
        }
        // The load balancer itself, or no IP addresses.
        (0x20 | 0x21, _) => Ok(None),
        _ => Err(invalid()),
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no valid header of the PROXY protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address, and what was left unread.
    async fn parsed(bytes: &[u8]) -> Result<(Option<SocketAddr>, Vec<u8>), io::ErrorKind> {
        let mut stream = bytes;
        let addr = read(&mut stream).await.map_err(|error| error.kind())?;
        Ok((addr, stream.to_vec()))
    }

    fn binary_header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[tokio::test]
    async fn both_versions_name_the_client_and_end_where_the_request_begins() {
        let v4 = [203, 0, 113, 7, 10, 0, 0, 1, 0xc8, 0x22, 1, 187, 9, 9, 9];
        let v6: Vec<u8> = "2001:db8::7"
            .parse::<Ipv6Addr>()
            .expect("an address")
            .octets()
            .into_iter()
            .chain([0; 16])
            .chain([0, 80, 0, 80])
            .collect();
        for (header, addr) in [
            (b"PROXY TCP4 203.0.113.7 10.0.0.1 51234 443\r\n".to_vec(), Some("203.0.113.7:51234")),
            (b"PROXY TCP6 2001:db8::7 ::1 80 443\r\n".to_vec(), Some("[2001:db8::7]:80")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN a b 1 2\r\n".to_vec(), None),
            (binary_header(0x21, 0x11, &v4), Some("203.0.113.7:51234")),
            (binary_header(0x21, 0x21, &v6), Some("[2001:db8::7]:80")),
            (binary_header(0x20, 0, &[]), None),
            (binary_header(0x21, 0x31, &[7; 216]), None),
        ] {
            let bytes = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            let addr = addr.map(|addr| addr.parse().expect("an address"));
            assert_eq!(parsed(&bytes).await, Ok((addr, b"GET / HTTP/1.1\r\n".to_vec())));
        }
    }

    #[tokio::test]
    async fn anything_else_is_refused() {
        let invalid = Err(io::ErrorKind::InvalidData);
        for bytes in [
            &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..],
            b"PROXY TCP4 2001:db8::7 ::1 80 443\r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 99999 443\r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 +80 443\r\n",
            b"PROXY TCP4 203.0.113.7\r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 51234 443 1\r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 51234 443 \r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 51234\r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 51234 -1\r\n",
            b"PROXY TCP4 203.0.113.7 ::1 51234 443\r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 51234 443\nX: a\r\n",
            b"PROXY UNKNOWN\nGET / HTTP/1.1\r\n",
            b"PROXY UNK\nGET / HTTP/1.1\r\n",
            &[&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(),
            &binary_header(0x31, 0x11, &[0; 12]),
            &binary_header(0x21, 0x11, &[0; 3]),
            &binary_header(0x21, 0x21, &[0; 20]),
            &binary_header(0x21, 0x11, &[0; 5000]),
        ] {
            assert_eq!(parsed(bytes).await, invalid, "{bytes:?}");
        }
        assert_eq!(parsed(b"PROXY TCP4 1.1").await, Err(io::ErrorKind::UnexpectedEof));
    }
}
