//! Finds HTTP/1 requests that two programs may read as different requests.
//!
//! A proxy behind another proxy must find the same requests in a connection as the one in front
//! does. Otherwise a client hides a request in the body of another one: it passes the checks in
//! front and reaches the application (request smuggling). hyper reads such messages in one way,
//! which is a valid one: a `Content-Length` beside `Transfer-Encoding` is dropped, and a line may
//! end with LF alone. Here they are found, so that the listener refuses them.
//!
//! The bytes of a connection are followed line by line: the head of a request, then as many bytes
//! of its body as the head announces, then the next head. What hyper itself refuses needs no care
//! here; the connection ends there.
//!
//! *Example*: two lengths, of which a program in front may use the other one.
//!
//! ```text
//! POST / HTTP/1.1
//! Content-Length: 6
//! Transfer-Encoding: chunked
//!
//! 0
//!
//! GET /admin ...
//! ```
//!
//! Source: RFC 9112, 2.2, 5.2, 6.1, 6.3 and 11.2.

use parking_lot::Mutex;

/// Bytes of a line that are looked at: enough for a length or a transfer coding with its name. A
/// request with a longer one is refused: nobody needs that, and what is cut off could change it.
const LINE_BYTES_MAX: usize = 128;

/// Why a request may be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    #[error("it has both Content-Length and Transfer-Encoding")]
    TwoLengths,
    #[error("it has Content-Length more than once, or one that is no number")]
    Length,
    #[error("it has a Transfer-Encoding that is not chunked")]
    Coding,
    #[error("a line ends with LF alone")]
    BareLineFeed,
    #[error("a header goes on in the next line")]
    FoldedHeader,
    #[error("there is a space before the colon of a header")]
    SpaceBeforeColon,
    #[error("its Content-Length, Transfer-Encoding or the size of a chunk is too long")]
    TooLong,
}

/// Follows the requests of one connection.
#[derive(Debug, Default)]
pub struct Framing(Mutex<Scanner>);

impl Framing {
    /// Bytes that have arrived, in their order.
    pub fn read(&self, bytes: &[u8]) {
        self.0.lock().read(bytes);
    }

    /// Why a request of this connection may be read in two ways, if one did: nothing after it can
    /// be trusted.
    pub fn ambiguity(&self) -> Option<Ambiguity> {
        self.0.lock().ambiguity
    }
}

#[derive(Debug, Default)]
struct Scanner {
    state: State,
    /// The beginning of the line that is not complete yet.
    line: Vec<u8>,
    /// The line has more than that.
    is_cut: bool,
    /// The last byte of that line, which may not be kept.
    last: u8,
    head: Head,
    ambiguity: Option<Ambiguity>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Head,
    /// Bytes of a body that are left.
    Body(u64),
    ChunkSize,
    /// Bytes of a chunk that are left.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// No requests follow, or not as HTTP/1, or hyper refuses what follows.
    Ended,
}

/// What the head of a request has said so far.
#[derive(Debug, Default)]
struct Head {
    has_request_line: bool,
    length: Option<u64>,
    is_chunked: bool,
    upgrades: bool,
}

