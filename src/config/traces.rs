//! `[traces]`: where spans are sent, and of which requests. [`super::validate`] checks it.

use std::path::PathBuf;

use http::Uri;
use serde::Deserialize;
use tidegate_limiter::units::Span;

use super::value::duration;

/// `[traces]`: spans of requests, for OpenTelemetry. They need a binary with the feature `otel`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traces {
    /// The receiver (a collector): `http://HOST:PORT` or `https://HOST:PORT`. With the protocol
    /// `http` a path may follow; without one it is `/v1/traces`.
    ///
    /// Default none: nothing is recorded.
    pub endpoint: Option<String>,
    /// How the receiver is spoken to.
    pub protocol: OtlpProtocol,
    /// Part of the requests without a trace that begin one, 0 to 1. Those of a trace are recorded
    /// if their sender records them.
    ///
    /// Default 0.01: a limiter answers too many requests to record all. With 0 only the traces of
    /// others are gone on with.
    pub sampling_rate: f64,
    /// Name of the service in the receiver.
    ///
    /// Default `tidegate`.
    pub service_name: String,
    /// What distinguishes services of one name.
    ///
    /// Default none.
    pub service_namespace: Option<String>,
    /// What distinguishes the nodes.
    ///
    /// Default none: `node.id`.
    pub service_instance_id: Option<String>,
    /// `NAME:VALUE` pairs sent as request headers, at most 64; a token, for example.
    pub headers: Vec<String>,
    /// How long the receiver may take for a message, 100ms to 60s. Spans that come meanwhile wait,
    /// 2,048 of them; further ones are dropped.
    ///
    /// Default `10s`, as is usual for OTLP.
    #[serde(deserialize_with = "duration")]
    pub timeout: Span,
    /// Authorities that must have signed the receiver's certificate (PEM).
    ///
    /// Default none: those of the system.
    pub tls_ca: Option<PathBuf>,
}

/// Protocol of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// Protobuf in HTTP/1.1, mostly on port 4318. The default, as in envoyproxy/ratelimit.
    #[default]
    Http,
    /// gRPC, mostly on port 4317.
    Grpc,
}

impl Traces {
    /// The URL of the receiver, if there is one; `None` too if it is none.
    pub fn url(&self) -> Option<Uri> {
        let url = self.endpoint.as_deref()?.trim_end_matches('/');
        let path = match self.protocol {
            // A path makes a URL of three slashes.
            OtlpProtocol::Http if url.matches('/').count() < 3 => "/v1/traces",
            _ => "",
        };
        let url: Uri = format!("{url}{path}").parse().ok()?;
        let has_path = url.path_and_query().is_some_and(|path| path != "/");
        let is_url = matches!(url.scheme_str(), Some("http" | "https"))
            && (!has_path || self.protocol == OtlpProtocol::Http);
        is_url.then_some(url)
    }

    /// [`Traces::headers`] as names and values. Pairs without `:` are skipped.
    pub fn header_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.headers.iter().filter_map(|pair| pair.split_once(':'));
        pairs.map(|(name, value)| (name.trim(), value.trim()))
    }
}

impl Default for Traces {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: OtlpProtocol::default(),
            sampling_rate: 0.01,
            service_name: "tidegate".to_owned(),
            service_namespace: None,
            service_instance_id: None,
            headers: Vec::new(),
            timeout: Span::from_secs(10),
            tls_ca: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_the_usual_path_unless_it_has_one() {
        let url = |endpoint: &str, protocol| {
            let endpoint = Some(endpoint.to_owned());
            let url = Traces { endpoint, protocol, ..Traces::default() }.url();
            url.map(|url| url.to_string())
        };
        let (http, grpc) = (OtlpProtocol::Http, OtlpProtocol::Grpc);
        for (endpoint, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector:4318/", "https://collector:4318/v1/traces"),
            ("http://collector/otlp/v1/traces", "http://collector/otlp/v1/traces"),
        ] {
            assert_eq!(url(endpoint, http).as_deref(), Some(expected));
        }
        assert_eq!(url("http://[::1]:4317", grpc).as_deref(), Some("http://[::1]:4317/"));
        for bad in ["collector:4318", "unix:///socket", "http://", "", "ftp://collector"] {
            assert_eq!(url(bad, http), None, "{bad}");
        }
        assert_eq!(url("http://collector:4317/v1/traces", grpc), None, "gRPC has no path");
    }
}
