//! File, then environment, then flags; each overrides the one before.
//!
//! [`assemble`] is pure: text and pairs in, a checked [`Config`] or one error out. [`load`] reads
//! the file and the environment for it, and is the only place that does.
//!
//! A variable `TIDEGATE_HTTP__LISTEN` and a flag `--set http.listen=...` name a key; their text is
//! read as a TOML value when that suits the key's type, else as a bare string, else as a list
//! parted by commas. So `TIDEGATE_CLUSTER__NAME=7` is the string `7`, and
//! `TIDEGATE_CLUSTER__SEEDS=a:7600,b:7600` is a list. An empty variable counts as not set.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::{Error, Origin};
use super::file::{self, Layer};
use super::{Config, reference, setting, unknown, validate};

/// Variables of ours that are options of the command line, not keys of the configuration.
pub const OPTION_VARIABLES: [&str; 5] = [
    "TIDEGATE_CONFIG",
    "TIDEGATE_LOG",
    "TIDEGATE_LOG_FORMAT",
    "TIDEGATE_URL",
    "TIDEGATE_ADMIN_URL",
];

/// Reads the file, if there is one, and the environment, and assembles them with `sets`, the
/// `key=value` pairs of the command line.
pub fn load(path: Option<&Path>, sets: &[String]) -> Result<Config, Error> {
    let text = path.map(|path| std::fs::read_to_string(path).map_err(|e| unreadable(path, &e)));
    let text = text.transpose()?;
    let inputs = Inputs { file: path.zip(text.as_deref()), variables: variables()?, sets };
    let (mut config, origins) = assemble(&inputs)?;
    find_rules(&mut config, path, &origins)?;
    Ok(config)
}

/// Everything a configuration is assembled from.
#[derive(Clone, Debug, Default)]
pub struct Inputs<'a> {
    /// The file's name and text.
    pub file: Option<(&'a Path, &'a str)>,
    /// Environment variables whose name begins with `TIDEGATE_`.
    pub variables: Vec<(String, String)>,
    /// `key=value` pairs.
    pub sets: &'a [String],
}

/// Where each key that somebody set was set last.
pub type Origins = BTreeMap<String, Origin>;

/// Merges the layers and checks the result.
pub fn assemble(inputs: &Inputs<'_>) -> Result<(Config, Origins), Error> {
    let mut whole = match inputs.file {
        Some((path, text)) => file::read(path, text)?,
        None => Layer::default(),
    };
    lay_over(&mut whole, &inputs.variables, inputs.sets)?;
    // The fault may be that a key is missing, so the file is where it has to go.
    let missing = inputs.file.map_or(Origin::Default, |(path, _)| Origin::Missing(path.into()));
    settle(whole, &missing, |config, origins| match inputs.file {
        Some((path, _)) => anchor_paths(config, path, origins),
        None => config.stand_alone(),
    })
}

/// Reads the environment as envoyproxy/ratelimit does, with our own variables and `sets` on top.
pub fn load_reference(sets: &[String]) -> Result<reference::Start, Error> {
    let is_read = |name: &str| is_ours(name) || reference::settings::find(name).is_some();
    let mut start = reference::read(&environment(is_read)?.into_iter().collect(), sets)?;
    find_rules(&mut start.config, None, &start.origins)?;
    Ok(start)
}

/// Lays variables and flags over what was said before.
pub(super) fn lay_over(
    whole: &mut Layer,
    variables: &[(String, String)],
    sets: &[String],
) -> Result<(), Error> {
    for (name, text) in variables {
        if !text.is_empty() && !OPTION_VARIABLES.contains(&name.as_str()) {
            setting::from_variable(name, text)?.apply(whole);
        }
    }
    for pair in sets {
        setting::from_flag(pair)?.apply(whole);
    }
    Ok(())
}

/// Makes the configuration of what was said, lets `complete` add what nobody said, and checks it.
/// `missing` is where a key stands that nobody set.
pub(super) fn settle(
    whole: Layer,
    missing: &Origin,
    complete: impl FnOnce(&mut Config, &Origins),
) -> Result<(Config, Origins), Error> {
    let Layer { table, origins, complaint } = whole;
    let mut config = Config::deserialize(table).map_err(|error| {
        complaint.unwrap_or_else(|| Error::Together {
            at: Origin::Default,
            problem: super::text::one_line(error.message()),
        })
    })?;
    complete(&mut config, &origins);
    validate::validate(&config).map_err(|invalid| {
        let at = origins.get(invalid.key).cloned();
        Error::BadValue {
            at: at.unwrap_or_else(|| missing.clone()),
            key: invalid.key.to_owned(),
            problem: invalid.problem,
            fix: invalid.fix,
        }
    })?;
    Ok((config, origins))
}

/// Paths that the file gives, or leaves to their default, are relative to the file, so that it
/// means the same whatever folder the node is started in. Those of variables and flags are relative
/// to that folder, as a shell's are.
fn anchor_paths(config: &mut Config, file: &Path, origins: &Origins) {
    let Some(folder) = file.parent() else {
        return;
    };
    let tls = &mut config.tls;
    let (grpc, xds) = (&mut config.grpc, &mut config.xds);
    let paths: [(&str, Option<&mut PathBuf>); 12] = [
        ("rules.path", Some(&mut config.rules.path)),
        ("tls.ca", tls.ca.as_mut()),
        ("tls.cert", tls.cert.as_mut()),
        ("tls.key", tls.key.as_mut()),
        ("tls.secret", tls.secret.as_mut()),
        ("storage.path", config.storage.path.as_mut()),
        ("xds.tls_ca", xds.tls_ca.as_mut()),
        ("xds.tls_cert", xds.tls_cert.as_mut()),
        ("xds.tls_key", xds.tls_key.as_mut()),
        ("grpc.tls_cert", grpc.tls_cert.as_mut()),
        ("grpc.tls_key", grpc.tls_key.as_mut()),
        ("grpc.client_ca", grpc.client_ca.as_mut()),
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

/// The rules folder has to be there, unless the rules come from a management server, or nobody
/// named any: then the examples compiled in serve.
fn find_rules(config: &mut Config, file: Option<&Path>, origins: &Origins) -> Result<(), Error> {
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
        what: format!("{at}rules.path: {} is not there", path.display()),
        fix: "create it with at least one rule file, or set TIDEGATE_RULES__PATH".to_owned(),
    })
}

/// Our part of the environment.
fn variables() -> Result<Vec<(String, String)>, Error> {
    environment(is_ours)
}

fn is_ours(name: &str) -> bool {
    name.starts_with(super::text::PREFIX) && !unknown::is_service_link(name)
}

/// The variables that `is_read`, sorted; the environment is read here and nowhere else.
fn environment(is_read: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, Error> {
    let mut read = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| is_read(name)) else {
            continue;
        };
        let Some(value) = value.to_str() else {
            return Err(Error::BadValue {
                at: Origin::Variable(name.to_owned()),
                key: "value".to_owned(),
                problem: "it is not UTF-8".to_owned(),
                fix: "set it to plain text".to_owned(),
            });
        };
        read.push((name.to_owned(), value.to_owned()));
    }
    // The system's order is arbitrary; the first mistake reported should not be.
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
        fix: "give --config the path of a configuration file, or leave it out to run one node on \
              loopback"
            .to_owned(),
    }
}
