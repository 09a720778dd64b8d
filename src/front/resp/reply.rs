//! Encodes replies in the protocol version of the client.
//!
//! RESP3 has types for maps and null; RESP2 encodes a map as a flat array and null as a bulk string
//! of length -1. The other types used here are the same in both.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The version of a new connection.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

impl Protocol {
    /// The version number in `HELLO`.
    pub const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Encoded replies that were not sent yet.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
}

impl Replies {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// In bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Removes all replies, and shrinks the buffer to `capacity_max`.
    pub fn clear(&mut self, capacity_max: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(capacity_max);
    }

    /// `+OK`
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `-ERR text`; `text` includes the code. Line ends in it become spaces.
    pub fn error(&mut self, text: &str) {
        self.bytes.push(b'-');
        self.bytes.extend(text.bytes().map(|b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// `:7`
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// `$5` and five bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Two bulk strings: an entry of a map.
    pub fn pair(&mut self, key: &str, value: &str) {
        self.bulk(key.as_bytes());
        self.bulk(value.as_bytes());
    }

    pub fn null(&mut self, protocol: Protocol) {
        self.bytes.extend_from_slice(match protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array of `count`.
    pub fn array(&mut self, count: usize) {
        self.number(b'*', i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The head of a map of `count` pairs.
    pub fn map(&mut self, count: usize, protocol: Protocol) {
        match protocol {
            Protocol::Resp2 => self.array(count * 2),
            Protocol::Resp3 => self.number(b'%', i64::try_from(count).unwrap_or(i64::MAX)),
        }
    }

    /// An array of integers: the reply to `CL.THROTTLE` has five.
    #[inline]
    pub fn integers<const N: usize>(&mut self, numbers: [i64; N]) {
        self.array(N);
        for number in numbers {
            self.integer(number);
        }
    }

    #[inline]
    fn number(&mut self, sign: u8, number: i64) {
        // Most are one digit or -1.
        match number {
            digit @ 0..=9 => {
                let digit = b'0' + u8::try_from(digit).unwrap_or(0);
                self.bytes.extend_from_slice(&[sign, digit, b'\r', b'\n']);
            }
            -1 => self.bytes.extend_from_slice(&[sign, b'-', b'1', b'\r', b'\n']),
            other => self.line(sign, itoa::Buffer::new().format(other).as_bytes()),
        }
    }

    fn line(&mut self, sign: u8, text: &[u8]) {
        self.bytes.push(sign);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_encoded_as_in_redis() {
        let mut replies = Replies::default();
        replies.simple("OK");
        replies.error("ERR a\r\nb");
        replies.integers([0, 16, 15, -1, 4_294_967_295]);
        replies.bulk(b"hi");
        replies.null(Protocol::Resp2);
        replies.null(Protocol::Resp3);
        replies.map(2, Protocol::Resp2);
        replies.map(2, Protocol::Resp3);
        replies.integer(i64::MIN);
        let text = String::from_utf8_lossy(replies.bytes()).replace("\r\n", "|");
        assert_eq!(
            text,
            "+OK|-ERR a  b|*5|:0|:16|:15|:-1|:4294967295|$2|hi|$-1|_|*4|%2|:-9223372036854775808|"
        );
        replies.clear(0);
        assert!(replies.is_empty());
    }
}
