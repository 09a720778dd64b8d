//! `RateLimitService/ShouldRateLimit`, and the gRPC listener around it.
//!
//! The most frequent call takes the shortest path: calls of the rate limit service are read and
//! answered by [`unary`], everything else goes through tonic's router.

use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body as HttpBody, Incoming};
use prost::Message;
use tidegate_proto::kuadrant_rls;
use tidegate_proto::rls::{RateLimitRequest, RateLimitResponse, SERVICE_NAME, SHOULD_RATE_LIMIT};
use tonic::Status;
use tonic::service::Routes;
use tower::{ServiceExt, service_fn};

use super::health::Health;
use super::request::{check_request, descriptors, overrides_ignored};
use super::response::envoy_response;
use super::timeout;
use super::unary::{self, Body};
use crate::decide::{Decide, Reserve};
use crate::front::bounds::{Bounds, Refusal};
use crate::front::serve::{Endless, HttpService, ListenerStats};
use crate::front::within;

/// The one method whose response is a stream without an end.
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request must not be decided. Nothing was counted for it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The decision took too long.
    #[error("no decision in time; try again")]
    Timeout,
}

/// Decides `request` within `timeout`, and counts it in the statistics of its listener. Used by
/// gRPC and its JSON form.
///
/// # Errors
///
/// If the request is malformed, no rules are loaded, or the decision takes too long.
pub async fn check<D: Decide>(
    decide: &D,
    request: &RateLimitRequest,
    bounds: &Bounds,
    timeout: Duration,
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
    let answer = within(timeout, pin!(decide.decide(check))).await.ok_or(Error::Timeout)?;
    Ok(envoy_response(request, &answer, envoy))
}

/// The service of the gRPC listener: `service`, and health.
pub fn routes<D: Reserve>(
    service: RlsService<D>,
    health: &Health,
) -> impl HttpService<Body = Body> + use<D> {
    let services = Arc::new((service, Routes::new(health.service()).prepare()));
    service_fn(move |request: Request<Incoming>| -> BoxFuture<'static, Result<_, Infallible>> {
        let services = Arc::clone(&services);
        if is_of(SERVICE_NAME, request.uri().path()) {
            let (head, body) = request.into_parts();
            return Box::pin(async move { Ok(services.0.call(&head, body).await) });
        }
        if is_of(kuadrant_rls::SERVICE_NAME, request.uri().path()) {
            let (head, body) = request.into_parts();
            return Box::pin(async move { Ok(services.0.call_kuadrant(&head, body).await) });
        }
        Box::pin(async move {
            let is_endless = request.uri().path() == HEALTH_WATCH;
            let timeout = services.0.bounds.request_timeout;
            let response = pin!(services.1.clone().oneshot(request));
            let Some(response) = within(timeout, response).await else {
                return Ok(unary::response::<RateLimitResponse>(Err(body_too_slow(timeout))));
            };
            let mut response = response?.map(Body::from);
            if is_endless {
                response.extensions_mut().insert(Endless);
            }
            Ok(response)
        })
    })
}

/// The rate limit service over one `Decide`.
#[derive(Debug)]
pub struct RlsService<D> {
    pub decide: Arc<D>,
    pub bounds: Bounds,
    pub stats: Arc<ListenerStats>,
}

impl<D: Decide> RlsService<D> {
    /// The response to a call of any method.
    pub async fn call<B>(&self, head: &Parts, body: B) -> Response<Body>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        unary::response(if head.uri.path() == SHOULD_RATE_LIMIT {
            self.should_rate_limit(&head.headers, body).await
        } else {
            Err(Status::unimplemented(format!(
                "{SERVICE_NAME} has the method ShouldRateLimit alone"
            )))
        })
    }

    async fn should_rate_limit<B>(
        &self,
        headers: &HeaderMap,
        body: B,
    ) -> Result<RateLimitResponse, Status>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        let Self { decide, bounds, stats } = self;
        let (message, timeout) = self.message(headers, body).await?;
        check(&**decide, &message, bounds, timeout, stats).await.map_err(|error| status(&error))
    }

    /// The message of a call, and how long its decision may take.
    pub(super) async fn message<M, B>(
        &self,
        headers: &HeaderMap,
        body: B,
    ) -> Result<(M, Duration), Status>
    where
        M: Message + Default,
        B: HttpBody<Data = Bytes, Error: fmt::Display>,
    {
        let most = self.bounds.request_timeout;
        let timeout = timeout::of(headers).map_or(most, |it| it.min(most));
        let message = pin!(unary::read(headers, body, self.bounds.body_bytes_max));
        let message = within(timeout, message).await;
        Ok((message.ok_or_else(|| body_too_slow(timeout))??, timeout))
    }
}

fn body_too_slow(timeout: Duration) -> Status {
    Status::deadline_exceeded(format!("the message did not arrive within {timeout:?}"))
}

/// Envoy's clients may depend on the code and text of the first three refusals.
pub(super) fn status(error: &Error) -> Status {
    let text = error.to_string();
    match error {
        Error::Refused(Refusal::DomainEmpty | Refusal::DescriptorsEmpty | Refusal::NotLoaded) => {
            Status::unknown(text)
        }
        Error::Refused(_) => Status::invalid_argument(text),
        Error::Timeout => Status::deadline_exceeded(text),
    }
}

/// Whether the path is one of this service, whatever its method.
fn is_of(service: &str, path: &str) -> bool {
    let of_service = path.strip_prefix('/').and_then(|path| path.strip_prefix(service));
    of_service.is_some_and(|method| method.starts_with('/'))
}
