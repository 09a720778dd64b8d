//! The settings of the configuration source xDS.

use toml::Value;

use super::read::Reader;
use super::settings::{Setting, chooses, ignored, sets};
use super::values;
use crate::config::error::Error;

const OWN_BACKOFF: &str = "waits double with every attempt and are spread by chance";

pub(super) const SETTINGS: &[Setting] = &[
    sets("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", "xds.server"),
    sets("CONFIG_GRPC_XDS_NODE_ID", "default", "xds.node_id"),
    sets("CONFIG_GRPC_XDS_NODE_METADATA", "", "xds.node_metadata"),
    sets("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", "xds.headers"),
    chooses(
        "CONFIG_GRPC_XDS_SERVER_USE_TLS",
        "false",
        "`xds.tls`, and whether the next four apply",
    ),
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
];

/// Says where the rules come from when they come over xDS.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), Error> {
    reader.take_text("CONFIG_GRPC_XDS_SERVER_URL", "xds.server");
    reader.take_text("CONFIG_GRPC_XDS_NODE_ID", "xds.node_id");
    // Pairs without `=` mean nothing there either, and do not end the start.
    reader
        .take_list("CONFIG_GRPC_XDS_NODE_METADATA", "xds.node_metadata", |pair| pair.contains('='));
    reader.take_list("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "xds.headers", |_| true);
    let name = "CONFIG_GRPC_XDS_SERVER_USE_TLS";
    if reader.flag(name)? {
        reader.set("xds.tls", name, Value::Boolean(true));
        reader.take_text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "xds.tls_cert");
        reader.take_text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "xds.tls_key");
        reader.take_text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "xds.tls_ca");
        reader.take_text("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "xds.server_name");
    }
    // Only when somebody sets them: ours find a server that restarts much sooner.
    for (name, key) in [
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "xds.backoff_initial"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "xds.backoff_max"),
    ] {
        if reader.given(name).is_some() {
            let fix = "give a length of time, such as 10s";
            let ms = reader.parsed(name, key, "is no length of time", fix, values::duration_ms)?;
            reader.set(key, name, Value::String(format!("{ms}ms")));
        }
    }
    let (name, key) = ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "xds.max_message_bytes");
    if reader.given(name).is_some() {
        let bytes = reader.integer(name, key)?;
        reader.set(key, name, Value::Integer(bytes));
    }
    Ok(())
}
