//! The merged input: values from file, environment and flags, each with its origin.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::error::{Error, Origin};
use super::sections::Config;
use super::text::one_line;
use super::{schema, text};

/// Where each key was set last.
pub type Origins = BTreeMap<String, Origin>;

/// The values set so far.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub(super) table: Table,
    pub(super) origins: Origins,
    /// The error in the values of the file. A later layer may correct it, by another value or by a
    /// key that one of the file's requires.
    pub(super) complaint: Option<Error>,
}

impl Layer {
    /// Sets the key at `path`, replacing an earlier value. The type of `value` is not checked here.
    pub(crate) fn set(&mut self, path: &[&str], value: Value, origin: Origin) {
        self.origins.insert(path.join("."), origin);
        let nest = |value, step: &&str| Table::from_iter([((*step).to_owned(), value)]).into();
        if let Value::Table(over) = path.iter().rfold(value, nest) {
            overlay(&mut self.table, over);
        }
    }
}

// === the file ===

/// Parses the file. Unknown keys are errors; a bad value is kept as [`Layer::complaint`].
pub(super) fn read(path: &Path, text: &str) -> Result<Layer, Error> {
    let at = |span: Option<Range<usize>>| Origin::File {
        path: path.to_owned(),
        line: line_of(text, span.map_or(0, |span| span.start)),
    };
    let syntax = |error: &toml::de::Error| Error::Syntax {
        at: at(error.span()),
        problem: one_line(error.message()),
    };

    let document = DeTable::parse(text).map_err(|error| syntax(&error))?;
    let mut keys = Vec::new();
    collect(document.get_ref(), &mut Vec::new(), &mut keys);
    for key in &keys {
        let value = text.get(key.value.clone());
        schema::check(&key.steps(), value, &at(Some(key.span.clone())))?;
    }

    let deserializer = toml::Deserializer::parse(text).map_err(|error| syntax(&error))?;
    let complaint = Config::deserialize(deserializer).err().map(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let key = keys.iter().rev().find(|key| key.span.contains(&start));
        let steps = key.map(Key::steps).unwrap_or_default();
        if schema::fields(&steps).is_empty() {
            Error::bad_value(at(error.span()), steps.join("."), error.message())
        } else {
            // The error is in a whole section, so each of its keys is valid by itself.
            Error::Conflict { at: at(error.span()), problem: one_line(error.message()) }
        }
    });

    let table = text.parse().map_err(|error| syntax(&error))?;
    let origins = keys.into_iter().map(|key| (key.path.join("."), at(Some(key.span)))).collect();
    Ok(Layer { table, origins, complaint })
}

/// One key of the document.
struct Key {
    path: Vec<String>,
    /// From the name to the end of the value.
    span: Range<usize>,
    value: Range<usize>,
}

impl Key {
    fn steps(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }
}

/// All keys of all tables, outer before inner, in a stable order. Tables in arrays are skipped:
/// their path does not identify a value.
fn collect(table: &DeTable<'_>, path: &mut Vec<String>, keys: &mut Vec<Key>) {
    for (name, value) in table {
        path.push(name.get_ref().to_string());
        let span = name.span().start..value.span().end.max(name.span().end);
        keys.push(Key { path: path.clone(), span, value: value.span() });
        if let DeValue::Table(inner) = value.get_ref() {
            collect(inner, path, keys);
        }
        path.pop();
    }
}

/// The line of byte `offset`, counted from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

// === variables and flags ===

/// Applies `TIDEGATE_HTTP__LISTEN=...`.
pub(crate) fn set_variable(layer: &mut Layer, name: &str, value: &str) -> Result<(), Error> {
    let path = text::path(name).ok_or_else(|| schema::no_section(name))?;
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    set(layer, &path, value, Origin::Variable(name.to_owned()))
}

/// Applies `--set http.listen=...`.
pub(super) fn set_flag(layer: &mut Layer, pair: &str) -> Result<(), Error> {
    let Some((key, value)) = pair.split_once('=') else {
        return Err(Error::Unreadable {
            what: format!("--set {pair}: it has no ="),
            fix: "write it as --set section.key=value".to_owned(),
        });
    };
    let key = key.trim();
    let path: Vec<&str> = key.split('.').collect();
    set(layer, &path, value.trim(), Origin::Flag(key.to_owned()))
}

fn set(layer: &mut Layer, path: &[&str], text: &str, origin: Origin) -> Result<(), Error> {
    schema::check(path, Some(text), &origin)?;
    let mut complaint = None;
    for value in readings(text) {
        match schema::accepts(path, &value) {
            Ok(()) => {
                layer.set(path, value, origin);
                return Ok(());
            }
            Err(problem) => complaint = complaint.or(Some(problem)),
        }
    }
    Err(Error::bad_value(origin, path.join("."), &complaint.unwrap_or_default()))
}

/// The values that the text can stand for, the most literal first: a TOML value, a bare string, a
/// list of strings. The key's type decides.
fn readings(text: &str) -> Vec<Value> {
    let as_toml = format!("value = {text}").parse::<Table>().ok();
    // A line break in the text may add more keys; then it is not a value.
    let as_toml = as_toml.filter(|table| table.len() == 1).and_then(|mut t| t.remove("value"));
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let as_list = Value::Array(items.map(|item| Value::String(item.to_owned())).collect());
    as_toml.into_iter().chain([Value::String(text.to_owned()), as_list]).collect()
}

// === values ===

/// Merges `over` into `under`: tables are merged, everything else is replaced.
fn overlay(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}
