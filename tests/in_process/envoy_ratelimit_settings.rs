//! The environment of envoyproxy/ratelimit as a configuration of ours.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tidegate::compat::envoy_ratelimit::environment::settings::{self, Here};
use tidegate::compat::envoy_ratelimit::environment::{Start, Warning, read};
use tidegate::config;
use tidegate::config::{Grpc, StatsdProtocol};
use tidegate::observe::log::Format;
use tidegate_limiter::units::Span;

fn start(variables: &[(&str, &str)]) -> Result<Start, String> {
    start_with(variables, &[])
}

fn start_with(variables: &[(&str, &str)], sets: &[&str]) -> Result<Start, String> {
    let variables: BTreeMap<_, _> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let sets: Vec<_> = sets.iter().map(ToString::to_string).collect();
    read(&variables, &sets).map_err(|error| error.to_string())
}

#[test]
fn an_empty_environment_has_the_defaults_of_envoy_ratelimit() {
    let start = start(&[]).unwrap();
    let config = &start.config;
    let addr = |addr: Option<std::net::SocketAddr>| addr.unwrap().to_string();
    assert_eq!(addr(config.http.listen), "0.0.0.0:8080");
    assert_eq!(addr(config.grpc.listen), "0.0.0.0:8081");
    assert_eq!(addr(config.debug.listen), "0.0.0.0:6070");
    assert_eq!(config.admin.listen, None, "there is no such port there");
    assert_eq!(config.rules.path, Path::new("/srv/runtime_data/current/config"));
    assert!(!config.rules.required && config.rules.may_be_empty && !config.rules.merge_domains);
    let envoy = &config.envoy;
    assert!(!envoy.shadow_mode && !envoy.quota_mode && !envoy.all_or_nothing);
    assert!(!envoy.local_cache && !envoy.response_headers && !envoy.dynamic_metadata);
    assert!(envoy.overrides);
    assert!((envoy.near_limit_ratio - 0.8).abs() < 1e-6);
    assert_eq!(envoy.limit_header, "RateLimit-Limit");
    assert_eq!(config.grpc.tls_cert, None);
    assert_eq!((start.log_level, start.log_format), ("warn", Format::Text));
    assert_eq!(start.warnings, []);
}

