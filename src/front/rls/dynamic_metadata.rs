//! `dynamic_metadata` of an answer: the request as it was asked, and what the rules that let it
//! pass say of it.
//!
//! ```text
//! domain       "shop"
//! descriptors  [{entries: ["user=ann"], limit: "requests_per_unit:5 unit:MINUTE", hitsAddend: 2}]
//! hitsAddend   3
//! metadata     {owner: {name: "s1", extra: "x"}}
//! ```
//!
//! Where several rules say something, mappings are merged and for everything else the first rule
//! has the last word: `{owner: {name: s1}}` and `{owner: {name: s2, extra: x}}` make the example.
//! What is absent or zero is left out, but for a descriptor's own hits, which may be zero.
//!
//! Source: envoyproxy/ratelimit, `src/service/ratelimit.go`, `ratelimitToMetadata`.

use std::collections::btree_map::Entry as Slot;

use tidegate_rules::metadata::Metadata;

use super::message::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};
use super::structure::{Kind, Struct, Value};
use crate::decide::CheckResponse;

/// What Envoy is told of `request`, to which `answer` was given.
pub(super) fn dynamic_metadata(request: &RateLimitRequest, answer: &CheckResponse) -> Struct {
    let mut told = Struct::default();
    set(&mut told, "domain", Kind::Text(request.domain.clone()));
    let descriptors = request.descriptors.iter().map(|it| Kind::Struct(descriptor(it)).into());
    set(&mut told, "descriptors", Kind::List(descriptors.collect()));
    if request.hits_addend != 0 {
        set(&mut told, "hitsAddend", Kind::Number(f64::from(request.hits_addend)));
    }
    let mut merged = Struct::default();
    for status in answer.statuses.iter().filter(|status| status.allowed) {
        if let Some(metadata) = &status.metadata {
            merge(&mut merged, metadata);
        }
    }
    if !merged.fields.is_empty() {
        set(&mut told, "metadata", Kind::Struct(merged));
    }
    told
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Struct {
    let mut told = Struct::default();
    let entries = descriptor.entries.iter();
    let entries = entries.map(|it| Kind::Text(format!("{}={}", it.key, it.value)).into());
    set(&mut told, "entries", Kind::List(entries.collect()));
    if let Some(limit) = &descriptor.limit {
        set(&mut told, "limit", Kind::Text(text_format(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "a Struct knows doubles alone")]
        set(&mut told, "hitsAddend", Kind::Number(hits as f64));
    }
    told
}

/// The limit in protobuf's text format, which leaves out what is zero.
fn text_format(limit: &RateLimitOverride) -> String {
    let hits = limit.requests_per_unit;
    let hits = (hits != 0).then(|| format!("requests_per_unit:{hits}"));
    let unit = (limit.unit != 0).then(|| match Unit::try_from(limit.unit) {
        Ok(unit) => format!("unit:{}", unit.name()),
        Err(_) => format!("unit:{}", limit.unit),
    });
    hits.into_iter().chain(unit).collect::<Vec<_>>().join(" ")
}

fn set(told: &mut Struct, key: &str, kind: Kind) {
    told.fields.insert(key.to_owned(), kind.into());
}

/// Recursion is bounded by the depth of a rule file.
fn merge(into: &mut Struct, from: &Metadata) {
    use tidegate_rules::metadata::Value as Told;

    for (key, value) in from {
        match into.fields.entry(key.to_string()) {
            Slot::Vacant(slot) => {
                slot.insert(value.into());
            }
            Slot::Occupied(mut slot) => {
                if let (Value { kind: Some(Kind::Struct(into)) }, Told::Map(from)) =
                    (slot.get_mut(), value)
                {
                    merge(into, from);
                }
            }
        }
    }
}
