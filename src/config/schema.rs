//! Which keys exist and which values each accepts, derived from the types; and the error for a key
//! that does not exist, with the one that was probably meant.
//!
//! A derived `Deserialize` passes the names of its fields to the deserializer before it reads
//! anything, and requests each value by its type. [`Probe`] is a deserializer that follows one path
//! and at its end records the names or supplies one value. So the keys of "did you mean" and the
//! values of variables always match the sections, and so does the schema for editors.

use serde::de::value::{Error, MapDeserializer};
use serde::de::{Error as _, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json, json};
use toml::Value;

use super::error::{self, Origin};
use super::sections::Config;
use super::text::{OPTION_VARIABLES, PREFIX, variable};

/// Every key as `section.key`, in the order of `cluster.toml`.
pub fn keys() -> Vec<String> {
    all_keys().map(|(section, key)| format!("{section}.{key}")).collect()
}

/// The JSON schema of `cluster.toml`, for editors: every section with its keys, and the type of
/// each. Ranges, and what holds between keys, are checked by `tidegate serve` alone.
pub fn schema() -> Json {
    let of_section = |section: &&'static str| {
        let keys = fields(&[section]).iter();
        let properties: Map<String, Json> =
            keys.map(|key| ((*key).to_owned(), json_type(accepted(&[section, key])))).collect();
        let schema =
            json!({ "type": "object", "properties": properties, "additionalProperties": false });
        ((*section).to_owned(), schema)
    };
    let sections: Map<String, Json> = fields(&[]).iter().map(of_section).collect();
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of tidegate",
        "type": "object",
        "properties": sections,
        "additionalProperties": false,
    })
}

fn json_type(accepted: Accepted) -> Json {
    match accepted {
        Accepted::Boolean => json!({ "type": "boolean" }),
        Accepted::Integer => json!({ "type": "integer" }),
        Accepted::Text => json!({ "type": "string" }),
        Accepted::List => json!({ "type": "array" }),
        Accepted::Table => json!({ "type": "object" }),
        Accepted::Words(words) => json!({ "enum": words }),
        Accepted::Anything => json!({}),
    }
}

/// What the type of a key requests from its deserializer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepted {
    Boolean,
    Integer,
    Text,
    List,
    Table,
    Words(&'static [&'static str]),
    /// Something that decides by the value.
    Anything,
}

/// What the key at `path` accepts.
fn accepted(path: &[&str]) -> Accepted {
    let mut found = Accepted::Anything;
    let _ = Config::deserialize(Probe { path, goal: Goal::Accepted(&mut found) });
    found
}

/// Every section with each of its keys.
pub(super) fn all_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    fields(&[]).iter().flat_map(|section| fields(&[section]).iter().map(|key| (*section, *key)))
}

/// The keys under `path`: the sections for `[]`, the keys of `[http]` for `["http"]`. Empty if
/// `path` leads to a value or does not exist.
pub(super) fn fields(path: &[&str]) -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // The result is in the goal; deserialization itself always fails.
    let _ = Config::deserialize(Probe { path, goal: Goal::Fields(&mut found) });
    found
}

/// Checks whether the key at `path` accepts `value`, independent of other keys.
pub(super) fn accepts(path: &[&str], value: &Value) -> Result<(), String> {
    let mut outcome = Err("there is no such key".to_owned());
    let _ = Config::deserialize(Probe { path, goal: Goal::Value(value, &mut outcome) });
    outcome
}

/// Checks that `path` leads to a key. `value` is its text, if known, for the suggested fix.
///
/// # Errors
///
/// [`error::Error::Unknown`] names the nearest existing key.
pub(super) fn check(path: &[&str], value: Option<&str>, at: &Origin) -> Result<(), error::Error> {
    for depth in 0..path.len() {
        let (parent, name) = (&path[..depth], path[depth]);
        let known = fields(parent);
        // A value, or a type without fixed fields: serde checks what is inside.
        if known.is_empty() {
            return Ok(());
        }
        if !known.contains(&name) {
            let key = path[..=depth].join(".");
            let key = if depth == 0 { format!("section [{name}]") } else { format!("key {key}") };
            let fix = fix(parent, name, value, known, at);
            return Err(error::Error::Unknown { at: at.clone(), key, fix });
        }
    }
    Ok(())
}

/// The error for a variable without a section.
pub(super) fn no_section(name: &str) -> error::Error {
    let known: Vec<String> = keys().iter().map(|key| variable(key)).collect();
    let candidates = known.iter().map(String::as_str).chain(OPTION_VARIABLES);
    // The common prefix would make any two names similar.
    let bare = |name| str::strip_prefix(name, PREFIX).unwrap_or(name);
    let fix = nearest(bare(name), candidates.map(bare)).map_or_else(
        || "write TIDEGATE_SECTION__KEY, with two underscores between section and key".to_owned(),
        |near| format!("did you mean {PREFIX}{near}?"),
    );
    error::Error::Unknown { at: Origin::Variable(name.to_owned()), key: "variable".to_owned(), fix }
}

