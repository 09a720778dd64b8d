//! The configuration file: TOML with the line of every key, so that a mistake is named by its line.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Table;
use toml::de::{DeTable, DeValue};

use super::error::{Error, Origin};
use super::load::Origins;
use super::text::one_line;
use super::{Config, schema, setting, unknown};

/// What has been said so far, and by whom.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub(super) table: Table,
    pub(super) origins: Origins,
    /// What is wrong with the values of the file. A later layer may put it right, by another value
    /// or by a key that one of the file's needs.
    pub(super) complaint: Option<Error>,
}

/// Reads the file's text; every key must exist.
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
        unknown::refuse(&key.path, |_| at(Some(key.span.clone())))?;
    }

    let deserializer = toml::Deserializer::parse(text).map_err(|error| syntax(&error))?;
    let complaint = Config::deserialize(deserializer).err().map(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let key = keys.iter().rev().find(|key| key.span.contains(&start));
        let steps: Vec<&str> = key.iter().flat_map(|key| &key.path).map(String::as_str).collect();
        if schema::fields(&steps).is_empty() {
            setting::bad_value(at(error.span()), steps.join("."), error.message())
        } else {
            // A whole section is at fault, so each of its keys is right by itself.
            Error::Together { at: at(error.span()), problem: one_line(error.message()) }
        }
    });

    let table = text.parse().map_err(|error| syntax(&error))?;
    let origins = keys.into_iter().map(|key| (key.path.join("."), at(Some(key.span)))).collect();
    Ok(Layer { table, origins, complaint })
}

/// One key of the document and what it covers, from its name to the end of its value.
struct Key {
    path: Vec<String>,
    span: Range<usize>,
}

/// All keys of all tables, the outer before the inner, in a stable order. Tables in lists are left
/// out: no bad value could be told apart by their path.
fn collect(table: &DeTable<'_>, path: &mut Vec<String>, keys: &mut Vec<Key>) {
    for (name, value) in table {
        path.push(name.get_ref().to_string());
        let span = name.span().start..value.span().end.max(name.span().end);
        keys.push(Key { path: path.clone(), span });
        if let DeValue::Table(inner) = value.get_ref() {
            collect(inner, path, keys);
        }
        path.pop();
    }
}

/// The line that byte `offset` is in, counted from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
