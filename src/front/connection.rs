//! One connection of a door: from the accepted socket to its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::bounds::Bounds;
use super::serve::{ListenerStats, Peer, Protocols};
use super::timeouts::{InFlight, Next, Timeouts};
use super::tls::Tls;

/// Smallest read buffer hyper accepts.
const HTTP1_BUFFER_MIN: usize = 8 * 1024;
/// How often a silent HTTP/2 peer is asked whether it is still there, and how long it may take. A
/// peer that vanished must not hold one of the connections until the idle timeout.
const HTTP2_PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// Bytes of one stream in flight before the sender waits.
const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;
/// Bytes of one connection in flight before the sender waits; hyper's own is 1 MiB.
const HTTP2_CONNECTION_WINDOW: u32 = 256 * 1024;

/// What may happen beside the conversation.
enum Beside {
    /// The node drains.
    Drain,
    /// It is time to ask whether patience is at its end.
    Look,
}

/// What one connection needs to know.
pub(super) struct Connection {
    pub(super) peer: SocketAddr,
    pub(super) protocols: Protocols,
    pub(super) tls: Option<Tls>,
    pub(super) bounds: Bounds,
    pub(super) stats: Arc<ListenerStats>,
    pub(super) drain: CancellationToken,
}

impl Connection {
    /// Serves until the peer ends the connection, patience does, or a drain has finished it.
    pub(super) async fn run<S, B>(self, stream: TcpStream, service: S)
    where
        S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send + 'static,
        B: Body + Unpin + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // An answer is one small segment; waiting to fill it only adds latency.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.converse(stream, service).await };
        let handshake = tokio::time::timeout(self.bounds.header_timeout, tls.accept(stream));
        match self.drain.run_until_cancelled(handshake).await {
            None => {}
            Some(Err(_)) => self.stats.slow.add(1),
            Some(Ok(Err(error))) => {
                self.stats.unshaken.add(1);
                tracing::debug!(peer = %self.peer, %error, "shake hands with a client");
            }
            // Boxed: a TLS stream is large, and most doors have none.
            Some(Ok(Ok(stream))) => Box::pin(self.converse(stream, service)).await,
        }
    }

    /// Serves a stream that is ready to be spoken on.
    async fn converse<I, S, B>(&self, stream: I, service: S)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send + 'static,
        B: Body + Unpin + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Bounds { header_timeout, idle_timeout, .. } = self.bounds;
        let timeouts = Arc::new(Timeouts::new(header_timeout, idle_timeout, Instant::now()));
        let io = TokioIo::new(Watched { stream, timeouts: Arc::clone(&timeouts) });

        // Who asks is told by addresses over HTTP alone, and an extension is three allocations.
        let peer = (self.protocols == Protocols::Http).then_some(Peer(self.peer));
        let watch = Arc::clone(&timeouts);
        let service = service_fn(move |mut request: Request<Incoming>| {
            if let Some(peer) = peer {
                request.extensions_mut().insert(peer);
            }
            let in_flight = watch.begin();
            let answer = service.clone().oneshot(request);
            async move {
                let response = answer.await?;
                Ok::<_, Infallible>(response.map(|body| Held { body, _in_flight: in_flight }))
            }
        });

        let streams = Streams::default();
        let builder = self.builder(streams.clone());
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut waiting = FuturesUnordered::new();
        // Each in a place of its own that is looked at only when it woke: the connection wakes for
        // every read, and they would all ask the one lock of the drain.
        let mut beside: FuturesUnordered<BoxFuture<'_, Beside>> = FuturesUnordered::new();
        let look_at = |at| tokio::time::sleep_until(at).map(|()| Beside::Look).boxed();
        beside.push(self.drain.cancelled().map(|()| Beside::Drain).boxed());
        beside.push(look_at(Instant::now() + header_timeout));
        let mut is_closing = false;
        loop {
            let woke = tokio::select! {
                biased;
                // How a connection ends (reset, bad frame, end of stream) is the peer's matter; the
                // protocol's own error was already sent to it.
                () = poll_fn(|cx| streams.poll(connection.as_mut(), &mut waiting, cx)) => return,
                Some(woke) = beside.next() => woke,
            };
            let next = match woke {
                Beside::Look => timeouts.check(Instant::now()),
                Beside::Drain if is_closing => continue,
                Beside::Drain => {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
            };
            match next {
                Next::Wait(until) => beside.push(look_at(until)),
                Next::Cut => {
                    self.stats.slow.add(1);
                    return;
                }
                Next::Close if is_closing => return,
                Next::Close => {
                    self.stats.idle.add(1);
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                    beside.push(look_at(Instant::now() + header_timeout));
                }
            }
        }
    }

    fn builder(&self, streams: Streams) -> auto::Builder<Streams> {
        let header_bytes_max = self.bounds.header_bytes_max;
        let mut builder = auto::Builder::new(streams);
        builder
            .http1()
            .timer(TokioTimer::new())
            // `Timeouts` tells a slow header from an idle connection; hyper's timer does not.
            .header_read_timeout(None)
            .max_buf_size(usize::try_from(header_bytes_max).unwrap_or(0).max(HTTP1_BUFFER_MIN));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.bounds.streams_max)
            .max_header_list_size(header_bytes_max)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
            .keep_alive_interval(HTTP2_PING.0)
            .keep_alive_timeout(HTTP2_PING.1);
        match self.protocols {
            Protocols::Http => builder,
            Protocols::Grpc => {
                // No caller asks a gRPC answer for its date.
                builder.http2().auto_date_header(false);
                builder.http2_only()
            }
        }
    }
}

/// Runs HTTP/2 streams on their connection's own task, with which they end.
///
/// A decision that needs nobody else is made without waiting, and its request is usually all there
/// when its header is. So most streams are done at once, and the answers to all requests of one
/// read leave in one write. What has to wait does so in the connection's own set.
#[derive(Clone, Default)]
struct Streams {
    /// Begun, and not in the set yet.
    begun: Arc<Mutex<Vec<Stream>>>,
}

type Stream = BoxFuture<'static, ()>;

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let mut stream = stream.map(drop).boxed();
        // Nothing is lost by a waker that wakes nobody: the set polls it again right away.
        let mut nobody = Context::from_waker(Waker::noop());
        if stream.poll_unpin(&mut nobody).is_pending() {
            self.begun.lock().push(stream);
        }
    }
}

impl Streams {
    /// Moves `connection` and the streams that wait on it forward, until it ends.
    fn poll<C: Future>(
        &self,
        connection: Pin<&mut C>,
        waiting: &mut FuturesUnordered<Stream>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if connection.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        waiting.extend(self.begun.lock().drain(..));
        // A stream that has something to say wakes the connection, which says it the next time.
        while let Poll::Ready(Some(())) = waiting.poll_next_unpin(cx) {}
        Poll::Pending
    }
}

/// A response body that keeps its request in flight until it is gone.
struct Held<B> {
    body: B,
    _in_flight: InFlight,
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose arriving bytes are shown to [`Timeouts`].
struct Watched<I> {
    stream: I,
    timeouts: Arc<Timeouts>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(arrived) = buf.filled().get(before..)
            && !arrived.is_empty()
            && self.timeouts.wants_bytes()
        {
            self.timeouts.read(arrived, Instant::now());
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
