//! The JSON form of the messages: reading requests, writing responses.
//!
//! Requests are read as protojson reads them, straight into the message:
//!
//! - Fields have their names of the `.proto` file or in lower camel case; unknown ones are skipped,
//!   and so is what follows the first value.
//! - An integer is a number or a text: `5`, `"5"`, `5.0`, `5e1`. `1.5` is an error.
//! - An enum is a name or a number. A name that is not known counts as 0.
//! - `null` is a field that is left out. An empty body is an empty message.
//!
//! An error says what is wrong and where, in the words of that server where clients may know them.
//! Source: observed answers (`tests/golden/gubernator.json`), and the JSON mapping of proto3.
//!
//! **Bound.** More than [`REQUESTS_MAX`] requests are counted and not kept; values are nested at
//! most [`DEPTH_MAX`] deep.

use std::borrow::Cow;

use tidegate_proto::gubernator::{
    Algorithm, Behavior, HealthCheckResp, PeerHealthResp, RateLimitReq, RateLimitResp,
};

use super::REQUESTS_MAX;

/// How deep values may be nested.
const DEPTH_MAX: usize = 64;

/// The requests of a message, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// At most [`REQUESTS_MAX`].
    pub kept: Vec<RateLimitReq>,
    pub count: usize,
}

/// Why a body is not a message, in the words that a client gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Reads a `GetRateLimitsReq`.
///
/// # Errors
///
/// The text is no JSON, or a field has a value that is not of its type.
pub fn requests(body: &[u8]) -> Result<Requests, Error> {
    let mut reader = Reader { text: body, at: 0 };
    let mut requests = Requests::default();
    if reader.peek().is_none() {
        return Ok(requests);
    }
    // What is no JSON is said before what is no message.
    Reader { text: body, at: 0 }.skip(DEPTH_MAX)?;
    let mut seen = 0;
    reader.object(|reader, name| {
        if name.text != "requests" {
            return reader.skip(DEPTH_MAX);
        }
        reader.once(&mut seen, 1, &name)?;
        if reader.null() {
            return Ok(());
        }
        reader.list(|reader| {
            let request = reader.request()?;
            requests.count += 1;
            if requests.count <= REQUESTS_MAX {
                requests.kept.push(request);
            }
            Ok(())
        })
    })?;
    Ok(requests)
}

/// A place in the text.
#[derive(Clone, Copy, Debug)]
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

/// The name of a field, and where it begins.
#[derive(Clone, Debug)]
struct Name<'a> {
    text: Cow<'a, str>,
    at: usize,
}

/// Fields of a message that were read.
type Seen = u16;

// === impl Reader: messages ===

impl Reader<'_> {
    fn request(&mut self) -> Result<RateLimitReq, Error> {
        let mut request = RateLimitReq::default();
        let mut seen = 0;
        self.object(|reader, name| {
            let number = match &*name.text {
                "name" => 1,
                "unique_key" | "uniqueKey" => 2,
                "hits" => 3,
                "limit" => 4,
                "duration" => 5,
                "algorithm" => 6,
                "behavior" => 7,
                "burst" => 8,
                "created_at" | "createdAt" => 10,
                _ => return reader.skip(DEPTH_MAX),
            };
            reader.once(&mut seen, number, &name)?;
            if reader.null() {
                return Ok(());
            }
            match number {
                1 => request.name = reader.string_field("name")?,
                2 => request.unique_key = reader.string_field("uniqueKey")?,
                3 => request.hits = reader.int64("hits")?,
                4 => request.limit = reader.int64("limit")?,
                5 => request.duration = reader.int64("duration")?,
                6 => request.algorithm = reader.enumeration("algorithm", algorithm)?,
                7 => request.behavior = reader.enumeration("behavior", behavior)?,
                8 => request.burst = reader.int64("burst")?,
                _ => request.created_at = Some(reader.int64("createdAt")?),
            }
            Ok(())
        })?;
        Ok(request)
    }

    fn string_field(&mut self, field: &str) -> Result<String, Error> {
        let start = self.at;
        if self.peek() == Some(b'"') {
            Ok(self.string()?.into_owned())
        } else {
            Err(self.invalid_value("string", field, start))
        }
    }

    fn int64(&mut self, field: &str) -> Result<i64, Error> {
        let start = self.at;
        let value = match self.peek() {
            Some(b'"') => integer(self.string()?.as_bytes()),
            Some(b'-' | b'0'..=b'9') => integer(self.number()?),
            _ => None,
        };
        value.ok_or_else(|| self.invalid_value("int64", field, start))
    }

    fn enumeration(
        &mut self,
        field: &str,
        by_name: impl Fn(&str) -> Option<i32>,
    ) -> Result<i32, Error> {
        let start = self.at;
        let value = match self.peek() {
            // As protojson does where unknown names are discarded.
            Some(b'"') => Some(by_name(&self.string()?).unwrap_or(0)),
            Some(b'-' | b'0'..=b'9') => {
                integer(self.number()?).and_then(|number| i32::try_from(number).ok())
            }
            _ => None,
        };
        value.ok_or_else(|| self.invalid_value("enum", field, start))
    }

    /// A field may be in a message once, whichever of its names it has.
    fn once(&self, seen: &mut Seen, number: u32, name: &Name<'_>) -> Result<(), Error> {
        let field = 1 << number;
        if *seen & field != 0 {
            return Err(self.at_place(name.at, &format!("duplicate field {:?}", name.text)));
        }
        *seen |= field;
        Ok(())
    }
}

