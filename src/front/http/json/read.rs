//! `RateLimitRequest` from proto3-JSON.
//!
//! As protojson: both `hitsAddend` and `hits_addend`; integers as numbers or strings; `null` means
//! the default; an unknown field, a field given twice, a wrong type or anything after the object is
//! an error that names the place. Nothing is read into a tree: each level knows its fields, so
//! nesting that no message has ends at its first byte and costs no stack.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Unexpected, Visitor};

use super::field::{Fields, Integer, Message, messages, narrow, or_default};
use crate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit,
};

/// Why a body is no request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Not text.
    #[error("the body is not UTF-8 (byte {0}); send JSON")]
    Utf8(usize),
    /// Not JSON, or not this message.
    #[error("the body is not a RateLimitRequest in JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Reads a body.
///
/// ```
/// use tidegate::front::http::json;
///
/// let body =
///     br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
/// let request = json::request(body)?;
/// assert_eq!(request.descriptors[0].entries[0].value, "ann");
/// # Ok::<(), json::ReadError>(())
/// ```
pub fn request(body: &[u8]) -> Result<RateLimitRequest, ReadError> {
    let text = std::str::from_utf8(body).map_err(|error| ReadError::Utf8(error.valid_up_to()))?;
    let message: Message<RateLimitRequest> = serde_json::from_str(text)?;
    Ok(message.0)
}

impl Fields for RateLimitRequest {
    const NAME: &'static str = "RateLimitRequest";
    const FIELDS: &'static [&'static str] = &["domain", "descriptors", "hitsAddend"];

    fn number(name: &str) -> Option<u8> {
        match name {
            "domain" => Some(1),
            "descriptors" => Some(2),
            "hitsAddend" | "hits_addend" => Some(3),
            _ => None,
        }
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, number: u8, map: &mut A) -> Result<(), A::Error> {
        match number {
            1 => self.domain = or_default(map)?,
            2 => self.descriptors = messages(map)?,
            _ => self.hits_addend = narrow(or_default(map)?)?,
        }
        Ok(())
    }
}

impl Fields for RateLimitDescriptor {
    const NAME: &'static str = "RateLimitDescriptor";
    const FIELDS: &'static [&'static str] = &["entries", "limit", "hitsAddend", "isNegativeHits"];

    fn number(name: &str) -> Option<u8> {
        match name {
            "entries" => Some(1),
            "limit" => Some(2),
            "hitsAddend" | "hits_addend" => Some(3),
            "isNegativeHits" | "is_negative_hits" => Some(4),
            _ => None,
        }
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, number: u8, map: &mut A) -> Result<(), A::Error> {
        match number {
            1 => self.entries = messages(map)?,
            2 => {
                let limit: Option<Message<RateLimitOverride>> = map.next_value()?;
                self.limit = limit.map(|message| message.0);
            }
            3 => self.hits_addend = map.next_value::<Option<Integer>>()?.map(|integer| integer.0),
            _ => self.is_negative_hits = or_default(map)?,
        }
        Ok(())
    }
}

impl Fields for Entry {
    const NAME: &'static str = "Entry";
    const FIELDS: &'static [&'static str] = &["key", "value"];

    fn number(name: &str) -> Option<u8> {
        match name {
            "key" => Some(1),
            "value" => Some(2),
            _ => None,
        }
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, number: u8, map: &mut A) -> Result<(), A::Error> {
        match number {
            1 => self.key = or_default(map)?,
            _ => self.value = or_default(map)?,
        }
        Ok(())
    }
}

impl Fields for RateLimitOverride {
    const NAME: &'static str = "RateLimitOverride";
    const FIELDS: &'static [&'static str] = &["requestsPerUnit", "unit"];

    fn number(name: &str) -> Option<u8> {
        match name {
            "requestsPerUnit" | "requests_per_unit" => Some(1),
            "unit" => Some(2),
            _ => None,
        }
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, number: u8, map: &mut A) -> Result<(), A::Error> {
        match number {
            1 => self.requests_per_unit = narrow(or_default(map)?)?,
            _ => self.unit = or_default::<UnitName, _>(map)?.0,
        }
        Ok(())
    }
}

/// A unit by name or number.
#[derive(Default)]
struct UnitName(i32);

