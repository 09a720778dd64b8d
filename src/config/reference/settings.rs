//! Every setting of envoyproxy/ratelimit, its default there, and what becomes of it here.
//!
//! Source: `src/settings/settings.go`. `docs/envoyproxy-ratelimit-settings.md` shows the same
//! table, and a test holds the two together.

use super::{backend, stats, xds};

/// One variable of its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it is there when nobody sets it.
    pub default: &'static str,
    /// What becomes of it here.
    pub here: Here,
}

/// What becomes of a setting here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// It sets this key of ours, alone or together with others; or this option of the command line.
    Sets(&'static str),
    /// It chooses between keys of ours, as the text says.
    Chooses(&'static str),
    /// It means nothing here, for this reason.
    Ignored(&'static str),
}

/// All settings, in the order of the documents.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    [OURS, xds::SETTINGS, stats::SETTINGS, backend::SETTINGS].into_iter().flatten()
}

/// The setting of this name.
pub fn find(name: &str) -> Option<&'static Setting> {
    all().find(|setting| setting.name == name)
}

/// A row that sets a key.
pub(super) const fn sets(name: &'static str, default: &'static str, key: &'static str) -> Setting {
    Setting { name, default, here: Here::Sets(key) }
}

/// A row that chooses.
pub(super) const fn chooses(
    name: &'static str,
    default: &'static str,
    what: &'static str,
) -> Setting {
    Setting { name, default, here: Here::Chooses(what) }
}

/// A row that means nothing here.
pub(super) const fn ignored(
    name: &'static str,
    default: &'static str,
    why: &'static str,
) -> Setting {
    Setting { name, default, here: Here::Ignored(why) }
}

const NO_TRACES: &str = "there are no traces; the log and the metrics tell";
const NO_AGE: &str = "a connection lives as long as it is used; a drain ends it in order";

const OURS: &[Setting] = &[
    sets("HOST", "0.0.0.0", "http.listen"),
    sets("PORT", "8080", "http.listen"),
    sets("DEBUG_HOST", "0.0.0.0", "debug.listen"),
    sets("DEBUG_PORT", "6070", "debug.listen"),
    sets("GRPC_HOST", "0.0.0.0", "grpc.listen"),
    sets("GRPC_PORT", "8081", "grpc.listen"),
    ignored("GRPC_UDS", "", "the gRPC door listens on `GRPC_HOST` and `GRPC_PORT`"),
    ignored("GRPC_MAX_CONNECTION_AGE", "24h", NO_AGE),
    ignored("GRPC_MAX_CONNECTION_AGE_GRACE", "1h", NO_AGE),
    chooses("GRPC_SERVER_USE_TLS", "false", "whether the next four apply"),
    sets("GRPC_SERVER_TLS_CERT", "", "grpc.tls_cert"),
    sets("GRPC_SERVER_TLS_KEY", "", "grpc.tls_key"),
    sets("GRPC_CLIENT_TLS_CACERT", "", "grpc.client_ca"),
    sets("GRPC_CLIENT_TLS_SAN", "", "grpc.client_san"),
    sets("LOG_LEVEL", "WARN", "--log"),
    sets("LOG_FORMAT", "text", "--log-format"),
    chooses("CONFIG_TYPE", "FILE", "`FILE`: `rules.path`; `GRPC_XDS_SOTW`: `xds.server`"),
    ignored(
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "false",
        "a node always starts, and is not ready before it has rules",
    ),
    sets("RUNTIME_ROOT", "/srv/runtime_data/current", "rules.path"),
    sets("RUNTIME_SUBDIRECTORY", "", "rules.path"),
    sets("RUNTIME_APPDIRECTORY", "config", "rules.path"),
    ignored("RUNTIME_IGNOREDOTFILES", "false", "names that begin with a dot are always skipped"),
    ignored(
        "RUNTIME_WATCH_ROOT",
        "true",
        "files and links are watched all the way down, and looked at every 1.5 s",
    ),
    sets("MERGE_DOMAIN_CONFIG", "false", "rules.merge_domains"),
    sets("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", "rules.may_be_empty"),
    sets("SHADOW_MODE", "false", "envoy.shadow_mode"),
    sets("QUOTA_MODE", "false", "envoy.quota_mode"),
    sets("NEAR_LIMIT_RATIO", "0.8", "envoy.near_limit_ratio"),
    sets("LOCAL_CACHE_SIZE_IN_BYTES", "0", "envoy.local_cache"),
    sets("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", "envoy.all_or_nothing"),
    sets("LIMIT_RESPONSE_HEADERS_ENABLED", "false", "envoy.response_headers"),
    sets("LIMIT_LIMIT_HEADER", "RateLimit-Limit", "envoy.limit_header"),
    sets("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", "envoy.remaining_header"),
    sets("LIMIT_RESET_HEADER", "RateLimit-Reset", "envoy.reset_header"),
    sets("RESPONSE_DYNAMIC_METADATA", "false", "envoy.dynamic_metadata"),
    ignored(
        "EXPIRATION_JITTER_MAX_SECONDS",
        "300",
        "counters that no longer matter leave bit by bit anyway",
    ),
    ignored("CACHE_KEY_PREFIX", "", "clusters share no store; `cluster.name` keeps them apart"),
    ignored("TRACING_ENABLED", "false", NO_TRACES),
    ignored("TRACING_SERVICE_NAME", "RateLimit", NO_TRACES),
    ignored("TRACING_SERVICE_NAMESPACE", "", NO_TRACES),
    ignored("TRACING_SERVICE_INSTANCE_ID", "", NO_TRACES),
    ignored("TRACING_EXPORTER_PROTOCOL", "http", NO_TRACES),
    ignored("TRACING_SAMPLING_RATE", "1", NO_TRACES),
];
