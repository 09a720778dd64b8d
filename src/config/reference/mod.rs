//! The environment of envoyproxy/ratelimit as a configuration of ours: the process looks like it
//! from outside, so that an image can be swapped and nothing else changes.
//!
//! [`read`] is pure: variables in, a checked [`Config`] out, with what to tell the operator. What a
//! variable of theirs says, one of ours (`TIDEGATE_SECTION__KEY`) or `--set` overrides, so that
//! three such processes can be told to form a cluster.
//!
//! *Example*: `PORT=9000 SHADOW_MODE=true REDIS_URL=redis:6379` is `http.listen = "0.0.0.0:9000"`,
//! `envoy.shadow_mode = true`, and one warning that `REDIS_URL` means nothing here.
//!
//! Source: envoyproxy/ratelimit, `src/settings/settings.go` and `src/service_cmd/runner/runner.go`.

mod backend;
mod read;
pub mod settings;
mod stats;
mod values;
mod xds;

use std::collections::BTreeMap;

use toml::Value;

use self::read::{Reader, bad};
use self::settings::Here;
pub use self::values::flag;
use super::error::{Error, Origin};
use super::load::{self, Origins};
use super::{Config, text};

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Start {
    /// The node's configuration.
    pub config: Config,
    /// Where each key was set.
    pub(super) origins: Origins,
    /// How much to log.
    pub log_level: &'static str,
    /// Whether the log is JSON.
    pub log_json: bool,
    /// What to tell the operator once the log is there.
    pub warnings: Vec<Warning>,
}

/// Something that is accepted and does not do what it does there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// Settings that mean nothing here.
    #[error(
        "accepted, but without a meaning here: {}; docs/envoyproxy-ratelimit-settings.md says why",
        .0.join(", ")
    )]
    Ignored(Vec<&'static str>),
    /// A Unix socket was asked for.
    #[error("GRPC_UDS: no Unix socket is served; the gRPC door is {0}, point Envoy there")]
    UnixSocket(String),
    /// A name to check in certificates that nobody asks for.
    #[error(
        "GRPC_CLIENT_TLS_SAN: no client is asked for a certificate; set GRPC_CLIENT_TLS_CACERT"
    )]
    UnaskedName,
}

/// Reads the environment. `variables` may hold more than ours and theirs.
pub fn read(variables: &BTreeMap<String, String>, sets: &[String]) -> Result<Start, Error> {
    let mut reader = Reader::new(variables);
    let mut warnings = Vec::new();

    reader.take_address("HOST", "PORT", "http.listen")?;
    reader.take_address("GRPC_HOST", "GRPC_PORT", "grpc.listen")?;
    reader.take_address("DEBUG_HOST", "DEBUG_PORT", "debug.listen")?;
    tls(&mut reader, &mut warnings)?;
    envoy(&mut reader)?;
    rules(&mut reader)?;
    stats::read(&mut reader)?;
    let log_level = reader.parsed(
        "LOG_LEVEL",
        "value",
        "is no level",
        "give trace, debug, info, warn, error, fatal or panic",
        level,
    )?;
    let log_json = reader.text("LOG_FORMAT").eq_ignore_ascii_case("json");

    let ignored: Vec<_> = settings::all()
        .filter(|setting| matches!(setting.here, Here::Ignored(_)))
        .filter(|setting| setting.name != "GRPC_UDS" && reader.given(setting.name).is_some())
        .map(|setting| setting.name)
        .collect();
    if !ignored.is_empty() {
        warnings.push(Warning::Ignored(ignored));
    }

    let ours: Vec<_> = variables
        .iter()
        .filter(|(name, _)| name.starts_with(text::PREFIX))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let given_socket = reader.given("GRPC_UDS").is_some();
    let mut layer = reader.layer;
    load::lay_over(&mut layer, &ours, sets)?;
    let (config, origins) = load::settle(layer, &Origin::Default, |_, _| {})?;
    if let Some(addr) = config.grpc.listen.filter(|_| given_socket) {
        warnings.push(Warning::UnixSocket(addr.to_string()));
    }
    Ok(Start { config, origins, log_level, log_json, warnings })
}

