//! One HTTP connection, from the accepted socket to its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{HeaderMap, Request, Response, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tower::{BoxError, ServiceExt};

use super::bounds::{Bounds, MaxAge};
use super::framing::Framing;
use super::lingering::Lingering;
use super::proxy_protocol;
use super::socket::Stream;
use super::stats::ListenerStats;
use super::timeouts::{InFlight, Next, Timeouts};
use super::tls::Tls;

/// Smallest read buffer hyper accepts.
const HTTP1_BUFFER_MIN: usize = 8 * 1024;
/// A peer that is gone must not occupy a connection until the idle timeout, so a quiet HTTP/2
/// connection is pinged.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one stream in flight before the sender waits.
const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;
/// Bytes of one connection in flight before the sender waits; hyper's default is 1 MiB.
const HTTP2_CONNECTION_WINDOW: u32 = 256 * 1024;

/// Bytes of one stream that wait to be sent before its body is asked for more; hyper's default is
/// 400 KiB.
const HTTP2_SEND_BUFFER: usize = 64 * 1024;

/// The address of the client, in the extensions of a request over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// In the extensions of a response of gRPC that is sent for as long as the client wants it, or
/// until the listener drains: then its status is `UNAVAILABLE`.
#[derive(Clone, Copy, Debug)]
pub struct Endless;

/// In the extensions of a response that comes in parts: the time for the client to take the
/// response applies to each part.
#[derive(Clone, Copy, Debug)]
pub struct Streamed;

/// What a listener accepts.
#[derive(Clone, Debug)]
pub enum Protocols {
    /// HTTP/1.1, and HTTP/2 with prior knowledge or by ALPN; `None` for plain text.
    Http(Option<Tls>),
    /// HTTP/2 only; `None` for plain text.
    Grpc(Option<Tls>),
    /// As `Http`, for requests that are passed on: they carry the [`Framing`] of their connection
    /// and its [`Tunnels`], and the connection always lingers when it is closed.
    Proxy {
        /// `None` for plain text.
        tls: Option<Tls>,
        /// Load balancers that begin each connection with a header of the PROXY protocol.
        announcers: Arc<[IpNet]>,
    },
}

/// Runs what a connection becomes when it switches to another protocol, on its task; in the
/// extensions of the requests of a proxy.
#[derive(Clone)]
pub struct Tunnels {
    started: Arc<Mutex<Vec<BoxFuture<'static, ()>>>>,
    lingers: Arc<AtomicBool>,
}

impl Tunnels {
    /// Runs `tunnel` once the response was sent.
    pub fn run(&self, tunnel: impl Future<Output = ()> + Send + 'static) {
        self.lingers.store(false, Ordering::Relaxed);
        self.started.lock().push(tunnel.boxed());
    }
}

/// A service that a listener runs for every request.
pub trait HttpService:
    tower::Service<
        Request<Incoming>,
        Response = Response<Self::Body>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
    type Body: ResponseBody;
}

impl<S, B: ResponseBody> HttpService for S
where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Body = B;
}

/// The body of a response.
pub trait ResponseBody: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static {}

impl<B: Body<Data: Send, Error: Into<BoxError>> + Unpin + Send + 'static> ResponseBody for B {}

/// An accepted connection.
pub(super) struct Connection {
    pub(super) peer: SocketAddr,
    pub(super) protocols: Protocols,
    pub(super) bounds: Bounds,
    pub(super) stats: Arc<ListenerStats>,
    pub(super) drain: CancellationToken,
}

/// What ends or changes a connection besides its own traffic.
enum Event {
    Drain,
    /// The connection is as old as it may become.
    Aged,
    /// The time for what is in flight at an aged connection is over.
    Cut,
    /// The timeouts have to be checked.
    Check,
}

