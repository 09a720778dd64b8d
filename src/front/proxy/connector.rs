//! Connections to the servers, with TLS for those whose URL begins with `https`.
//!
//! A server must present a certificate for its host name, of an authority of the system or of
//! `proxy.upstream_ca`. That file is read again every [`RELOAD_INTERVAL`]; one that is invalid
//! changes nothing but the log.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use http::Extensions;
use http::uri::{Scheme, Uri};
use hyper_util::client::legacy::connect::{
    CaptureConnection, Connected, Connection, HttpConnector,
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tower::Service;

use crate::config::{Proxy, UserError};
use crate::front::tls;
use crate::reload::files::{RELOAD_INTERVAL, read_again};

/// The versions of HTTP, as names of ALPN.
pub(super) const HTTP1: &[u8] = b"http/1.1";
pub(super) const HTTP2: &[u8] = b"h2";

/// Which servers are trusted; cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerTls {
    roots: Arc<ArcSwap<RootCertStore>>,
    /// Without it, the authorities of the system.
    file: Option<PathBuf>,
}

/// Connects to servers.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: ServerTls,
    /// The version of HTTP that is spoken under TLS.
    alpn: &'static [u8],
    /// For the connection and its handshake.
    timeout: Duration,
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct ServerStream {
    stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    /// Of one that a single request uses at a time.
    closer: Option<Closer>,
}

/// Ends a connection whose task waits for its server.
#[derive(Clone, Debug, Default)]
pub(super) struct Closer(Arc<Closing>);

#[derive(Debug, Default)]
struct Closing {
    is_closed: AtomicBool,
    /// Of the task that reads and writes.
    waker: AtomicWaker,
}

impl ServerTls {
    /// Loads the authorities, if there is a server with TLS.
    ///
    /// # Errors
    ///
    /// The file cannot be read or holds no certificate.
    pub fn of(config: &Proxy) -> Result<Self, UserError> {
        let is_needed = config.upstream.iter().any(|server| server.scheme == Scheme::HTTPS);
        let file = config.upstream_ca.clone();
        let roots = match &file {
            Some(file) => tls::roots(file).map_err(|error| error.of_section("proxy"))?,
            None if is_needed => tls::system_roots().unwrap_or_else(|| {
                // No reason not to start: each server is refused.
                tracing::error!("the system has no authorities; set proxy.upstream_ca");
                RootCertStore::empty()
            }),
            None => RootCertStore::empty(),
        };
        Ok(Self { roots: Arc::new(ArcSwap::from_pointee(roots)), file })
    }

    /// Reads the file again and again.
    pub(super) async fn reload(&self) {
        let Some(file) = &self.file else { return std::future::pending().await };
        let mut problem_before = None;
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let path = file.clone();
            let read = read_again(file, move || tls::roots(&path)).await;
            let mut problem = None;
            match read.and_then(|read| read.map_err(|error| error.to_string())) {
                Ok(roots) if roots.roots == self.roots.load().roots => {}
                Ok(roots) => {
                    self.roots.store(Arc::new(roots));
                    tracing::info!(file = %file.display(), "reloaded the authorities of servers");
                }
                Err(error) => problem = Some(error),
            }
            if problem != problem_before
                && let Some(error) = &problem
            {
                tracing::error!(
                    %error,
                    "failed to reload proxy.upstream_ca; the previous authorities are kept"
                );
            }
            problem_before = problem;
        }
    }

    fn config(&self, alpn: &'static [u8]) -> io::Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(self.roots.load_full())
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(config)
    }
}

impl Connector {
    pub(super) fn new(tls: ServerTls, alpn: &'static [u8], timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        Self { tcp, tls, alpn, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ServerStream>;
    type Error = tower::BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, alpn, timeout, .. } = self.clone();
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let closer = (alpn == HTTP1).then(Closer::default);
        let connecting = self.tcp.call(uri);
        let connected = async move {
            let stream = connecting.await?.into_inner();
            if !is_tls {
                return Ok(TokioIo::new(ServerStream { stream: Either::Left(stream), closer }));
            }
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            let connector = TlsConnector::from(Arc::new(tls.config(alpn)?));
            let stream = Box::new(connector.connect(name, stream).await?);
            Ok(TokioIo::new(ServerStream { stream: Either::Right(stream), closer }))
        };
        async move {
            match tokio::time::timeout(timeout, connected).await {
                Ok(outcome) => outcome,
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        }
        .boxed()
    }
}

impl Closer {
    /// That of the connection of a request, if it is one of HTTP/1.1 and there is one.
    pub(super) fn of(connection: &CaptureConnection) -> Option<Self> {
        let mut extensions = Extensions::new();
        connection.connection_metadata().as_ref()?.get_extras(&mut extensions);
        extensions.remove()
    }

    pub(super) fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// # Errors
    ///
    /// It is closed.
    fn poll(&self, cx: &Context<'_>) -> io::Result<()> {
        self.0.waker.register(cx.waker());
        if self.0.is_closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl ServerStream {
    fn is_open(&self, cx: &Context<'_>) -> io::Result<()> {
        self.closer.as_ref().map_or(Ok(()), |closer| closer.poll(cx))
    }
}

impl Connection for ServerStream {
    fn connected(&self) -> Connected {
        match &self.closer {
            Some(closer) => Connected::new().extra(closer.clone()),
            None => Connected::new(),
        }
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_open(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_open(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.is_open(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_open(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_open(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
