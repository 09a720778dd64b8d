//! Which keys exist and which values each accepts, derived from the types.
//!
//! A derived `Deserialize` passes the names of its fields to the deserializer before it reads
//! anything, and requests each value by its type. [`Probe`] is a deserializer that follows one path
//! and at its end records the names or supplies one value. So the keys of "did you mean" and the
//! values of variables always match the sections.

use std::fmt;

use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Value;

use super::sections::Config;

/// Every key as `section.key`, in the order of `cluster.toml`.
pub fn keys() -> Vec<String> {
    all_keys().map(|(section, key)| format!("{section}.{key}")).collect()
}

/// Every section with each of its keys.
pub(super) fn all_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    fields(&[]).iter().flat_map(|section| fields(&[section]).iter().map(|key| (*section, *key)))
}

/// The keys under `path`: the sections for `[]`, the keys of `[http]` for `["http"]`. Empty if
/// `path` leads to a value or does not exist.
pub(super) fn fields(path: &[&str]) -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    probe(path, Goal::Fields(&mut found));
    found
}

/// Checks whether the key at `path` accepts `value`, independent of other keys.
pub(super) fn accepts(path: &[&str], value: &Value) -> Result<(), String> {
    let mut outcome = Err("there is no such key".to_owned());
    probe(path, Goal::Value(value, &mut outcome));
    outcome
}

fn probe(path: &[&str], goal: Goal<'_>) {
    // The result is in `goal`; deserialization itself always fails.
    let _ = Config::deserialize(Probe { path, goal });
}

/// The action at the end of the path.
enum Goal<'a> {
    /// Record the names of the fields.
    Fields(&'a mut &'static [&'static str]),
    /// Supply the value and record the result.
    Value(&'a Value, &'a mut Result<(), String>),
}

struct Probe<'a> {
    path: &'a [&'a str],
    goal: Goal<'a>,
}

impl Probe<'_> {
    /// At the end of the path: supplies the value to `take`, which reads it as the key's type.
    fn offer<T>(self, take: impl FnOnce(Value) -> Result<T, toml::de::Error>) -> Result<T, Stop> {
        match self.goal {
            Goal::Value(value, outcome) if self.path.is_empty() => match take(value.clone()) {
                Ok(taken) => {
                    *outcome = Ok(());
                    Ok(taken)
                }
                Err(error) => {
                    *outcome = Err(error.message().to_owned());
                    Err(Stop)
                }
            },
            Goal::Value(..) | Goal::Fields(_) => Err(Stop),
        }
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match (self.path.split_first(), self.goal) {
            (None, Goal::Fields(found)) => {
                *found = fields;
                Err(Stop)
            }
            (None, goal @ Goal::Value(..)) => Self { path: &[], goal }
                .offer(|value| value.deserialize_struct(name, fields, visitor)),
            (Some((first, rest)), goal) if fields.contains(first) => {
                visitor.visit_map(OneField { name: first, value: Some(Probe { path: rest, goal }) })
            }
            (Some(_), _) => Err(Stop),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.offer(|value| value.deserialize_enum(name, variants, visitor))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.offer(|value| value.deserialize_any(visitor))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// A map with one entry: the next field of the path.
struct OneField<'a> {
    name: &'a str,
    value: Option<Probe<'a>>,
}

impl<'de> MapAccess<'de> for OneField<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Stop> {
        if self.value.is_none() {
            return Ok(None);
        }
        seed.deserialize(self.name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        self.value.take().map_or(Err(Stop), |probe| seed.deserialize(probe))
    }
}

/// Ends deserialization.
#[derive(Debug)]
struct Stop;

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("schema probe ended")
    }
}

impl std::error::Error for Stop {}

impl de::Error for Stop {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self
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
                "node", "cluster", "tls", "http", "grpc", "resp", "admin", "debug", "rules",
                "storage", "limits", "auth", "defaults", "envoy", "stats", "xds"
            ]
        );
        assert_eq!(fields(&["http"]), ["listen", "denied_status"]);
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
}
