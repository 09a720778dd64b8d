//! The settings of statistics.

use toml::Value;

use super::read::{Reader, bad};
use super::settings::{Setting, chooses, ignored, sets};
use super::values;
use crate::config::error::Error;

const OWN_NAMES: &str = "metrics have the reference's names with its own mapping";

pub(super) const SETTINGS: &[Setting] = &[
    chooses("DISABLE_STATS", "false", "whether none of the others apply"),
    chooses("USE_STATSD", "true", "whether `stats.statsd` is set, over TCP"),
    chooses("USE_DOG_STATSD", "false", "likewise, with `stats.statsd_protocol = \"dogstatsd\"`"),
    ignored("USE_DOG_STATSD_MOGRIFIERS", "", OWN_NAMES),
    sets("STATSD_HOST", "localhost", "stats.statsd"),
    sets("STATSD_PORT", "8125", "stats.statsd"),
    sets("STATS_FLUSH_INTERVAL", "10s", "stats.flush_interval"),
    sets("EXTRA_TAGS", "", "stats.extra_tags"),
    chooses("USE_PROMETHEUS", "false", "whether the next two apply; `/metrics` tells them too"),
    sets("PROMETHEUS_ADDR", ":9090", "stats.prometheus_listen"),
    sets("PROMETHEUS_PATH", "/metrics", "stats.prometheus_path"),
    ignored("PROMETHEUS_MAPPER_YAML", "", OWN_NAMES),
    ignored("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", "times are in seconds"),
];

/// Says where statistics are told.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), Error> {
    if reader.flag("DISABLE_STATS")? {
        return Ok(());
    }
    let dogstatsd = reader.flag("USE_DOG_STATSD")?;
    let statsd = reader.flag("USE_STATSD")?;
    let prometheus = reader.flag("USE_PROMETHEUS")?;
    if [dogstatsd, statsd, prometheus].into_iter().filter(|is_on| *is_on).count() > 1 {
        let problem = "more than one place is named for statistics".to_owned();
        let fix = "set one of USE_DOG_STATSD, USE_STATSD (true unless it is set), USE_PROMETHEUS";
        return Err(bad("USE_STATSD", "stats.statsd", problem, fix));
    }
    if statsd || dogstatsd {
        let port = reader.integer("STATSD_PORT", "stats.statsd")?;
        let host = reader.text("STATSD_HOST");
        reader.set("stats.statsd", "STATSD_HOST", Value::String(format!("{host}:{port}")));
    }
    if dogstatsd {
        let protocol = Value::String("dogstatsd".to_owned());
        reader.set("stats.statsd_protocol", "USE_DOG_STATSD", protocol);
    }
    let (name, key) = ("STATS_FLUSH_INTERVAL", "stats.flush_interval");
    let fix = "give a length of time, such as 10s";
    let ms = reader.parsed(name, key, "is no length of time", fix, values::duration_ms)?;
    reader.set(key, name, Value::String(format!("{ms}ms")));
    reader.take_list("EXTRA_TAGS", "stats.extra_tags", |tag| tag.contains(':'));
    if prometheus {
        reader.set("stats.prometheus_names", "USE_PROMETHEUS", Value::Boolean(true));
        // Go listens on all addresses when none stands before the colon.
        let addr = reader.text("PROMETHEUS_ADDR");
        let addr = if addr.starts_with(':') { format!("0.0.0.0{addr}") } else { addr.to_owned() };
        reader.set("stats.prometheus_listen", "PROMETHEUS_ADDR", Value::String(addr));
        reader.take_text("PROMETHEUS_PATH", "stats.prometheus_path");
    }
    Ok(())
}
