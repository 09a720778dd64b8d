//! `grpc-timeout`: how long the client of a call waits.
//!
//! Up to eight digits and a unit: `20m` is 20 ms, `5S` five seconds. A value of another form is
//! ignored, as by gRPC's own servers.
//!
//! Source: `doc/PROTOCOL-HTTP2.md` of grpc/grpc.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

const NAME: HeaderName = HeaderName::from_static("grpc-timeout");
const DIGITS_MAX: usize = 8;

/// The timeout of a call, if it has one.
pub(in crate::front) fn of(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get(NAME)?.as_bytes().split_last()?;
    if !(1..=DIGITS_MAX).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0, |value, digit| 10 * value + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(3_600 * value),
        b'M' => Duration::from_secs(60 * value),
        b'S' => Duration::from_secs(value),
        b'm' => Duration::from_millis(value),
        b'u' => Duration::from_micros(value),
        b'n' => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        let of = |value: &'static str| {
            of(&HeaderMap::from_iter([(NAME, HeaderValue::from_static(value))]))
        };
        for (value, nanos) in [
            ("20m", 20_000_000),
            ("5S", 5_000_000_000),
            ("2M", 120_000_000_000),
            ("1H", 3_600_000_000_000),
            ("7u", 7_000),
            ("99999999n", 99_999_999),
            ("0m", 0),
        ] {
            assert_eq!(of(value), Some(Duration::from_nanos(nanos)), "{value}");
        }
        for value in ["", "m", "20", "20 m", "-1m", "+1m", "123456789m", "1s", "1.5S"] {
            assert_eq!(of(value), None, "{value:?}");
        }
        assert_eq!(super::of(&HeaderMap::new()), None);
    }
}
