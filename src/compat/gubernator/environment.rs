//! The environment of Gubernator's daemon as a configuration.
//!
//! [`read`] is pure: variables in, a validated [`Config`] and warnings out. Variables of tidegate
//! (`TIDEGATE_SECTION__KEY`) and `--set` override those of Gubernator, for example to form a
//! cluster.
//!
//! *Example*: `GUBER_GRPC_ADDRESS=0.0.0.0:1051 GUBER_CACHE_SIZE=500000` becomes
//! `gubernator.grpc = "0.0.0.0:1051"`, `gubernator.http = "127.0.0.1:1050"` and
//! `limits.keys_max = 500000`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use jiff::tz::TimeZone;
use toml::Value;

use super::settings::{self, Here};
use crate::compat::envoy_ratelimit::environment::{flag, level};
use crate::config::error::{Error, Origin};
use crate::config::layer::Layer;
use crate::config::load::{self, environment};
use crate::config::{Config, text};
use crate::observe::log::Format;

/// The result of reading the environment.
#[derive(Clone, Debug)]
pub struct Start {
    pub config: Config,
    pub log_level: &'static str,
    pub log_format: Format,
    /// Variables without effect, to be logged once the log is set up.
    pub ignored: Vec<String>,
}

/// Where Gubernator listens by default.
const GRPC: &str = "127.0.0.1:1051";
const HTTP: &str = "127.0.0.1:1050";
const PREFIX: &str = "GUBER_";
/// What 0 stands for there.
const CACHE_SIZE: u32 = 50_000;

/// Reads the environment of the process.
///
/// # Errors
///
/// The first invalid variable or flag.
pub fn load(sets: &[String]) -> Result<Start, Error> {
    let is_read = |name: &str| text::is_ours(name) || name.starts_with(PREFIX) || name == "TZ";
    read(&environment(is_read)?.into_iter().collect(), sets)
}

/// Reads `variables`, which may contain unrelated ones.
///
/// # Errors
///
/// The first invalid variable or flag.
pub fn read(variables: &BTreeMap<String, String>, sets: &[String]) -> Result<Start, Error> {
    let given = |name: &str| variables.get(name).map(String::as_str).filter(|it| !it.is_empty());
    let mut layer = Layer::default();
    let mut set = |name: &str, key: &str, value: Value| {
        let path: Vec<&str> = key.split('.').collect();
        layer.set(&path, value, Origin::Variable(name.to_owned()));
    };
    for (name, key, default) in [
        ("GUBER_GRPC_ADDRESS", "gubernator.grpc", GRPC),
        ("GUBER_HTTP_ADDRESS", "gubernator.http", HTTP),
    ] {
        let text = given(name).unwrap_or(default);
        let addr = address(text).ok_or_else(|| {
            let problem = format!("{text:?} is not an IP address and a port");
            Error::bad_variable(name, key, &problem, "write it as 0.0.0.0:1051")
        })?;
        set(name, key, addr.to_string().into());
    }
    for (name, key) in [
        ("GUBER_INSTANCE_ID", "node.id"),
        ("GUBER_DATA_CENTER", "node.region"),
        ("GUBER_TLS_CERT", "gubernator.tls_cert"),
        ("GUBER_TLS_KEY", "gubernator.tls_key"),
        ("GUBER_TLS_CLIENT_AUTH_CA_CERT", "gubernator.client_ca"),
    ] {
        if let Some(value) = given(name) {
            set(name, key, value.into());
        }
    }
    if let Some(zone) = given("TZ").and_then(zone_name) {
        let (key, fix) = ("gubernator.time_zone", "write it as in Europe/Berlin, or UTC");
        TimeZone::get(zone).map_err(|_| {
            let problem = format!("{zone:?} is not a zone of the IANA database");
            Error::bad_variable("TZ", key, &problem, fix)
        })?;
        set("TZ", key, zone.into());
    }
    let (name, key) = ("GUBER_CACHE_SIZE", "limits.keys_max");
    if let Some(text) = given(name) {
        let keys: u32 = text.parse().map_err(|_| {
            let problem = format!("{text:?} is not a number of keys");
            Error::bad_variable(name, key, &problem, "use a whole number, such as 500000")
        })?;
        let keys = if keys == 0 { CACHE_SIZE } else { keys };
        set(name, key, i64::from(keys).into());
    }
    // Without these a listener that was to be encrypted, or to know its clients, would not be.
    if given("GUBER_TLS_AUTO").is_some_and(|text| flag(text) != Some(false)) {
        let fix = "set GUBER_TLS_CERT and GUBER_TLS_KEY";
        let problem = "certificates are not made here";
        return Err(Error::bad_variable("GUBER_TLS_AUTO", "gubernator.tls_cert", problem, fix));
    }
    let (name, authority) = ("GUBER_TLS_CLIENT_AUTH", "GUBER_TLS_CLIENT_AUTH_CA_CERT");
    if given(name).is_some() && given(authority).is_none() {
        let problem = "the authority of the clients' certificates is not known";
        let fix = "set GUBER_TLS_CLIENT_AUTH_CA_CERT to its file";
        return Err(Error::bad_variable(name, "gubernator.client_ca", problem, fix));
    }
    let name = "GUBER_TLS_MIN_VERSION";
    if given(name).is_some_and(|version| !["1.0", "1.1", "1.2"].contains(&version)) {
        let problem = "the listener also accepts TLS 1.2";
        let fix = "set it to 1.2, or put a proxy that speaks the other version alone in front";
        return Err(Error::bad_variable(name, "gubernator.tls_cert", problem, fix));
    }
    // No rule files: requests carry their limits.
    set("GUBER_GRPC_ADDRESS", "rules.required", false.into());
    set("GUBER_GRPC_ADDRESS", "rules.may_be_empty", true.into());

    let debug = given("GUBER_DEBUG").map(|text| {
        let problem = format!("{text:?} is neither true nor false");
        flag(text).ok_or_else(|| {
            Error::bad_variable("GUBER_DEBUG", "value", &problem, "use true or false")
        })
    });
    let log_level = match (debug.transpose()?, given("GUBER_LOG_LEVEL")) {
        (Some(true), _) => "debug",
        (_, None) => "info",
        (_, Some(text)) => level(text).ok_or_else(|| {
            let fix = "use trace, debug, info, warn, error, fatal or panic";
            let problem = format!("{text:?} is not a level");
            Error::bad_variable("GUBER_LOG_LEVEL", "value", &problem, fix)
        })?,
    };
    let is_json = given("GUBER_LOG_FORMAT").is_some_and(|text| text.eq_ignore_ascii_case("json"));
    let log_format = if is_json { Format::Json } else { Format::Text };

    let is_ignored = |name: &&String| {
        name.starts_with(PREFIX)
            && given(name).is_some()
            && settings::find(name).is_none_or(|it| matches!(it.here, Here::Ignored(_)))
    };
    let mut ignored: Vec<String> = variables.keys().filter(is_ignored).cloned().collect();
    if given("TZ").is_some_and(|text| zone_name(text).is_none()) {
        ignored.push("TZ".to_owned());
    }
    let ours: Vec<_> = variables
        .iter()
        .filter(|(name, _)| name.starts_with(text::PREFIX))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    load::overlay(&mut layer, &ours, sets)?;
    let (config, _) = load::build(layer, &Origin::Default, |_, _| {})?;
    Ok(Start { config, log_level, log_format, ignored })
}

