//! The environment of envoyproxy/ratelimit as a configuration, so that an image can be replaced
//! without changing its settings.
//!
//! [`read`] is pure: variables in, a validated [`Config`] and warnings out. Variables of tidegate
//! (`TIDEGATE_SECTION__KEY`) and `--set` override those of envoyproxy/ratelimit, for example to
//! form a cluster.
//!
//! *Example*: `PORT=9000 SHADOW_MODE=true REDIS_URL=redis:6379` becomes
//! `http.listen = "0.0.0.0:9000"`, `envoy.shadow_mode = true`, and one warning that `REDIS_URL` is
//! ignored.
//!
//! Source: envoyproxy/ratelimit, `src/settings/settings.go` and `src/service_cmd/runner/runner.go`.

mod reader;
pub mod settings;
mod traces;
mod values;

use std::collections::BTreeMap;

use self::reader::Reader;
use self::settings::Here;
pub use self::values::{flag, level};
use crate::config::error::{Error, Origin};
use crate::config::layer::{Layer, Origins};
use crate::config::load::{self, environment, locate_rules};
use crate::config::{Config, text};
use crate::observe::log::Format;

/// The result of reading the environment.
#[derive(Clone, Debug)]
pub struct Start {
    pub config: Config,
    origins: Origins,
    pub log_level: &'static str,
    pub log_format: Format,
    /// To be logged once the log is set up.
    pub warnings: Vec<Warning>,
}

/// A setting that is accepted and behaves differently from envoyproxy/ratelimit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    #[error("settings without effect: {}; see docs/envoyproxy-ratelimit-settings.md", .0.join(", "))]
    Ignored(Vec<&'static str>),
    /// A certificate name is configured, but client certificates are not.
    #[error("GRPC_CLIENT_TLS_SAN has no effect without GRPC_CLIENT_TLS_CACERT; set both")]
    SanWithoutCa,
}

/// Reads the environment of the process.
///
/// # Errors
///
/// The first invalid variable or flag, or a missing rules folder.
pub fn load(sets: &[String]) -> Result<Start, Error> {
    let is_read = |name: &str| text::is_ours(name) || settings::find(name).is_some();
    let mut start = read(&environment(is_read)?.into_iter().collect(), sets)?;
    locate_rules(&mut start.config, None, &start.origins)?;
    Ok(start)
}

/// Reads `variables`, which may contain unrelated ones.
///
/// # Errors
///
/// The first invalid variable or flag.
pub fn read(variables: &BTreeMap<String, String>, sets: &[String]) -> Result<Start, Error> {
    let mut reader = Reader { variables, layer: Layer::default() };
    let mut warnings = Vec::new();

    reader.set_address("HOST", "PORT", "http.listen")?;
    grpc(&mut reader)?;
    reader.set_address("DEBUG_HOST", "DEBUG_PORT", "debug.listen")?;
    tls(&mut reader, &mut warnings)?;
    envoy(&mut reader)?;
    rules(&mut reader)?;
    stats(&mut reader)?;
    traces::traces(&mut reader)?;
    let (is, fix) = ("is not a level", "use trace, debug, info, warn, error, fatal or panic");
    let log_level = reader.parsed("LOG_LEVEL", "value", is, fix, level)?;
    let is_json = reader.text("LOG_FORMAT").eq_ignore_ascii_case("json");
    let log_format = if is_json { Format::Json } else { Format::Text };

    let ignored: Vec<_> = settings::ALL
        .iter()
        .filter(|setting| matches!(setting.here, Here::Ignored(_)))
        .filter(|setting| reader.given(setting.name).is_some())
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
    let mut layer = reader.layer;
    load::overlay(&mut layer, &ours, sets)?;
    let (config, origins) = load::build(layer, &Origin::Default, |_, _| {})?;
    Ok(Start { config, origins, log_level, log_format, warnings })
}

/// With a Unix socket there is no port, as there.
fn grpc(reader: &mut Reader<'_>) -> Result<(), Error> {
    if reader.given("GRPC_UDS").is_some() {
        reader.set_text("GRPC_UDS", "grpc.socket");
    } else {
        reader.set_address("GRPC_HOST", "GRPC_PORT", "grpc.listen")?;
    }
    reader.set_duration("GRPC_MAX_CONNECTION_AGE", "grpc.max_connection_age")?;
    reader.set_duration("GRPC_MAX_CONNECTION_AGE_GRACE", "grpc.max_connection_age_grace")
}

