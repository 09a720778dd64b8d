//! A typed client of the rate limit service, for the command line and for tests.

use http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::message::{RateLimitRequest, RateLimitResponse};
use super::service::SHOULD_RATE_LIMIT;

/// A client over one HTTP/2 connection; cheap to clone.
#[derive(Clone, Debug)]
pub struct RlsClient {
    grpc: tonic::client::Grpc<Channel>,
}

impl RlsClient {
    /// A client of `endpoint`, which may say timeouts. Connects with the first call, and again
    /// after the connection was lost.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { grpc: tonic::client::Grpc::new(endpoint.connect_lazy()) }
    }

    /// A client on a connection that somebody else made, such as one under TLS.
    pub fn over(channel: Channel) -> Self {
        Self { grpc: tonic::client::Grpc::new(channel) }
    }

    /// Asks whether the request may pass.
    pub async fn should_rate_limit(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        self.grpc
            .ready()
            .await
            .map_err(|error| Status::unavailable(format!("connect to the service: {error}")))?;
        let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
        let response = self.grpc.unary(Request::new(request), path, ProstCodec::default()).await?;
        Ok(response.into_inner())
    }
}