fn algorithm(name: &str) -> Option<i32> {
    Algorithm::from_str_name(name).map(Into::into)
}

fn behavior(name: &str) -> Option<i32> {
    Behavior::from_str_name(name).map(Into::into)
}

/// The integer that a number is; `None` for any other number, and beyond 64 bits.
fn integer(number: &[u8]) -> Option<i64> {
    /// Digits of the largest one.
    const DIGITS_MAX: usize = 19;
    let text = str::from_utf8(number).ok()?;
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (sign, digits) = match mantissa.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let has_leading_zero = whole.len() > 1 && whole.starts_with('0');
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_cut = whole.is_empty() || digits.ends_with('.');
    if has_leading_zero || is_cut || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let mut digits: String = [whole, fraction].concat();
    let mut scale = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    while scale < 0 && digits.ends_with('0') {
        digits.pop();
        scale += 1;
    }
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let zeros = usize::try_from(scale).ok().filter(|zeros| digits.len() + zeros <= DIGITS_MAX)?;
    let value: i128 = format!("{digits}{}", "0".repeat(zeros)).parse().ok()?;
    i64::try_from(sign * value).ok()
}

// === impl Reader: JSON ===

impl<'a> Reader<'a> {
    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn null(&mut self) -> bool {
        self.peek();
        let is_null = self.rest().starts_with(b"null");
        self.at += if is_null { 4 } else { 0 };
        is_null
    }

    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Reads an object; `field` reads the value behind each name.
    fn object(
        &mut self,
        mut field: impl FnMut(&mut Self, Name<'a>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.eat(b'{') {
            return Err(self.unexpected_token());
        }
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.invalid("looking for beginning of object key string"));
            }
            let at = self.at;
            let name = Name { text: self.string()?, at };
            if !self.eat(b':') {
                return Err(self.invalid("after object key"));
            }
            self.peek();
            field(self, name)?;
            if self.eat(b'}') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.invalid("after object key:value pair"));
            }
        }
    }

    /// Reads a list; `item` reads each value.
    fn list(&mut self, mut item: impl FnMut(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        if !self.eat(b'[') {
            return Err(self.unexpected_token());
        }
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            self.peek();
            item(self)?;
            if self.eat(b']') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.invalid("after array element"));
            }
        }
    }

    /// Reads any value, of which parts may be nested so deep.
    fn skip(&mut self, depth: usize) -> Result<(), Error> {
        match self.peek() {
            Some(b'{' | b'[') if depth == 0 => Err(Error("exceeded max depth".to_owned())),
            Some(b'{') => self.object(|reader, _| reader.skip(depth - 1)),
            Some(b'[') => self.list(|reader| reader.skip(depth - 1)),
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            _ => Err(self.invalid("looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Error> {
        for byte in word {
            if self.text.get(self.at) != Some(byte) {
                return Err(self.invalid("in a literal"));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<&'a [u8], Error> {
        let start = self.at;
        self.at += usize::from(self.rest().starts_with(b"-"));
        self.digits("in numeric literal")?;
        if self.rest().starts_with(b".") {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            self.at += 1;
            self.at += usize::from(matches!(self.text.get(self.at), Some(b'+' | b'-')));
            self.digits("in exponent of numeric literal")?;
        }
        Ok(self.text.get(start..self.at).unwrap_or_default())
    }

    fn digits(&mut self, what: &str) -> Result<(), Error> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        if digits == 0 { Err(self.invalid(what)) } else { Ok(()) }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Error> {
        let start = self.at;
        self.at += 1;
        let mut is_escaped = false;
        loop {
            match self.text.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    is_escaped = true;
                    self.at += 1;
                    if self.text.get(self.at).is_none() {
                        return Err(self.invalid("in string escape code"));
                    }
                }
                Some(0x20..) => {}
                _ => return Err(self.invalid("in string literal")),
            }
            self.at += 1;
        }
        let inner = self.text.get(start + 1..self.at).unwrap_or_default();
        self.at += 1;
        let no_text = || self.syntax(start, "invalid UTF-8 or escape in string");
        if is_escaped {
            let quoted = self.text.get(start..self.at).unwrap_or_default();
            return serde_json::from_slice(quoted).map(Cow::Owned).map_err(|_| no_text());
        }
        str::from_utf8(inner).map(Cow::Borrowed).map_err(|_| no_text())
    }
}

// === impl Reader: errors ===

impl Reader<'_> {
    /// The next byte does not belong there, or there is none.
    fn invalid(&mut self, what: &str) -> Error {
        let Some(&byte) = self.text.get(self.at) else {
            return Error("unexpected EOF".to_owned());
        };
        Error(format!("invalid character '{}' {what}", as_rune(byte)))
    }

    fn unexpected_token(&mut self) -> Error {
        self.peek();
        let at = self.at;
        let token = self.token(at);
        self.syntax(at, &format!("unexpected token {token}"))
    }

    fn invalid_value(&self, kind: &str, field: &str, at: usize) -> Error {
        let token = self.token(at);
        self.at_place(at, &format!("invalid value for {kind} field {field}: {token}"))
    }

    fn syntax(&self, at: usize, what: &str) -> Error {
        let (line, column) = self.position(at);
        Error(format!("proto: syntax error (line {line}:{column}): {what}"))
    }

    fn at_place(&self, at: usize, what: &str) -> Error {
        let (line, column) = self.position(at);
        Error(format!("proto: (line {line}:{column}): {what}"))
    }

    /// The token that begins there, cut to what an error needs.
    fn token(&self, at: usize) -> String {
        const SHOWN_MAX: usize = 64;
        let rest = self.text.get(at..).unwrap_or_default();
        let length = match rest.first() {
            Some(b'"') => {
                let mut reader = Self { text: self.text, at };
                reader.string().map_or(1, |_| reader.at - at)
            }
            Some(b'{' | b'}' | b'[' | b']' | b',' | b':') => 1,
            _ => rest.iter().take_while(|byte| !b" \t\r\n,:{}[]\"".contains(byte)).count(),
        };
        String::from_utf8_lossy(rest.get(..length.min(SHOWN_MAX)).unwrap_or_default()).into_owned()
    }

    /// Line and column, from 1, in characters.
    fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let lines = before.split(|&byte| byte == b'\n').count();
        let line = before.rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
        (lines, String::from_utf8_lossy(line).chars().count() + 1)
    }
}

