//! The body of a response on its way.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};
use tower::BoxError;

use super::access_log::Record;
use super::failure::{Failure, UpstreamStats};
use super::in_flight::InFlight;
use super::request_body::poll_part;

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
    is_http2: bool,
}

/// The body of a response of the application.
#[derive(Debug)]
pub(super) struct PassedBody {
    body: ServerBody,
    idle_timeout: Duration,
    /// Runs while the next part is awaited.
    idle: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    /// The last byte has come.
    has_ended: bool,
    /// How the response broke off; reported after what has passed was sent.
    error: Option<BoxError>,
    in_flight: InFlight,
    /// Written to the access log when the body ends.
    record: Option<Box<Record>>,
    stats: Arc<UpstreamStats>,
}

impl ServerBody {
    /// Looks at what has come with the head: if it is no body, the response is none. Does not wait.
    pub(super) async fn begin(mut rest: Incoming, version: Version) -> Result<Self, BoxError> {
        let is_http2 = version == Version::HTTP_2;
        let polled = poll_fn(|cx| Poll::Ready(poll_part(&mut rest, is_http2, cx)));
        let first = polled.await?;
        Ok(Self { first, rest, is_http2 })
    }
}

impl Body for ServerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { first, rest, is_http2 } = &mut *self;
        match std::mem::replace(first, Poll::Pending) {
            Poll::Ready(frame) => Poll::Ready(frame.map(Ok)),
            Poll::Pending => poll_part(rest, *is_http2, cx),
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
        Self::Passed(Box::new(PassedBody {
            body,
            idle_timeout,
            idle: None,
            is_waiting: false,
            has_ended: false,
            error: None,
            in_flight,
            record,
            stats,
        }))
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
        // That of a body without a length is not known before it has come.
        if self.has_ended || self.body.is_end_stream() {
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
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let has_waited = std::mem::replace(&mut self.is_waiting, false);
            match &frame {
                Some(Ok(part)) => {
                    self.has_ended = part.is_trailers();
                    if let Some(record) = &mut self.record {
                        record.passed(part.data_ref().map_or(0, Bytes::len));
                    }
                }
                Some(Err(_)) if self.in_flight.has_failed_upload() => {
                    self.fails(&Failure::ClientBody);
                }
                Some(Err(_)) => self.fails(&Failure::Broken),
                None => self.has_ended = true,
            }
            let Some(Err(error)) = frame else { return Poll::Ready(frame) };
            if has_waited {
                return Poll::Ready(Some(Err(error)));
            }
            // At an error hyper drops what it has not written, the head of the response with it.
            self.error = Some(error);
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
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
