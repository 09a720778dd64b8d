//! Parses commands: arrays of bulk strings, and inline commands.
//!
//! ```text
//! *3\r\n $4\r\nPING\r\n ...      an array of 3, the form of client libraries
//! PING hello\r\n                 inline: words, quoted where they contain spaces
//! ```
//!
//! The words of a command are slices of the bytes that were read; only inline commands with quotes,
//! which no client library sends, are copied. An incomplete command is parsed again from its
//! beginning when more bytes have arrived. That costs one step per word, at most
//! [`Limits::words_max`].
//!
//! **Invariant:** the result does not depend on how the bytes were split into packets, and no input
//! makes the parser panic (`fuzz/fuzz_targets/resp.rs`, and the tests below).
//!
//! # Why not a library
//!
//! `redis-protocol` 6 and `resp-rs` 0.1 build a tree of frames with a `Vec` per command and a
//! reference count per word, accept every type of a reply where a request has one shape, and do not
//! parse inline commands.
//!
//! Source: <https://redis.io/docs/latest/develop/reference/protocol-spec/>, and for the errors
//! `processMultibulkBuffer` and `processInlineBuffer` of Redis 7.

use smallvec::SmallVec;

/// The words of one command; the first is its name. `CL.THROTTLE` needs no allocation.
pub type Words<'a> = SmallVec<[&'a [u8]; 8]>;

/// The bounds of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a whole command.
    pub bytes_max: usize,
    pub words_max: usize,
    pub word_bytes_max: usize,
    /// Whether the client has not authenticated yet; selects the error.
    pub before_auth: bool,
}

/// Bytes that are no command. The connection has to be closed, because the beginning of the next
/// command is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The length of an array is no number or above the bound.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    #[error("Protocol error: unauthenticated multibulk length")]
    ArrayLengthBeforeAuth,
    /// A word does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NoBulk(u8),
    /// The length of a word is no number or above the bound.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    #[error("Protocol error: unauthenticated bulk length")]
    BulkLengthBeforeAuth,
    /// A word is longer than its length.
    #[error("Protocol error: expected the end of a bulk string")]
    BulkEnd,
    /// A length without a line end.
    #[error("Protocol error: too big count string")]
    CountTooLong,
    #[error("Protocol error: too big request")]
    TooLong,
    /// An inline command without a line end, or with too many words.
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// A quote that is not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// The result of parsing the beginning of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Not a complete command yet.
    Partial,
    /// A command of this many bytes, possibly without words.
    Command(usize),
    /// An inline command with quotes: its bytes and its words.
    Quoted(usize, Vec<Vec<u8>>),
}

/// Most bytes of a length: 19 digits, a sign and the line end, rounded up.
const COUNT_BYTES_MAX: usize = 32;

/// Parses one command at the beginning of `bytes` and stores its words in `words`.
///
/// # Errors
///
/// The bytes cannot become a command, whatever follows.
pub fn read<'a>(
    bytes: &'a [u8],
    limits: &Limits,
    words: &mut Words<'a>,
) -> Result<Read, Malformed> {
    words.clear();
    match bytes.first() {
        None => Ok(Read::Partial),
        Some(b'*') => array(bytes, limits, words),
        Some(_) => inline(bytes, limits, words),
    }
}

fn array<'a>(bytes: &'a [u8], limits: &Limits, words: &mut Words<'a>) -> Result<Read, Malformed> {
    let Some((count, mut at)) = count(bytes, 1, Malformed::ArrayLength)? else {
        return Ok(Read::Partial);
    };
    // Redis skips empty and null arrays.
    let count = usize::try_from(count).unwrap_or(0);
    if count > limits.words_max {
        return Err(if limits.before_auth {
            Malformed::ArrayLengthBeforeAuth
        } else {
            Malformed::ArrayLength
        });
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(Read::Partial),
            Some(b'$') => {}
            Some(other) => return Err(Malformed::NoBulk(*other)),
        }
        let Some((length, start)) = self::count(bytes, at + 1, Malformed::BulkLength)? else {
            return Ok(Read::Partial);
        };
        let length = usize::try_from(length).map_err(|_| Malformed::BulkLength)?;
        if length > limits.word_bytes_max {
            return Err(if limits.before_auth {
                Malformed::BulkLengthBeforeAuth
            } else {
                Malformed::BulkLength
            });
        }
        let end = start + length;
        if end + 2 > limits.bytes_max {
            return Err(Malformed::TooLong);
        }
        let (Some(word), Some(line_end)) = (bytes.get(start..end), bytes.get(end..end + 2)) else {
            return Ok(Read::Partial);
        };
        if line_end != b"\r\n" {
            return Err(Malformed::BulkEnd);
        }
        words.push(word);
        at = end + 2;
    }
    Ok(Read::Command(at))
}