fn tls(reader: &mut Reader<'_>, warnings: &mut Vec<Warning>) -> Result<(), Error> {
    if !reader.flag("GRPC_SERVER_USE_TLS")? {
        return Ok(());
    }
    for (name, key) in
        [("GRPC_SERVER_TLS_CERT", "grpc.tls_cert"), ("GRPC_SERVER_TLS_KEY", "grpc.tls_key")]
    {
        if reader.given(name).is_none() {
            let problem = "GRPC_SERVER_USE_TLS requires it";
            return Err(Error::bad_variable(
                name,
                key,
                problem,
                "set it to the path of a PEM file",
            ));
        }
        reader.set_text(name, key);
    }
    reader.set_text("GRPC_CLIENT_TLS_CACERT", "grpc.client_ca");
    if reader.given("GRPC_CLIENT_TLS_CACERT").is_some() {
        reader.set_text("GRPC_CLIENT_TLS_SAN", "grpc.client_san");
    } else if reader.given("GRPC_CLIENT_TLS_SAN").is_some() {
        warnings.push(Warning::SanWithoutCa);
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
        reader.set_flag(name, key)?;
    }
    for (name, key) in [
        ("LIMIT_LIMIT_HEADER", "envoy.limit_header"),
        ("LIMIT_REMAINING_HEADER", "envoy.remaining_header"),
        ("LIMIT_RESET_HEADER", "envoy.reset_header"),
    ] {
        reader.set_text(name, key);
    }
    let (name, key) = ("NEAR_LIMIT_RATIO", "envoy.near_limit_ratio");
    let fix = "use a fraction, such as 0.8";
    let ratio = reader.parsed(name, key, "is not a number", fix, values::ratio)?;
    reader.set(key, name, ratio);
    let (name, key) = ("LOCAL_CACHE_SIZE_IN_BYTES", "envoy.local_cache");
    let bytes = reader.integer(name, key)?;
    reader.set(key, name, bytes != 0);
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
            // Joined as text: `Path::join` with an absolute part would drop what precedes it.
            let path = below.into_iter().filter(|part| !part.is_empty());
            let path = path.fold(root.to_owned(), |path, part| path + "/" + part);
            reader.set("rules.path", "RUNTIME_ROOT", path);
        }
        "GRPC_XDS_SOTW" => xds(reader)?,
        other => {
            let problem = format!("{other:?} is not a source of rules");
            return Err(Error::bad_variable(name, "value", &problem, "use FILE or GRPC_XDS_SOTW"));
        }
    }
    reader.set("rules.required", name, false);
    let (name, key) = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "rules.may_be_empty");
    let needs_rules = reader.flag(name)?;
    reader.set(key, name, !needs_rules);
    Ok(())
}

fn xds(reader: &mut Reader<'_>) -> Result<(), Error> {
    reader.set_text("CONFIG_GRPC_XDS_SERVER_URL", "xds.server");
    reader.set_text("CONFIG_GRPC_XDS_NODE_ID", "xds.node_id");
    // envoyproxy/ratelimit skips pairs without `=` too.
    reader
        .set_list("CONFIG_GRPC_XDS_NODE_METADATA", "xds.node_metadata", |pair| pair.contains('='));
    reader.set_list("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "xds.headers", |_| true);
    let name = "CONFIG_GRPC_XDS_SERVER_USE_TLS";
    if reader.flag(name)? {
        reader.set("xds.tls", name, true);
        reader.set_text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "xds.tls_cert");
        reader.set_text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "xds.tls_key");
        reader.set_text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "xds.tls_ca");
        reader.set_text("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "xds.server_name");
    }
    // Only if set: the defaults of tidegate reconnect much sooner.
    for (name, key) in [
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "xds.backoff_initial"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "xds.backoff_max"),
    ] {
        if reader.given(name).is_some() {
            reader.set_duration(name, key)?;
        }
    }
    let (name, key) = ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "xds.max_message_bytes");
    if reader.given(name).is_some() {
        let bytes = reader.integer(name, key)?;
        reader.set(key, name, bytes);
    }
    Ok(())
}

fn stats(reader: &mut Reader<'_>) -> Result<(), Error> {
    if reader.flag("DISABLE_STATS")? {
        return Ok(());
    }
    let dogstatsd = reader.flag("USE_DOG_STATSD")?;
    let statsd = reader.flag("USE_STATSD")?;
    let prometheus = reader.flag("USE_PROMETHEUS")?;
    if [dogstatsd, statsd, prometheus].into_iter().filter(|is_on| *is_on).count() > 1 {
        let problem = "more than one destination of statistics is on";
        let fix = "set one of USE_DOG_STATSD, USE_STATSD (true unless it is set), USE_PROMETHEUS";
        return Err(Error::bad_variable("USE_STATSD", "stats.statsd", problem, fix));
    }
    if statsd || dogstatsd {
        let port = reader.integer("STATSD_PORT", "stats.statsd")?;
        let host = reader.text("STATSD_HOST");
        reader.set("stats.statsd", "STATSD_HOST", format!("{host}:{port}"));
    }
    if dogstatsd {
        reader.set("stats.statsd_protocol", "USE_DOG_STATSD", "dogstatsd");
    }
    reader.set_duration("STATS_FLUSH_INTERVAL", "stats.flush_interval")?;
    reader.set_list("EXTRA_TAGS", "stats.extra_tags", |tag| tag.contains(':'));
    if prometheus {
        reader.set("stats.prometheus_names", "USE_PROMETHEUS", true);
        // Without a host Go listens on all addresses.
        let addr = reader.text("PROMETHEUS_ADDR");
        let addr = if addr.starts_with(':') { format!("0.0.0.0{addr}") } else { addr.to_owned() };
        reader.set("stats.prometheus_listen", "PROMETHEUS_ADDR", addr);
        reader.set_text("PROMETHEUS_PATH", "stats.prometheus_path");
    }
    Ok(())
}
