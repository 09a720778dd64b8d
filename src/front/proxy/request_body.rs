//! The body of a request on its way, and how far it has come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use tower::BoxError;

use super::headers;

/// How far the body of a request has come; read while its response is awaited.
#[derive(Debug)]
pub(super) struct Progress {
    state: Mutex<State>,
    /// Held until the body, too, has ended: a server may respond before that.
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

#[derive(Debug)]
struct State {
    /// When a part passed last.
    last: Instant,
    /// The application wants more, and the client has not sent it.
    waits_for_client: bool,
    /// The whole has passed.
    has_ended: bool,
    /// The client has broken it off.
    has_failed: bool,
    /// When what is left of it is cut off, because its response has ended.
    cut_at: Option<Instant>,
    /// Of the task that sends it, while it waits for the client.
    sender: Option<Waker>,
    /// Taken when the body is polled first: until then nothing was sent, and another server can
    /// have it.
    body: Option<Incoming>,
}

/// The body of a request. Clones share it, and the first that is polled has it.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Option<Incoming>,
    progress: Arc<Progress>,
    /// The client speaks HTTP/2.
    is_http2: bool,
    /// Of the whole body.
    size: SizeHint,
    is_empty: bool,
    /// Runs while more is awaited after the response has ended.
    cut: Option<Pin<Box<Sleep>>>,
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
    /// `version` is that of the client. Holds the permit until the body is done with.
    pub(super) fn of(
        body: Incoming,
        version: Version,
        permit: &Arc<OwnedSemaphorePermit>,
    ) -> (Arc<Self>, RequestBody) {
        let (size, is_empty) = (body.size_hint(), body.is_end_stream());
        let is_http2 = version == Version::HTTP_2;
        let state = Mutex::new(State::new(is_empty, Some(body)));
        let progress = Arc::new(Self { state, _permit: Some(Arc::clone(permit)) });
        let shared = Arc::clone(&progress);
        let (body, cut) = (None, None);
        (progress, RequestBody { body, progress: shared, is_http2, size, is_empty, cut })
    }

    pub(super) fn last(&self) -> Instant {
        self.state.lock().last
    }

    pub(super) fn waits_for_client(&self) -> bool {
        self.state.lock().waits_for_client
    }

    /// When the last part passed, if the whole has.
    pub(super) fn ended(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.has_ended.then_some(state.last)
    }

    /// Whether no server has begun to take the body.
    pub(super) fn is_untouched(&self) -> bool {
        self.state.lock().body.is_some()
    }

    /// Whether the client has broken it off.
    pub(super) fn has_failed(&self) -> bool {
        self.state.lock().has_failed
    }

    /// Cuts off what has not passed `after` this time.
    fn cut(&self, after: Duration) {
        let mut state = self.state.lock();
        state.cut_at = Some(Instant::now() + after);
        let sender = state.sender.take();
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

impl State {
    fn new(has_ended: bool, body: Option<Incoming>) -> Self {
        Self {
            last: Instant::now(),
            waits_for_client: false,
            has_ended,
            has_failed: false,
            cut_at: None,
            sender: None,
            body,
        }
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
        self.progress.cut(self.grace);
    }
}

impl RequestBody {
    /// The body of a request without one.
    pub(super) fn empty() -> Self {
        let state = Mutex::new(State::new(true, None));
        let progress = Arc::new(Progress { state, _permit: None });
        let (body, cut, size) = (None, None, SizeHint::with_exact(0));
        Self { body, progress, is_http2: false, size, is_empty: true, cut }
    }
}

impl Clone for RequestBody {
    fn clone(&self) -> Self {
        let Self { progress, is_http2, size, is_empty, .. } = self;
        let (progress, is_http2) = (Arc::clone(progress), *is_http2);
        Self { body: None, progress, is_http2, size: *size, is_empty: *is_empty, cut: None }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, progress, is_http2, cut, .. } = &mut *self;
        let body = match body {
            Some(body) => body,
            None => match progress.state.lock().body.take() {
                Some(taken) => body.insert(taken),
                None => return Poll::Ready(Some(Err(Taken.into()))),
            },
        };
        let polled = poll_part(body, *is_http2, cx);
        let mut state = progress.state.lock();
        state.waits_for_client = polled.is_pending();
        let Poll::Ready(frame) = polled else {
            state.sender = Some(cx.waker().clone());
            let Some(at) = state.cut_at else { return Poll::Pending };
            drop(state);
            let cut = cut.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
            ready!(cut.as_mut().poll(cx));
            return Poll::Ready(Some(Err(Outlived.into())));
        };
        let now = Instant::now();
        state.last = now;
        state.has_ended = frame.is_none() || body.is_end_stream();
        state.has_failed = matches!(frame, Some(Err(_)));
        if !state.has_ended && state.cut_at.is_some_and(|at| at <= now) {
            return Poll::Ready(Some(Err(Outlived.into())));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().map_or(self.is_empty, Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| self.size, Body::size_hint)
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
