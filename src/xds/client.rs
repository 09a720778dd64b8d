//! The task that follows the server: connects, subscribes, applies and acknowledges responses, and
//! reconnects when the stream ends.
//!
//! ```text
//! Client::new(...)   ── files are read, no rules yet ──► (Client, Handle)
//! Client::run(stop)  ── one task, until `stop` ──► swaps the book, publishes the status
//! ```
//!
//! While there is no connection, the rules in force stay. A book is in force before its response is
//! acknowledged.
//!
//! The delay between connections doubles with each that received no response, up to
//! `xds.backoff_max`. Each delay is drawn from the upper half of its range, so that nodes do not
//! reconnect at the same time. From 500 ms to 30 s: 250–500 ms, 0.5–1 s, ..., 15–30 s, 15–30 s.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io};

use backon::{BackoffBuilder, ExponentialBackoff};
use futures_util::stream;
use http::uri::PathAndQuery;
use tidegate_cluster::backoff::exponential;
use tidegate_cluster::environment::Entropy;
use tidegate_proto::google::protobuf::Struct;
use tidegate_proto::xds::{
    Any, DiscoveryRequest, DiscoveryResponse, Node, STREAM_AGGREGATED_RESOURCES,
};
use tidegate_rules::book::Book;
use tidegate_rules::load;
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::resources::{self, Refusal};
use super::session::Session;
use crate::config::Xds;
use crate::reload::current::Handle;

/// For a connection and its handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is probed after half a minute and closed within a minute. With TCP and not
/// HTTP/2 probes: gRPC servers in Go close connections that ping more often than every five
/// minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// A server that hangs answers TCP, and a path that breaks while data is on its way is not probed
/// by it, so HTTP/2 probes come as often as those servers allow.
const PING_INTERVAL: Duration = Duration::from_secs(330);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// For the first response, which is due as soon as the server has rules. Then the status says that
/// it has not come.
const FIRST_RESPONSE_WAIT: Duration = Duration::from_secs(15);

/// Why the endpoint cannot be built from the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("xds.server: {server:?} is not an address; write HOST:PORT or https://HOST:PORT")]
    Server { server: String },
    #[error("{key}: {}: {source}; check the path and who may read it", .path.display())]
    Unreadable {
        /// The configuration key of the file.
        key: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The files are readable and not valid for TLS.
    #[error("xds.tls_*: {0}; give PEM files, and a key that belongs to its certificate")]
    Tls(String),
}

/// A client of one management server; [`Client::run`] is its task.
#[derive(Debug)]
pub struct Client {
    xds: Xds,
    load: load::Options,
    handle: Handle,
    entropy: Arc<dyn Entropy>,
}

impl Client {
    /// A client of the server of `xds`, and the handle of its rules: a book without rules until the
    /// first response.
    ///
    /// # Errors
    ///
    /// If the address is malformed, or a file of `xds` is unreadable or not valid for TLS. The
    /// files are read again for each connection.
    pub fn new(
        xds: Xds,
        load: load::Options,
        entropy: Arc<dyn Entropy>,
    ) -> Result<(Self, Handle), Error> {
        endpoint(&xds)?;
        let handle = Handle::new(Book::unloaded());
        Ok((Self { xds, load, handle: handle.clone(), entropy }, handle))
    }

