//! What the generated JSON forms need beyond serde: integers in all their spellings, and the types
//! whose JSON form is not an object of their fields.
//!
//! Source: the protobuf JSON mapping, <https://protobuf.dev/programming-guides/json/>.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::google::protobuf::Duration;

/// Integers up to this are exact as `f64`.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// An unsigned integer: `5`, `"5"` or `5.0`.
#[derive(Default)]
pub(crate) struct Integer<T>(pub(crate) T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Integer<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerVisitor(PhantomData)).map(Self)
    }
}

struct IntegerVisitor<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for IntegerVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number that fits {}", std::any::type_name::<T>())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be whole and within 0 to 2^53, where the conversion is exact"
    )]
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        if number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number) {
            self.visit_u64(number as u64)
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        // `parse` would accept "+5", which is not a JSON number.
        let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if is_digits => self.visit_u64(number),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

/// `google.protobuf.Value.null_value`, whatever its number is.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
pub(crate) fn null<S: Serializer>(_: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_unit()
}

/// `google.protobuf.Value.number_value`. Whole numbers are written without a fraction; JSON has no
/// infinity, which becomes `null`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::trivially_copy_pass_by_ref,
    reason = "checked to be whole and within 2^53, where the conversion is exact; serde's signature"
)]
pub(crate) fn number<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f64(*number)
    }
}

/// `12s`, with 3, 6 or 9 digits of a fraction if there is one.
impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sign = if self.seconds < 0 || self.nanos < 0 { "-" } else { "" };
        let seconds = self.seconds.unsigned_abs();
        let text = match self.nanos.unsigned_abs() {
            0 => format!("{sign}{seconds}s"),
            n if n % 1_000_000 == 0 => format!("{sign}{seconds}.{:03}s", n / 1_000_000),
            n if n % 1_000 == 0 => format!("{sign}{seconds}.{:06}s", n / 1_000),
            n => format!("{sign}{seconds}.{n:09}s"),
        };
        serializer.serialize_str(&text)
    }
}

/// `12s`, `1.5s`, `-0.25s`: at most nine digits of a fraction.
impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        duration(&text).ok_or_else(|| {
            de::Error::invalid_value(Unexpected::Str(&text), &"a duration such as \"1.5s\"")
        })
    }
}

