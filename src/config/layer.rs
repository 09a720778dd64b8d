//! The merged input: values from file, environment and flags, each with its origin.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::error::{Error, Origin};

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
        overlay(&mut self.table, nested(path, value));
    }
}

/// `value` wrapped into the tables of `path`.
fn nested(path: &[&str], value: Value) -> Table {
    let Some((first, rest)) = path.split_first() else {
        return Table::new();
    };
    let inner = if rest.is_empty() { value } else { Value::Table(nested(rest, value)) };
    Table::from_iter([((*first).to_owned(), inner)])
}

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
