//! `dynamic_metadata` of a response: the request, and the metadata of the rules that admitted it.
//!
//! ```text
//! domain       "shop"
//! descriptors  [{entries: ["user=ann"], limit: "requests_per_unit:5 unit:MINUTE", hitsAddend: 2}]
//! hitsAddend   3
//! metadata     {owner: {name: "s1", extra: "x"}}
//! ```
//!
//! Metadata of several rules is merged: mappings are merged recursively, of everything else the
//! first rule's is kept. `{owner: {name: s1}}` and `{owner: {name: s2, extra: x}}` make the
//! example. What is absent or zero is left out, except the hits of a descriptor, which may be zero.
//!
//! Source: envoyproxy/ratelimit, `src/service/ratelimit.go`, `ratelimitToMetadata`.

use std::collections::btree_map;

use tidegate_proto::google::protobuf::value::Kind;
use tidegate_proto::google::protobuf::{Struct, Value};
use tidegate_proto::rls::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};
use tidegate_rules::metadata::{self, Metadata};

use crate::decide::CheckResponse;

pub(super) fn dynamic_metadata(request: &RateLimitRequest, answer: &CheckResponse) -> Struct {
    let mut fields = Struct::default();
    set(&mut fields, "domain", Kind::StringValue(request.domain.clone()));
    let descriptors = request.descriptors.iter().map(|it| Kind::StructValue(descriptor(it)).into());
    set(&mut fields, "descriptors", Kind::ListValue(descriptors.collect()));
    if request.hits_addend != 0 {
        set(&mut fields, "hitsAddend", Kind::NumberValue(f64::from(request.hits_addend)));
    }
    let mut merged = Struct::default();
    for status in answer.statuses.iter().filter(|status| status.allowed) {
        if let Some(metadata) = &status.metadata {
            merge(&mut merged, metadata);
        }
    }
    if !merged.fields.is_empty() {
        set(&mut fields, "metadata", Kind::StructValue(merged));
    }
    fields
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Struct {
    let mut fields = Struct::default();
    let entries = descriptor.entries.iter();
    let entries = entries.map(|it| Kind::StringValue(format!("{}={}", it.key, it.value)).into());
    set(&mut fields, "entries", Kind::ListValue(entries.collect()));
    if let Some(limit) = &descriptor.limit {
        set(&mut fields, "limit", Kind::StringValue(text_format(*limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "a Struct has no numbers but doubles")]
        set(&mut fields, "hitsAddend", Kind::NumberValue(hits as f64));
    }
    fields
}

/// The limit in protobuf's text format, which leaves out what is zero.
fn text_format(limit: RateLimitOverride) -> String {
    let hits = limit.requests_per_unit;
    let hits = (hits != 0).then(|| format!("requests_per_unit:{hits}"));
    let unit = (limit.unit != 0).then(|| match Unit::try_from(limit.unit) {
        Ok(unit) => format!("unit:{}", unit.as_str_name()),
        Err(_) => format!("unit:{}", limit.unit),
    });
    hits.into_iter().chain(unit).collect::<Vec<_>>().join(" ")
}

fn set(fields: &mut Struct, key: &str, kind: Kind) {
    fields.fields.insert(key.to_owned(), kind.into());
}

/// Recursion is bounded by the depth of a rule file, here and below.
fn merge(into: &mut Struct, from: &Metadata) {
    for (key, value) in from {
        match into.fields.entry(key.to_string()) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(to_value(value));
            }
            btree_map::Entry::Occupied(mut entry) => {
                if let (Some(Kind::StructValue(into)), metadata::Value::Map(from)) =
                    (&mut entry.get_mut().kind, value)
                {
                    merge(into, from);
                }
            }
        }
    }
}

fn to_value(value: &metadata::Value) -> Value {
    Value::from(match value {
        metadata::Value::Null => Kind::NullValue(0),
        metadata::Value::Bool(truth) => Kind::BoolValue(*truth),
        metadata::Value::Number(number) => Kind::NumberValue(*number),
        metadata::Value::Text(text) => Kind::StringValue(text.to_string()),
        metadata::Value::List(values) => Kind::ListValue(values.iter().map(to_value).collect()),
        metadata::Value::Map(map) => {
            let fields = map.iter().map(|(key, value)| (key.to_string(), to_value(value)));
            Kind::StructValue(fields.collect())
        }
    })
}