fn duration(text: &str) -> Option<Duration> {
    let text = text.strip_suffix('s')?;
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if fraction.len() > 9 || !is_digits(seconds) || !is_digits(fraction) {
        return None;
    }
    let seconds: i64 = seconds.parse().ok()?;
    let nanos: i32 = format!("{fraction:0<9}").parse().ok()?;
    Some(Duration { seconds: sign * seconds, nanos: i32::try_from(sign).ok()? * nanos })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::google::protobuf::value::Kind;
    use crate::google::protobuf::{Struct, Value};
    use crate::rls::{
        Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, RateLimitOverride,
        RateLimitRequest, RateLimitResponse, Unit,
    };

    fn request(json: &str) -> Result<RateLimitRequest, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn camel_and_snake_case_strings_and_nulls_are_one_request() {
        let expected = RateLimitRequest {
            domain: "d".into(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: "k".into(), value: "ä\n".into() }],
                limit: Some(RateLimitOverride { requests_per_unit: 5, unit: Unit::Hour.into() }),
                hits_addend: Some(0),
                is_negative_hits: true,
            }],
            hits_addend: 7,
        };
        for json in [
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"ä\n"}],
                "limit":{"requestsPerUnit":5,"unit":"HOUR"},"hitsAddend":"0","isNegativeHits":true}],
                "hitsAddend":7}"#,
            r#"{"hits_addend":"7","descriptors":[{"is_negative_hits":true,"hits_addend":0.0,
                "limit":{"requests_per_unit":"5","unit":3},
                "entries":[{"value":"\u00e4\n","key":"k"}]}],"domain":"d"}"#,
            &serde_json::to_string(&expected).unwrap(),
        ] {
            assert_eq!(request(json).expect(json), expected);
        }
        let nulls = r#"{"domain":null,"descriptors":null,"hitsAddend":null}"#;
        assert_eq!(request(nulls), Ok(RateLimitRequest::default()));
        let nulls = r#"{"descriptors":[{"entries":null,"limit":null,"hitsAddend":null,
                        "isNegativeHits":null}]}"#;
        assert_eq!(request(nulls).unwrap().descriptors, [RateLimitDescriptor::default()]);
        let nulls = r#"{"descriptors":[{"limit":{"requestsPerUnit":null,"unit":null}}]}"#;
        let limit = request(nulls).unwrap().descriptors[0].limit;
        assert_eq!(limit, Some(RateLimitOverride::default()));
    }

    #[test]
    fn a_mistake_is_an_error_that_names_it() {
        for (json, expected) in [
            ("", "EOF while parsing"),
            ("null", "invalid type: null, expected struct envoy.service.ratelimit.v3.RateLimitReq"),
            (r#"["d", []]"#, "invalid type: sequence, expected struct"),
            (r#"{"domain":"d"} x"#, "trailing characters"),
            (r#"{"domain":"d""#, "EOF while parsing an object at line 1 column 13"),
            (r#"{"domian":"d"}"#, "unknown field `domian`, expected one of `domain`"),
            (r#"{"domain":1}"#, "invalid type: integer `1`, expected a string"),
            (r#"{"domain":"d","domain":"d"}"#, "duplicate field `domain`"),
            (r#"{"hitsAddend":1,"hits_addend":1}"#, "duplicate field `hitsAddend`"),
            (r#"{"hitsAddend":-1}"#, "invalid type: integer `-1`, expected a whole number"),
            (r#"{"hitsAddend":1.5}"#, "floating point `1.5`"),
            (r#"{"hitsAddend":1e300}"#, "expected a whole number"),
            (r#"{"hitsAddend":4294967296}"#, "expected a whole number that fits u32"),
            (r#"{"hitsAddend":"+1"}"#, "string \"+1\""),
            (r#"{"hitsAddend":"18446744073709551616"}"#, "expected a whole number"),
            (r#"{"hitsAddend":true}"#, "boolean `true`"),
            (r#"{"descriptors":{}}"#, "invalid type: map, expected a sequence"),
            (r#"{"descriptors":[null]}"#, "invalid type: null, expected struct"),
            (r#"{"descriptors":[[["k","v"]]]}"#, "invalid type: sequence, expected struct"),
            (
                r#"{"descriptors":[{"entries":[{"key":"k","val":"v"}]}]}"#,
                "unknown field `val`, expected `key` or `value`",
            ),
            (r#"{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#, "unknown variant `FORTNIGHT`"),
            (r#"{"descriptors":[{"limit":{"unit":8}}]}"#, "integer `8`"),
            (r#"{"descriptors":[{"isNegativeHits":"yes"}]}"#, "expected a boolean"),
            (r#"{"domain":"\ud800"}"#, "hex escape"),
        ] {
            let error = request(json).expect_err(json);
            assert!(error.contains(expected), "{json}\nis: {error}\nnot: {expected}");
        }
    }

    #[test]
    fn nesting_that_no_message_has_ends_at_its_first_byte() {
        for unit in ["[", "{\"domain\":", "{\"descriptors\":[", "{\"a\":"] {
            assert!(request(&unit.repeat(100_000)).is_err());
        }
    }

    #[test]
    fn defaults_are_left_out_of_a_response() {
        assert_eq!(serde_json::to_string(&RateLimitResponse::default()).unwrap(), "{}");
        let status = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit::default()),
            limit_remaining: 0,
            duration_until_reset: Some(Duration::default()),
        };
        let response = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        };
        let json = r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{},"durationUntilReset":"0s"}]}"#;
        assert_eq!(serde_json::to_string(&response).unwrap(), json);
        assert_eq!(serde_json::from_str::<RateLimitResponse>(json).unwrap(), response);
    }

    #[test]
    fn durations_are_written_as_protojson_does() {
        for (seconds, nanos, text) in [
            (12, 0, "12s"),
            (0, 0, "0s"),
            (1, 500_000_000, "1.500s"),
            (1, 1_000, "1.000001s"),
            (1, 1, "1.000000001s"),
            (0, -250_000_000, "-0.250s"),
            (-3, 0, "-3s"),
        ] {
            let duration = Duration { seconds, nanos };
            let json = format!("{text:?}");
            assert_eq!(serde_json::to_string(&duration).unwrap(), json);
            assert_eq!(serde_json::from_str::<Duration>(&json).unwrap(), duration);
        }
        for text in ["", "s", "1", ".5s", "1.0000000001s", "1.-5s", "--1s", "1,5s"] {
            let json = format!("{text:?}");
            assert!(serde_json::from_str::<Duration>(&json).is_err(), "{text}");
        }
    }

    #[test]
    fn a_struct_is_the_json_that_it_stands_for() {
        let list = [Kind::BoolValue(true), Kind::NullValue(0)].map(Value::from);
        let fields = [
            ("b", Kind::NumberValue(2.0)),
            ("a", Kind::NumberValue(0.5)),
            ("c", Kind::ListValue(list.into_iter().collect())),
            ("d", Kind::StructValue(Struct::default())),
            ("e", Kind::StringValue("x\"".into())),
            ("f", Kind::NumberValue(f64::INFINITY)),
        ];
        let object: Struct =
            fields.map(|(key, kind)| (key.to_owned(), kind.into())).into_iter().collect();
        let json = r#"{"a":0.5,"b":2,"c":[true,null],"d":{},"e":"x\"","f":null}"#;
        assert_eq!(serde_json::to_string(&object).unwrap(), json);
        let read: Struct = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
        assert_eq!(read.fields["a"], Kind::NumberValue(0.5).into());
        assert_eq!(read.fields["f"], Value::default());
    }
}
