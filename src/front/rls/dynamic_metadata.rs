//! `dynamic_metadata` of a response: the request, and the metadata of the rules that admitted it.
//!
//! ```text
//! domain       "shop"
//! descriptors  [{entries: ["user=ann"], limit: "requests_per_unit:5 unit:MINUTE", hitsAddend: 2}]
//! hitsAddend   3
//! metadata     {owner: {name: "s1", extra: "x"}}
//! ```
//!
//! Of a request that passes above a soft limit, whether or not the setting is on:
//!
//! ```text
//! softLimitBreaches  [0]        the indices of the descriptors
//! ```
//!
//! Metadata of several rules is merged: mappings are merged recursively, of everything else the
//! first rule's is kept. `{owner: {name: s1}}` and `{owner: {name: s2, extra: x}}` make the
//! example. What is absent or zero is left out, except the hits of a descriptor, which may be zero.
//!
//! Source: envoyproxy/ratelimit, `src/service/ratelimit.go`, `ratelimitToMetadata`.

use tidegate_proto::google::protobuf::value::Kind;
use tidegate_proto::google::protobuf::{Struct, Value};
use tidegate_proto::rls::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};
use tidegate_rules::metadata::{self, Metadata};

use crate::decide::CheckResponse;

pub(super) fn dynamic_metadata(request: &RateLimitRequest, answer: &CheckResponse) -> Struct {
    let descriptors = request.descriptors.iter().map(|it| Kind::StructValue(descriptor(it)).into());
    let hits = request.hits_addend;
    let mut merged = Struct::default();
    let admitted = answer.statuses.iter().filter(|status| status.allowed);
    for metadata in admitted.filter_map(|status| status.metadata.as_ref()) {
        merge(&mut merged, metadata);
    }
    present([
        ("domain", Some(Kind::StringValue(request.domain.clone()))),
        ("descriptors", Some(Kind::ListValue(descriptors.collect()))),
        ("hitsAddend", (hits != 0).then(|| Kind::NumberValue(f64::from(hits)))),
        ("metadata", (!merged.fields.is_empty()).then_some(Kind::StructValue(merged))),
    ])
}

/// The descriptors that pass above a soft limit; `None` without any. It depends on no setting: only
/// rules with `soft_limit` have it.
pub(super) fn soft_limits(answer: &CheckResponse) -> Option<Struct> {
    #[expect(clippy::cast_precision_loss, reason = "a request has few descriptors")]
    let index = |index: usize| Value::from(Kind::NumberValue(index as f64));
    let breaches = answer.soft_limited().map(index);
    answer
        .is_soft_limited()
        .then(|| present([("softLimitBreaches", Some(Kind::ListValue(breaches.collect())))]))
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Struct {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|it| Kind::StringValue(format!("{}={}", it.key, it.value)).into());
    let limit = descriptor.limit.map(|limit| Kind::StringValue(text_format(limit)));
    #[expect(clippy::cast_precision_loss, reason = "a Struct has no numbers but doubles")]
    let hits = descriptor.hits_addend.map(|hits| Kind::NumberValue(hits as f64));
    present([
        ("entries", Some(Kind::ListValue(entries.collect()))),
        ("limit", limit),
        ("hitsAddend", hits),
    ])
}

/// The fields that have a value.
fn present<const N: usize>(fields: [(&str, Option<Kind>); N]) -> Struct {
    let present = fields.into_iter().filter_map(|(key, kind)| Some((key.to_owned(), kind?.into())));
    present.collect()
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

/// Recursion is bounded by the depth of a rule file, here and below.
fn merge(into: &mut Struct, from: &Metadata) {
    for (key, value) in from {
        let merge_maps = |kept: &mut Value| {
            if let (Some(Kind::StructValue(into)), metadata::Value::Map(from)) =
                (&mut kept.kind, value)
            {
                merge(into, from);
            }
        };
        let entry = into.fields.entry(key.to_string());
        entry.and_modify(merge_maps).or_insert_with(|| to_value(value));
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
