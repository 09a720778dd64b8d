//! The body of a request on its way, and how far it has come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tower::BoxError;

use super::at_server::AtServer;
use super::connector::Closer;
use super::headers;

/// How far the body of a request has come; read while its response is awaited.
#[derive(Debug)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct State {
    /// When a part passed last.
    last: Instant,
    /// The application wants more, and the client has not sent it.
    waits_for_client: bool,
    /// The whole has passed.
    has_ended: bool,
    /// The client has broken it off.
    has_failed: bool,
    /// What is left of it does not pass any more.
    is_cut: bool,
    /// Of the task that sends it, while it waits for the client.
    sender: Option<Waker>,
    /// Taken when the body is polled first: until then nothing was sent, and another server can
    /// have it.
    is_taken: bool,
    /// Until it has ended or is cut off.
    body: Option<Incoming>,
    /// Held for as long: a server may respond before the end.
    at_server: Option<Arc<AtServer>>,
    /// The connection that it is sent on, for as long.
    connection: Option<CaptureConnection>,
}

/// The body of a request. Clones share it, and the first that is polled has it.
#[derive(Debug)]
pub(super) struct RequestBody {
    progress: Arc<Progress>,
    has_taken: bool,
    /// The client speaks HTTP/2.
    is_http2: bool,
    /// Of the whole body.
    size: SizeHint,
    is_empty: bool,
}

/// What a client sends for a response. When this is dropped, the response has ended, and what is
/// left of it has some time to pass: a client can read the response and go on with its connection.
#[derive(Debug)]
pub(super) struct Upload {
    progress: Arc<Progress>,
    /// That time: none where there is no response.
    grace: Duration,
}

/// Another server has taken the body.
#[derive(Debug, thiserror::Error)]
#[error("the body of the request was sent already")]
struct Taken;

/// The response has ended, and the body of the request has not in the time after it.
#[derive(Debug, thiserror::Error)]
#[error("the response has ended before the body of the request")]
struct Outlived;

/// A stream of HTTP/2 was reset before its last frame.
#[derive(Debug, thiserror::Error)]
#[error("the stream was reset")]
struct Reset;

impl Progress {
    /// `version` is that of the client.
    pub(super) fn of(body: Incoming, version: Version) -> (Arc<Self>, RequestBody) {
        let (size, is_empty) = (body.size_hint(), body.is_end_stream());
        let progress = Self::new(is_empty, Some(body));
        let body = RequestBody {
            progress: Arc::clone(&progress),
            has_taken: false,
            is_http2: version == Version::HTTP_2,
            size,
            is_empty,
        };
        (progress, body)
    }

    fn new(has_ended: bool, body: Option<Incoming>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            last: Instant::now(),
            waits_for_client: false,
            has_ended,
            has_failed: false,
            is_cut: false,
            sender: None,
            is_taken: false,
            body,
            at_server: None,
            connection: None,
        })))
    }

    /// The request goes to a server, on a connection that is known when it is there.
    pub(super) fn is_sent(&self, at_server: &Arc<AtServer>, request: &mut Request<RequestBody>) {
        let mut state = self.0.lock();
        if !state.has_ended {
            state.at_server = Some(Arc::clone(at_server));
            state.connection = Some(capture_connection(request));
        }
    }

    pub(super) fn last(&self) -> Instant {
        self.0.lock().last
    }

    pub(super) fn waits_for_client(&self) -> bool {
        self.0.lock().waits_for_client
    }

    /// When the last part passed, if the whole has.
    pub(super) fn ended(&self) -> Option<Instant> {
        let state = self.0.lock();
        state.has_ended.then_some(state.last)
    }

    /// Whether no server has begun to take the body.
    pub(super) fn is_untouched(&self) -> bool {
        !self.0.lock().is_taken
    }

    /// Whether the client has broken it off.
    pub(super) fn has_failed(&self) -> bool {
        self.0.lock().has_failed
    }

    /// Cuts off what has not passed `after` this time.
    fn cut_after(self: &Arc<Self>, after: Duration) {
        if self.0.lock().connection.is_none() {
            return;
        }
        let Some(runtime) = Handle::try_current().ok().filter(|_| !after.is_zero()) else {
            return self.cut();
        };
        // What ends before that holds nothing until then.
        let progress = Arc::downgrade(self);
        runtime.spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(progress) = progress.upgrade() {
                progress.cut();
            }
        });
    }

    /// Ends the connection to the server, too: one that does not read what was sent would hold it,
    /// and its task, for as long as it likes. A server of HTTP/2 has other requests there.
    fn cut(&self) {
        let mut state = self.0.lock();
        if state.connection.is_none() {
            return;
        }
        state.is_cut = true;
        let rest = (state.body.take(), state.at_server.take());
        let (sender, connection) = (state.sender.take(), state.connection.take());
        drop(state);
        drop(rest);
        if let Some(sender) = sender {
            sender.wake();
        }
        if let Some(closer) = connection.as_ref().and_then(Closer::of) {
            closer.close();
        }
    }
}