impl Scanner {
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Ended => return,
                State::Body(left) => self.skip(bytes, left, State::Body, State::Head),
                State::Chunk(left) => self.skip(bytes, left, State::Chunk, State::ChunkEnd),
                State::Head | State::ChunkSize | State::ChunkEnd | State::Trailers => {
                    self.line(bytes)
                }
            };
        }
    }

    /// Skips at most `left` bytes; returns the others.
    fn skip<'a>(
        &mut self,
        bytes: &'a [u8],
        left: u64,
        rest: fn(u64) -> State,
        then: State,
    ) -> &'a [u8] {
        let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - count as u64;
        self.state = if left == 0 { then } else { rest(left) };
        &bytes[count..]
    }

    /// Takes bytes up to the end of a line; returns the others.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let room = LINE_BYTES_MAX - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        self.is_cut |= part.len() > room;
        self.last = part.last().copied().unwrap_or(self.last);
        let Some(end) = end else { return &[] };
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.last) == b'\r' {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            self.complete(&line);
        } else {
            self.refuse(Ambiguity::BareLineFeed);
        }
        line.clear();
        self.line = line;
        self.is_cut = false;
        &bytes[end + 1..]
    }

    fn refuse(&mut self, ambiguity: Ambiguity) {
        self.ambiguity = Some(ambiguity);
        self.state = State::Ended;
    }

    fn complete(&mut self, line: &[u8]) {
        self.state = match self.state {
            State::Head => match self.head_line(line) {
                Ok(state) => state,
                Err(ambiguity) => return self.refuse(ambiguity),
            },
            State::ChunkSize if self.is_cut && !line.contains(&b';') => {
                return self.refuse(Ambiguity::TooLong);
            }
            State::ChunkSize => match chunk_size(line) {
                Some(0) => State::Trailers,
                Some(size) => State::Chunk(size),
                None => State::Ended,
            },
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::Trailers if line.is_empty() => State::Head,
            State::Trailers => State::Trailers,
            State::ChunkEnd | State::Body(_) | State::Chunk(_) | State::Ended => State::Ended,
        };
    }

    fn head_line(&mut self, line: &[u8]) -> Result<State, Ambiguity> {
        let head = &mut self.head;
        if !head.has_request_line {
            // Empty lines before a request are ignored (RFC 9112, 2.2).
            head.has_request_line = !line.is_empty();
            let is_http2 = line == b"PRI * HTTP/2.0";
            return Ok(if is_http2 { State::Ended } else { State::Head });
        }
        if line.is_empty() {
            let head = std::mem::take(head);
            return match (head.length, head.is_chunked) {
                (Some(_), true) => Err(Ambiguity::TwoLengths),
                // What follows may be another protocol; the listener ends the connection if not.
                _ if head.upgrades => Ok(State::Ended),
                (_, true) => Ok(State::ChunkSize),
                (None | Some(0), false) => Ok(State::Head),
                (Some(length), false) => Ok(State::Body(length)),
            };
        }
        if matches!(line[0], b' ' | b'\t') {
            return Err(Ambiguity::FoldedHeader);
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Ok(State::Head);
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.ends_with(b" ") || name.ends_with(b"\t") {
            return Err(Ambiguity::SpaceBeforeColon);
        }
        let is_length = name.eq_ignore_ascii_case(b"content-length");
        let is_coding = name.eq_ignore_ascii_case(b"transfer-encoding");
        if self.is_cut && (is_length || is_coding) {
            return Err(Ambiguity::TooLong);
        }
        if is_length {
            let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(value).ok().filter(|_| is_number);
            let length = text.and_then(|text| text.parse().ok()).ok_or(Ambiguity::Length)?;
            if head.length.replace(length).is_some() {
                return Err(Ambiguity::Length);
            }
        } else if is_coding {
            if head.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Ambiguity::Coding);
            }
            head.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            head.upgrades = true;
        }
        Ok(State::Head)
    }
}