/// A byte as Go shows the character of its number between single quotes.
fn as_rune(byte: u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        0x07 => "\\a".to_owned(),
        0x08 => "\\b".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\n' => "\\n".to_owned(),
        0x0b => "\\v".to_owned(),
        0x0c => "\\f".to_owned(),
        b'\r' => "\\r".to_owned(),
        ..0x20 | 0x7f => format!("\\x{byte:02x}"),
        // Controls, the space that does not break, and the hyphen that is not shown.
        0x80..=0xa0 | 0xad => format!("\\u{byte:04x}"),
        _ => char::from(byte).to_string(),
    }
}

// === writing ===

/// `GetRateLimitsResp`.
pub fn responses(responses: &[RateLimitResp]) -> String {
    /// Of a response without error and metadata.
    const BYTES: usize = 140;
    let mut out = String::with_capacity(32 + responses.len() * BYTES);
    out.push_str("{\"responses\":[");
    for (at, response) in responses.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_response(&mut out, response);
    }
    out.push_str("]}");
    out
}

fn write_response(out: &mut String, response: &RateLimitResp) {
    let RateLimitResp { limit, remaining, reset_time, error, metadata, .. } = response;
    out.push_str("{\"status\":\"");
    out.push_str(response.status().as_str_name());
    let mut digits = itoa::Buffer::new();
    for (name, value) in [("limit", limit), ("remaining", remaining), ("reset_time", reset_time)] {
        for part in ["\",\"", name, "\":\"", digits.format(*value)] {
            out.push_str(part);
        }
    }
    out.push_str("\",\"error\":");
    text(out, error);
    out.push_str(",\"metadata\":{");
    for (at, (key, value)) in metadata.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        text(out, key);
        out.push(':');
        text(out, value);
    }
    out.push_str("}}");
}

