//! `RateLimitService/ShouldRateLimit`, and the gRPC listener around it.
//!
//! The most frequent call takes the shortest path: calls of the rate limit service are read and
//! answered by [`unary`], everything else goes through tonic's router.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Incoming};
use tidegate_proto::rls::{RateLimitRequest, RateLimitResponse, SERVICE_NAME, SHOULD_RATE_LIMIT};
use tonic::Status;
use tonic::service::Routes;
use tower::ServiceExt;

use super::health::Health;
use super::request::{check_request, descriptors, overrides_ignored};
use super::response::envoy_response;
use super::unary::{self, Body};
use crate::decide::Decide;
use crate::front::bounds::{Bounds, Refusal};
use crate::front::serve::ListenerStats;
use crate::front::within;

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request must not be decided. Nothing was counted for it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The decision took longer than [`Bounds::request_timeout`].
    #[error("no decision in time; try again")]
    Timeout,
}

/// Decides `request` and counts it in the statistics of its listener. Used by gRPC and its JSON
/// form.
///
/// # Errors
///
/// If the request is malformed, no rules are loaded, or the decision takes too long.
pub async fn check<D: Decide>(
    decide: &D,
    request: &RateLimitRequest,
    bounds: &Bounds,
    stats: &ListenerStats,
) -> Result<RateLimitResponse, Error> {
    let descriptors = descriptors(request, bounds).and_then(|descriptors| {
        if decide.is_loaded() { Ok(descriptors) } else { Err(Refusal::NotLoaded) }
    });
    let descriptors = descriptors.inspect_err(|_| {
        stats.refused.add(1);
        if let Some(tallies) = decide.tallies() {
            tallies.service.service_error.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    let envoy = decide.envoy();
    let ignored = overrides_ignored(request, envoy.overrides);
    // Rarely any: a write here would invalidate a cache line that all cores share.
    if ignored > 0 {
        stats.overrides.add(ignored);
    }
    let check = check_request(request, &descriptors, true);
    let answer =
        within(bounds.request_timeout, decide.decide(check)).await.ok_or(Error::Timeout)?;
    Ok(envoy_response(request, &answer, envoy))
}

/// The services of the gRPC listener: the rate limit service and health.
pub fn routes<D: Decide>(server: RlsServer<D>, health: &Health) -> GrpcListener<D> {
    let others = Routes::new(health.service()).prepare();
    GrpcListener { services: Arc::new(Services { server, others }) }
}

/// The services of the gRPC listener; see [`routes`].
pub struct GrpcListener<D> {
    services: Arc<Services<D>>,
}

struct Services<D> {
    server: RlsServer<D>,
    others: Routes,
}

/// The rate limit service over one `Decide`.
pub struct RlsServer<D> {
    state: Arc<State<D>>,
}

struct State<D> {
    decide: Arc<D>,
    bounds: Bounds,
    stats: Arc<ListenerStats>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<D: Decide> RlsServer<D> {
    /// A service that passes requests within `bounds` to `decide`.
    pub fn new(decide: Arc<D>, bounds: Bounds, stats: Arc<ListenerStats>) -> Self {
        Self { state: Arc::new(State { decide, bounds, stats }) }
    }

    async fn call<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: fmt::Display,
    {
        let outcome = if request.uri().path() == SHOULD_RATE_LIMIT {
            self.should_rate_limit(request).await
        } else {
            Err(Status::unimplemented(format!(
                "{SERVICE_NAME} has the method ShouldRateLimit alone"
            )))
        };
        unary::response(outcome)
    }

    async fn should_rate_limit<B>(&self, request: Request<B>) -> Result<RateLimitResponse, Status>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: fmt::Display,
    {
        let State { decide, bounds, stats } = &*self.state;
        let message = unary::read(request, bounds.body_bytes_max).await?;
        check(&**decide, &message, bounds, stats).await.map_err(|error| status(&error))
    }
}

/// Envoy's clients may depend on the code and text of the first three refusals.
fn status(error: &Error) -> Status {
    let text = error.to_string();
    match error {
        Error::Refused(Refusal::DomainEmpty | Refusal::DescriptorsEmpty | Refusal::NotLoaded) => {
            Status::unknown(text)
        }
        Error::Refused(_) => Status::invalid_argument(text),
        Error::Timeout => Status::deadline_exceeded(text),
    }
}

/// Whether the path is one of the rate limit service, whatever its method.
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
        // Always ready: the bounds on streams and connections limit the requests in flight.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move { Ok(server.call(request).await) })
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
        let services = Arc::clone(&self.services);
        if is_rls(request.uri().path()) {
            return Box::pin(async move { Ok(services.server.call(request).await) });
        }
        Box::pin(async move {
            let response = services.others.clone().oneshot(request).await?;
            Ok(response.map(Body::from))
        })
    }
}

impl<D> Clone for GrpcListener<D> {
    fn clone(&self) -> Self {
        Self { services: Arc::clone(&self.services) }
    }
}

impl<D> fmt::Debug for GrpcListener<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcListener")
            .field("server", &self.services.server)
            .finish_non_exhaustive()
    }
}

impl<D> Clone for RlsServer<D> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<D> fmt::Debug for RlsServer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RlsServer").field("bounds", &self.state.bounds).finish_non_exhaustive()
    }
}
