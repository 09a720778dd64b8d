//! The JSON schema of a rule file, with which editors complete keys, explain them and mark
//! mistakes.
//!
//! It is made of the tables that the reader uses: the keys and where they belong, the words that a
//! key accepts, the bounds of its numbers. Files that the reader accepts are valid, but for values
//! without effect (`unit: none` of an unlimited rule). The reader refuses more, because a schema
//! sees one key at a time: `unit` beside `window`, a limit twice, a burst that the algorithm does
//! not use.
//!
//! Scalars are to be read as YAML 1.1, as the reader does ([`super::yaml`]).
//!
//! Source: JSON Schema draft 7, which all language servers of YAML know.

use serde_json::{Map, Value, json};
use tidegate_limiter::policy::Mode;
use tidegate_limiter::quota::{Algorithm, SUB_WINDOWS_MAX};

use super::compile::TEXT_BYTES_MAX;
use super::keys::{self, Section};
use super::limits::{DURABILITIES, FALLBACKS, LIMITS_MAX, SCOPES, UNITS};

/// The schema of one rule file.
pub fn schema() -> Value {
    let Value::Object(mut file) = mapping(Section::File, &["domain"]) else { return Value::Null };
    let head = [
        ("$schema", json!("http://json-schema.org/draft-07/schema#")),
        ("title", json!("Rules of tidegate")),
        ("description", json!("Rate limits of one domain.")),
        (
            "definitions",
            json!({
                "descriptor": mapping(Section::Descriptor, &["key"]),
                "limit": limit(),
                "replaced": mapping(Section::Replaces, &["name"]),
            }),
        ),
    ];
    file.extend(head.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(file)
}

/// One limit: for how long it counts, or that there is none.
fn limit() -> Value {
    let spans = ["unit", "window", "unlimited"].map(|key| json!({ "required": [key] }));
    let mut limit = mapping(Section::RateLimit, &[]);
    limit["anyOf"] = json!(spans);
    limit
}

/// A mapping with the keys of `section`. Other keys of envoyproxy/ratelimit are ignored there, as
/// they are by the reader, and an editor says so.
fn mapping(section: Section, required: &[&str]) -> Value {
    let (here, elsewhere): (Vec<&keys::Key>, Vec<&keys::Key>) =
        keys::ALL.iter().partition(|key| key.sections.contains(&section));
    let properties: Map<String, Value> =
        here.iter().map(|key| (key.name.to_owned(), key_schema(key.name, section))).collect();
    let ignored: Vec<_> = elsewhere.iter().filter(|key| key.is_envoy).map(|key| key.name).collect();
    let ignored = format!("^({})$", ignored.join("|"));
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": {
            ignored: { "deprecationMessage": format!("It has no effect in {section}.") },
        },
        "required": required,
        "additionalProperties": false,
    })
}