/// The key that was probably meant, or the list of existing keys.
fn fix(parent: &[&str], name: &str, value: Option<&str>, known: &[&str], at: &Origin) -> String {
    let Some(section) = parent.first() else {
        return match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean [{near}]?"),
            None => format!("sections are {}", known.join(", ")),
        };
    };
    let here = parent.join(".");
    let spell = |key: &str| match at {
        Origin::Variable(_) => variable(key),
        _ => key.to_owned(),
    };
    // Keys of 0.1 pre-releases held milliseconds; the same key without the suffix is a duration.
    if let Some(stem) = name.strip_suffix("_ms").filter(|stem| known.contains(stem)) {
        let millis = value.and_then(|text| text.parse::<u64>().ok()).unwrap_or(10);
        let key = spell(&format!("{here}.{stem}"));
        return match at {
            Origin::File { .. } => format!("did you mean {key} = \"{millis}ms\"?"),
            _ => format!("did you mean {key}={millis}ms?"),
        };
    }
    if let Some(near) = nearest(name, known.iter().copied()) {
        return format!("did you mean {}?", spell(&format!("{here}.{near}")));
    }
    if let Some((other, key)) = all_keys().find(|(other, key)| other != section && *key == name) {
        return format!("did you mean {}?", spell(&format!("{other}.{key}")));
    }
    format!("[{here}] has {}", known.join(", "))
}

/// The candidate with the smallest edit distance to `word`: at most a third of the word, and at
/// least one edit.
fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let edits_max = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::levenshtein(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

// === the probe ===

/// The action at the end of the path.
enum Goal<'a> {
    /// Record the names of the fields.
    Fields(&'a mut &'static [&'static str]),
    /// Record what is requested.
    Accepted(&'a mut Accepted),
    /// Supply the value and record the result.
    Value(&'a Value, &'a mut Result<(), String>),
}

struct Probe<'a> {
    path: &'a [&'a str],
    goal: Goal<'a>,
}

impl Probe<'_> {
    /// At the end of the path: supplies the value to `take`, which reads it as the key's type, or
    /// records that `kind` was requested.
    fn offer<T>(
        self,
        kind: Accepted,
        take: impl FnOnce(Value) -> Result<T, toml::de::Error>,
    ) -> Result<T, Error> {
        if !self.path.is_empty() {
            return Err(ended());
        }
        let (value, outcome) = match self.goal {
            Goal::Value(value, outcome) => (value, outcome),
            Goal::Accepted(found) => {
                *found = kind;
                return Err(ended());
            }
            Goal::Fields(_) => return Err(ended()),
        };
        let taken = take(value.clone()).map_err(|error| error.message().to_owned());
        *outcome = taken.as_ref().map(|_| ()).map_err(Clone::clone);
        taken.map_err(Error::custom)
    }
}

/// Ends deserialization.
fn ended() -> Error {
    Error::custom("schema probe ended")
}

/// Methods that request a value of one kind.
macro_rules! requested {
    ($($kind:ident: $($method:ident)+;)+) => {$($(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.offer(Accepted::$kind, |value| value.deserialize_any(visitor))
        }
    )+)+};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match (self.path.split_first(), self.goal) {
            (None, Goal::Fields(found)) => {
                *found = fields;
                Err(ended())
            }
            (None, goal) => Self { path: &[], goal }
                .offer(Accepted::Table, |value| value.deserialize_struct(name, fields, visitor)),
            (Some((first, path)), goal) if fields.contains(first) => {
                let field = (*first, Probe { path, goal });
                visitor.visit_map(MapDeserializer::new(std::iter::once(field)))
            }
            (Some(_), _) => Err(ended()),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let kind = Accepted::Words(variants);
        self.offer(kind, |value| value.deserialize_enum(name, variants, visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.offer(Accepted::Anything, |value| value.deserialize_any(visitor))
    }

    requested! {
        Boolean: deserialize_bool;
        Integer: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8
            deserialize_u16 deserialize_u32 deserialize_u64;
        Text: deserialize_char deserialize_str deserialize_string;
        List: deserialize_seq;
        Table: deserialize_map;
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

impl IntoDeserializer<'_> for Probe<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_their_keys_are_found() {
        assert_eq!(
            fields(&[]),
            [
                "node",
                "cluster",
                "global",
                "tls",
                "http",
                "grpc",
                "resp",
                "gubernator",
                "proxy",
                "admin",
                "join",
                "debug",
                "rules",
                "storage",
                "limits",
                "auth",
                "blocked_sources",
                "defaults",
                "envoy",
                "stats",
                "traces",
                "xds"
            ]
        );
        assert_eq!(fields(&["debug"]), ["listen"]);
        assert_eq!(fields(&["rules"]), ["path", "merge_domains", "required", "may_be_empty"]);
    }

    #[test]
    fn values_and_unknown_paths_have_no_keys() {
        assert!(fields(&["http", "listen"]).is_empty());
        assert!(fields(&["nowhere"]).is_empty());
        assert!(fields(&["node", "id", "deeper"]).is_empty());
    }

    #[test]
    fn a_value_is_checked_against_its_own_key_only() {
        assert_eq!(accepts(&["auth", "domain"], &Value::String("edge".to_owned())), Ok(()));
        assert_eq!(accepts(&["limits", "on_full"], &Value::String("refuse".to_owned())), Ok(()));
        assert!(accepts(&["limits", "on_full"], &Value::String("maybe".to_owned())).is_err());
        assert!(accepts(&["limits", "keys_max"], &Value::Integer(-1)).is_err());
        assert!(accepts(&["limits", "nothing"], &Value::Integer(1)).is_err());
    }

    #[test]
    fn only_a_similar_word_is_suggested() {
        assert_eq!(nearest("lisen", ["name", "listen"]), Some("listen"));
        assert_eq!(nearest("idd", ["id", "zone"]), Some("id"));
        assert_eq!(nearest("colour", ["id", "zone"]), None);
    }
}