impl<'de> Deserialize<'de> for UnitName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor).map(|unit| Self(unit.into()))
    }
}

struct UnitVisitor;

impl Visitor<'_> for UnitVisitor {
    type Value = Unit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Unit, E> {
        i32::try_from(number)
            .ok()
            .and_then(|number| Unit::try_from(number).ok())
            .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Unit, E> {
        Unit::ALL
            .into_iter()
            .find(|unit| unit.name() == name)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for body in [
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"ä\n"}],
                "limit":{"requestsPerUnit":5,"unit":"HOUR"},"hitsAddend":"0","isNegativeHits":true}],
                "hitsAddend":7}"#,
            r#"{"hits_addend":"7","descriptors":[{"is_negative_hits":true,"hits_addend":0.0,
                "limit":{"requests_per_unit":"5","unit":3},
                "entries":[{"value":"\u00e4\n","key":"k"}]}],"domain":"d"}"#,
        ] {
            assert_eq!(request(body.as_bytes()).expect(body), expected);
        }
        let nulls = br#"{"domain":null,"descriptors":null,"hitsAddend":null}"#;
        assert_eq!(request(nulls).expect("nulls"), RateLimitRequest::default());
        let nulls = br#"{"descriptors":[{"entries":null,"limit":null,"hitsAddend":null}]}"#;
        let request = request(nulls).expect("nulls");
        assert_eq!(request.descriptors, [RateLimitDescriptor::default()]);
    }

    #[test]
    fn every_mistake_names_its_place() {
        for (body, says) in [
            ("", "EOF while parsing"),
            ("null", "invalid type: null, expected an object (RateLimitRequest)"),
            (r#"["d", []]"#, "invalid type: sequence, expected an object"),
            (r#"{"domain":"d"} x"#, "trailing characters"),
            (r#"{"domain":"d""#, "EOF while parsing an object at line 1 column 13"),
            (r#"{"domian":"d"}"#, "unknown field `domian`, expected one of `domain`"),
            (r#"{"domain":1}"#, "domain: invalid type: integer `1`, expected a string"),
            (r#"{"domain":"d","domain":"d"}"#, "\"domain\" is given twice"),
            (r#"{"hitsAddend":1,"hits_addend":1}"#, "\"hits_addend\" is given twice"),
            (r#"{"hitsAddend":-1}"#, "hitsAddend: invalid type: integer `-1`, expected a whole"),
            (r#"{"hitsAddend":1.5}"#, "floating point `1.5`"),
            (r#"{"hitsAddend":1e300}"#, "expected a whole number"),
            (r#"{"hitsAddend":4294967296}"#, "expected a number below 4294967296"),
            (r#"{"hitsAddend":"+1"}"#, "string \"+1\""),
            (r#"{"hitsAddend":"18446744073709551616"}"#, "expected a whole number"),
            (r#"{"hitsAddend":true}"#, "boolean `true`"),
            (r#"{"descriptors":{}}"#, "descriptors: invalid type: map, expected a sequence"),
            (r#"{"descriptors":[null]}"#, "null, expected an object (RateLimitDescriptor)"),
            (r#"{"descriptors":[[["k","v"]]]}"#, "expected an object (RateLimitDescriptor)"),
            (
                r#"{"descriptors":[{"entries":[{"key":"k","val":"v"}]}]}"#,
                "descriptors: entries: unknown field `val`, expected `key` or `value`",
            ),
            (r#"{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#, "expected SECOND, MINUTE"),
            (r#"{"descriptors":[{"isNegativeHits":"yes"}]}"#, "expected a boolean"),
            (r#"{"domain":"\ud800"}"#, "domain: "),
        ] {
            let error = request(body.as_bytes()).expect_err(body).to_string();
            assert!(error.contains(says), "{body}\nsays: {error}\nnot: {says}");
        }
        let not_text = request(b"{\"domain\":\"\xff\"}").expect_err("not text").to_string();
        assert_eq!(not_text, "the body is not UTF-8 (byte 11); send JSON");
    }

    #[test]
    fn depth_costs_nothing() {
        for unit in ["[", "{\"domain\":", "{\"descriptors\":[", "{\"a\":"] {
            let deep = unit.repeat(100_000);
            assert!(request(deep.as_bytes()).is_err());
        }
    }
}