fn tls(reader: &mut Reader<'_>, warnings: &mut Vec<Warning>) -> Result<(), Error> {
    if !reader.flag("GRPC_SERVER_USE_TLS")? {
        return Ok(());
    }
    for (name, key) in
        [("GRPC_SERVER_TLS_CERT", "grpc.tls_cert"), ("GRPC_SERVER_TLS_KEY", "grpc.tls_key")]
    {
        if reader.given(name).is_none() {
            let problem = "GRPC_SERVER_USE_TLS needs it".to_owned();
            return Err(bad(name, key, problem, "set it to the path of a PEM file"));
        }
        reader.take_text(name, key);
    }
    reader.take_text("GRPC_CLIENT_TLS_CACERT", "grpc.client_ca");
    if reader.given("GRPC_CLIENT_TLS_CACERT").is_some() {
        reader.take_text("GRPC_CLIENT_TLS_SAN", "grpc.client_san");
    } else if reader.given("GRPC_CLIENT_TLS_SAN").is_some() {
        warnings.push(Warning::UnaskedName);
    }
    Ok(())
}

fn envoy(reader: &mut Reader<'_>) -> Result<(), Error> {
    for (name, key) in [
        ("SHADOW_MODE", "envoy.shadow_mode"),
        ("QUOTA_MODE", "envoy.quota_mode"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "envoy.all_or_nothing"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "envoy.response_headers"),
        ("RESPONSE_DYNAMIC_METADATA", "envoy.dynamic_metadata"),
        ("MERGE_DOMAIN_CONFIG", "rules.merge_domains"),
    ] {
        reader.take_flag(name, key)?;
    }
    for (name, key) in [
        ("LIMIT_LIMIT_HEADER", "envoy.limit_header"),
        ("LIMIT_REMAINING_HEADER", "envoy.remaining_header"),
        ("LIMIT_RESET_HEADER", "envoy.reset_header"),
    ] {
        reader.take_text(name, key);
    }
    let (name, key) = ("NEAR_LIMIT_RATIO", "envoy.near_limit_ratio");
    let fix = "give a part of one, such as 0.8";
    let ratio = reader.parsed(name, key, "is no number", fix, values::ratio)?;
    reader.set(key, name, Value::Float(ratio));
    let (name, key) = ("LOCAL_CACHE_SIZE_IN_BYTES", "envoy.local_cache");
    let bytes = reader.integer(name, key)?;
    reader.set(key, name, Value::Boolean(bytes != 0));
    Ok(())
}

/// The rules come from a folder or over xDS; either way the node starts without them.
fn rules(reader: &mut Reader<'_>) -> Result<(), Error> {
    let name = "CONFIG_TYPE";
    match reader.text(name) {
        "FILE" => {
            let root = reader.text("RUNTIME_ROOT").trim_end_matches('/');
            let below = [reader.text("RUNTIME_SUBDIRECTORY"), reader.text("RUNTIME_APPDIRECTORY")];
            let below = below.map(|part| part.trim_matches('/'));
            // Joined as text: an absolute part would take the place of what stands before it.
            let path = below.into_iter().filter(|part| !part.is_empty());
            let path = path.fold(root.to_owned(), |path, part| path + "/" + part);
            reader.set("rules.path", "RUNTIME_ROOT", Value::String(path));
        }
        "GRPC_XDS_SOTW" => xds::read(reader)?,
        other => {
            let problem = format!("{other:?} is no source of rules");
            return Err(bad(name, "value", problem, "give FILE or GRPC_XDS_SOTW"));
        }
    }
    reader.set("rules.required", name, Value::Boolean(false));
    let (name, key) = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "rules.may_be_empty");
    let needs_rules = reader.flag(name)?;
    reader.set(key, name, Value::Boolean(!needs_rules));
    Ok(())
}

/// A level of logrus as one of ours.
fn level(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => return None,
    })
}
