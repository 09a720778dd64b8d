//! `RateLimitService` by hand, and the gRPC door around it.
//!
//! What is asked most goes the shortest way: the path of the rate limit service is looked for
//! first and its calls are read and answered by [`unary`]; everything else is tonic's.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Incoming};
use tonic::Status;
use tonic::service::Routes;
use tower::ServiceExt;

use super::answer::{Unanswered, answer};
use super::health::Health;
use super::message::{RateLimitRequest, RateLimitResponse};
use super::unary::{self, Body};
use crate::decide::Decide;
use crate::front::bounds::{Bounds, Refusal};
use crate::front::serve::ListenerStats;

/// The service's full name.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its one method.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Everything the gRPC door serves: the rate limit service and health.
pub fn routes<D: Decide>(server: RlsServer<D>, health: &Health) -> GrpcListener<D> {
    let others = Routes::new(health.service()).prepare();
    GrpcListener { all: Arc::new(All { server, others }) }
}

/// What the gRPC door serves; see [`routes`].
pub struct GrpcListener<D> {
    all: Arc<All<D>>,
}

struct All<D> {
    server: RlsServer<D>,
    others: Routes,
}

/// The rate limit service over one `Decide`.
pub struct RlsServer<D> {
    listener: Arc<Listener<D>>,
}

struct Listener<D> {
    decide: Arc<D>,
    bounds: Bounds,
    stats: Arc<ListenerStats>,
}

impl<D: Decide> RlsServer<D> {
    /// A service that asks `decide` whatever is within `bounds`.
    pub fn new(decide: Arc<D>, bounds: Bounds, stats: Arc<ListenerStats>) -> Self {
        Self { listener: Arc::new(Listener { decide, bounds, stats }) }
    }
}

impl<D: Decide> Listener<D> {
    async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        answer(&*self.decide, request, &self.bounds, &self.stats).await.map_err(|why| match &why {
            Unanswered::Refused(refusal) => status(refusal),
            Unanswered::Late => Status::deadline_exceeded(why.to_string()),
        })
    }
}

/// Envoy's clients know the first three by code and text.
fn status(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::DomainEmpty | Refusal::DescriptorsEmpty | Refusal::NotLoaded => {
            Status::unknown(refusal.to_string())
        }
        _ => Status::invalid_argument(refusal.to_string()),
    }
}

impl<D: Decide> RlsServer<D> {
    async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: fmt::Display,
    {
        let listener = &*self.listener;
        let outcome = if request.uri().path() == SHOULD_RATE_LIMIT {
            match unary::read(request, listener.bounds.body_bytes_max).await {
                Ok(message) => listener.should_rate_limit(&message).await,
                Err(status) => Err(status),
            }
        } else {
            let text = format!("{SERVICE_NAME} has the method ShouldRateLimit alone");
            Err(Status::unimplemented(text))
        };
        unary::response(outcome)
    }
}

/// Whether a path is the rate limit service's, whatever its method.
fn is_rls(path: &str) -> bool {
    let of_service = path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME));
    of_service.is_some_and(|method| method.starts_with('/'))
}

// === impl tower::Service ===

impl<D, B> tower::Service<Request<B>> for RlsServer<D>
where
    D: Decide,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: fmt::Display + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Never refused here: the bounds on streams and connections hold requests back.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move { Ok(server.answer(request).await) })
    }
}

impl<D: Decide> tower::Service<Request<Incoming>> for GrpcListener<D> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // As above.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let all = Arc::clone(&self.all);
        if is_rls(request.uri().path()) {
            return Box::pin(async move { Ok(all.server.answer(request).await) });
        }
        Box::pin(async move {
            let response = all.others.clone().oneshot(request).await?;
            Ok(response.map(Body::from))
        })
    }
}

impl<D> Clone for GrpcListener<D> {
    fn clone(&self) -> Self {
        Self { all: Arc::clone(&self.all) }
    }
}

impl<D> fmt::Debug for GrpcListener<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcDoor").field("server", &self.all.server).finish_non_exhaustive()
    }
}

impl<D> Clone for RlsServer<D> {
    fn clone(&self) -> Self {
        Self { listener: Arc::clone(&self.listener) }
    }
}

impl<D> fmt::Debug for RlsServer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RlsServer").field("bounds", &self.listener.bounds).finish_non_exhaustive()
    }
}
