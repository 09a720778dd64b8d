//! One HTTP connection, from the accepted socket to its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceExt};

use super::bounds::Bounds;
use super::framing::Framing;
use super::lingering::Lingering;
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

/// In the extensions of a response that is sent for as long as the client wants it.
#[derive(Clone, Copy, Debug)]
pub struct Endless;

/// In the extensions of a response that comes in parts: the time for the client to take the
/// response applies to each part.
#[derive(Clone, Copy, Debug)]
pub struct Streamed;

/// What a listener accepts.
#[derive(Clone, Debug)]
pub enum Protocols {
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    Http,
    /// HTTP/2 only; `None` for plain text.
    Grpc(Option<Tls>),
    /// As `Http`, for requests that are passed on: they carry the [`Framing`] of their connection,
    /// and the connection lingers when it is closed.
    Proxy,
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
    /// The timeouts have to be checked.
    Check,
}

impl Connection {
    /// Serves until the peer closes the connection, a timeout ends it, or a drain has finished it.
    pub(super) async fn run<S: HttpService>(self, stream: TcpStream, service: S) {
        // Responses are small segments; waiting to fill them only adds latency.
        let _ = stream.set_nodelay(true);
        let Protocols::Grpc(Some(tls)) = &self.protocols else {
            return self.serve(Either::Left(stream), service).await;
        };
        if let Some(stream) = self.handshake(tls, stream).await {
            // Boxed: a TLS stream is large, and most listeners have none.
            self.serve(Either::Right(Box::new(stream)), service).await;
        }
    }

    async fn handshake(&self, tls: &Tls, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let handshake = tokio::time::timeout(self.bounds.header_timeout, tls.accept(stream));
        match self.drain.run_until_cancelled(handshake).await? {
            Err(_) => self.stats.slow.add(1),
            Ok(Err(error)) => {
                self.stats.handshake_failed.add(1);
                tracing::debug!(peer = %self.peer, %error, "TLS handshake with a client failed");
            }
            Ok(Ok(stream)) => return Some(stream),
        }
        None
    }

    /// One type of stream, so that hyper is compiled once per service.
    async fn serve<S: HttpService>(
        &self,
        stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
        service: S,
    ) {
        let header_timeout = self.bounds.header_timeout;
        let timeouts = Arc::new(Timeouts::new(&self.bounds, Instant::now()));
        let observer = Arc::clone(&timeouts);
        let is_proxy = matches!(self.protocols, Protocols::Proxy);
        let framing = is_proxy.then(Arc::<Framing>::default);
        let followed = framing.clone();
        let inspected = InspectReader::new(stream, move |received| {
            if observer.measures_headers() {
                observer.read(received, Instant::now());
                if let Some(framing) = &followed {
                    framing.read(received);
                }
            }
        });
        let io = TokioIo::new(Lingering::new(inspected, is_proxy));
        let streams = Streams::default();
        let builder = self.builder(streams.clone());
        let service = self.service(service, Arc::clone(&timeouts), framing);
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut pending = FuturesUnordered::new();
        // A set polls only the futures that were woken. The connection wakes for every read;
        // polling the drain each time would take its lock.
        let mut events: FuturesUnordered<BoxFuture<'_, Event>> = FuturesUnordered::new();
        let check_at = |at| tokio::time::sleep_until(at).map(|()| Event::Check).boxed();
        events.push(self.drain.cancelled().map(|()| Event::Drain).boxed());
        events.push(check_at(Instant::now() + header_timeout.min(self.bounds.send_timeout)));
        let mut is_closing = false;
        loop {
            let event = tokio::select! {
                biased;
                // How a connection ends (reset, bad frame, end of stream) needs no log: hyper has
                // already sent the protocol's error to the peer.
                () = poll_fn(|cx| streams.poll(connection.as_mut(), &mut pending, cx)) => return,
                Some(event) = events.next() => event,
            };
            let next = match event {
                Event::Check => timeouts.check(Instant::now()),
                Event::Drain if is_closing => continue,
                Event::Drain => {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
            };
            match next {
                Next::Wait(until) => events.push(check_at(until)),
                Next::Cut => {
                    self.stats.slow.add(1);
                    return;
                }
                Next::Close if is_closing => return,
                Next::Close => {
                    self.stats.idle.add(1);
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
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
        framing: Option<Arc<Framing>>,
    ) -> impl hyper::service::Service<
        Request<Incoming>,
        Response = Response<impl ResponseBody + use<S>>,
        Error = Infallible,
        Future: Send,
    > + use<S> {
        // Only HTTP requests are limited by address, and an extension is three allocations.
        let is_http = matches!(self.protocols, Protocols::Http | Protocols::Proxy);
        let peer = is_http.then_some(Peer(self.peer));
        service_fn(move |mut request: Request<Incoming>| {
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            if let Some(framing) = &framing {
                request.extensions_mut().insert(Arc::clone(framing));
            }
            let in_flight = timeouts.begin();
            let response = service.clone().oneshot(request);
            async move {
                let response = response.await?;
                let is_endless = response.extensions().get::<Endless>().is_some();
                let is_streamed = response.extensions().get::<Streamed>().is_some();
                let is_unmeasured = is_endless || is_streamed;
                let in_flight = if is_unmeasured { in_flight } else { in_flight.sends() };
                Ok(response.map(|body| InFlightBody { body, in_flight, is_streamed }))
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
            Protocols::Http | Protocols::Proxy => builder,
            Protocols::Grpc(_) => {
                // gRPC clients do not use the date of a response.
                builder.http2().auto_date_header(false);
                builder.http2_only()
            }
        }
    }
}

/// The body of a response, in flight until the client has taken it: a body is dropped as soon as
/// its last data is handed over, and HTTP/2 may keep that data until the client makes room for it.
struct InFlightBody<B> {
    body: B,
    in_flight: InFlight,
    /// Whether the client has time for each part of its own.
    is_streamed: bool,
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
        let Self { body, in_flight, is_streamed } = &mut *self;
        let with_guard = |data| {
            let guard = in_flight.clone();
            let guard = if *is_streamed { guard.sends() } else { guard };
            InFlightData { data, _in_flight: guard }
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
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
    started: Arc<Mutex<Vec<Stream>>>,
}

type Stream = BoxFuture<'static, ()>;

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
        pending: &mut FuturesUnordered<Stream>,
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