/// What a key accepts, and what it is for. Null is as good as no key, where the key may be missing.
fn key_schema(key: &str, section: Section) -> Value {
    let (accepted, about) = match key {
        "domain" => (required_text(), "Which requests the rules are for: clients name the domain."),
        "descriptors" => (
            list_of("descriptor"),
            "Rules for the entries of a request. Descriptors below a descriptor match its next entry.",
        ),
        "key" => (required_text(), "The key of the entry, such as `user` or `remote_address`."),
        "value" => (
            text(),
            "Only entries with this value; `*` at its end stands for any rest. Without it each value \
             has a counter of its own.",
        ),
        "rate_limit" => {
            let limit = json!({ "$ref": "#/definitions/limit" });
            let several =
                json!({ "type": "array", "items": limit, "minItems": 1, "maxItems": LIMITS_MAX });
            (or_null(&[limit, several]), "The limit, or several that must all admit.")
        }
        "shadow_mode" => (flag(), "Count and report, and refuse nothing."),
        "quota_mode" => {
            (flag(), "A request is over its quota rules only when all of them refuse it.")
        }
        "detailed_metric" => (flag(), "Statistics with the keys and values of the request."),
        "value_to_metric" => (flag(), "Statistics with the value of this entry."),
        "share_threshold" => (flag(), "All values that match the wildcard share one counter."),
        "metadata" => (
            json!({ "type": ["object", "null"] }),
            "Sent to Envoy with a request that the rule admitted.",
        ),
        "unit" => (unit(), "The window: a calendar unit in UTC. A month is 30 days, a year 365."),
        "requests_per_unit" => {
            (integer(0, u32::MAX), "Hits that are admitted in a window. 0 refuses all.")
        }
        "unlimited" => (flag(), "No limit: requests that match are admitted."),
        "name" if section == Section::Replaces => {
            (required_text(), "The `name` of a rule that does not apply beside this one.")
        }
        "name" => (text(), "A name for people, and for `replaces`."),
        "replaces" => {
            (list_of("replaced"), "Rules that do not apply to a request to which this one applies.")
        }
        "algorithm" => (
            words(Algorithm::ALL.map(Algorithm::name)),
            "How hits are counted. Default: `fixed_window`, of an eventual rule \
             `sliding_window_counter`.",
        ),
        "window" => (
            or_null(&[json!({ "type": "string", "pattern": "^([0-9]+(w|d|h|m|s|ms))+$" })]),
            "The window as a duration instead of `unit`: `90s`, `1h30m`; 1 s to 400 days, \
             of a `first_hit_window` from 1 ms.",
        ),
        "unit_multiplier" => (integer(1, u32::MAX), "The window is as many times `unit`."),
        "soft_limit" => (
            or_null(&[
                json!({ "type": "string", "pattern": "^[0-9]{1,2}%$" }),
                json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
            ]),
            "Signal requests above this part of the limit (`80%`), or this number of hits, which are \
             still admitted.",
        ),
        "burst" => (
            integer(0, u32::MAX),
            "Most hits of an idle bucket at once. Default: `requests_per_unit`.",
        ),
        "sub_windows" => (
            integer(1, u32::from(SUB_WINDOWS_MAX)),
            "Slices of a `sliding_window_counter`. Default 1, with fine counts near the limit.",
        ),
        "queue" => (
            integer(0, u32::MAX),
            "A `leaky_bucket` as a queue: this many hits are delayed instead of refused.",
        ),
        "mode" => (
            words(Mode::ALL.map(Mode::name)),
            "`strict`: exact, decided by the owner of the key. `leased`: never over, decided from \
             granted hits. `eventual`: decided at once, over by what is not synchronised yet.",
        ),
        "scope" => (
            words(SCOPES.map(|(word, _)| word)),
            "Which nodes share the limit: those of a region, or all. Default `region`.",
        ),
        "on_unavailable" => (
            words(FALLBACKS.map(|(word, _)| word)),
            "The answer while the owner is unreachable. Default `local`: the node's part of the limit.",
        ),
        "durability" => (
            words(DURABILITIES.map(|(word, _)| word)),
            "`replicated`: the answer waits until another node has the count. Default `async`.",
        ),
        "concurrency" => (
            integer(1, u32::MAX),
            "Most requests in flight at all nodes together, behind a proxy listener.",
        ),
        "node_concurrency" => {
            (integer(1, u32::MAX), "Most requests in flight at each node, behind a proxy listener.")
        }
        _ => (json!({}), ""),
    };
    let Value::Object(mut accepted) = accepted else { return accepted };
    accepted.insert("description".to_owned(), json!(about));
    Value::Object(accepted)
}

/// A number or a boolean is a text as it is written.
fn text() -> Value {
    json!({ "type": ["string", "integer", "boolean", "null"], "maxLength": TEXT_BYTES_MAX })
}

fn required_text() -> Value {
    let types = ["string", "integer", "boolean"];
    json!({ "type": types, "minLength": 1, "maxLength": TEXT_BYTES_MAX })
}

fn flag() -> Value {
    json!({ "type": ["boolean", "null"] })
}

fn integer(min: u32, max: u32) -> Value {
    json!({ "type": ["integer", "null"], "minimum": min, "maximum": max })
}

fn list_of(definition: &str) -> Value {
    let items = json!({ "$ref": format!("#/definitions/{definition}") });
    json!({ "type": ["array", "null"], "items": items })
}

fn words<const N: usize>(words: [&str; N]) -> Value {
    or_null(&[json!({ "enum": words.as_slice() })])
}

/// In lower case, which an editor completes, or in any case.
fn unit() -> Value {
    let names = UNITS.map(|(name, _)| name);
    let any_case = |name: &str| -> String {
        name.chars().flat_map(|c| ['[', c, c.to_ascii_uppercase(), ']']).collect()
    };
    let pattern = format!("^({})$", names.map(any_case).join("|"));
    let any = json!({ "type": "string", "pattern": pattern });
    or_null(&[json!({ "enum": names }), any])
}

fn or_null(accepted: &[Value]) -> Value {
    let null = json!({ "type": "null" });
    json!({ "anyOf": accepted.iter().chain([&null]).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_described_in_each_section() {
        for key in keys::ALL {
            for section in key.sections {
                let schema = key_schema(key.name, *section);
                assert_ne!(schema["description"], "", "{} in {section}", key.name);
            }
        }
    }
}