/// The size of a chunk, `1a;extension`.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In one piece, and byte by byte.
    fn ambiguity(text: &str) -> Option<Ambiguity> {
        let (whole, parts) = (Framing::default(), Framing::default());
        whole.read(text.as_bytes());
        text.as_bytes().chunks(1).for_each(|byte| parts.read(byte));
        assert_eq!(whole.ambiguity(), parts.ambiguity(), "{text:?}");
        whole.ambiguity()
    }

    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";
    const TE: &str = "Transfer-Encoding: chunked\r\n";

    #[test]
    fn a_request_with_one_length_is_clear() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            format!("{POST}Content-Length: 3\r\n\r\nabc"),
            format!("{POST}{TE}\r\n3\r\nabc\r\n0\r\n\r\n"),
            format!("{POST}TRANSFER-ENCODING:chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nx: y\r\n\r\n"),
            format!("\r\n{POST}Content-Length: 0\r\n\r\n"),
        ] {
            assert_eq!(ambiguity(&text), None);
            // The next request of the connection is found behind its body.
            let next = format!("{text}{POST}{TE}Content-Length: 1\r\n\r\n");
            assert_eq!(ambiguity(&next), Some(Ambiguity::TwoLengths), "{next:?}");
        }
    }

    #[test]
    fn a_body_is_no_header() {
        let hidden = format!("{POST}{TE}Content-Length: 4\r\n\r\n");
        for text in [
            format!("{POST}Content-Length: {}\r\n\r\n{hidden}", hidden.len()),
            format!("{POST}{TE}\r\n{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len()),
            format!("{POST}Content-Length: 8\r\n\r\na\nb\n c\n\n"),
        ] {
            assert_eq!(ambiguity(&text), None);
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_found() {
        for (head, found) in [
            (format!("Content-Length: 1\r\n{TE}"), Ambiguity::TwoLengths),
            (format!("{TE}content-length: 1\r\n"), Ambiguity::TwoLengths),
            ("Content-Length: 1\r\nContent-Length: 1\r\n".to_owned(), Ambiguity::Length),
            ("Content-Length: 1, 1\r\n".to_owned(), Ambiguity::Length),
            ("Content-Length: +1\r\n".to_owned(), Ambiguity::Length),
            ("Content-Length:\r\n".to_owned(), Ambiguity::Length),
            ("Content-Length: 99999999999999999999\r\n".to_owned(), Ambiguity::Length),
            ("Transfer-Encoding: xchunked\r\n".to_owned(), Ambiguity::Coding),
            ("Transfer-Encoding: gzip, chunked\r\n".to_owned(), Ambiguity::Coding),
            ("Transfer-Encoding: \x0bchunked\r\n".to_owned(), Ambiguity::Coding),
            (format!("{TE}{TE}"), Ambiguity::Coding),
            ("X: a\n".to_owned(), Ambiguity::BareLineFeed),
            ("X: a\r\n b\r\n".to_owned(), Ambiguity::FoldedHeader),
            ("Content-Length : 1\r\n".to_owned(), Ambiguity::SpaceBeforeColon),
        ] {
            assert_eq!(ambiguity(&format!("{POST}{head}\r\n")), Some(found), "{head:?}");
        }
    }

    #[test]
    fn a_size_of_which_the_end_is_not_seen_hides_nothing() {
        let (zeros, spaces) = ("0".repeat(127), " ".repeat(120));
        let hidden = format!("\r\n{POST}Content-Length: 100000\r\n\r\n");
        let size = hidden.len();
        let long = Some(Ambiguity::TooLong);
        for text in [
            format!("{POST}{TE}\r\n{zeros}{size:x}\r\n{hidden}\r\n0\r\n\r\n"),
            format!("{POST}{TE}\r\n1{spaces}{spaces};a\r\na\r\n0\r\n\r\n"),
            format!("{POST}Content-Length: {zeros}{size}\r\n\r\n{hidden}"),
            format!("{POST}Transfer-Encoding: chunked{spaces}, chunked\r\n\r\n0\r\n\r\n"),
            format!("{POST}Transfer-Encoding: chunked{spaces}, gzip\r\n\r\n0\r\n\r\n"),
        ] {
            assert_eq!(ambiguity(&text), long, "{text:?}");
        }
        // What says nothing about lengths may be long, and so may many leading zeros be.
        let size = format!("{}3", &zeros[..100]);
        for text in [
            format!("{POST}X: {zeros}{spaces}\r\n\r\n"),
            format!("{POST}{TE}\r\n{size}\r\nabc\r\n0\r\nX: {zeros}{spaces}\r\n\r\n"),
            format!("{POST}{TE}\r\n3;{zeros}{spaces}\r\nabc\r\n0\r\n\r\n"),
            format!("{POST}Content-Length: {size}\r\n\r\nabc"),
        ] {
            assert_eq!(ambiguity(&text), None, "{text:?}");
            let next = format!("{text}{POST}{TE}Content-Length: 1\r\n\r\n");
            assert_eq!(ambiguity(&next), Some(Ambiguity::TwoLengths), "{next:?}");
        }
    }

    #[test]
    fn http2_and_other_protocols_are_not_looked_at() {
        let frames = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\n\0\n";
        let upgraded = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n\n\n\n";
        for text in [frames, upgraded] {
            assert_eq!(ambiguity(text), None);
        }
    }

    #[test]
    fn a_long_line_is_not_kept() {
        let long = "a".repeat(1 << 20);
        let framing = Framing::default();
        framing.read(format!("GET /{long} HTTP/1.1\r\nX: {long}\r\n").as_bytes());
        framing.read(long.as_bytes());
        assert!(framing.0.lock().line.capacity() <= 2 * LINE_BYTES_MAX);
        framing.read(b"\nGET");
        assert_eq!(framing.ambiguity(), Some(Ambiguity::BareLineFeed));
    }
}