/// The number at `at` and the index after its line; `None` when the line is incomplete.
#[inline]
fn count(bytes: &[u8], at: usize, wrong: Malformed) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = bytes.get(at..).unwrap_or_default();
    // Nearly all have one or two digits.
    match rest {
        [d @ b'0'..=b'9', b'\r', b'\n', ..] => return Ok(Some((i64::from(d - b'0'), at + 3))),
        [t @ b'0'..=b'9', d @ b'0'..=b'9', b'\r', b'\n', ..] => {
            return Ok(Some((i64::from(t - b'0') * 10 + i64::from(d - b'0'), at + 4)));
        }
        _ => {}
    }
    let line = rest.get(..COUNT_BYTES_MAX).unwrap_or(rest);
    let Some(end) = line.iter().position(|byte| *byte == b'\r') else {
        return if rest.len() >= COUNT_BYTES_MAX { Err(Malformed::CountTooLong) } else { Ok(None) };
    };
    let number = line.get(..end).and_then(integer).ok_or(wrong)?;
    match rest.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((number, at + end + 2))),
        Some(_) => Err(wrong),
    }
}

/// A decimal number as Rust, and therefore redis-cell, parses it.
#[inline]
pub fn integer(text: &[u8]) -> Option<i64> {
    // Up to 18 digits cannot overflow.
    if (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit) {
        return Some(text.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')));
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn inline<'a>(bytes: &'a [u8], limits: &Limits, words: &mut Words<'a>) -> Result<Read, Malformed> {
    let line_max = limits.bytes_max.min(limits.word_bytes_max);
    let within = bytes.get(..line_max).unwrap_or(bytes);
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() >= line_max {
            Err(Malformed::InlineTooLong)
        } else {
            Ok(Read::Partial)
        };
    };
    let line = within.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.contains(&b'"') || line.contains(&b'\'') {
        let quoted = quoted(line).ok_or(Malformed::Quotes)?;
        return bounded(quoted.len(), limits).map(|()| Read::Quoted(end + 1, quoted));
    }
    words.extend(line.split(|byte| is_space(*byte)).filter(|word| !word.is_empty()));
    bounded(words.len(), limits).map(|()| Read::Command(end + 1))
}

fn bounded(words: usize, limits: &Limits) -> Result<(), Malformed> {
    if words > limits.words_max { Err(Malformed::InlineTooLong) } else { Ok(()) }
}

/// The words of a line with quotes, as `redis-cli` and Redis parse them: in double quotes `\n`,
/// `\r`, `\t`, `\a`, `\b` and `\xHH` stand for one byte, in single quotes only `\'`. `None` when a
/// quote is not closed, or something other than a space follows it.
fn quoted(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while let [first, after @ ..] = rest
            && is_space(*first)
        {
            rest = after;
        }
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        loop {
            match rest {
                [] => break,
                [first, ..] if is_space(*first) => break,
                [quote @ (b'"' | b'\''), after @ ..] => {
                    rest = in_quotes(*quote, after, &mut word)?;
                    if rest.first().is_some_and(|byte| !is_space(*byte)) {
                        return None;
                    }
                }
                [first, after @ ..] => {
                    word.push(*first);
                    rest = after;
                }
            }
        }
        words.push(word);
    }
}

