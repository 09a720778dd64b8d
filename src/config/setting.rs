//! One key set by a variable or a flag: text that becomes a value of the key's type.

use toml::{Table, Value};

use super::error::{Error, Origin};
use super::file::Layer;
use super::{schema, text, unknown};

/// A key, its value and who set it.
#[derive(Debug)]
pub(super) struct Setting {
    path: Vec<String>,
    value: Value,
    origin: Origin,
}

/// `TIDEGATE_HTTP__LISTEN=...`
pub(super) fn from_variable(name: &str, value: &str) -> Result<Setting, Error> {
    let origin = Origin::Variable(name.to_owned());
    let Some(path) = text::path(name) else {
        return Err(unknown::no_section(name));
    };
    build(path, value, origin)
}

/// `http.listen=...`
pub(super) fn from_flag(pair: &str) -> Result<Setting, Error> {
    let Some((key, value)) = pair.split_once('=') else {
        return Err(Error::Unreadable {
            what: format!("--set {pair}: it has no ="),
            fix: "write it as --set section.key=value".to_owned(),
        });
    };
    let key = key.trim();
    build(key.split('.').map(str::to_owned).collect(), value.trim(), Origin::Flag(key.to_owned()))
}

impl Setting {
    /// A key, as `section.key`, and a value that is of its type already.
    pub(super) fn typed(key: &str, value: Value, origin: Origin) -> Self {
        Self { path: key.split('.').map(str::to_owned).collect(), value, origin }
    }

    /// Puts the value in its place, over what was said there before.
    pub(super) fn apply(self, layer: &mut Layer) {
        layer.origins.insert(self.path.join("."), self.origin);
        overlay(&mut layer.table, nested(&self.path, self.value));
    }
}

/// The error for a value that serde did not take.
pub(super) fn bad_value(at: Origin, key: String, message: &str) -> Error {
    let problem = text::one_line(message);
    let fix = advice(&problem).to_owned();
    Error::BadValue { at, key, problem, fix }
}

fn build(path: Vec<String>, text: &str, origin: Origin) -> Result<Setting, Error> {
    unknown::refuse(&path, |_| origin.clone())?;
    let steps: Vec<&str> = path.iter().map(String::as_str).collect();
    let mut complaint = None;
    for value in readings(text) {
        match schema::accepts(&steps, &value) {
            Ok(()) => return Ok(Setting { path, value, origin }),
            Err(problem) => complaint = complaint.or(Some(problem)),
        }
    }
    Err(bad_value(origin, path.join("."), &complaint.unwrap_or_default()))
}

/// What the text can mean, the most literal first: a TOML value, a bare string, a list of strings.
/// Which of them it is, the key's type decides.
fn readings(text: &str) -> Vec<Value> {
    let as_toml = format!("value = {text}").parse::<Table>().ok();
    // More than one key means that the text had a line break and went on: not a value.
    let as_toml = as_toml.filter(|table| table.len() == 1).and_then(|mut t| t.remove("value"));
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let as_list = Value::Array(items.map(|item| Value::String(item.to_owned())).collect());
    as_toml.into_iter().chain([Value::String(text.to_owned()), as_list]).collect()
}

/// `value` wrapped into the tables of `path`.
fn nested(path: &[String], value: Value) -> Table {
    let Some((first, rest)) = path.split_first() else {
        return Table::new();
    };
    let inner = if rest.is_empty() { value } else { Value::Table(nested(rest, value)) };
    Table::from_iter([(first.clone(), inner)])
}

/// Lays `over` over `under`: tables are merged, everything else is replaced.
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

/// What to do about serde's complaint.
fn advice(problem: &str) -> &'static str {
    let hints = [
        ("socket address", "give IP:PORT, such as 127.0.0.1:8080"),
        ("unknown variant", "give one of those"),
        ("unknown field", "give one of those"),
        ("expected a boolean", "give true or false"),
        ("expected a sequence", "give a list, such as [\"a\", \"b\"]"),
        ("expected a string", "give text in quotes"),
        ("expected path string", "give text in quotes"),
        ("expected struct", "write it as a section, [name], with keys below it"),
        ("expected usize", "give a whole number"),
        ("expected u", "give a whole number"),
        ("expected i", "give a whole number"),
    ];
    let hint = hints.iter().find(|(part, _)| problem.contains(part));
    hint.map_or("give what cluster.toml documents for it", |(_, advice)| advice)
}
