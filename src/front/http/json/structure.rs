//! `google.protobuf.Struct` in its JSON form, which is plain JSON. Keys are sorted, and whole
//! numbers are written without a fraction, as protojson does both.

use serde_json::{Map, Number, Value};

use crate::front::rls::structure::{self, Kind, Struct};

/// Recursion is bounded: what is told comes from rule files, whose depth is.
pub(super) fn json(of: &Struct) -> Value {
    let fields = of.fields.iter().map(|(key, field)| (key.clone(), value(field)));
    Value::Object(fields.collect::<Map<_, _>>())
}

fn value(of: &structure::Value) -> Value {
    match &of.kind {
        None | Some(Kind::Null(_)) => Value::Null,
        Some(Kind::Number(number)) => self::number(*number),
        Some(Kind::Text(text)) => Value::String(text.clone()),
        Some(Kind::Bool(truth)) => Value::Bool(*truth),
        Some(Kind::Struct(inner)) => json(inner),
        Some(Kind::List(list)) => Value::Array(list.values.iter().map(value).collect()),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "checked to be whole and within 2^53, where the conversion is exact"
)]
fn number(of: f64) -> Value {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if of.fract() == 0.0 && of.abs() <= EXACT_MAX {
        return Value::from(of as i64);
    }
    // JSON has no infinity; what has none is nothing.
    Number::from_f64(of).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_the_json_it_stands_for() {
        let fields = [
            ("b", Kind::Number(2.0)),
            ("a", Kind::Number(0.5)),
            (
                "c",
                Kind::List([Kind::Bool(true), Kind::Null(0)].map(Into::into).into_iter().collect()),
            ),
            ("d", Kind::Struct(Struct::default())),
            ("e", Kind::Text("x\"".into())),
        ];
        let fields = fields.map(|(key, kind)| (key.to_owned(), kind.into()));
        assert_eq!(
            json(&Struct { fields: fields.into() }).to_string(),
            r#"{"a":0.5,"b":2,"c":[true,null],"d":{},"e":"x\""}"#
        );
    }
}
