//! The Redis protocol: one command with varying keys; replies are in order.

use std::io;

use super::{Protocol, ReplyStatus};

/// Placeholder of the key in a command.
pub const KEY: &str = "KEY";
/// The width of random numbers in `redis-benchmark`.
const DIGITS: usize = 12;

/// How to read the verdict from a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Every reply except an error counts as admitted.
    Any,
    /// An array whose first integer is 0 when the request was admitted (redis-cell).
    Limited,
    /// An array whose first integer is 1 when it was (throttlecrab, the Lua scripts).
    Allowed,
}

#[derive(Clone, Debug)]
pub struct Resp {
    /// The encoded command, and the position of the key's digits in it.
    command: Vec<u8>,
    digits: usize,
    reply: Reply,
    replies: u64,
}

/// A parsed reply, without the types that no target uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Int(i64),
    Text(String),
    Error(String),
    Array(Vec<Value>),
    Nil,
}

impl Resp {
    /// Keys are `prefix` and a number.
    pub fn new(command: &[String], prefix: &str, reply: Reply) -> Self {
        let key = format!("{prefix}{:0DIGITS$}", 0);
        let words: Vec<&str> =
            command.iter().map(|word| if word == KEY { key.as_str() } else { word }).collect();
        let command = encode(&words);
        let digits = command.windows(key.len()).position(|bytes| bytes == key.as_bytes());
        let digits = digits.expect("a key in the command") + prefix.len();
        Self { command, digits, reply, replies: 0 }
    }
}

impl Protocol for Resp {
    fn preface(&mut self, _out: &mut Vec<u8>) {}

    fn request(&mut self, mut key: u64, out: &mut Vec<u8>) {
        for digit in self.command[self.digits..self.digits + DIGITS].iter_mut().rev() {
            *digit = b'0' + u8::try_from(key % 10).unwrap_or_default();
            key /= 10;
        }
        out.extend_from_slice(&self.command);
    }

    fn replies(
        &mut self,
        input: &[u8],
        _out: &mut Vec<u8>,
        on_reply: &mut dyn FnMut(u64, ReplyStatus),
    ) -> io::Result<usize> {
        let mut at = 0;
        while let Some((status, length)) = parse_status(&input[at..], self.reply)? {
            on_reply(self.replies, status);
            self.replies += 1;
            at += length;
        }
        Ok(at)
    }
}

/// A command as an array of bulk strings.
pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    out
}

/// The status and length of a reply, without allocating. `None` if it is incomplete.
fn parse_status(input: &[u8], reply: Reply) -> io::Result<Option<(ReplyStatus, usize)>> {
    let Some((kind, number, mut at)) = line(input)? else {
        return Ok(None);
    };
    match kind {
        b'-' => Ok(Some((ReplyStatus::Failed, at))),
        b'*' => {
            let mut first = None;
            for _ in 0..number.unwrap_or_default() {
                let Some((_, value, length)) = line(&input[at..])? else {
                    return Ok(None);
                };
                first = first.or(value);
                at += length;
            }
            let status = match (reply, first) {
                (Reply::Limited, Some(0)) | (Reply::Allowed, Some(1)) | (Reply::Any, _) => {
                    ReplyStatus::Admitted
                }
                (_, Some(_)) => ReplyStatus::Refused,
                (_, None) => ReplyStatus::Failed,
            };
            Ok(Some((status, at)))
        }
        _ => Ok(Some((
            if reply == Reply::Any { ReplyStatus::Admitted } else { ReplyStatus::Failed },
            at,
        ))),
    }
}

/// The first line of a reply: its type byte, its number if it has one, and its length.
fn line(input: &[u8]) -> io::Result<Option<(u8, Option<i64>, usize)>> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let (Some(kind), Some(text)) = (input.first(), input.get(1..end.saturating_sub(1))) else {
        return Err(io::Error::other("an empty line in a reply"));
    };
    let (digits, is_negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    let number = digits.iter().try_fold(0_i64, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'))
    });
    Ok(Some((*kind, number.map(|number| if is_negative { -number } else { number }), end + 1)))
}

/// Parses a reply and returns it with its length. `None` if it is incomplete.
pub fn decode(input: &[u8]) -> io::Result<Option<(Value, usize)>> {
    let Some((kind, number, mut at)) = line(input)? else {
        return Ok(None);
    };
    let text = || String::from_utf8_lossy(&input[1..at - 2]).into_owned();
    let value = match (kind, number) {
        (b':', Some(number)) => Value::Int(number),
        (b'-', _) => Value::Error(text()),
        (b'$' | b'*', Some(-1)) | (b'_', _) => Value::Nil,
        (b'$', Some(length)) => {
            let length = usize::try_from(length).unwrap_or_default();
            let Some(bytes) = input.get(at..at + length) else {
                return Ok(None);
            };
            at += length + 2;
            Value::Text(String::from_utf8_lossy(bytes).into_owned())
        }
        (b'*', Some(count)) => {
            let mut items = Vec::new();
            for _ in 0..count {
                let Some((item, length)) = decode(&input[at..])? else {
                    return Ok(None);
                };
                items.push(item);
                at += length;
            }
            Value::Array(items)
        }
        _ => Value::Text(text()),
    };
    Ok((at <= input.len()).then_some((value, at)))
}
