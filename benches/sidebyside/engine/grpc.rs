//! `ShouldRateLimit` as frames of HTTP/2, made once and patched for each ask.
//!
//! The first ask puts its headers into the server's table, those behind name them by number, as
//! every client does. What the server sends is read as far as it matters: data, the end of a
//! stream, settings and pings. Windows are opened once, wide enough for a whole run.

use std::collections::VecDeque;
use std::io;

use prost::Message;
use tidegate::front::rls::message::{Entry, RateLimitDescriptor, RateLimitRequest};

use super::{Said, Wire};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const DIGITS: usize = 12;
const FRAME_HEADER: usize = 9;
/// A byte for compression and four for the length.
const MESSAGE_HEADER: usize = 5;
const WINDOW: u32 = 0x7fff_ffff;
const WINDOW_AT_START: u32 = 65_535;

mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RESET: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
}
/// A header that stands in a table as a whole.
const INDEXED: u8 = 0x80;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One connection.
#[derive(Clone, Debug)]
pub struct Grpc {
    first_headers: Vec<u8>,
    message: Vec<u8>,
    /// Where in the message the digits of the key stand.
    digits: usize,
    asked: u64,
    /// What was said so far on the streams from number `oldest` on; none where it ended.
    open: VecDeque<Option<Said>>,
    oldest: u64,
}

/// A message of one ask, with the header that gRPC gives it.
pub fn message(domain: &str, key: &str, value: &str) -> Vec<u8> {
    let entry = Entry { key: key.into(), value: value.into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let request =
        RateLimitRequest { domain: domain.into(), descriptors: vec![descriptor], hits_addend: 1 };
    let body = request.encode_to_vec();
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or_default().to_be_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

impl Grpc {
    pub fn new(domain: &str, key: &str) -> Self {
        let zeros = "0".repeat(DIGITS);
        let message = message(domain, key, &format!("user:{zeros}"));
        let digits = message.windows(DIGITS).position(|bytes| bytes == zeros.as_bytes());
        // :method POST and :scheme http stand in the static table; the four behind are added to the
        // dynamic one: by the names 4, 1 and 31 of the static table, and by a name of its own.
        let mut first_headers = vec![0x83, 0x86];
        for (name, value) in [(4, PATH), (1, "bench"), (31, "application/grpc")] {
            first_headers.push(0x40 | name);
            text(&mut first_headers, value);
        }
        first_headers.push(0x40);
        text(&mut first_headers, "te");
        text(&mut first_headers, "trailers");
        Self {
            first_headers,
            message,
            digits: digits.expect("digits in the message"),
            asked: 0,
            open: VecDeque::new(),
            oldest: 0,
        }
    }

    fn stream(&mut self, stream: u32) -> Option<&mut Option<Said>> {
        let number = u64::from(stream.checked_sub(1)? / 2);
        self.open.get_mut(usize::try_from(number.checked_sub(self.oldest)?).ok()?)
    }

    fn close(&mut self, stream: u32, said: Option<Said>, each: &mut dyn FnMut(u64, Said)) {
        let Some(open) = self.stream(stream).and_then(Option::take) else {
            return;
        };
        each(u64::from(stream / 2), said.unwrap_or(open));
        while self.open.front().is_some_and(Option::is_none) {
            self.open.pop_front();
            self.oldest += 1;
        }
    }
}

impl Wire for Grpc {
    fn hello(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        // SETTINGS_INITIAL_WINDOW_SIZE
        frame(out, kind::SETTINGS, 0, 0, &[&[0, 4], &WINDOW.to_be_bytes()[..]].concat());
        frame(out, kind::WINDOW_UPDATE, 0, 0, &(WINDOW - WINDOW_AT_START).to_be_bytes());
    }

    fn ask(&mut self, mut key: u64, out: &mut Vec<u8>) {
        for digit in self.message[self.digits..self.digits + DIGITS].iter_mut().rev() {
            *digit = b'0' + u8::try_from(key % 10).unwrap_or_default();
            key /= 10;
        }
        let stream = u32::try_from(self.asked * 2 + 1).unwrap_or(u32::MAX);
        if self.asked == 0 {
            frame(out, kind::HEADERS, END_HEADERS, stream, &self.first_headers);
        } else {
            // The newest of the dynamic table stands at 62, the oldest of the four at 65.
            let headers = [0x83, 0x86, INDEXED + 65, INDEXED + 64, INDEXED + 63, INDEXED + 62];
            frame(out, kind::HEADERS, END_HEADERS, stream, &headers);
        }
        frame(out, kind::DATA, END_STREAM, stream, &self.message);
        self.asked += 1;
        self.open.push_back(Some(Said::Failed));
    }

    fn answers(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(u64, Said),
    ) -> io::Result<usize> {
        let mut at = 0;
        while let Some(header) = input.get(at..at + FRAME_HEADER) {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let (kind, flags) = (header[3], header[4]);
            let stream = u32::from_be_bytes([header[5] & 0x7f, header[6], header[7], header[8]]);
            let begin = at + FRAME_HEADER;
            let Some(payload) = input.get(begin..begin + length) else {
                break;
            };
            at = begin + length;
            match kind {
                kind::DATA => {
                    if let Some(Some(said)) = self.stream(stream) {
                        *said = read(payload);
                    }
                    if flags & END_STREAM != 0 {
                        self.close(stream, None, each);
                    }
                }
                kind::HEADERS if flags & END_STREAM != 0 => self.close(stream, None, each),
                kind::RESET => self.close(stream, Some(Said::Failed), each),
                kind::SETTINGS if flags & ACK == 0 => frame(out, kind::SETTINGS, ACK, 0, &[]),
                kind::PING if flags & ACK == 0 => frame(out, kind::PING, ACK, 0, payload),
                kind::GOAWAY => return Err(io::Error::other("the server says goodbye")),
                _ => {}
            }
        }
        Ok(at)
    }
}

/// `overall_code` is the first field of the message.
fn read(payload: &[u8]) -> Said {
    match payload.get(MESSAGE_HEADER..MESSAGE_HEADER + 2) {
        Some([0x08, 1]) => Said::Admitted,
        Some([0x08, 2]) => Said::Refused,
        _ => Said::Failed,
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap_or_default().to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A text as HPACK writes it without Huffman's code; all of ours are shorter than 127 bytes.
fn text(out: &mut Vec<u8>, value: &str) {
    out.push(u8::try_from(value.len()).unwrap_or_default());
    out.extend_from_slice(value.as_bytes());
}