/// `HealthCheckResp`.
pub fn health(health: &HealthCheckResp) -> String {
    let HealthCheckResp {
        status,
        message,
        peer_count,
        advertise_address,
        local_peers,
        region_peers,
    } = health;
    let mut out = String::from("{\"status\":");
    text(&mut out, status);
    out.push_str(",\"message\":");
    text(&mut out, message);
    out.push_str(",\"peer_count\":");
    out.push_str(itoa::Buffer::new().format(*peer_count));
    out.push_str(",\"advertise_address\":");
    text(&mut out, advertise_address);
    for (name, peers) in [("local_peers", local_peers), ("region_peers", region_peers)] {
        out.push_str(",\"");
        out.push_str(name);
        out.push_str("\":[");
        for (at, PeerHealthResp { grpc_address, data_center }) in peers.iter().enumerate() {
            out.push_str(if at > 0 { ",{\"grpc_address\":" } else { "{\"grpc_address\":" });
            text(&mut out, grpc_address);
            out.push_str(",\"data_center\":");
            text(&mut out, data_center);
            out.push('}');
        }
        out.push(']');
    }
    out.push('}');
    out
}

/// The body of an error: that of `google.rpc.Status`.
pub fn error(code: tonic::Code, message: &str) -> String {
    let mut out = format!("{{\"code\":{},\"message\":", i32::from(code));
    text(&mut out, message);
    out.push_str(",\"details\":[]}");
    out
}

