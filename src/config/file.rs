//! The configuration file: TOML with the line of every key, for error messages.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::error::{Error, Origin};
use super::layer::Layer;
use super::sections::Config;
use super::text::one_line;
use super::{schema, unknown};

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
        unknown::check(&key.steps(), value, &at(Some(key.span.clone())))?;
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
