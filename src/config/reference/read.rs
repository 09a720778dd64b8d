//! Reads settings by name and lays what they say into a configuration.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use toml::Value;

use super::settings;
use super::values;
use crate::config::error::{Error, Origin};
use crate::config::file::Layer;
use crate::config::setting::Setting;

/// The variables, and what was read of them so far.
pub(super) struct Reader<'a> {
    variables: &'a BTreeMap<String, String>,
    pub(super) layer: Layer,
}

impl<'a> Reader<'a> {
    pub(super) fn new(variables: &'a BTreeMap<String, String>) -> Self {
        Self { variables, layer: Layer::default() }
    }

    /// What somebody set. An empty value counts as not set.
    pub(super) fn given(&self, name: &str) -> Option<&'a str> {
        self.variables.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// What somebody set, or the reference's default.
    pub(super) fn text(&self, name: &str) -> &'a str {
        let default = || settings::find(name).map_or("", |setting| setting.default);
        self.given(name).unwrap_or_else(default)
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Error> {
        self.parsed(name, "value", "is neither true nor false", "give true or false", values::flag)
    }

    pub(super) fn integer(&self, name: &str, key: &str) -> Result<i64, Error> {
        let fix = "give a whole number";
        self.parsed(name, key, "is no whole number", fix, values::integer)
    }

    /// The setting as `parse` reads it, or an error that names it.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        key: &str,
        is: &str,
        fix: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let text = self.text(name);
        parse(text).ok_or_else(|| bad(name, key, format!("{text:?} {is}"), fix))
    }

    /// Sets a key of ours; the variable is named when that is a mistake.
    pub(super) fn set(&mut self, key: &str, name: &str, value: Value) {
        Setting::typed(key, value, Origin::Variable(name.to_owned())).apply(&mut self.layer);
    }

    /// A text as it is; none when it is empty.
    pub(super) fn take_text(&mut self, name: &str, key: &str) {
        let text = self.text(name);
        if !text.is_empty() {
            self.set(key, name, Value::String(text.to_owned()));
        }
    }

    pub(super) fn take_flag(&mut self, name: &str, key: &str) -> Result<(), Error> {
        let flag = self.flag(name)?;
        self.set(key, name, Value::Boolean(flag));
        Ok(())
    }

    /// The parts between commas that `is_wanted`; nothing when there are none.
    pub(super) fn take_list(&mut self, name: &str, key: &str, is_wanted: fn(&str) -> bool) {
        let parts = self.text(name).split(',').map(str::trim);
        let parts = parts.filter(|part| !part.is_empty() && is_wanted(part));
        let list: Vec<_> = parts.map(|part| Value::String(part.to_owned())).collect();
        if !list.is_empty() {
            self.set(key, name, Value::Array(list));
        }
    }

    /// An address from a host and a port.
    pub(super) fn take_address(&mut self, host: &str, port: &str, key: &str) -> Result<(), Error> {
        let ip = self.parsed(
            host,
            key,
            "is no IP address",
            "give one of this machine's, or 0.0.0.0 for all of them",
            ip,
        )?;
        let number = self.parsed(port, key, "is no port", "give a number up to 65535", |text| {
            u16::try_from(values::integer(text)?).ok()
        })?;
        let addr = SocketAddr::from((ip, number));
        self.set(key, port, Value::String(addr.to_string()));
        Ok(())
    }
}

/// A value that cannot be taken.
pub(super) fn bad(name: &str, key: &str, problem: String, fix: &str) -> Error {
    let at = Origin::Variable(name.to_owned());
    Error::BadValue { at, key: key.to_owned(), problem, fix: fix.to_owned() }
}

fn ip(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    bare.parse().ok()
}
