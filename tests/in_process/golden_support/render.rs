//! An answer in the form of the golden cases.

use serde_json::{Map, Value, json};
use tidegate::front::rls::message::{Code, DescriptorStatus, RateLimitResponse, Unit};
use tidegate_proto::google::protobuf::value::Kind;
use tidegate_proto::google::protobuf::{Struct, Value as StructValue};
use tonic::Status;

/// What the service answered.
pub(crate) fn answer(answer: Result<RateLimitResponse, Status>) -> Value {
    let response = match answer {
        Ok(response) => response,
        Err(status) => {
            assert_eq!(status.code(), tonic::Code::Unknown, "{status}");
            return json!({ "grpc_error": status.message() });
        }
    };
    let statuses: Vec<Value> = response.statuses.iter().map(status).collect();
    let mut rendered = json!({ "overall": code(response.overall_code), "statuses": statuses });
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers: Vec<_> = headers.map(|it| (it.key.clone(), it.value.clone())).collect();
        rendered["response_headers"] = json!(headers);
    }
    if let Some(metadata) = &response.dynamic_metadata {
        rendered["dynamic_metadata"] = structure(metadata);
    }
    rendered
}

fn status(status: &DescriptorStatus) -> Value {
    let mut rendered = json!({
        "code": code(status.code),
        "limit_remaining": status.limit_remaining,
    });
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).expect("a known unit");
        rendered["requests_per_unit"] = json!(limit.requests_per_unit);
        rendered["unit"] = json!(unit.as_str_name());
        if !limit.name.is_empty() {
            rendered["limit_name"] = json!(limit.name);
        }
    }
    if let Some(reset) = &status.duration_until_reset {
        assert_eq!(reset.nanos, 0, "whole seconds");
        rendered["reset_s"] = json!(reset.seconds);
    }
    rendered
}

fn code(number: i32) -> &'static str {
    Code::try_from(number).expect("a known code").as_str_name()
}

fn structure(structure: &Struct) -> Value {
    let fields = structure.fields.iter();
    Value::Object(fields.map(|(key, value)| (key.clone(), struct_value(key, value))).collect())
}

fn struct_value(key: &str, value: &StructValue) -> Value {
    match value.kind.as_ref().expect("a value") {
        Kind::NullValue(_) => Value::Null,
        Kind::BoolValue(truth) => json!(truth),
        Kind::NumberValue(number) => numbers(&json!(number)),
        Kind::StringValue(text) if key == "limit" => json!(unit_as_number(text)),
        Kind::StringValue(text) => json!(text),
        Kind::StructValue(inner) => structure(inner),
        Kind::ListValue(list) => list.values.iter().map(|value| struct_value("", value)).collect(),
    }
}

/// The cases have numbers in place of names of units.
fn unit_as_number(text: &str) -> String {
    let mut text = text.to_owned();
    for unit in (0..=7).filter_map(|number| Unit::try_from(number).ok()) {
        text =
            text.replace(&format!("unit:{}", unit.as_str_name()), &format!("unit:{}", unit as i32));
    }
    text
}

/// The same with all numbers as integers that are.
pub(crate) fn numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => json!(float as i64),
            _ => value.clone(),
        },
        Value::Array(values) => values.iter().map(numbers).collect(),
        Value::Object(fields) => {
            let fields: Map<_, _> = fields.iter().map(|(k, v)| (k.clone(), numbers(v))).collect();
            Value::Object(fields)
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

/// Headers as pairs, in any of their JSON forms.
pub(crate) fn pairs(headers: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match headers {
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), text(v))).collect(),
        Value::Array(elements) => elements
            .iter()
            .map(|element| match element {
                Value::Array(pair) => (text(&pair[0]), text(&pair[1])),
                Value::Object(fields) => {
                    let field = |names: [&str; 2]| {
                        names
                            .iter()
                            .find_map(|name| fields.get(*name))
                            .map(text)
                            .unwrap_or_default()
                    };
                    (field(["key", "Key"]), field(["value", "Value"]))
                }
                other => {
                    let line = text(other);
                    let (key, value) = line.split_once([':', '=']).unwrap_or((&line, ""));
                    (key.trim().to_owned(), value.trim().to_owned())
                }
            })
            .collect(),
        _ => Vec::new(),
    }
}
