//! The span of a request, for all listeners that speak HTTP: from its head to the head of its
//! response.
//!
//! Only requests that are decided have one: no health checks, no metrics. Neither names nor
//! attributes have what clients may have put into a path, a query or a header.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tower::Service;

use crate::front::serve::HttpService;
use crate::traces::{self, Span, Traces};

/// What requests of a listener are called.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// By their path, if it is one that decides.
    Http,
    /// By service and method.
    Grpc,
    /// By their method alone: the paths are those of an application.
    Proxy,
}

/// A service whose requests have spans.
#[derive(Clone, Debug)]
pub struct Traced<S> {
    service: S,
    traces: Traces,
    form: Form,
}

/// Paths of the HTTP listener that decide. What is below `/auth` is one of them.
const DECIDING: [&str; 7] = [
    "/v1/check",
    "/v1/reserve",
    "/v1/commit",
    "/v1/release",
    "/v1/GetRateLimits",
    "/json",
    "/auth",
];

impl<S: HttpService> Traced<S> {
    pub fn new(service: S, traces: Traces, form: Form) -> Self {
        Self { service, traces, form }
    }

    fn span(&self, request: &Request<Incoming>) -> Option<Span> {
        let path = request.uri().path();
        let (method, headers) = (request.method(), request.headers());
        match self.form {
            Form::Http => {
                let is_of = |known: &&str| {
                    path == *known || *known == "/auth" && path.starts_with("/auth/")
                };
                let route = DECIDING.into_iter().find(is_of)?;
                let span = self.traces.request(|| format!("{method} {route}"), headers)?;
                span.set_text("http.request.method", method.as_str());
                span.set_text("http.route", route);
                Some(span)
            }
            Form::Grpc => {
                let (service, name) = path.strip_prefix('/')?.split_once('/')?;
                if service.starts_with("grpc.") {
                    return None;
                }
                let span = self.traces.request(|| format!("{service}/{name}"), headers)?;
                span.set_text("rpc.system", "grpc");
                span.set_text("rpc.service", service);
                span.set_text("rpc.method", name);
                Some(span)
            }
            Form::Proxy => {
                let span = self.traces.request(|| method.to_string(), headers)?;
                span.set_text("http.request.method", method.as_str());
                Some(span)
            }
        }
    }
}

impl<S: HttpService> Service<Request<Incoming>> for Traced<S> {
    type Response = Response<S::Body>;
    type Error = Infallible;
    type Future = InSpan<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> InSpan<S::Future> {
        let span = if self.traces.is_on() { self.span(&request).map(Arc::new) } else { None };
        InSpan { future: self.service.call(request), span }
    }
}

pin_project! {
    /// Answers a request, as a part of its span.
    #[derive(Debug)]
    pub struct InSpan<F> {
        #[pin]
        future: F,
        span: Option<Arc<Span>>,
    }
}

impl<F, B> Future for InSpan<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answered = ready!(traces::within(this.span.as_ref(), || this.future.poll(cx)));
        if let (Some(span), Ok(response)) = (this.span.take(), &answered) {
            responded(&span, response.status());
        }
        Poll::Ready(answered)
    }
}

fn responded(span: &Span, status: StatusCode) {
    span.set_number("http.response.status_code", status.as_u16().into());
    if status.is_server_error() {
        span.fails();
    }
}