impl Connection {
    /// Serves until the peer closes the connection, a timeout ends it, or a drain has finished it.
    pub(super) async fn run<S: HttpService>(mut self, mut stream: Stream, service: S) {
        // Responses are small segments; waiting to fill them only adds latency.
        if let Either::Left(stream) = &stream {
            let _ = stream.set_nodelay(true);
        }
        if self.announced(&mut stream).await.is_none() {
            return;
        }
        let (Protocols::Http(tls) | Protocols::Grpc(tls) | Protocols::Proxy { tls, .. }) =
            &self.protocols;
        let Some(tls) = tls else {
            return self.serve(Either::Left(stream), service).await;
        };
        let handshake = tls.handshake(stream, self.peer, self.bounds.header_timeout, &self.stats);
        if let Some(Some(stream)) = self.drain.run_until_cancelled(handshake).await {
            // Boxed: a TLS stream is large, and most listeners have none.
            self.serve(Either::Right(Box::new(stream)), service).await;
        }
    }

    /// Reads the address of the client where a load balancer announces it; `None` if it should and
    /// does not.
    async fn announced(&mut self, stream: &mut Stream) -> Option<()> {
        let Protocols::Proxy { announcers, .. } = &self.protocols else { return Some(()) };
        let from = self.peer.ip().to_canonical();
        if !announcers.iter().any(|network| network.contains(&from)) {
            return Some(());
        }
        let header = tokio::time::timeout(proxy_protocol::TIMEOUT, proxy_protocol::read(stream));
        match self.drain.run_until_cancelled(header).await? {
            Err(_) => {
                self.stats.slow.add(1);
                None
            }
            Ok(Err(error)) => {
                self.stats.handshake_failed.add(1);
                tracing::debug!(peer = %self.peer, %error, "closed a connection");
                None
            }
            Ok(Ok(client)) => {
                self.peer = client.unwrap_or(self.peer);
                Some(())
            }
        }
    }

    /// One type of stream, so that hyper is compiled once per service.
    async fn serve<S: HttpService>(
        &self,
        stream: Either<Stream, Box<TlsStream<Stream>>>,
        service: S,
    ) {
        // The connection is dropped by then: a tunnel must not wait for one that has failed.
        if let Some(tunnel) = self.serve_http(stream, service).await {
            tunnel.await;
        }
    }

