//! Sends spans to a receiver of OTLP, over HTTP or gRPC.
//!
//! One message is on its way at a time. One that the receiver does not take is lost: what is
//! limited does not depend on it, and a receiver that comes back wants what is new. Failures are
//! counted, and logged when they begin, once a minute, and when they end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::admin::{NodeClient, Reach};
use crate::config::{self, Config, OtlpProtocol, UserError};
use crate::traces::{Counters, Queue};

/// How long a node that stops takes for what is left.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// For a connection and its handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Failures that go on are logged once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The most bytes of a response that are read. They say no more than its status.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;

const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

/// Sends what is in the queue.
#[derive(Debug)]
pub(super) struct Export {
    queue: Queue,
    receiver: Receiver,
    resource: Resource,
    timeout: Duration,
    failures: Failures,
}

/// Who takes spans.
#[derive(Debug)]
pub(super) enum Receiver {
    Http { client: Box<NodeClient<Full<Bytes>>>, url: Uri, headers: HeaderMap },
    Grpc { client: TraceServiceClient<Channel>, headers: MetadataMap },
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it answered {:?}: {}", .0.code(), .0.message())]
    Grpc(#[from] Box<tonic::Status>),
    #[error("{0}")]
    Transport(String),
    #[error("it did not answer in time")]
    Timeout,
}

/// Failures since the last line of the log about them.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    logged: Option<Instant>,
    /// The last line said that spans are lost.
    are_said: bool,
}

impl Export {
    pub(super) fn new(config: &Config, receiver: Receiver, queue: Queue) -> Self {
        let timeout = config.traces.timeout.to_std();
        let resource = resource(config);
        Self { queue, receiver, resource, timeout, failures: Failures::default() }
    }

    /// Runs until `stop`, and sends what is left within [`FLUSH_TIMEOUT`].
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(FLUSH_TIMEOUT).await;
        };
        tokio::select! {
            () = self.send_all(&stop) => {}
            () = overdue => {
                tracing::warn!("traces: the receiver did not take the last spans within 2 s");
            }
        }
    }

    async fn send_all(&mut self, stop: &CancellationToken) {
        let mut batch = Vec::new();
        while stop.run_until_cancelled(self.queue.next(&mut batch)).await.is_some() {
            if batch.is_empty() {
                // Nothing can come any more.
                stop.cancelled().await;
                return;
            }
            self.send(&mut batch).await;
        }
        loop {
            self.queue.rest(&mut batch);
            if batch.is_empty() {
                return;
            }
            self.send(&mut batch).await;
        }
    }

    async fn send(&mut self, batch: &mut Vec<Span>) {
        let spans = std::mem::take(batch);
        let count = spans.len() as u64;
        let sending = self.receiver.send(message(self.resource.clone(), spans));
        let sent = timeout(self.timeout, sending).await.unwrap_or(Err(Error::Timeout));
        let Counters { sent: taken, failed, .. } = &*self.queue.counters;
        let counter = if sent.is_ok() { taken } else { failed };
        counter.fetch_add(count, Ordering::Relaxed);
        self.failures.note(sent.err());
    }
}

impl Failures {
    /// A message was sent, or was not.
    fn note(&mut self, error: Option<Error>) {
        let Some(error) = error else {
            if std::mem::take(&mut self.are_said) {
                tracing::info!("traces: the receiver takes spans again");
            }
            return;
        };
        self.count += 1;
        let now = Instant::now();
        // Some fail every other message.
        if self.logged.is_none_or(|logged| now - logged >= LOG_INTERVAL) {
            (self.logged, self.are_said) = (Some(now), true);
            tracing::warn!(
                %error,
                messages = std::mem::take(&mut self.count),
                "traces: the receiver does not take spans, they are lost; limits do not depend on \
                 it (traces.endpoint)"
            );
        }
    }
}

impl Receiver {
    /// A receiver at `url`, which need not be there yet.
    pub(super) fn new(config: &config::Traces, url: Uri) -> Result<Self, UserError> {
        let headers = headers(config);
        let ca = config.tls_ca.clone();
        if config.protocol == OtlpProtocol::Http {
            let mut tcp = HttpConnector::new();
            tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
            let client = Reach { ca, ..Reach::default() }.client(&url, tcp)?;
            return Ok(Self::Http { client: Box::new(client), url, headers });
        }
        let is_tls = url.scheme_str() == Some("https");
        let mut endpoint = Endpoint::from(url).connect_timeout(CONNECT_TIMEOUT);
        if is_tls {
            let tls = match &ca {
                Some(path) => {
                    let pem = std::fs::read(path).map_err(|error| {
                        let problem = format!("traces.tls_ca {}: {error}", path.display());
                        UserError::new(problem, "check the path and who may read it")
                    })?;
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
                }
                None => ClientTlsConfig::new().with_native_roots(),
            };
            endpoint = endpoint.tls_config(tls).map_err(|error| {
                UserError::new(format!("traces.tls_ca: {}", causes(&error)), "give PEM files")
            })?;
        }
        let client = TraceServiceClient::new(endpoint.connect_lazy());
        Ok(Self::Grpc { client, headers: MetadataMap::from_headers(headers) })
    }

    async fn send(&mut self, message: ExportTraceServiceRequest) -> Result<(), Error> {
        match self {
            Self::Http { client, url, headers } => {
                let mut request = Request::new(Full::from(message.encode_to_vec()));
                *request.method_mut() = Method::POST;
                *request.uri_mut() = url.clone();
                *request.headers_mut() = headers.clone();
                request.headers_mut().insert(CONTENT_TYPE, PROTOBUF);
                let response = client.request(request).await;
                let response = response.map_err(|error| Error::Transport(causes(&error)))?;
                let status = response.status();
                // Read, so that the connection can be used again.
                let _ = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
                if status.is_success() { Ok(()) } else { Err(Error::Status(status)) }
            }
            Self::Grpc { client, headers } => {
                let mut request = tonic::Request::new(message);
                *request.metadata_mut() = headers.clone();
                client.export(request).await.map(drop).map_err(|status| Box::new(status).into())
            }
        }
    }
}

fn headers(config: &config::Traces) -> HeaderMap {
    let pairs = config.header_pairs().filter_map(|(name, value)| {
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    });
    pairs.collect()
}

/// What all spans of this node have in common.
fn resource(config: &Config) -> Resource {
    let traces = &config.traces;
    let node = &config.node;
    let instance = traces.service_instance_id.as_ref().unwrap_or(&node.id);
    let attributes = [
        ("service.name", Some(traces.service_name.as_str())),
        ("service.namespace", traces.service_namespace.as_deref()),
        ("service.instance.id", Some(instance)),
        ("service.version", Some(env!("CARGO_PKG_VERSION"))),
        ("tidegate.node", Some(&node.id)),
        ("tidegate.region", Some(&node.region)),
    ];
    let attribute = |(key, value): (&str, Option<&str>)| {
        let value = Some(AnyValue { value: Some(Value::StringValue(value?.to_owned())) });
        Some(KeyValue { key: key.to_owned(), value, ..KeyValue::default() })
    };
    let attributes = attributes.into_iter().filter_map(attribute).collect();
    Resource { attributes, ..Resource::default() }
}

fn message(resource: Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = Some(InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    });
    let scope_spans = vec![ScopeSpans { scope, spans, ..ScopeSpans::default() }];
    let resource = Some(resource);
    let spans = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }
}

/// An error with its causes: the text of the first says little.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
