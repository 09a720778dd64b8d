//! The settings of statistics.

use super::settings::{Setting, ignored};

/// What is exported, and where, is another section's matter.
const NOT_HERE: &str = "not mapped yet";

pub(super) const SETTINGS: &[Setting] = &[
    ignored("DISABLE_STATS", "false", NOT_HERE),
    ignored("USE_STATSD", "true", NOT_HERE),
    ignored("USE_DOG_STATSD", "false", NOT_HERE),
    ignored("USE_DOG_STATSD_MOGRIFIERS", "", NOT_HERE),
    ignored("STATSD_HOST", "localhost", NOT_HERE),
    ignored("STATSD_PORT", "8125", NOT_HERE),
    ignored("STATS_FLUSH_INTERVAL", "10s", NOT_HERE),
    ignored("EXTRA_TAGS", "", NOT_HERE),
    ignored("USE_PROMETHEUS", "false", NOT_HERE),
    ignored("PROMETHEUS_ADDR", ":9090", NOT_HERE),
    ignored("PROMETHEUS_PATH", "/metrics", NOT_HERE),
    ignored("PROMETHEUS_MAPPER_YAML", "", NOT_HERE),
    ignored("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", NOT_HERE),
];
