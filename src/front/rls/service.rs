//! `RateLimitService` on tonic, by hand: what its code generator would write, without it.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::answer::{Unanswered, answer};
use super::health::Health;
use super::message::{RateLimitRequest, RateLimitResponse};
use crate::decide::Decide;
use crate::front::bounds::{Bounds, Refusal};
use crate::front::serve::DoorStats;

/// The service's full name.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its one method.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Everything the gRPC door serves: the rate limit service and health.
pub fn routes<D: Decide>(server: RlsServer<D>, health: &Health) -> tonic::service::Routes {
    tonic::service::Routes::new(server).add_service(health.service()).prepare()
}

/// The rate limit service over one `Decide`.
pub struct RlsServer<D> {
    door: Arc<Door<D>>,
}

struct Door<D> {
    decide: Arc<D>,
    bounds: Bounds,
    stats: Arc<DoorStats>,
}

impl<D: Decide> RlsServer<D> {
    /// A service that asks `decide` whatever is within `bounds`.
    pub fn new(decide: Arc<D>, bounds: Bounds, stats: Arc<DoorStats>) -> Self {
        Self { door: Arc::new(Door { decide, bounds, stats }) }
    }
}

impl<D: Decide> Door<D> {
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

// === impl tower::Service ===

impl<D: Decide> tower::Service<http::Request<tonic::body::Body>> for RlsServer<D> {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Never refused here: the bounds on streams and connections hold requests back.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let door = Arc::clone(&self.door);
        Box::pin(async move {
            if request.uri().path() != SHOULD_RATE_LIMIT {
                let text = format!("{SERVICE_NAME} has the method ShouldRateLimit alone");
                return Ok(Status::unimplemented(text).into_http());
            }
            let body_bytes_max = door.bounds.body_bytes_max;
            let mut grpc =
                Grpc::new(ProstCodec::default()).max_decoding_message_size(body_bytes_max);
            Ok(grpc.unary(ShouldRateLimit { door }, request).await)
        })
    }
}

struct ShouldRateLimit<D> {
    door: Arc<Door<D>>,
}

impl<D: Decide> UnaryService<RateLimitRequest> for ShouldRateLimit<D> {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let door = Arc::clone(&self.door);
        Box::pin(async move { door.should_rate_limit(request.get_ref()).await.map(Response::new) })
    }
}

impl<D> NamedService for RlsServer<D> {
    const NAME: &'static str = SERVICE_NAME;
}

impl<D> Clone for RlsServer<D> {
    fn clone(&self) -> Self {
        Self { door: Arc::clone(&self.door) }
    }
}

impl<D> fmt::Debug for RlsServer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RlsServer").field("bounds", &self.door.bounds).finish_non_exhaustive()
    }
}
