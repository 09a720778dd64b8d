//! `TRACING_*`, and the variables of the OpenTelemetry exporter that say where traces go.
//!
//! Sources: envoyproxy/ratelimit, `src/trace/trace.go`; the OpenTelemetry protocol exporter.

use percent_encoding::percent_decode_str;

use super::reader::Reader;
use super::values;
use crate::config::error::Error;

const PROTOCOL: &str = "TRACING_EXPORTER_PROTOCOL";
const ENDPOINT: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const INSECURE: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE"];
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const TIMEOUT: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const CERTIFICATE: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];

pub(super) fn traces(reader: &mut Reader<'_>) -> Result<(), Error> {
    if !reader.flag("TRACING_ENABLED")? {
        return Ok(());
    }
    for (name, key) in [
        ("TRACING_SERVICE_NAME", "traces.service_name"),
        ("TRACING_SERVICE_NAMESPACE", "traces.service_namespace"),
        ("TRACING_SERVICE_INSTANCE_ID", "traces.service_instance_id"),
    ] {
        reader.set_text(name, key);
    }
    let (name, key) = (PROTOCOL, "traces.protocol");
    if !["http", "grpc"].contains(&reader.text(name)) {
        return Err(Error::bad_variable(
            name,
            key,
            "it is neither http nor grpc",
            "use one of both",
        ));
    }
    reader.set_text(name, key);
    let (name, key) = ("TRACING_SAMPLING_RATE", "traces.sampling_rate");
    let fix = "use a fraction, such as 0.1";
    let rate = reader.parsed(name, key, "is not a number", fix, values::ratio)?;
    // Beyond either end it is the end.
    reader.set(key, name, rate.clamp(0.0, 1.0));
    let is_tls = endpoint(reader)?;
    headers(reader)?;
    let (name, key) = (either(reader, TIMEOUT), "traces.timeout");
    let ms = reader.integer(name, key)?;
    reader.set(key, name, format!("{ms}ms"));
    if is_tls {
        let name = either(reader, CERTIFICATE);
        reader.set_text(name, "traces.tls_ca");
    }
    Ok(())
}

/// Returns whether the receiver speaks TLS.
fn endpoint(reader: &mut Reader<'_>) -> Result<bool, Error> {
    let name = either(reader, ENDPOINT);
    let is_grpc = reader.text(PROTOCOL) == "grpc";
    let is_insecure = reader.flag(either(reader, INSECURE))?;
    let text = match reader.given(name) {
        Some(text) if text.contains("://") => text.to_owned(),
        Some(text) => format!("{}://{text}", if is_insecure { "http" } else { "https" }),
        None => format!("http://localhost:{}", if is_grpc { 4317 } else { 4318 }),
    };
    let base = text.trim_end_matches('/');
    // The variable for all signals is where each has a path of its own; gRPC has none.
    let path = if is_grpc || name == ENDPOINT[0] { "" } else { "/v1/traces" };
    reader.set("traces.endpoint", name, format!("{base}{path}"));
    Ok(base.starts_with("https://"))
}

/// `NAME=VALUE,...`, the values percent-encoded.
fn headers(reader: &mut Reader<'_>) -> Result<(), Error> {
    let (name, key) = (either(reader, HEADERS), "traces.headers");
    let items = reader.text(name).split(',').map(str::trim).filter(|item| !item.is_empty());
    let pair = |item: &str| {
        let (header, value) = item.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some(format!("{}:{value}", header.trim()))
    };
    let pairs: Option<Vec<String>> = items.map(pair).collect();
    let pairs = pairs.ok_or_else(|| {
        Error::bad_variable(name, key, "it is not NAME=VALUE,...", "percent-encode the values")
    })?;
    if !pairs.is_empty() {
        reader.set(key, name, pairs);
    }
    Ok(())
}

/// Of the two variables of the exporter that of traces if it is set, else that of all signals.
fn either(reader: &Reader<'_>, [own, all]: [&'static str; 2]) -> &'static str {
    if reader.given(own).is_some() { own } else { all }
}
