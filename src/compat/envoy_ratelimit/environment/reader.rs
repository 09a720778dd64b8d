//! The variables of envoyproxy/ratelimit by name, and the keys that they set.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use toml::Value;

use super::{settings, values};
use crate::config::error::{Error, Origin};
use crate::config::layer::Layer;

/// The variables, and the configuration read from them so far.
pub(super) struct Reader<'a> {
    pub(super) variables: &'a BTreeMap<String, String>,
    pub(super) layer: Layer,
}

impl<'a> Reader<'a> {
    /// The value, if set. An empty value counts as not set.
    pub(super) fn given(&self, name: &str) -> Option<&'a str> {
        self.variables.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// The value, or the default of envoyproxy/ratelimit.
    pub(super) fn text(&self, name: &str) -> &'a str {
        let default = || settings::find(name).map_or("", |setting| setting.default);
        self.given(name).unwrap_or_else(default)
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Error> {
        self.parsed(name, "value", "is neither true nor false", "use true or false", values::flag)
    }

    pub(super) fn integer(&self, name: &str, key: &str) -> Result<i64, Error> {
        self.parsed(name, key, "is not a whole number", "use a whole number", values::integer)
    }

    /// The value parsed by `parse`, or an error with the setting's name.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        key: &str,
        is: &str,
        fix: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let text = self.text(name);
        parse(text).ok_or_else(|| Error::bad_variable(name, key, &format!("{text:?} {is}"), fix))
    }

    /// Sets the key `section.key`; later errors about it refer to the variable `name`.
    pub(super) fn set(&mut self, key: &str, name: &str, value: impl Into<Value>) {
        let path: Vec<&str> = key.split('.').collect();
        self.layer.set(&path, value.into(), Origin::Variable(name.to_owned()));
    }

    /// Sets a key to the text, unless it is empty.
    pub(super) fn set_text(&mut self, name: &str, key: &str) {
        let text = self.text(name);
        if !text.is_empty() {
            self.set(key, name, text);
        }
    }

    pub(super) fn set_flag(&mut self, name: &str, key: &str) -> Result<(), Error> {
        let flag = self.flag(name)?;
        self.set(key, name, flag);
        Ok(())
    }

    pub(super) fn set_duration(&mut self, name: &str, key: &str) -> Result<(), Error> {
        let (is, fix) = ("is not a duration", "use a duration, such as 10s");
        let ms = self.parsed(name, key, is, fix, values::duration_ms)?;
        self.set(key, name, format!("{ms}ms"));
        Ok(())
    }

    /// Sets a key to the items between commas that `is_item` accepts, unless there are none.
    pub(super) fn set_list(&mut self, name: &str, key: &str, is_item: fn(&str) -> bool) {
        let items = self.text(name).split(',').map(str::trim);
        let items = items.filter(|item| !item.is_empty() && is_item(item));
        let list: Vec<_> = items.collect();
        if !list.is_empty() {
            self.set(key, name, list);
        }
    }

    /// Sets a key to the address made of a host and a port.
    pub(super) fn set_address(&mut self, host: &str, port: &str, key: &str) -> Result<(), Error> {
        let fix = "use one of this machine's, or 0.0.0.0 for all of them";
        let ip = self.parsed(host, key, "is not an IP address", fix, ip)?;
        let number =
            self.parsed(port, key, "is not a port", "use a number up to 65535", |text| {
                u16::try_from(values::integer(text)?).ok()
            })?;
        let addr = SocketAddr::from((ip, number));
        self.set(key, port, addr.to_string());
        Ok(())
    }
}

fn ip(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    bare.parse().ok()
}
