//! `google.protobuf.Struct`: JSON as a message.
//!
//! Source: `google/protobuf/struct.proto`.

use std::collections::BTreeMap;

/// A mapping.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// By name.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// Any value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// Which it is.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// The kinds of values.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// Nothing; the number is always 0.
    #[prost(int32, tag = "1")]
    Null(i32),
    /// A number.
    #[prost(double, tag = "2")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "3")]
    Text(String),
    /// A truth value.
    #[prost(bool, tag = "4")]
    Bool(bool),
    /// A mapping.
    #[prost(message, tag = "5")]
    Struct(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// A list.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    /// Its elements.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl From<Kind> for Value {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl Struct {
    /// An object of texts.
    pub fn of_texts<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let text = |text: &str| Value { kind: Some(Kind::Text(text.to_owned())) };
        let fields = pairs.into_iter().map(|(name, value)| (name.to_owned(), text(value)));
        Self { fields: fields.collect() }
    }
}

impl FromIterator<Value> for ListValue {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Self {
        Self { values: values.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn field_numbers_are_protobufs() {
        let kinds = [
            (Kind::Null(0), &[0x08, 0][..]),
            (Kind::Number(1.0), &[0x11, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F]),
            (Kind::Text("t".into()), &[0x1A, 1, b't']),
            (Kind::Bool(true), &[0x20, 1]),
            (Kind::Struct(Struct::default()), &[0x2A, 0]),
            (Kind::List(ListValue { values: vec![Value::default()] }), &[0x32, 2, 0x0A, 0]),
        ];
        for (kind, golden) in kinds {
            assert_eq!(Value::from(kind.clone()).encode_to_vec(), golden, "{kind:?}");
        }
        let fields = [("k".to_owned(), Value::from(Kind::Bool(true)))].into();
        let golden = [0x0A, 7, 0x0A, 1, b'k', 0x12, 2, 0x20, 1];
        assert_eq!(Struct { fields }.encode_to_vec(), golden);
    }
}
