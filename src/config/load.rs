//! Loads file, environment and flags; each overrides the one before.
//!
//! [`assemble`] is pure: text and pairs in, a validated [`Config`] or one error out. [`load`] reads
//! the file and the environment for it.
//!
//! A variable `TIDEGATE_HTTP__LISTEN` and a flag `--set http.listen=...` name a key. Their text is
//! parsed as a TOML value if that matches the key's type, else as a bare string, else as a list
//! separated by commas. So `TIDEGATE_CLUSTER__NAME=7` is the string `7`, and
//! `TIDEGATE_CLUSTER__SEEDS=a:7600,b:7600` is a list. An empty variable counts as not set.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::{Error, Origin};
pub use super::layer::Origins;
use super::layer::{self, Layer};
use super::sections::Config;
use super::text::{OPTION_VARIABLES, is_ours, one_line};
use super::validate::{Invalid, validate};

/// Loads the configuration: the file at `path`, if any, the environment, and `sets`, the
/// `key=value` pairs of the command line.
///
/// # Errors
///
/// The first mistake found, with its place.
pub fn load(path: Option<&Path>, sets: &[String]) -> Result<Config, Error> {
    let read = |path| std::fs::read_to_string(path).map_err(|error| unreadable(path, &error));
    let text = path.map(read).transpose()?;
    let inputs = Inputs { file: path.zip(text.as_deref()), variables: environment(is_ours)?, sets };
    let (mut config, origins) = assemble(&inputs)?;
    locate_rules(&mut config, path, &origins)?;
    Ok(config)
}

/// Loads the configuration of a node whose listeners are those that the environment and `sets`
/// name, and no others.
///
/// # Errors
///
/// The first mistake found, with its place.
pub fn load_without_file(sets: &[String]) -> Result<Config, Error> {
    let mut layer = Layer::default();
    overlay(&mut layer, &environment(is_ours)?, sets)?;
    let (mut config, origins) = build(layer, &Origin::Default, |_, _| {})?;
    locate_rules(&mut config, None, &origins)?;
    Ok(config)
}

/// The inputs of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Inputs<'a> {
    /// Name and text of the file.
    pub file: Option<(&'a Path, &'a str)>,
    /// Environment variables whose name begins with `TIDEGATE_`.
    pub variables: Vec<(String, String)>,
    /// `key=value` pairs.
    pub sets: &'a [String],
}

/// Merges the inputs and validates the result.
///
/// # Errors
///
/// The first mistake found, with its place.
pub fn assemble(inputs: &Inputs<'_>) -> Result<(Config, Origins), Error> {
    let read = |(path, text)| layer::read(path, text);
    let mut layer = inputs.file.map(read).transpose()?.unwrap_or_default();
    overlay(&mut layer, &inputs.variables, inputs.sets)?;
    // A missing key has no origin; the file is where to add it.
    let missing = inputs.file.map_or(Origin::Default, |(path, _)| Origin::Missing(path.into()));
    build(layer, &missing, |config, origins| match inputs.file {
        Some((path, _)) => anchor_paths(config, path, origins),
        None => config.listen_on_loopback(),
    })
}

/// Applies variables, then flags.
pub(crate) fn overlay(
    layer: &mut Layer,
    variables: &[(String, String)],
    sets: &[String],
) -> Result<(), Error> {
    for (name, text) in variables {
        if !text.is_empty() && !OPTION_VARIABLES.contains(&name.as_str()) {
            layer::set_variable(layer, name, text)?;
        }
    }
    sets.iter().try_for_each(|pair| layer::set_flag(layer, pair))
}

/// Deserializes the configuration, lets `complete` fill in defaults, and validates it. `missing` is
/// the origin of a key that is not set.
pub(crate) fn build(
    layer: Layer,
    missing: &Origin,
    complete: impl FnOnce(&mut Config, &Origins),
) -> Result<(Config, Origins), Error> {
    let Layer { table, origins, complaint } = layer;
    let mut config = Config::deserialize(table).map_err(|error| {
        complaint.unwrap_or_else(|| Error::Conflict {
            at: Origin::Default,
            problem: one_line(error.message()),
        })
    })?;
    complete(&mut config, &origins);
    config.edge_listens_anywhere();
    validate(&config).map_err(|invalid| {
        let Invalid { key, problem, fix } = invalid;
        let at = origins.get(key).unwrap_or(missing).clone();
        Error::BadValue { at, key: key.to_owned(), problem, fix }
    })?;
    Ok((config, origins))
}