/// Appends the text up to the closing quote to `word`; returns the rest of the line.
fn in_quotes<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (byte, after) = match rest {
            [] => return None,
            [end, after @ ..] if *end == quote => return Some(after),
            [b'\\', b'\'', after @ ..] if quote == b'\'' => (b'\'', after),
            [b'\\', b'x', high, low, after @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (hex(*high) << 4 | hex(*low), after)
            }
            [b'\\', escaped, after @ ..] if quote == b'"' => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                };
                (byte, after)
            }
            [byte, after @ ..] => (*byte, after),
        };
        word.push(byte);
        rest = after;
    }
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok()).unwrap_or(0)
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b || byte == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { bytes_max: 100, words_max: 4, word_bytes_max: 40, before_auth: false };

    fn words(bytes: &[u8]) -> Result<(usize, Vec<Vec<u8>>), Option<Malformed>> {
        let mut words = Words::new();
        match read(bytes, &LIMITS, &mut words) {
            Ok(Read::Partial) => Err(None),
            Ok(Read::Command(n)) => Ok((n, words.iter().map(|word| word.to_vec()).collect())),
            Ok(Read::Quoted(n, words)) => Ok((n, words)),
            Err(malformed) => Err(Some(malformed)),
        }
    }

    fn list(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn commands_are_parsed() {
        for (bytes, expected) in [
            ("*1\r\n$4\r\nPING\r\n*1\r\n", list(&["PING"])),
            (
                "*2\r\n$4\r\nECHO\r\n$12\r\n\r\n*1\r\n$4\r\nPI\r\n",
                list(&["ECHO", "\r\n*1\r\n$4\r\nPI"]),
            ),
            ("*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", list(&["ECHO", ""])),
            ("*0\r\n", list(&[])),
            ("*-1\r\n", list(&[])),
            ("\r\n", list(&[])),
            ("PING\n", list(&["PING"])),
            ("  CL.THROTTLE  a 1\t2 \r\n", list(&["CL.THROTTLE", "a", "1", "2"])),
            ("ECHO \"a \\x41\\n\\\"b\" 'it\\'s'\r\n", list(&["ECHO", "a A\n\"b", "it's"])),
            ("ECHO \"\"\r\n", list(&["ECHO", ""])),
        ] {
            let (_, found) = words(bytes.as_bytes()).unwrap_or_else(|_| panic!("{bytes:?}"));
            assert_eq!(found, expected, "{bytes:?}");
        }
    }

    #[test]
    fn malformed_commands_have_the_errors_of_redis() {
        let long = format!("*1\r\n$41\r\n{}\r\n", "x".repeat(41));
        let endless = "x".repeat(40);
        for (bytes, malformed) in [
            ("*x\r\n", Malformed::ArrayLength),
            ("*1\rx", Malformed::ArrayLength),
            ("*5\r\n", Malformed::ArrayLength),
            ("*99999999999999999999999999999999999", Malformed::CountTooLong),
            ("*1\r\n+", Malformed::NoBulk(b'+')),
            ("*1\r\n$-1\r\n", Malformed::BulkLength),
            ("*1\r\n$\r\n", Malformed::BulkLength),
            (&long, Malformed::BulkLength),
            ("*1\r\n$1\r\nabc", Malformed::BulkEnd),
            (
                "*3\r\n$40\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n$40\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n$40\r\n",
                Malformed::TooLong,
            ),
            (&endless, Malformed::InlineTooLong),
            ("a b c d e\n", Malformed::InlineTooLong),
            ("ECHO \"a\n", Malformed::Quotes),
            ("ECHO \"a\"b\n", Malformed::Quotes),
        ] {
            assert_eq!(words(bytes.as_bytes()), Err(Some(malformed)), "{bytes:?}");
        }
        let before = Limits { words_max: 1, word_bytes_max: 3, before_auth: true, ..LIMITS };
        let mut words = Words::new();
        assert_eq!(read(b"*2\r\n", &before, &mut words), Err(Malformed::ArrayLengthBeforeAuth));
        assert_eq!(
            read(b"*1\r\n$4\r\n", &before, &mut words),
            Err(Malformed::BulkLengthBeforeAuth)
        );
    }

    #[test]
    fn an_incomplete_command_is_partial_and_no_error() {
        for whole in ["*2\r\n$4\r\nECHO\r\n$12\r\nhello, world\r\n", "ECHO 'a b'\r\n", "PING\r\n"] {
            for end in 0..whole.len() {
                let prefix = &whole.as_bytes()[..end];
                assert_eq!(words(prefix), Err(None), "{:?}", &whole[..end]);
            }
            assert_eq!(words(whole.as_bytes()).map(|(n, _)| n), Ok(whole.len()));
        }
    }
}