    /// Serves HTTP; returns what the connection has switched to.
    async fn serve_http<S: HttpService>(
        &self,
        stream: Either<Stream, Box<TlsStream<Stream>>>,
        service: S,
    ) -> Option<BoxFuture<'static, ()>> {
        let timeouts = Arc::new(Timeouts::new(&self.bounds, Instant::now()));
        let observer = Arc::clone(&timeouts);
        let is_proxy = matches!(self.protocols, Protocols::Proxy { .. });
        let lingers = Arc::new(AtomicBool::new(is_proxy));
        let framing = is_proxy.then(Arc::<Framing>::default);
        let tunnels = Tunnels { started: Arc::default(), lingers: lingers.clone() };
        let followed = framing.clone();
        let inspected = InspectReader::new(stream, move |received| {
            if observer.measures_headers() {
                observer.read(received, Instant::now());
                if let Some(framing) = &followed {
                    framing.read(received);
                }
            }
        });
        let io = TokioIo::new(Lingering::new(inspected, lingers.clone()));
        let streams = Streams::default();
        let builder = self.builder(streams.clone());
        let passed_on = framing.map(|framing| (framing, tunnels.clone()));
        let service = self.service(service, Arc::clone(&timeouts), passed_on, lingers.clone());
        // A connection that may switch detects the version of HTTP, also where only one is served.
        let has_ended = if is_proxy {
            let connection = pin!(builder.serve_connection_with_upgrades(io, service));
            self.drive(connection, |it| it.graceful_shutdown(), &timeouts, &streams).await
        } else {
            let connection = pin!(builder.serve_connection(io, service));
            self.drive(connection, |it| it.graceful_shutdown(), &timeouts, &streams).await
        };
        if has_ended { tunnels.started.lock().pop() } else { None }
    }

    /// Polls a connection until it ends, and true is returned, or is to be dropped.
    async fn drive<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        shut_down: fn(Pin<&mut C>),
        timeouts: &Timeouts,
        streams: &Streams,
    ) -> bool {
        let header_timeout = self.bounds.header_timeout;
        let mut pending = FuturesUnordered::new();
        // A set polls only the futures that were woken. The connection wakes for every read;
        // polling the drain each time would take its lock.
        let mut events: FuturesUnordered<BoxFuture<'_, Event>> = FuturesUnordered::new();
        let check_at = |at| tokio::time::sleep_until(at).map(|()| Event::Check).boxed();
        events.push(self.drain.cancelled().map(|()| Event::Drain).boxed());
        events.push(check_at(Instant::now() + header_timeout.min(self.bounds.send_timeout)));
        if let Some(MaxAge { after, .. }) = self.bounds.max_age {
            // Spread, or connections that were opened together would be opened anew together.
            let after = after.mul_f64(0.9 + 0.2 * fastrand::f64());
            events.push(tokio::time::sleep(after).map(|()| Event::Aged).boxed());
        }
        let mut is_closing = false;
        loop {
            let event = tokio::select! {
                biased;
                // How a connection ends (reset, bad frame, end of stream) needs no log: hyper has
                // already sent the protocol's error to the peer.
                () = poll_fn(|cx| streams.poll(connection.as_mut(), &mut pending, cx)) => {
                    return true;
                }
                Some(event) = events.next() => event,
            };
            let next = match event {
                Event::Check => timeouts.check(Instant::now()),
                Event::Drain | Event::Aged if is_closing => continue,
                Event::Drain => {
                    is_closing = true;
                    shut_down(connection.as_mut());
                    continue;
                }
                Event::Aged => {
                    is_closing = true;
                    shut_down(connection.as_mut());
                    let grace = self.bounds.max_age.map_or(Duration::ZERO, |age| age.grace);
                    events.push(tokio::time::sleep(grace).map(|()| Event::Cut).boxed());
                    continue;
                }
                Event::Cut => return false,
            };
            match next {
                Next::Wait(until) => events.push(check_at(until)),
                Next::Cut => {
                    self.stats.slow.add(1);
                    return false;
                }
                Next::Close if is_closing => return false,
                Next::Close => {
                    self.stats.idle.add(1);
                    is_closing = true;
                    shut_down(connection.as_mut());
                    events.push(check_at(Instant::now() + header_timeout));
                }
            }
        }
    }

    /// Runs `service` with the peer's address, and notes each request in `timeouts`.
    fn service<S: HttpService>(
        &self,
        service: S,
        timeouts: Arc<Timeouts>,
        passed_on: Option<(Arc<Framing>, Tunnels)>,
        lingers: Arc<AtomicBool>,
    ) -> impl hyper::service::Service<
        Request<Incoming>,
        Response = Response<impl ResponseBody + use<S>>,
        Error = Infallible,
        Future: Send,
    > + use<S> {
        // Only HTTP requests are limited by address, and an extension is three allocations.
        let is_http = !matches!(self.protocols, Protocols::Grpc(_));
        let drain = self.drain.clone();
        let peer = is_http.then_some(Peer(self.peer));
        service_fn(move |mut request: Request<Incoming>| {
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            if let Some((framing, tunnels)) = &passed_on {
                request.extensions_mut().insert(Arc::clone(framing));
                request.extensions_mut().insert(tunnels.clone());
            } else if is_http && request.version() < Version::HTTP_2 {
                // Over HTTP/2 a stream ends without its connection.
                lingers.store(may_be_unread(request.body()), Ordering::Relaxed);
            }
            let in_flight = timeouts.begin();
            let response = service.clone().oneshot(request);
            let drain = drain.clone();
            async move {
                let response = response.await?;
                let is_endless = response.extensions().get::<Endless>().is_some();
                let is_streamed = response.extensions().get::<Streamed>().is_some();
                let is_unmeasured = is_endless || is_streamed;
                let in_flight = if is_unmeasured { in_flight } else { in_flight.sends() };
                let ends = is_endless.then(|| drain.cancelled_owned().boxed());
                Ok(response.map(|body| InFlightBody { body, in_flight, is_streamed, ends }))
            }
        })
    }

    fn builder(&self, streams: Streams) -> auto::Builder<Streams> {
        let header_bytes_max = self.bounds.header_bytes_max;
        let mut builder = auto::Builder::new(streams);
        builder
            .http1()
            .timer(TokioTimer::new())
            // `Timeouts` distinguishes a slow header from an idle connection; hyper does not.
            .header_read_timeout(None)
            .max_buf_size(usize::try_from(header_bytes_max).unwrap_or(0).max(HTTP1_BUFFER_MIN));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.bounds.streams_max)
            .max_header_list_size(header_bytes_max)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
            .max_send_buf_size(HTTP2_SEND_BUFFER)
            .keep_alive_interval(HTTP2_PING_INTERVAL)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT);
        match self.protocols {
            Protocols::Http(_) | Protocols::Proxy { .. } => builder,
            Protocols::Grpc(_) => {
                // gRPC clients do not use the date of a response.
                builder.http2().auto_date_header(false);
                builder.http2_only()
            }
        }
    }
}

