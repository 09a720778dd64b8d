//! Conversions that make `google.protobuf.Struct` easy to build.

use crate::google::protobuf::value::Kind;
use crate::google::protobuf::{ListValue, Struct, Value};

impl From<Kind> for Value {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Kind::StringValue(text.to_owned()).into()
    }
}

impl FromIterator<Value> for ListValue {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Self {
        Self { values: values.into_iter().collect() }
    }
}

impl FromIterator<(String, Value)> for Struct {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(fields: I) -> Self {
        Self { fields: fields.into_iter().collect() }
    }
}