fn text(out: &mut String, text: &str) {
    if text.is_empty() {
        out.push_str("\"\"");
    } else {
        // Text is always JSON.
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_proto::gubernator::Status;

    use super::*;

    fn one(fields: &str) -> Result<RateLimitReq, String> {
        let body = format!("{{\"requests\":[{{{fields}}}]}}");
        let read = requests(body.as_bytes()).map_err(|error| error.to_string())?;
        Ok(read.kept.into_iter().next().unwrap_or_default())
    }

    fn error_of(body: &str) -> String {
        requests(body.as_bytes()).expect_err(body).to_string()
    }

    #[test]
    fn names_of_fields_are_those_of_the_proto_file_or_in_camel_case() {
        let request =
            one(r#""name":"n","uniqueKey":"k","hits":"1","limit":10,"duration":1e3,"algorithm":
            "LEAKY_BUCKET","behavior":33,"burst":5.0,"createdAt":"7","metadata":{"a":["b",{}]}"#);
        let expected = RateLimitReq {
            name: "n".to_owned(),
            unique_key: "k".to_owned(),
            hits: 1,
            limit: 10,
            duration: 1_000,
            algorithm: 1,
            behavior: 33,
            burst: 5,
            created_at: Some(7),
        };
        assert_eq!(request, Ok(expected));
        assert_eq!(one(r#""unique_key":"k\u00e9\n""#).map(|it| it.unique_key), Ok("ké\n".into()));
    }

    #[test]
    fn an_integer_is_a_number_or_a_text() {
        for (text, value) in [
            ("5", 5),
            ("-5", -5),
            ("\"5\"", 5),
            ("1.0", 1),
            ("1e1", 10),
            ("\"1e3\"", 1_000),
            ("1.5e1", 15),
            ("100e-2", 1),
            ("0e999", 0),
            ("-0", 0),
            ("null", 0),
            ("9223372036854775807", i64::MAX),
            ("\"-9223372036854775808\"", i64::MIN),
        ] {
            assert_eq!(one(&format!("\"hits\":{text}")).map(|it| it.hits), Ok(value), "{text}");
        }
        for text in
            ["1.5", "\"\"", "\" 1\"", "\"01\"", "\"1.\"", "9223372036854775808", "1e19", "true"]
        {
            let error = one(&format!("\"hits\":{text}")).expect_err(text);
            let expected =
                format!("proto: (line 1:22): invalid value for int64 field hits: {text}");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn an_enum_of_a_name_that_is_not_known_is_zero() {
        for (text, value) in [
            ("\"DRAIN_OVER_LIMIT\"", 32),
            ("\"NO_BATCHING|DRAIN_OVER_LIMIT\"", 0),
            ("\"33\"", 0),
            ("33", 33),
            ("null", 0),
        ] {
            let read = one(&format!("\"behavior\":{text}"));
            assert_eq!(read.map(|it| it.behavior), Ok(value), "{text}");
        }
        assert_eq!(one("\"algorithm\":\"FOO\"").map(|it| it.algorithm), Ok(0));
        assert_eq!(one("\"algorithm\":2").map(|it| it.algorithm), Ok(2));
        assert!(one("\"algorithm\":1.5").is_err() && one("\"algorithm\":2147483648").is_err());
    }

    #[test]
    fn a_message_without_requests_is_empty() {
        for body in ["", " \n", "{}", "{\"requests\":[]}", "{\"requests\":null}", "{\"x\":[1,{}]}"]
        {
            assert_eq!(requests(body.as_bytes()), Ok(Requests::default()), "{body}");
        }
        assert_eq!(requests(b"{} and more"), Ok(Requests::default()));
    }

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        for (body, error) in [
            ("{\"requests\":[", "unexpected EOF"),
            ("{\"requests\":[{\"hits\":", "unexpected EOF"),
            ("{\"a", "unexpected EOF"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{x", "invalid character 'x' looking for beginning of object key string"),
            ("{\"a\" 1", "invalid character '1' after object key"),
            ("{\"a\":1 2", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[]", "proto: syntax error (line 1:1): unexpected token ["),
            ("{\"requests\":[null]}", "proto: syntax error (line 1:14): unexpected token null"),
            ("{\"requests\":5}", "proto: syntax error (line 1:13): unexpected token 5"),
            (
                "{\"requests\":[\n {\"unique_key\":\"a\",\"uniqueKey\":\"a\"}]}",
                "proto: (line 2:20): duplicate field \"uniqueKey\"",
            ),
            (
                "{\"requests\":[{\"name\":\"a\",\"unique_key\":\"b\",\"hits\":1.5}]}",
                "proto: (line 1:50): invalid value for int64 field hits: 1.5",
            ),
        ] {
            assert_eq!(error_of(body), error, "{body}");
        }
        assert_eq!(error_of(&"[".repeat(100_000)), "exceeded max depth");
    }

    #[test]
    fn a_character_that_does_not_belong_there_is_shown_as_go_shows_it() {
        for (byte, shown) in [
            (b'x', "x"),
            (b'\'', "\\'"),
            (b'\\', "\\\\"),
            (0, "\\x00"),
            (0x07, "\\a"),
            (0x08, "\\b"),
            (0x0b, "\\v"),
            (0x0c, "\\f"),
            (0x1b, "\\x1b"),
            (0x1f, "\\x1f"),
            (0x7f, "\\x7f"),
            (0x85, "\\u0085"),
            (0xa0, "\\u00a0"),
            (0xad, "\\u00ad"),
            (0xe9, "\u{e9}"),
        ] {
            let error = requests(&[b'{', byte]).err().map(|error| error.to_string());
            let what = "looking for beginning of object key string";
            let expected = format!("invalid character '{shown}' {what}");
            assert_eq!(error, Some(expected));
        }
        for (byte, shown) in [('\n', "\\n"), ('\r', "\\r"), ('\t', "\\t"), ('\u{1f}', "\\x1f")] {
            let expected = format!("invalid character '{shown}' in string literal");
            assert_eq!(error_of(&format!("{{\"a{byte}")), expected);
        }
        let quote = "invalid character '\"' after array element";
        assert_eq!(error_of("[1 \""), quote);
    }

    #[test]
    fn more_requests_than_are_decided_are_counted_and_not_kept() {
        let body = format!("{{\"requests\":[{}{{}}]}}", "{},".repeat(2_000));
        let read = requests(body.as_bytes()).expect("a message");
        assert_eq!((read.count, read.kept.len()), (2_001, REQUESTS_MAX));
    }

    #[test]
    fn a_response_has_every_field() {
        let mut response = RateLimitResp {
            limit: 10,
            remaining: 9,
            reset_time: 1_795_170_209_441,
            ..RateLimitResp::default()
        };
        assert_eq!(
            responses(std::slice::from_ref(&response)),
            "{\"responses\":[{\"status\":\"UNDER_LIMIT\",\"limit\":\"10\",\"remaining\":\"9\",\
             \"reset_time\":\"1795170209441\",\"error\":\"\",\"metadata\":{}}]}"
        );
        response.set_status(Status::OverLimit);
        response.error = "a \"b\"\n".to_owned();
        response.metadata.insert("owner".to_owned(), "n1".to_owned());
        response.metadata.insert("z".to_owned(), String::new());
        let written = responses(&[response.clone(), response]);
        let read: serde_json::Value = serde_json::from_str(&written).expect("JSON");
        assert_eq!(read["responses"][1]["error"], "a \"b\"\n");
        assert_eq!(read["responses"][1]["status"], "OVER_LIMIT");
        assert_eq!(read["responses"][0]["metadata"]["owner"], "n1");
        assert_eq!(responses(&[]), "{\"responses\":[]}");
    }

    #[test]
    fn health_and_errors_have_every_field() {
        let peer = PeerHealthResp {
            grpc_address: "127.0.0.1:1051".to_owned(),
            data_center: String::new(),
        };
        let of = HealthCheckResp {
            status: "healthy".to_owned(),
            peer_count: 1,
            advertise_address: "127.0.0.1:1051".to_owned(),
            local_peers: vec![peer.clone(), peer],
            ..HealthCheckResp::default()
        };
        assert_eq!(
            health(&of),
            "{\"status\":\"healthy\",\"message\":\"\",\"peer_count\":1,\"advertise_address\":\
             \"127.0.0.1:1051\",\"local_peers\":[{\"grpc_address\":\"127.0.0.1:1051\",\
             \"data_center\":\"\"},{\"grpc_address\":\"127.0.0.1:1051\",\"data_center\":\"\"}],\
             \"region_peers\":[]}"
        );
        assert_eq!(
            error(tonic::Code::NotFound, "Not Found"),
            "{\"code\":5,\"message\":\"Not Found\",\"details\":[]}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn no_body_is_a_panic(body: Vec<u8>) {
            let _ = requests(&body);
        }

        #[test]
        fn no_body_of_these_parts_is_a_panic(
            parts in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"requests\"", "\"hits\"", "1", "1.5", "-", "e5",
                "\"", "\\", "\\u12", "null", "tru", " ", "\n",
            ]), 0..40)
        ) {
            let _ = requests(parts.concat().as_bytes());
        }

        #[test]
        fn an_integer_is_read_as_serde_reads_it(value: i64) {
            prop_assert_eq!(integer(value.to_string().as_bytes()), Some(value));
        }
    }
}