/// Makes paths from the file, and default paths, relative to the file, so that the working
/// directory does not matter. Paths from variables and flags are relative to the working directory.
fn anchor_paths(config: &mut Config, file: &Path, origins: &Origins) {
    let Some(folder) = file.parent() else { return };
    let tls = &mut config.tls;
    let (proxy, xds, traces) = (&mut config.proxy, &mut config.xds, &mut config.traces);
    let (http, grpc) = (&mut config.http, &mut config.grpc);
    let (resp, admin) = (&mut config.resp, &mut config.admin);
    let gubernator = &mut config.gubernator;
    let access_log = proxy.access_log.as_mut().filter(|path| *path != Path::new("-"));
    let paths: [(&str, Option<&mut PathBuf>); 35] = [
        ("node.data_dir", config.node.data_dir.as_mut()),
        ("rules.path", Some(&mut config.rules.path)),
        ("tls.ca", tls.ca.as_mut()),
        ("tls.cert", tls.cert.as_mut()),
        ("tls.key", tls.key.as_mut()),
        ("tls.secret", tls.secret.as_mut()),
        ("traces.tls_ca", traces.tls_ca.as_mut()),
        ("xds.tls_ca", xds.tls_ca.as_mut()),
        ("xds.tls_cert", xds.tls_cert.as_mut()),
        ("xds.tls_key", xds.tls_key.as_mut()),
        ("http.tls_cert", http.tls_cert.as_mut()),
        ("http.tls_key", http.tls_key.as_mut()),
        ("http.client_ca", http.client_ca.as_mut()),
        ("grpc.socket", grpc.socket.as_mut()),
        ("grpc.tls_cert", grpc.tls_cert.as_mut()),
        ("grpc.tls_key", grpc.tls_key.as_mut()),
        ("grpc.client_ca", grpc.client_ca.as_mut()),
        ("resp.tls_cert", resp.tls_cert.as_mut()),
        ("resp.tls_key", resp.tls_key.as_mut()),
        ("resp.client_ca", resp.client_ca.as_mut()),
        ("gubernator.tls_cert", gubernator.tls_cert.as_mut()),
        ("gubernator.tls_key", gubernator.tls_key.as_mut()),
        ("gubernator.client_ca", gubernator.client_ca.as_mut()),
        ("admin.tls_cert", admin.tls_cert.as_mut()),
        ("admin.tls_key", admin.tls_key.as_mut()),
        ("admin.client_ca", admin.client_ca.as_mut()),
        ("proxy.tls_cert", proxy.tls_cert.as_mut()),
        ("proxy.tls_key", proxy.tls_key.as_mut()),
        ("proxy.upstream_ca", proxy.upstream_ca.as_mut()),
        ("proxy.access_log", access_log),
        ("admin.token_file", admin.token_file.as_mut()),
        ("join.signer_cert", config.join.signer_cert.as_mut()),
        ("join.signer_key", config.join.signer_key.as_mut()),
        ("join.service_account_keys", config.join.service_account_keys.as_mut()),
        ("admin.read_token_file", admin.read_token_file.as_mut()),
    ];
    for (key, path) in paths {
        let elsewhere = matches!(origins.get(key), Some(Origin::Variable(_) | Origin::Flag(_)));
        if let Some(path) = path
            && !elsewhere
        {
            *path = folder.join(&*path);
        }
    }
}

/// Checks that the rules folder exists, unless the rules come from a management server. If neither
/// a file nor a folder was given, the compiled-in examples are used.
pub(crate) fn locate_rules(
    config: &mut Config,
    file: Option<&Path>,
    origins: &Origins,
) -> Result<(), Error> {
    let path = &config.rules.path;
    if path.exists() || config.xds.server.is_some() || !config.rules.required {
        return Ok(());
    }
    let origin = origins.get("rules.path");
    if file.is_none() && origin.is_none() {
        config.rules.embedded = true;
        return Ok(());
    }
    let at = origin.map_or_else(String::new, |origin| format!("{origin}: "));
    Err(Error::Unreadable {
        what: format!("{at}rules.path: {} does not exist", path.display()),
        fix: "create it with at least one rule file, or set TIDEGATE_RULES__PATH".to_owned(),
    })
}

/// The variables selected by `is_read`, sorted. The environment is read only here.
pub(crate) fn environment(is_read: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, Error> {
    let mut read = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| is_read(name)) else { continue };
        let problem =
            || Error::bad_variable(name, "value", "it is not UTF-8", "set it to plain text");
        let value = value.to_str().ok_or_else(problem)?;
        read.push((name.to_owned(), value.to_owned()));
    }
    // The order of the environment is arbitrary; the first reported mistake should be stable.
    read.sort();
    Ok(read)
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let problem = match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
        _ => error.to_string(),
    };
    Error::Unreadable {
        what: format!("{}: {problem}", path.display()),
        fix: "pass --config the path of a configuration file, or omit it to run one node on \
              loopback"
            .to_owned(),
    }
}
