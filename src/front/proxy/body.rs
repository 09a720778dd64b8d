//! The bodies of a request and of its response on their way.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tower::BoxError;

use super::access_log::Record;
use super::failure::{Failure, UpstreamStats};
use super::in_flight::InFlight;

/// How far the body of a request has come; read while its response is awaited.
#[derive(Debug)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When a part passed last.
    last: Instant,
    /// The application wants more, and the client has not sent it.
    waits_for_client: bool,
    /// The whole has passed.
    has_ended: bool,
    /// Taken when the body is polled first: until then nothing was sent, and another server can
    /// have it.
    body: Option<Incoming>,
}

/// The body of a request. Clones share it, and the first that is polled has it.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Option<Incoming>,
    progress: Arc<Progress>,
    /// Of the whole body.
    size: SizeHint,
    is_empty: bool,
}

/// Another server has taken the body.
#[derive(Debug, thiserror::Error)]
#[error("the body of the request was sent already")]
struct Taken;

/// The response stays without a byte for too long.
#[derive(Debug, thiserror::Error)]
#[error("the server has sent nothing for {0:?}")]
struct Idle(Duration);

/// The body of a response: the proxy's own, or that of the application.
#[derive(Debug)]
pub(super) enum ResponseBody {
    Own(Full<Bytes>),
    Passed(Box<PassedBody>),
}

/// The body of a response as it comes from a server, with its first part if that was there already.
#[derive(Debug)]
pub(super) struct ServerBody {
    first: Poll<Option<Frame<Bytes>>>,
    rest: Incoming,
}

/// The body of a response of the application.
#[derive(Debug)]
pub(super) struct PassedBody {
    body: ServerBody,
    idle_timeout: Duration,
    /// Runs while the next part is awaited.
    idle: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    in_flight: InFlight,
    /// Written to the access log when the body ends.
    record: Option<Box<Record>>,
    stats: Arc<UpstreamStats>,
}

impl Progress {
    pub(super) fn of(body: Incoming) -> (Arc<Self>, RequestBody) {
        let (size, is_empty) = (body.size_hint(), body.is_end_stream());
        let state = State::new(is_empty, Some(body));
        let progress = Arc::new(Self(Mutex::new(state)));
        let body = RequestBody { body: None, progress: Arc::clone(&progress), size, is_empty };
        (progress, body)
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
        self.0.lock().body.is_some()
    }
}

impl State {
    fn new(has_ended: bool, body: Option<Incoming>) -> Self {
        Self { last: Instant::now(), waits_for_client: false, has_ended, body }
    }
}

impl RequestBody {
    /// The body of a request without one.
    pub(super) fn empty() -> Self {
        let progress = Arc::new(Progress(Mutex::new(State::new(true, None))));
        Self { body: None, progress, size: SizeHint::with_exact(0), is_empty: true }
    }
}

impl Clone for RequestBody {
    fn clone(&self) -> Self {
        let Self { progress, size, is_empty, .. } = self;
        let progress = Arc::clone(progress);
        Self { body: None, progress, size: *size, is_empty: *is_empty }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, progress, .. } = &mut *self;
        let body = match body {
            Some(body) => body,
            None => match progress.0.lock().body.take() {
                Some(taken) => body.insert(taken),
                None => return Poll::Ready(Some(Err(Taken.into()))),
            },
        };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        let mut state = progress.0.lock();
        state.waits_for_client = polled.is_pending();
        if let Poll::Ready(frame) = polled {
            state.last = Instant::now();
            state.has_ended = frame.is_none() || body.is_end_stream();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().map_or(self.is_empty, Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| self.size, Body::size_hint)
    }
}

impl ServerBody {
    /// Looks at what has come with the head: if it is no body, the response is none. Does not wait.
    pub(super) async fn begin(mut rest: Incoming) -> Result<Self, hyper::Error> {
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut rest).poll_frame(cx)));
        let first = polled.await?;
        Ok(Self { first, rest })
    }
}

impl Body for ServerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match std::mem::replace(&mut self.first, Poll::Pending) {
            Poll::Ready(frame) => Poll::Ready(frame.map(Ok)),
            Poll::Pending => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.first {
            Poll::Ready(first) => first.is_none(),
            Poll::Pending => self.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.rest.size_hint();
        let first = match &self.first {
            Poll::Ready(Some(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
            Poll::Ready(None) | Poll::Pending => 0,
        };
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + first);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + first);
        }
        whole
    }
}

impl ResponseBody {
    pub(super) fn passed(
        body: ServerBody,
        idle_timeout: Duration,
        in_flight: InFlight,
        record: Option<Box<Record>>,
        stats: Arc<UpstreamStats>,
    ) -> Self {
        let (idle, is_waiting) = (None, false);
        let body = PassedBody { body, idle_timeout, idle, is_waiting, in_flight, record, stats };
        Self::Passed(Box::new(body))
    }
}

impl PassedBody {
    /// The response broke off.
    fn fails(&mut self, failure: &Failure) {
        self.stats.count(failure);
        if let Some(record) = &mut self.record {
            record.entry.failure = Some(failure.reason());
        }
    }
}

impl Drop for PassedBody {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.in_flight.is_done();
        }
    }
}

impl Body for PassedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.is_waiting = false;
            match (&mut self.record, &frame) {
                (Some(record), Some(Ok(part))) => {
                    record.passed(part.data_ref().map_or(0, Bytes::len));
                }
                (_, Some(Err(_))) => self.fails(&Failure::Broken),
                _ => {}
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Self { idle_timeout, idle, is_waiting, .. } = &mut *self;
        let until = Instant::now() + *idle_timeout;
        let idle = idle.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if !std::mem::replace(is_waiting, true) {
            idle.as_mut().reset(until);
        }
        ready!(idle.as_mut().poll(cx));
        let idle = Idle(*idle_timeout);
        self.fails(&Failure::ResponseTimeout);
        Poll::Ready(Some(Err(idle.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Own(body) => {
                Pin::new(body).poll_frame(cx).map_err(|infallible| match infallible {})
            }
            Self::Passed(body) => Pin::new(&mut **body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Passed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Passed(body) => body.size_hint(),
        }
    }
}