impl State {
    /// Nothing more of the body is sent; the connection may have the next request.
    fn is_over(&mut self) {
        self.at_server = None;
        self.connection = None;
    }
}

impl Upload {
    pub(super) fn of(progress: &Arc<Progress>) -> Self {
        Self { progress: Arc::clone(progress), grace: Duration::ZERO }
    }

    /// There is a response: it may go on for so long after that.
    pub(super) fn may_go_on(&mut self, grace: Duration) {
        self.grace = grace;
    }

    pub(super) fn has_failed(&self) -> bool {
        self.progress.has_failed()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.progress.cut_after(self.grace);
    }
}

impl RequestBody {
    /// The body of a request without one.
    pub(super) fn empty() -> Self {
        let progress = Progress::new(true, None);
        let size = SizeHint::with_exact(0);
        Self { progress, has_taken: false, is_http2: false, size, is_empty: true }
    }
}

impl Clone for RequestBody {
    fn clone(&self) -> Self {
        let Self { ref progress, is_http2, size, is_empty, .. } = *self;
        Self { progress: Arc::clone(progress), has_taken: false, is_http2, size, is_empty }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if self.has_taken {
            let mut state = self.progress.0.lock();
            state.is_over();
            let rest = state.body.take();
            drop(state);
            drop(rest);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { progress, has_taken, is_http2, .. } = &mut *self;
        let mut state = progress.0.lock();
        if !*has_taken && std::mem::replace(&mut state.is_taken, true) {
            return Poll::Ready(Some(Err(Taken.into())));
        }
        *has_taken = true;
        let Some(body) = &mut state.body else {
            let cut = || Err(Outlived.into());
            return Poll::Ready(state.is_cut.then(cut));
        };
        let polled = poll_part(body, *is_http2, cx);
        let is_end = body.is_end_stream();
        state.waits_for_client = polled.is_pending();
        let Poll::Ready(frame) = polled else {
            state.sender = Some(cx.waker().clone());
            return Poll::Pending;
        };
        state.last = Instant::now();
        state.has_ended = frame.is_none() || is_end;
        state.has_failed = matches!(frame, Some(Err(_)));
        if state.has_ended {
            state.is_over();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let state = self.progress.0.lock();
        let body = state.body.as_ref().filter(|_| self.has_taken);
        body.map_or(self.is_empty, Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.progress.0.lock();
        let body = state.body.as_ref().filter(|_| self.has_taken);
        body.map_or(self.size, Body::size_hint)
    }
}

/// The next part of a body. hyper takes a stream that was reset with `NO_ERROR` for one that has
/// ended, because a server resets with that what it need not read (RFC 9113, 8.1); but a message
/// has ended only if its last frame has said so.
pub(super) fn poll_part(
    body: &mut Incoming,
    is_http2: bool,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    let part = ready!(Pin::new(&mut *body).poll_frame(cx));
    Poll::Ready(match part {
        Some(Ok(mut part)) => {
            if let Some(trailers) = part.trailers_mut() {
                headers::pass_trailers(trailers);
            }
            Some(Ok(part))
        }
        Some(Err(error)) => Some(Err(error.into())),
        None if is_http2 && !body.is_end_stream() => Some(Err(Reset.into())),
        None => None,
    })
}
