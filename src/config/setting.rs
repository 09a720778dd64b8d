//! One key set by a variable or a flag: text converted to a value of the key's type.

use toml::{Table, Value};

use super::error::{Error, Origin};
use super::layer::Layer;
use super::{schema, text, unknown};

/// Applies `TIDEGATE_HTTP__LISTEN=...`.
pub(super) fn set_variable(layer: &mut Layer, name: &str, value: &str) -> Result<(), Error> {
    let path = text::path(name).ok_or_else(|| unknown::no_section(name))?;
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
    unknown::check(path, Some(text), &origin)?;
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
