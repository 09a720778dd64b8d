//! `metadata` of a rule: any YAML, passed to Envoy as `google.protobuf.Struct`.
//!
//! A mapping is sorted by key; of a repeated key the last value counts. Numbers become doubles, the
//! only numbers of `Struct`: `{a: 1, b: 0x10, c: yes, d: [x, ~]}` is
//! `{"a": 1.0, "b": 16.0, "c": true, "d": ["x", null]}`. A key that is not text is written as Go
//! prints it (`1`, `true`, `<nil>`), except on the first level, where it stays as it was written.
//!
//! Source: envoyproxy/ratelimit, `src/config/config_impl.go`, `parseMetadata`.

use std::collections::BTreeMap;

use super::error::Reason;
use super::yaml::{Kind, Meaning, Node, Scalar};

pub type Metadata = BTreeMap<Box<str>, Value>;

/// A value of `google.protobuf.Value`.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(Box<str>),
    List(Box<[Value]>),
    Map(Metadata),
}

/// Reads the value of `metadata`; `None` when it is empty.
///
/// Recursion is bounded by the depth that the YAML reader allows.
pub(super) fn read(node: &Node) -> Result<Option<Metadata>, Reason> {
    let Kind::Map(pairs) = &node.kind else {
        let found = node.describe().into();
        return Err(Reason::Type { expected: "a mapping", found });
    };
    let metadata = read_map(pairs, |key| Box::from(&*key.text))?;
    Ok((!metadata.is_empty()).then_some(metadata))
}

fn read_map(pairs: &[(Node, Node)], name: fn(&Scalar) -> Box<str>) -> Result<Metadata, Reason> {
    let compound = |key: &Node| {
        let text = format!("a key must be a string, not {}", key.describe());
        Reason::Metadata(text.into())
    };
    let pair = |(key, value): &(Node, Node)| {
        let scalar = key.as_scalar().ok_or_else(|| compound(key))?;
        Ok((name(scalar), read_value(value)?))
    };
    pairs.iter().map(pair).collect()
}

fn read_value(node: &Node) -> Result<Value, Reason> {
    match &node.kind {
        Kind::Scalar(scalar) => Ok(scalar_value(scalar)),
        Kind::List(elements) => {
            elements.iter().map(read_value).collect::<Result<_, _>>().map(Value::List)
        }
        Kind::Map(pairs) => read_map(pairs, printed).map(Value::Map),
    }
}

fn scalar_value(scalar: &Scalar) -> Value {
    match scalar.meaning() {
        Meaning::Null => Value::Null,
        Meaning::Bool(truth) => Value::Bool(truth),
        Meaning::Int(_) | Meaning::OtherNumber => Value::Number(scalar.number()),
        Meaning::Text => Value::Text(Box::from(&*scalar.text)),
    }
}

/// A key as Go's `%v` prints it.
fn printed(key: &Scalar) -> Box<str> {
    match scalar_value(key) {
        Value::Null => "<nil>".into(),
        Value::Bool(truth) => truth.to_string().into(),
        Value::Number(number) => number.to_string().into(),
        Value::Text(_) | Value::List(_) | Value::Map(_) => Box::from(&*key.text),
    }
}

#[cfg(test)]
mod tests {
    use super::super::yaml::{Bounds, parse};
    use super::*;

    fn metadata(text: &str) -> Result<Option<Metadata>, Reason> {
        let node = parse(text.as_bytes(), Bounds::RULE_FILE).expect("valid YAML").expect("a node");
        read(&node)
    }

    #[test]
    fn yaml_becomes_what_a_struct_can_hold() {
        let read = metadata("{a: 1, b: 0x10, c: yes, d: [x, ~, 1.5, -.inf], e: {f: '2'}, g: 1e3}");
        let text = |text: &str| Value::Text(text.into());
        let expected = [
            ("a", Value::Number(1.0)),
            ("b", Value::Number(16.0)),
            ("c", Value::Bool(true)),
            (
                "d",
                Value::List(
                    [text("x"), Value::Null, Value::Number(1.5), Value::Number(f64::NEG_INFINITY)]
                        .into(),
                ),
            ),
            ("e", Value::Map([("f".into(), text("2"))].into())),
            ("g", Value::Number(1000.0)),
        ];
        let expected: Metadata = expected.map(|(key, value)| (key.into(), value)).into();
        assert_eq!(read, Ok(Some(expected)));
    }

    #[test]
    fn keys_that_are_no_text_are_written_as_the_reference_prints_them() {
        let read = metadata("{yes: {yes: a, 0x10: b, ~: c}}").expect("a mapping").expect("a key");
        let Some(Value::Map(inner)) = read.get("yes") else { panic!("{read:?}") };
        assert_eq!(inner.keys().map(|key| &**key).collect::<Vec<_>>(), ["16", "<nil>", "true"]);
    }

    #[test]
    fn what_is_no_mapping_is_refused_and_an_empty_one_is_none() {
        assert_eq!(metadata("{}"), Ok(None));
        assert!(metadata("[a]").is_err());
        assert!(metadata("{[a]: b}").is_err());
    }
}
