//! What rules say of themselves as `google.protobuf.Struct`.

pub use crate::xds::structure::{Kind, ListValue, Struct, Value};
use tidegate_rules::metadata::{Metadata, Value as Told};

impl From<&Metadata> for Struct {
    fn from(metadata: &Metadata) -> Self {
        let fields = metadata.iter().map(|(key, value)| (key.to_string(), value.into()));
        Self { fields: fields.collect() }
    }
}

impl From<&Told> for Value {
    fn from(value: &Told) -> Self {
        Self::from(match value {
            Told::Null => Kind::Null(0),
            Told::Bool(truth) => Kind::Bool(*truth),
            Told::Number(number) => Kind::Number(*number),
            Told::Text(text) => Kind::Text(text.to_string()),
            Told::List(values) => Kind::List(values.iter().map(Self::from).collect()),
            Told::Map(metadata) => Kind::Struct(metadata.into()),
        })
    }
}