#[test]
fn every_setting_with_a_meaning_reaches_its_key() {
    let start = start(&[
        ("HOST", "127.0.0.1"),
        ("PORT", "9080"),
        ("GRPC_HOST", "::"),
        ("GRPC_PORT", "0x2379"),
        ("DEBUG_HOST", "localhost"),
        ("DEBUG_PORT", "6071"),
        ("GRPC_SERVER_USE_TLS", "1"),
        ("GRPC_SERVER_TLS_CERT", "/tls/cert.pem"),
        ("GRPC_SERVER_TLS_KEY", "/tls/key.pem"),
        ("GRPC_CLIENT_TLS_CACERT", "/tls/ca.pem"),
        ("GRPC_CLIENT_TLS_SAN", "envoy.internal"),
        ("LOG_LEVEL", "Fatal"),
        ("LOG_FORMAT", "JSON"),
        ("RUNTIME_ROOT", "/data/"),
        ("RUNTIME_SUBDIRECTORY", "/ratelimit"),
        ("RUNTIME_APPDIRECTORY", "rules/"),
        ("MERGE_DOMAIN_CONFIG", "true"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "t"),
        ("SHADOW_MODE", "TRUE"),
        ("QUOTA_MODE", "true"),
        ("NEAR_LIMIT_RATIO", "0.5"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1000"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-A"),
        ("LIMIT_REMAINING_HEADER", "X-B"),
        ("LIMIT_RESET_HEADER", "X-C"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
    ])
    .unwrap();
    let config = &start.config;
    assert_eq!(config.http.listen.unwrap().to_string(), "127.0.0.1:9080");
    assert_eq!(config.grpc.listen.unwrap().to_string(), "[::]:9081");
    assert_eq!(config.debug.listen.unwrap().to_string(), "127.0.0.1:6071");
    assert_eq!(config.grpc.tls_cert.as_deref(), Some(Path::new("/tls/cert.pem")));
    assert_eq!(config.grpc.tls_key.as_deref(), Some(Path::new("/tls/key.pem")));
    assert_eq!(config.grpc.client_ca.as_deref(), Some(Path::new("/tls/ca.pem")));
    assert_eq!(config.grpc.client_san.as_deref(), Some("envoy.internal"));
    assert_eq!((start.log_level, start.log_format), ("error", Format::Json));
    assert_eq!(config.rules.path, Path::new("/data/ratelimit/rules"));
    assert!(config.rules.merge_domains && !config.rules.may_be_empty);
    let envoy = &config.envoy;
    assert!(envoy.shadow_mode && envoy.quota_mode && envoy.all_or_nothing && envoy.local_cache);
    assert!(envoy.response_headers && envoy.dynamic_metadata);
    assert!((envoy.near_limit_ratio - 0.5).abs() < f32::EPSILON);
    let headers = [&envoy.limit_header, &envoy.remaining_header, &envoy.reset_header];
    assert_eq!(headers, ["X-A", "X-B", "X-C"]);
    assert_eq!(start.warnings, []);
}

#[test]
fn statistics_have_one_destination() {
    let stats = |variables: &[(&str, &str)]| start(variables).map(|start| start.config.stats);
    let default = stats(&[("EXTRA_TAGS", "env:prod,team:edge,nothing")]).unwrap();
    assert_eq!(default.statsd.as_deref(), Some("localhost:8125"));
    assert_eq!(default.statsd_protocol, StatsdProtocol::Tcp);
    assert_eq!(default.extra_tags, ["env:prod", "team:edge"]);
    assert!(!default.prometheus_names && default.prometheus_listen.is_none());

    let quiet = stats(&[("DISABLE_STATS", "true"), ("USE_PROMETHEUS", "true")]).unwrap();
    assert_eq!((quiet.statsd, quiet.prometheus_listen), (None, None));

    let dog = [
        ("USE_STATSD", "false"),
        ("USE_DOG_STATSD", "true"),
        ("STATSD_HOST", "agent"),
        ("STATSD_PORT", "8126"),
        ("STATS_FLUSH_INTERVAL", "1s"),
    ];
    let dog = stats(&dog).unwrap();
    assert_eq!(dog.statsd.as_deref(), Some("agent:8126"));
    assert_eq!(dog.statsd_protocol, StatsdProtocol::Dogstatsd);
    assert_eq!(dog.flush_interval, Span::from_secs(1));

    let prometheus =
        [("USE_STATSD", "false"), ("USE_PROMETHEUS", "true"), ("PROMETHEUS_PATH", "/stats")];
    let prometheus = stats(&prometheus).unwrap();
    assert_eq!(prometheus.statsd, None);
    assert!(prometheus.prometheus_names);
    assert_eq!(prometheus.prometheus_listen.unwrap().to_string(), "0.0.0.0:9090");
    assert_eq!(prometheus.prometheus_path, "/stats");

    let error = stats(&[("USE_PROMETHEUS", "true")]).unwrap_err();
    assert!(error.contains("USE_STATSD"), "{error}");
}

#[test]
fn traces_go_where_the_variables_of_their_exporter_say() {
    let traces = |variables: &[(&str, &str)]| {
        let mut all = variables.to_vec();
        all.push(("TRACING_ENABLED", "true"));
        start(&all).map(|start| start.config.traces)
    };
    let off =
        start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1"), ("TRACING_SAMPLING_RATE", "x")]);
    assert_eq!(off.unwrap().config.traces.endpoint, None);

    let default = traces(&[]).unwrap();
    assert_eq!(default.url().unwrap().to_string(), "http://localhost:4318/v1/traces");
    assert_eq!(default.service_name, "RateLimit");
    assert!((default.sampling_rate - 1.0).abs() < f64::EPSILON);
    assert_eq!((default.service_namespace, default.service_instance_id), (None, None));

    let all = traces(&[
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("TRACING_SERVICE_NAME", "limits"),
        ("TRACING_SERVICE_NAMESPACE", "shop"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-1"),
        ("TRACING_SAMPLING_RATE", "0.25"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://ignored:1"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, team = edge"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
    ])
    .unwrap();
    assert_eq!(all.protocol, config::OtlpProtocol::Grpc);
    assert_eq!(all.endpoint.as_deref(), Some("https://collector:4317"));
    assert_eq!(all.service_name, "limits");
    assert_eq!(all.service_namespace.as_deref(), Some("shop"));
    assert_eq!(all.service_instance_id.as_deref(), Some("pod-1"));
    assert!((all.sampling_rate - 0.25).abs() < f64::EPSILON);
    assert_eq!(all.timeout, Span::from_millis(1_500));
    assert_eq!(
        all.header_pairs().collect::<Vec<_>>(),
        [("authorization", "Bearer x"), ("team", "edge")]
    );
    assert_eq!(all.tls_ca.as_deref(), Some(Path::new("/ca.pem")));

    let endpoint = |variables: &[(&str, &str)]| traces(variables).unwrap().endpoint.unwrap();
    for (name, value, expected) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318/otlp/", "https://c:4318/otlp/v1/traces"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces", "http://c/v1/traces"),
        ("TRACING_EXPORTER_PROTOCOL", "grpc", "http://localhost:4317"),
    ] {
        assert_eq!(endpoint(&[(name, value)]), expected);
    }
    let insecure = [
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
    ];
    assert_eq!(endpoint(&insecure), "http://c:4317");
    let beyond = traces(&[("TRACING_SAMPLING_RATE", "7")]).unwrap().sampling_rate;
    assert!((beyond - 1.0).abs() < f64::EPSILON);
    for (name, value) in [
        ("TRACING_EXPORTER_PROTOCOL", "zipkin"),
        ("TRACING_SAMPLING_RATE", "half"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "token"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ] {
        let error = traces(&[(name, value)]).unwrap_err();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn an_ignored_variable_is_one_warning_whatever_its_value() {
    let start = start(&[
        ("REDIS_URL", "redis:6379"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_POOL_SIZE", "many"),
        ("BACKEND_TYPE", "memcache"),
        ("MEMCACHE_HOST_PORT", "a:1,b:2"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("TRACING_ENABLED", ""),
        ("REDIS_MASTER_PORT", "tcp://10.0.0.1:6379"),
        ("HOME", "/"),
    ])
    .unwrap();
    let [Warning::Ignored(names)] = &start.warnings[..] else { panic!("{:?}", start.warnings) };
    assert_eq!(
        names[..],
        [
            "RUNTIME_IGNOREDOTFILES",
            "BACKEND_TYPE",
            "REDIS_SOCKET_TYPE",
            "REDIS_URL",
            "REDIS_POOL_SIZE",
            "MEMCACHE_HOST_PORT"
        ]
    );
}

#[test]
fn a_name_that_cannot_be_checked_is_a_warning_of_its_own() {
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "c"),
        ("GRPC_SERVER_TLS_KEY", "k"),
        ("GRPC_CLIENT_TLS_SAN", "envoy"),
    ];
    let start = start(&tls).unwrap();
    assert_eq!(start.warnings, [Warning::SanWithoutCa]);
    assert_eq!(start.config.grpc.client_san, None);
}

#[test]
fn a_unix_socket_takes_the_place_of_the_port_and_connections_have_the_age_of_there() {
    let grpc = |variables: &[(&str, &str)]| start(variables).unwrap().config.grpc;
    let socket = grpc(&[("GRPC_UDS", "/run/rl.sock")]);
    assert_eq!((socket.listen, socket.socket.as_deref()), (None, Some(Path::new("/run/rl.sock"))));
    let age = |grpc: Grpc| (grpc.max_connection_age, grpc.max_connection_age_grace);
    let hours = |hours: u64| Span::from_secs(hours * 3_600);
    assert_eq!(age(grpc(&[])), (hours(24), hours(1)));
    let short = [("GRPC_MAX_CONNECTION_AGE", "2h"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "0")];
    assert_eq!(age(grpc(&short)), (hours(2), Span::ZERO));
}

#[test]
fn a_wrong_value_is_one_line_that_names_its_variable() {
    for (name, value, message) in [
        ("PORT", "http", "PORT: http.listen: \"http\" is not a port; use a number up to 65535"),
        ("PORT", "65536", "PORT: http.listen: \"65536\" is not a port; use a number up to 65535"),
        (
            "GRPC_HOST",
            "redis",
            "GRPC_HOST: grpc.listen: \"redis\" is not an IP address; use one of this machine's, or \
             0.0.0.0 for all of them",
        ),
        (
            "SHADOW_MODE",
            "yes",
            "SHADOW_MODE: value: \"yes\" is neither true nor false; use true or false",
        ),
        (
            "LOG_LEVEL",
            "loud",
            "LOG_LEVEL: value: \"loud\" is not a level; use trace, debug, info, warn, error, fatal \
             or panic",
        ),
        (
            "NEAR_LIMIT_RATIO",
            "1.5",
            "NEAR_LIMIT_RATIO: envoy.near_limit_ratio: 1.5 is outside 0 to 1; use a value in \
             that range",
        ),
        (
            "LIMIT_RESET_HEADER",
            "a b",
            "LIMIT_RESET_HEADER: envoy.reset_header: \"a b\" is not a header name; use letters, \
             digits and -, such as RateLimit-Limit",
        ),
        (
            "CONFIG_TYPE",
            "ETCD",
            "CONFIG_TYPE: value: \"ETCD\" is not a source of rules; use FILE or GRPC_XDS_SOTW",
        ),
        (
            "GRPC_SERVER_USE_TLS",
            "true",
            "GRPC_SERVER_TLS_CERT: grpc.tls_cert: GRPC_SERVER_USE_TLS requires it; set it to the \
             path of a PEM file",
        ),
        (
            "DEBUG_PORT",
            "8080",
            "DEBUG_PORT: debug.listen: another listener has the address 0.0.0.0:8080; give \
             each listener its own port",
        ),
    ] {
        assert_eq!(start(&[(name, value)]).unwrap_err(), message);
    }
}

#[test]
fn variables_and_flags_of_our_own_stand_above_theirs() {
    let theirs = [
        ("PORT", "9080"),
        ("TIDEGATE_HTTP__LISTEN", "127.0.0.1:1"),
        ("TIDEGATE_NODE__ID", "rl-2"),
        ("TIDEGATE_LOG", "debug"),
        ("TIDEGATE_ENVOY__SHADOW_MODE", "true"),
    ];
    let start = start_with(&theirs, &["envoy.shadow_mode=false", "limits.keys_max=7"]).unwrap();
    let config = &start.config;
    assert_eq!(config.http.listen.unwrap().to_string(), "127.0.0.1:1");
    assert_eq!(config.node.id, "rl-2");
    assert!(!config.envoy.shadow_mode);
    assert_eq!(config.limits.keys_max, 7);

    let error = start_with(&[("TIDEGATE_HTTP__LISEN", "x")], &[]).unwrap_err();
    assert!(error.starts_with("TIDEGATE_HTTP__LISEN: unknown key http.lisen; "), "{error}");
}

#[test]
fn a_name_stands_once_in_the_table_and_its_key_exists() {
    let keys = config::keys();
    let mut names = Vec::new();
    for setting in settings::ALL {
        assert!(!names.contains(&setting.name), "{} stands twice", setting.name);
        names.push(setting.name);
        if let Here::Sets(key) = setting.here
            && !key.starts_with("--")
            && let Some((section, _)) = key.split_once('.')
            // A section that this build is without cannot be held against anything.
            && keys.iter().any(|known| known.split('.').next() == Some(section))
        {
            assert!(keys.iter().any(|known| known == key), "{}: no key {key}", setting.name);
        }
    }
}

#[test]
fn the_document_shows_the_table() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/envoyproxy-ratelimit-settings.md");
    let text = fs::read_to_string(text).unwrap();
    let documented: BTreeMap<&str, (&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"))
        .filter_map(|row| {
            let (name, rest) = row.split_once("` | ")?;
            Some((name, rest.split_once(" | ")?))
        })
        .collect();
    let quoted = |text: &str| match text {
        "" => "none".to_owned(),
        text => format!("`{text}`"),
    };
    let mut missing = Vec::new();
    for setting in settings::ALL {
        let here = match setting.here {
            Here::Sets(key) => format!("`{key}`"),
            Here::Chooses(what) => what.to_owned(),
            Here::Ignored(why) => format!("ignored: {why}"),
        };
        let default = quoted(setting.default);
        if documented.get(setting.name) != Some(&(&*default, &*here)) {
            missing.push(format!("| `{}` | {default} | {here} |", setting.name));
        }
    }
    assert!(missing.is_empty(), "not so in the document:\n{}", missing.join("\n"));
    assert_eq!(documented.len(), settings::ALL.len(), "the document names what is not there");
}
