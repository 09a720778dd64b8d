//! Every setting of envoyproxy/ratelimit, its default there, and its meaning here.
//!
//! Source: `src/settings/settings.go`. `docs/envoyproxy-ratelimit-settings.md` shows the same
//! table, and a test compares the two.

/// One environment variable of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    /// Its value there when it is not set.
    pub default: &'static str,
    pub here: Here,
}

/// The meaning of a setting here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// It sets this key, alone or together with others; or this command-line option.
    Sets(&'static str),
    /// It selects between keys, as the text describes.
    Chooses(&'static str),
    /// It is ignored, for this reason.
    Ignored(&'static str),
}

/// The setting with this name.
pub fn find(name: &str) -> Option<&'static Setting> {
    ALL.iter().find(|setting| setting.name == name)
}

const fn sets(name: &'static str, default: &'static str, key: &'static str) -> Setting {
    Setting { name, default, here: Here::Sets(key) }
}

const fn chooses(name: &'static str, default: &'static str, what: &'static str) -> Setting {
    Setting { name, default, here: Here::Chooses(what) }
}

const fn ignored(name: &'static str, default: &'static str, why: &'static str) -> Setting {
    Setting { name, default, here: Here::Ignored(why) }
}

const OTLP: &str = "traces.endpoint";
const OTLP_SCHEME: &str = "whether an endpoint without a scheme is one without TLS";
const NO_COMPRESSION: &str = "spans are sent uncompressed";
const NO_CERTIFICATE: &str = "the receiver gets no certificate; use a token in the headers";
const OWN_BACKOFF: &str = "the delay doubles with every attempt and has jitter";
const OWN_NAMES: &str = "metrics have the names of envoyproxy/ratelimit's own mapping";
const ALWAYS_STARTS: &str = "a node always starts, and is not ready before it has rules";
const ALWAYS_WATCHED: &str = "files and links are watched recursively and polled every 1.5 s";
const XDS_TLS: &str = "`xds.tls`, and whether the next four apply";
const DOG_STATSD: &str = "as `USE_STATSD`, with `stats.statsd_protocol = \"dogstatsd\"`";
const NO_STORE: &str = "counters are in the memory of the nodes";

/// All settings, in the order of the documentation.
pub const ALL: &[Setting] = &[
    sets("HOST", "0.0.0.0", "http.listen"),
    sets("PORT", "8080", "http.listen"),
    sets("DEBUG_HOST", "0.0.0.0", "debug.listen"),
    sets("DEBUG_PORT", "6070", "debug.listen"),
    sets("GRPC_HOST", "0.0.0.0", "grpc.listen"),
    sets("GRPC_PORT", "8081", "grpc.listen"),
    sets("GRPC_UDS", "", "grpc.socket"),
    sets("GRPC_MAX_CONNECTION_AGE", "24h", "grpc.max_connection_age"),
    sets("GRPC_MAX_CONNECTION_AGE_GRACE", "1h", "grpc.max_connection_age_grace"),
    chooses("GRPC_SERVER_USE_TLS", "false", "whether the next four apply"),
    sets("GRPC_SERVER_TLS_CERT", "", "grpc.tls_cert"),
    sets("GRPC_SERVER_TLS_KEY", "", "grpc.tls_key"),
    sets("GRPC_CLIENT_TLS_CACERT", "", "grpc.client_ca"),
    sets("GRPC_CLIENT_TLS_SAN", "", "grpc.client_san"),
    sets("LOG_LEVEL", "WARN", "--log"),
    sets("LOG_FORMAT", "text", "--log-format"),
    chooses("CONFIG_TYPE", "FILE", "`FILE`: `rules.path`; `GRPC_XDS_SOTW`: `xds.server`"),
    ignored("FORCE_START_WITHOUT_INITIAL_CONFIG", "false", ALWAYS_STARTS),
    sets("RUNTIME_ROOT", "/srv/runtime_data/current", "rules.path"),
    sets("RUNTIME_SUBDIRECTORY", "", "rules.path"),
    sets("RUNTIME_APPDIRECTORY", "config", "rules.path"),
    ignored("RUNTIME_IGNOREDOTFILES", "false", "names that begin with a dot are always skipped"),
    ignored("RUNTIME_WATCH_ROOT", "true", ALWAYS_WATCHED),
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
    ignored("EXPIRATION_JITTER_MAX_SECONDS", "300", "expired counters are removed gradually"),
    ignored("CACHE_KEY_PREFIX", "", "clusters share no store; `cluster.name` separates them"),
    chooses("TRACING_ENABLED", "false", "whether those of traces apply"),
    sets("TRACING_SERVICE_NAME", "RateLimit", "traces.service_name"),
    sets("TRACING_SERVICE_NAMESPACE", "", "traces.service_namespace"),
    sets("TRACING_SERVICE_INSTANCE_ID", "", "traces.service_instance_id"),
    sets("TRACING_EXPORTER_PROTOCOL", "http", "traces.protocol"),
    sets("TRACING_SAMPLING_RATE", "1", "traces.sampling_rate"),
    // Where traces go: variables of the OpenTelemetry exporter, that for all signals first.
    sets("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318", OTLP),
    sets("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", OTLP),
    chooses("OTEL_EXPORTER_OTLP_INSECURE", "false", OTLP_SCHEME),
    chooses("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "false", OTLP_SCHEME),
    sets("OTEL_EXPORTER_OTLP_HEADERS", "", "traces.headers"),
    sets("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "", "traces.headers"),
    sets("OTEL_EXPORTER_OTLP_TIMEOUT", "10000", "traces.timeout"),
    sets("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "", "traces.timeout"),
    sets("OTEL_EXPORTER_OTLP_CERTIFICATE", "", "traces.tls_ca"),
    sets("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "", "traces.tls_ca"),
    ignored("OTEL_EXPORTER_OTLP_COMPRESSION", "", NO_COMPRESSION),
    ignored("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "", NO_COMPRESSION),
    ignored("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "", NO_CERTIFICATE),
    ignored("OTEL_EXPORTER_OTLP_CLIENT_KEY", "", NO_CERTIFICATE),
    ignored("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "", NO_CERTIFICATE),
    ignored("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "", NO_CERTIFICATE),
    // xDS.
    sets("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", "xds.server"),
    sets("CONFIG_GRPC_XDS_NODE_ID", "default", "xds.node_id"),
    sets("CONFIG_GRPC_XDS_NODE_METADATA", "", "xds.node_metadata"),
    sets("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", "xds.headers"),
    chooses("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", XDS_TLS),
    sets("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", "xds.tls_cert"),
    sets("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", "xds.tls_key"),
    sets("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", "xds.tls_ca"),
    sets("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", "xds.server_name"),
    sets("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", "xds.backoff_initial"),
    sets("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", "xds.backoff_max"),
    ignored("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", OWN_BACKOFF),
    ignored("XDS_CLIENT_BACKOFF_JITTER", "true", OWN_BACKOFF),
    ignored("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", OWN_BACKOFF),
    sets("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", "xds.max_message_bytes"),
    // Statistics.
    chooses("DISABLE_STATS", "false", "whether none of the others apply"),
    chooses("USE_STATSD", "true", "whether `stats.statsd` is set, over TCP"),
    chooses("USE_DOG_STATSD", "false", DOG_STATSD),
    ignored("USE_DOG_STATSD_MOGRIFIERS", "", OWN_NAMES),
    sets("STATSD_HOST", "localhost", "stats.statsd"),
    sets("STATSD_PORT", "8125", "stats.statsd"),
    sets("STATS_FLUSH_INTERVAL", "10s", "stats.flush_interval"),
    sets("EXTRA_TAGS", "", "stats.extra_tags"),
    chooses("USE_PROMETHEUS", "false", "whether the next two apply; `/metrics` includes them too"),
    sets("PROMETHEUS_ADDR", ":9090", "stats.prometheus_listen"),
    sets("PROMETHEUS_PATH", "/metrics", "stats.prometheus_path"),
    ignored("PROMETHEUS_MAPPER_YAML", "", OWN_NAMES),
    ignored("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", "times are in seconds"),
    // The central store.
    ignored("BACKEND_TYPE", "redis", NO_STORE),
    ignored("REDIS_SOCKET_TYPE", "unix", NO_STORE),
    ignored("REDIS_TYPE", "SINGLE", NO_STORE),
    ignored("REDIS_URL", "/var/run/nutcracker/ratelimit.sock", NO_STORE),
    ignored("REDIS_POOL_SIZE", "10", NO_STORE),
    ignored("REDIS_AUTH", "", NO_STORE),
    ignored("REDIS_TLS", "false", NO_STORE),
    ignored("REDIS_TLS_CLIENT_CERT", "", NO_STORE),
    ignored("REDIS_TLS_CLIENT_KEY", "", NO_STORE),
    ignored("REDIS_TLS_CACERT", "", NO_STORE),
    ignored("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", NO_STORE),
    ignored("REDIS_PIPELINE_WINDOW", "0", NO_STORE),
    ignored("REDIS_PIPELINE_LIMIT", "0", NO_STORE),
    ignored("REDIS_CLUSTER_PIPELINE_PARALLELISM", "1", NO_STORE),
    ignored("REDIS_PERSECOND", "false", NO_STORE),
    ignored("REDIS_PERSECOND_SOCKET_TYPE", "unix", NO_STORE),
    ignored("REDIS_PERSECOND_TYPE", "SINGLE", NO_STORE),
    ignored("REDIS_PERSECOND_URL", "/var/run/nutcracker/ratelimitpersecond.sock", NO_STORE),
    ignored("REDIS_PERSECOND_POOL_SIZE", "10", NO_STORE),
    ignored("REDIS_PERSECOND_AUTH", "", NO_STORE),
    ignored("REDIS_PERSECOND_TLS", "false", NO_STORE),
    ignored("REDIS_SENTINEL_AUTH", "", NO_STORE),
    ignored("REDIS_PERSECOND_SENTINEL_AUTH", "", NO_STORE),
    ignored("REDIS_PERSECOND_PIPELINE_WINDOW", "0", NO_STORE),
    ignored("REDIS_PERSECOND_PIPELINE_LIMIT", "0", NO_STORE),
    ignored("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "1", NO_STORE),
    ignored("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", NO_STORE),
    ignored("REDIS_TIMEOUT", "10s", NO_STORE),
    ignored("REDIS_PERSECOND_TIMEOUT", "10s", NO_STORE),
    ignored("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", NO_STORE),
    ignored("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", NO_STORE),
    ignored("REDIS_STARTUP_INITIAL_INTERVAL", "1s", NO_STORE),
    ignored("REDIS_STARTUP_MAX_INTERVAL", "30s", NO_STORE),
    ignored("REDIS_STARTUP_MAX_ELAPSED_TIME", "0", NO_STORE),
    ignored("MEMCACHE_HOST_PORT", "", NO_STORE),
    ignored("MEMCACHE_MAX_IDLE_CONNS", "2", NO_STORE),
    ignored("MEMCACHE_SRV", "", NO_STORE),
    ignored("MEMCACHE_SRV_REFRESH", "0", NO_STORE),
    ignored("MEMCACHE_TLS", "false", NO_STORE),
    ignored("MEMCACHE_TLS_CLIENT_CERT", "", NO_STORE),
    ignored("MEMCACHE_TLS_CLIENT_KEY", "", NO_STORE),
    ignored("MEMCACHE_TLS_CACERT", "", NO_STORE),
    ignored("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", NO_STORE),
];