/// The zone that `TZ` names: by its name or by its file in a folder `zoneinfo`, with a colon before
/// it or without. `None` for that of the machine (`Local`, `/etc/localtime`), which has no name.
fn zone_name(text: &str) -> Option<&str> {
    let text = text.strip_prefix(':').unwrap_or(text);
    let name = text.rsplit_once("/zoneinfo/").map_or(text, |(_, name)| name);
    let name = name.strip_prefix("posix/").unwrap_or(name);
    (!name.starts_with('/') && name != "Local").then_some(name)
}

/// An address; a missing host is all of this machine's, as in Go.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let ip: IpAddr = match host {
        "" => Ipv4Addr::UNSPECIFIED.into(),
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        host => host.trim_start_matches('[').trim_end_matches(']').parse().ok()?,
    };
    Some(SocketAddr::from((ip, port.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(pairs: &[(&str, &str)]) -> Result<Start, String> {
        let variables = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        read(&variables.collect(), &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_worked_example_holds() {
        let start =
            start(&[("GUBER_GRPC_ADDRESS", "0.0.0.0:1051"), ("GUBER_CACHE_SIZE", "500000")])
                .expect("valid");
        let Config { gubernator, limits, http, grpc, resp, .. } = start.config;
        assert_eq!(gubernator.grpc, "0.0.0.0:1051".parse().ok());
        assert_eq!(gubernator.http, HTTP.parse().ok());
        assert_eq!(limits.keys_max, 500_000);
        assert_eq!((http.listen, grpc.listen, resp.listen), (None, None, None));
        assert_eq!((start.log_level, start.ignored.len()), ("info", 0));
    }

    #[test]
    fn what_would_leave_a_listener_open_is_refused() {
        for (name, value) in [
            ("GUBER_TLS_AUTO", "true"),
            ("GUBER_TLS_CLIENT_AUTH", "require-and-verify"),
            ("GUBER_TLS_MIN_VERSION", "1.3"),
            ("GUBER_CACHE_SIZE", "-1"),
            ("TZ", "Atlantis/Capital"),
        ] {
            let error = start(&[(name, value)]).expect_err(name);
            assert!(error.contains(name), "{error}");
        }
        assert!(start(&[("GUBER_TLS_AUTO", "false")]).is_ok());
        for version in ["1.0", "1.2"] {
            assert!(start(&[("GUBER_TLS_MIN_VERSION", version)]).is_ok(), "{version}");
        }
    }

    #[test]
    fn a_zone_may_be_a_name_or_the_file_of_one() {
        for text in [
            "Asia/Tokyo",
            ":Asia/Tokyo",
            "/usr/share/zoneinfo/Asia/Tokyo",
            ":/usr/share/zoneinfo/Asia/Tokyo",
            "/usr/share/zoneinfo/posix/Asia/Tokyo",
            "/usr/share/lib/zoneinfo/Asia/Tokyo",
        ] {
            let start = start(&[("TZ", text)]).expect("valid");
            let zone = start.config.gubernator.time_zone.0;
            assert_eq!((zone.iana_name(), start.ignored.len()), (Some("Asia/Tokyo"), 0), "{text}");
        }
        for text in ["Local", ":Local", "/etc/localtime", ":/etc/localtime"] {
            let start = start(&[("TZ", text)]).expect("valid");
            assert_eq!(start.config.gubernator.time_zone.0, TimeZone::UTC, "{text}");
            assert_eq!(start.ignored, ["TZ"], "{text}");
        }
        for text in ["Tokyo", ":Atlantis/Capital", "/usr/share/zoneinfo/Asia", "JST-9"] {
            let error = start(&[("TZ", text)]).expect_err(text);
            assert!(error.contains("is not a zone"), "{error}");
        }
    }

    #[test]
    fn authenticating_clients_is_not_without_effect() {
        let start = start(&[
            ("GUBER_TLS_CERT", "node.pem"),
            ("GUBER_TLS_KEY", "node.key"),
            ("GUBER_TLS_CLIENT_AUTH", "require-and-verify"),
            ("GUBER_TLS_CLIENT_AUTH_CA_CERT", "ca.pem"),
        ])
        .expect("valid");
        assert!(start.config.gubernator.client_ca.is_some());
        assert!(start.ignored.is_empty(), "{:?}", start.ignored);
    }

    #[test]
    fn addresses_are_those_of_go() {
        for (text, addr) in [
            (":81", Some("0.0.0.0:81")),
            ("localhost:1051", Some("127.0.0.1:1051")),
            ("[::1]:1051", Some("[::1]:1051")),
            ("1051", None),
            ("host.example:1051", None),
        ] {
            assert_eq!(address(text), addr.and_then(|it| it.parse().ok()), "{text}");
        }
    }

    #[test]
    fn zone_and_level_are_read_and_the_rest_is_named() {
        let start = start(&[
            ("TZ", "Europe/Berlin"),
            ("GUBER_LOG_LEVEL", "warning"),
            ("GUBER_LOG_FORMAT", "json"),
            ("GUBER_MEMBERLIST_KNOWN_NODES", "a,b"),
            ("GUBER_BATCH_WAIT", "500us"),
            ("GUBER_NEVER_HEARD_OF", "1"),
            ("GUBER_ETCD_USER", ""),
            ("TIDEGATE_NODE__ID", "n7"),
        ])
        .expect("valid");
        assert_eq!(start.log_level, "warn");
        assert_eq!(start.log_format, Format::Json);
        assert_eq!(start.config.node.id, "n7");
        let ignored = ["GUBER_BATCH_WAIT", "GUBER_MEMBERLIST_KNOWN_NODES", "GUBER_NEVER_HEARD_OF"];
        assert_eq!(start.ignored, ignored);
        let zone = TimeZone::get("Europe/Berlin").expect("a zone");
        assert_eq!(start.config.gubernator.time_zone.0, zone);
    }

    #[test]
    fn an_invalid_variable_is_named() {
        for (name, value) in [
            ("GUBER_GRPC_ADDRESS", "here"),
            ("GUBER_CACHE_SIZE", "many"),
            ("GUBER_LOG_LEVEL", "loud"),
            ("GUBER_DEBUG", "perhaps"),
            ("TZ", "Middle/Earth"),
        ] {
            let error = start(&[(name, value)]).expect_err(name);
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn the_documentation_has_every_variable() {
        let page = include_str!("../../../docs/gubernator.md");
        for settings::Setting { name, here } in settings::ALL {
            let meaning = match here {
                Here::Sets(key) => format!("`{key}`"),
                Here::Ignored(why) => format!("no effect: {why}"),
            };
            let row = format!("| `{name}` | {meaning} |");
            assert!(page.contains(&row), "docs/gubernator.md has no row\n{row}");
        }
    }
}
