//! Checks over gRPC as HTTP/2 frames, built once and patched for each request: Envoy's
//! `ShouldRateLimit`, and `GetRateLimits` of Gubernator, with one check per call or many.
//!
//! The first request adds its headers to the dynamic table of HPACK; later ones refer to them by
//! index, as other clients do. Of the frames from the server only data, the end of a stream,
//! settings and pings are parsed. Flow control windows are opened once, for a whole run.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use prost::Message;
use tidegate::front::rls::message::{Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_proto::gubernator::{GetRateLimitsReq, GetRateLimitsResp, RateLimitReq, Status};

use super::{Protocol, ReplyStatus};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GET_RATE_LIMITS: &str = "/pb.gubernator.V1/GetRateLimits";
const DIGITS: usize = 12;
const FRAME_HEADER: usize = 9;
/// One byte for compression and four for the length.
const MESSAGE_HEADER: usize = 5;
const WINDOW: u32 = 0x7fff_ffff;
const INITIAL_WINDOW: u32 = 65_535;

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RESET: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}
/// An indexed header field of HPACK.
const INDEXED: u8 = 0x80;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A limit that a request of Gubernator carries.
#[derive(Clone, Debug)]
pub struct CarriedLimit<'a> {
    pub name: &'a str,
    pub limit: i64,
    pub duration: Duration,
    pub behavior: i32,
}

#[derive(Clone, Debug)]
pub struct Grpc {
    first_headers: Vec<u8>,
    message: Vec<u8>,
    /// Positions of the keys' digits in the message.
    digits: Vec<usize>,
    parse: fn(&[u8]) -> ReplyStatus,
    sent: u64,
    /// Status of the streams from number `oldest` on; `None` if the stream has ended.
    open: VecDeque<Option<ReplyStatus>>,
    oldest: u64,
}

/// A request message with its gRPC header.
pub fn message(domain: &str, key: &str, value: &str) -> Vec<u8> {
    framed(&should_rate_limit(domain, key, value, 1))
}

impl Grpc {
    /// `ShouldRateLimit` with one descriptor.
    pub fn new(domain: &str, key: &str) -> Self {
        Self::batch(domain, key, 1)
    }

    /// `ShouldRateLimit` with a descriptor for each of `checks` keys: call `n` has those from
    /// `n * checks` on.
    pub fn batch(domain: &str, key: &str, checks: usize) -> Self {
        let body = should_rate_limit(domain, key, &placeholder(), checks);
        Self::of(SHOULD_RATE_LIMIT, &body, checks, overall_code)
    }

    /// `GetRateLimits` of Gubernator, with `checks` keys as [`batch`](Self::batch).
    pub fn carried(limit: &CarriedLimit<'_>, checks: usize) -> Self {
        let request = RateLimitReq {
            name: limit.name.into(),
            unique_key: placeholder(),
            hits: 1,
            limit: limit.limit,
            duration: i64::try_from(limit.duration.as_millis()).unwrap_or(i64::MAX),
            behavior: limit.behavior,
            ..Default::default()
        };
        let requests = vec![request; checks];
        Self::of(GET_RATE_LIMITS, &GetRateLimitsReq { requests }, checks, carried_statuses)
    }

    fn of(path: &str, body: &impl Message, checks: usize, parse: fn(&[u8]) -> ReplyStatus) -> Self {
        let message = framed(body);
        let zeros = "0".repeat(DIGITS);
        let is_digits = |(_, bytes): &(usize, &[u8])| *bytes == zeros.as_bytes();
        let digits: Vec<usize> =
            message.windows(DIGITS).enumerate().filter(is_digits).map(|(at, _)| at).collect();
        assert_eq!(digits.len(), checks, "the digits of each check");
        // :method POST and :scheme http are in the static table. The next four are added to the
        // dynamic table: three with the names 4, 1 and 31 of the static table, one with a new name.
        let mut first_headers = vec![0x83, 0x86];
        for (name, value) in [(4, path), (1, "bench"), (31, "application/grpc")] {
            first_headers.push(0x40 | name);
            text(&mut first_headers, value);
        }
        first_headers.push(0x40);
        text(&mut first_headers, "te");
        text(&mut first_headers, "trailers");
        Self { first_headers, message, digits, parse, sent: 0, open: VecDeque::new(), oldest: 0 }
    }

    fn stream(&mut self, stream: u32) -> Option<&mut Option<ReplyStatus>> {
        let number = u64::from(stream.checked_sub(1)? / 2);
        self.open.get_mut(usize::try_from(number.checked_sub(self.oldest)?).ok()?)
    }