/// Whether a request may be answered while its client still sends this body. What is shorter is in
/// the buffers of the connection by then.
fn may_be_unread(body: &Incoming) -> bool {
    body.size_hint().upper().is_none_or(|bytes| bytes > HTTP1_BUFFER_MIN as u64)
}

/// The body of a response, in flight until the client has taken it: a body is dropped as soon as
/// its last data is handed over, and HTTP/2 may keep that data until the client makes room for it.
struct InFlightBody<B> {
    body: B,
    in_flight: InFlight,
    /// Whether the client has time for each part of its own.
    is_streamed: bool,
    /// When an [`Endless`] one ends all the same.
    ends: Option<BoxFuture<'static, ()>>,
}

/// The trailers of a gRPC response that ends because the listener drains.
fn shutting_down() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // Its text is short and plain.
    let _ = Status::unavailable("the listener is shutting down").add_header(&mut trailers);
    trailers
}

/// Data of a response, dropped when it was written to the socket.
struct InFlightData<D> {
    data: D,
    _in_flight: InFlight,
}

impl<B: ResponseBody> Body for InFlightBody<B> {
    type Data = InFlightData<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let Self { body, in_flight, is_streamed, ends } = &mut *self;
        let with_guard = |data| {
            let guard = in_flight.clone();
            let guard = if *is_streamed { guard.sends() } else { guard };
            InFlightData { data, _in_flight: guard }
        };
        // What it still has to say is sent before it ends.
        let frame = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(ends.as_mut().map_or(Poll::Pending, |ends| ends.poll_unpin(cx)));
                *ends = None;
                return Poll::Ready(Some(Ok(Frame::trailers(shutting_down()))));
            }
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(with_guard))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<D: Buf> Buf for InFlightData<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.data.copy_to_bytes(len)
    }
}

/// Runs HTTP/2 streams on the task of their connection, with which they end.
///
/// A decision that needs no other node does not wait, and its request has usually arrived as a
/// whole with its header. So most streams complete at once, and the responses to all requests of
/// one read leave in one write. Streams that wait do so in a set of the connection.
#[derive(Clone, Default)]
struct Streams {
    /// Started, and not in the set yet.
    started: Arc<Mutex<Vec<RequestStream>>>,
}

type RequestStream = BoxFuture<'static, ()>;

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let mut stream = stream.map(drop).boxed();
        // The noop waker loses no wake-up: the set polls the stream again right away.
        let mut context = Context::from_waker(Waker::noop());
        if stream.poll_unpin(&mut context).is_pending() {
            self.started.lock().push(stream);
        }
    }
}

impl Streams {
    /// Polls `connection` and its pending streams; ready when the connection ends.
    fn poll<C: Future>(
        &self,
        connection: Pin<&mut C>,
        pending: &mut FuturesUnordered<RequestStream>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if connection.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        pending.extend(self.started.lock().drain(..));
        // A stream with a response wakes the connection, which then writes it.
        while let Poll::Ready(Some(())) = pending.poll_next_unpin(cx) {}
        Poll::Pending
    }
}