    /// Follows the server until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let server = self.xds.server.as_deref().unwrap_or_default();
        let mut backoff = self.backoff();
        loop {
            let has_answered = AtomicBool::new(false);
            // Boxed: its state is large, and there is one for each connection.
            let following = Box::pin(self.follow(&mut backoff, &has_answered));
            let following = self.watched(server, following, &has_answered);
            let Some(error) = stop.run_until_cancelled(following).await else { return };
            let delay = backoff.next().unwrap_or_default();
            tracing::warn!(server, ?delay, "{error}; reconnecting, the rules in force stay");
            self.handle.cut_off(format!("xds.server {server}: {error}"));
            if stop.run_until_cancelled(tokio::time::sleep(delay)).await.is_none() {
                return;
            }
        }
    }

    /// Waits for `following`, and reports it meanwhile if the server does not answer.
    async fn watched(
        &self,
        server: &str,
        following: impl Future<Output = String>,
        has_answered: &AtomicBool,
    ) -> String {
        let mut following = pin!(following);
        if let Ok(error) = tokio::time::timeout(FIRST_RESPONSE_WAIT, &mut following).await {
            return error;
        }
        if !has_answered.load(Ordering::Relaxed) {
            tracing::warn!(server, "the management server has sent no rules yet; waiting for them");
            self.handle.cut_off(format!("xds.server {server}: it has sent no rules yet"));
        }
        following.await
    }

    /// Follows one stream to its end; returns why it ended.
    async fn follow(&self, backoff: &mut ExponentialBackoff, has_answered: &AtomicBool) -> String {
        let (sender, requests) = mpsc::channel(1);
        let mut session = Session::new(self.node());
        // The channel is empty and holds one.
        let _ = sender.try_send(session.subscription());
        let mut responses = match self.open(requests).await {
            Ok(responses) => responses,
            Err(error) => return error,
        };
        loop {
            let response = match responses.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return "the server ended the stream".to_owned(),
                Err(status) => return format!("the stream broke: {}", causes(&status)),
            };
            *backoff = self.backoff();
            has_answered.store(true, Ordering::Relaxed);
            if !Session::is_subscribed(&response) {
                tracing::warn!(
                    type_url = response.type_url,
                    "ignored a response of a type that is not subscribed to"
                );
                continue;
            }
            let request = self.apply(&mut session, response).await;
            if sender.send(request).await.is_err() {
                return "the server closed the request stream".to_owned();
            }
        }
    }

    async fn open(
        &self,
        requests: mpsc::Receiver<DiscoveryRequest>,
    ) -> Result<Streaming<DiscoveryResponse>, String> {
        let endpoint = endpoint(&self.xds).map_err(|error| error.to_string())?;
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect());
        let connection = connecting
            .await
            .map_err(|_| "no connection within five seconds".to_owned())?
            .map_err(|error| format!("connect: {}", causes(&error)))?;
        let mut grpc = tonic::client::Grpc::new(connection)
            .max_decoding_message_size(self.xds.max_message_bytes);
        grpc.ready().await.map_err(|error| format!("connect: {}", causes(&error)))?;
        tracing::info!(node_id = self.xds.node_id, "connected to the management server");

        let requests = stream::unfold(requests, async |mut requests| {
            requests.recv().await.map(|request| (request, requests))
        });
        let mut request = Request::new(requests);
        for (name, value) in self.xds.header_pairs() {
            // Both are valid in a validated configuration.
            if let (Ok(name), Ok(value)) =
                (name.parse::<AsciiMetadataKey>(), value.parse::<AsciiMetadataValue>())
            {
                request.metadata_mut().append(name, value);
            }
        }
        let path = PathAndQuery::from_static(STREAM_AGGREGATED_RESOURCES);
        let response = grpc.streaming(request, path, ProstCodec::default()).await;
        Ok(response.map_err(|status| format!("open the stream: {}", causes(&status)))?.into_inner())
    }

    /// Applies a response or rejects it; returns the request that tells the server.
    async fn apply(
        &self,
        session: &mut Session,
        mut response: DiscoveryResponse,
    ) -> DiscoveryRequest {
        let resources = std::mem::take(&mut response.resources);
        match self.compile(resources).await {
            Ok(book) => {
                self.handle.finish_load(Ok(book));
                session.acknowledge(&response)
            }
            Err(refusal) => {
                self.handle.finish_load(Err(refusal.in_full()));
                session.reject(&response, &refusal.to_string())
            }
        }
    }

    /// Compiles on a blocking thread: many rules take longer than a request may wait.
    async fn compile(&self, resources: Vec<Any>) -> Result<Book, Refusal> {
        let (options, current) = (self.load.clone(), self.handle.book());
        let compiling = tokio::task::spawn_blocking(move || {
            let mut book = resources::read(&resources, &options)?;
            book.carry_stats(&current);
            Ok(book)
        });
        let panicked = |panicked: JoinError| Err(Refusal::Panicked(panicked.to_string()));
        compiling.await.unwrap_or_else(panicked)
    }

    fn node(&self) -> Node {
        let metadata = self.xds.metadata();
        let metadata: Struct = metadata.map(|(key, text)| (key.to_owned(), text.into())).collect();
        Node {
            id: self.xds.node_id.clone(),
            metadata: Some(metadata),
            user_agent_name: "tidegate".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Without entropy the seed is 0.
    fn backoff(&self) -> ExponentialBackoff {
        let mut seed = [0; 8];
        let _ = self.entropy.fill(&mut seed);
        // The jitter adds up to the delay again, hence the halves.
        let (initial, max) = (self.xds.backoff_initial.to_std(), self.xds.backoff_max.to_std());
        let delays = exponential(initial / 2, max / 2).with_jitter();
        delays.with_jitter_seed(u64::from_le_bytes(seed)).build()
    }
}

/// The endpoint of the server. Files are read each time, so that the next connection uses a renewed
/// certificate.
fn endpoint(xds: &Xds) -> Result<Endpoint, Error> {
    let url = xds.url().unwrap_or_default();
    let endpoint = Endpoint::from_shared(url.clone())
        .map_err(|_| Error::Server { server: url.clone() })?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Some(KEEPALIVE_IDLE))
        .tcp_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .tcp_keepalive_retries(Some(KEEPALIVE_PROBES))
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    if !url.starts_with("https://") {
        return Ok(endpoint);
    }
    endpoint.tls_config(tls(xds)?).map_err(|error| Error::Tls(causes(&error)))
}

fn tls(xds: &Xds) -> Result<ClientTlsConfig, Error> {
    let mut tls = ClientTlsConfig::new();
    tls = match &xds.tls_ca {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read("xds.tls_ca", path)?)),
        None => tls.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&xds.tls_cert, &xds.tls_key) {
        let cert = read("xds.tls_cert", cert)?;
        tls = tls.identity(Identity::from_pem(cert, read("xds.tls_key", key)?));
    }
    if let Some(name) = &xds.server_name {
        tls = tls.domain_name(name.clone());
    }
    Ok(tls)
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Unreadable { key, path: path.to_owned(), source })
}

/// An error with its causes: the text of a tonic error is "transport error" and no more.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.to_string();
        if !text.ends_with(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Span;

    use super::*;

    #[derive(Debug)]
    struct Zeros;

    impl Entropy for Zeros {
        fn fill(&self, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn delays_double_up_to_the_bound_and_are_in_the_upper_half() {
        let xds = Xds {
            server: Some("g:1".into()),
            backoff_initial: Span::from_millis(500),
            backoff_max: Span::from_millis(1_800),
            ..Xds::default()
        };
        let (client, _) = Client::new(xds, load::Options::default(), Arc::new(Zeros)).unwrap();
        let longest = [500, 1_000, 1_800, 1_800, 1_800].map(Duration::from_millis);
        let delays: Vec<_> = client.backoff().take(longest.len()).collect();
        for (delay, longest) in delays.iter().zip(longest) {
            assert!((longest / 2..=longest).contains(delay), "{delay:?} of {longest:?}");
        }
        assert_eq!(client.backoff().take(longest.len()).collect::<Vec<_>>(), delays);
    }
}