    fn close(
        &mut self,
        stream: u32,
        status: Option<ReplyStatus>,
        on_reply: &mut dyn FnMut(u64, ReplyStatus),
    ) {
        let Some(open) = self.stream(stream).and_then(Option::take) else {
            return;
        };
        on_reply(u64::from(stream / 2), status.unwrap_or(open));
        while self.open.front().is_some_and(Option::is_none) {
            self.open.pop_front();
            self.oldest += 1;
        }
    }
}

impl Protocol for Grpc {
    fn preface(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        // SETTINGS_INITIAL_WINDOW_SIZE
        frame(out, kind::SETTINGS, 0, 0, &[&[0, 4], &WINDOW.to_be_bytes()[..]].concat());
        frame(out, kind::WINDOW_UPDATE, 0, 0, &(WINDOW - INITIAL_WINDOW).to_be_bytes());
    }

    fn request(&mut self, key: u64, out: &mut Vec<u8>) {
        for (mut key, at) in (key * self.digits.len() as u64..).zip(&self.digits) {
            for digit in self.message[*at..*at + DIGITS].iter_mut().rev() {
                *digit = b'0' + u8::try_from(key % 10).unwrap_or_default();
                key /= 10;
            }
        }
        let stream = u32::try_from(self.sent * 2 + 1).unwrap_or(u32::MAX);
        if self.sent == 0 {
            frame(out, kind::HEADERS, END_HEADERS, stream, &self.first_headers);
        } else {
            // The newest entry of the dynamic table has index 62, the oldest of the four 65.
            let headers = [0x83, 0x86, INDEXED + 65, INDEXED + 64, INDEXED + 63, INDEXED + 62];
            frame(out, kind::HEADERS, END_HEADERS, stream, &headers);
        }
        frame(out, kind::DATA, END_STREAM, stream, &self.message);
        self.sent += 1;
        self.open.push_back(Some(ReplyStatus::Failed));
    }

    fn replies(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        on_reply: &mut dyn FnMut(u64, ReplyStatus),
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
                    // The first frame has the whole message. A server may end the stream with an
                    // empty one.
                    let parse = self.parse;
                    if let Some(Some(status)) = self.stream(stream)
                        && !payload.is_empty()
                    {
                        *status = parse(payload.get(MESSAGE_HEADER..).unwrap_or_default());
                    }
                    if flags & END_STREAM != 0 {
                        self.close(stream, None, on_reply);
                    }
                }
                kind::HEADERS if flags & END_STREAM != 0 => self.close(stream, None, on_reply),
                kind::RESET => self.close(stream, Some(ReplyStatus::Failed), on_reply),
                kind::SETTINGS if flags & ACK == 0 => frame(out, kind::SETTINGS, ACK, 0, &[]),
                kind::PING if flags & ACK == 0 => frame(out, kind::PING, ACK, 0, payload),
                kind::GOAWAY => return Err(io::Error::other("the server sent GOAWAY")),
                _ => {}
            }
        }
        Ok(at)
    }
}

fn should_rate_limit(domain: &str, key: &str, value: &str, checks: usize) -> RateLimitRequest {
    let entry = Entry { key: key.into(), value: value.into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    RateLimitRequest {
        domain: domain.into(),
        descriptors: vec![descriptor; checks],
        hits_addend: 1,
    }
}

/// The value of a key before its digits are patched.
fn placeholder() -> String {
    format!("user:{}", "0".repeat(DIGITS))
}

fn framed(body: &impl Message) -> Vec<u8> {
    let body = body.encode_to_vec();
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or_default().to_be_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// `overall_code` is the first field of the message.
fn overall_code(message: &[u8]) -> ReplyStatus {
    match message.get(..2) {
        Some([0x08, 1]) => ReplyStatus::Admitted,
        Some([0x08, 2]) => ReplyStatus::Refused,
        _ => ReplyStatus::Failed,
    }
}

/// Refused if one check is. An error of one is a failure.
fn carried_statuses(message: &[u8]) -> ReplyStatus {
    let Ok(GetRateLimitsResp { responses }) = GetRateLimitsResp::decode(message) else {
        return ReplyStatus::Failed;
    };
    if responses.is_empty() || responses.iter().any(|response| !response.error.is_empty()) {
        return ReplyStatus::Failed;
    }
    let is_over = responses.iter().any(|response| response.status() == Status::OverLimit);
    if is_over { ReplyStatus::Refused } else { ReplyStatus::Admitted }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap_or_default().to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A string literal of HPACK without Huffman coding. All strings here are shorter than 127 bytes.
fn text(out: &mut Vec<u8>, value: &str) {
    out.push(u8::try_from(value.len()).unwrap_or_default());
    out.extend_from_slice(value.as_bytes());
}
