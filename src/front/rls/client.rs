//! A client of the rate limit service, for the command line and for tests.

use http::uri::PathAndQuery;
use tidegate_proto::rls::{RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// A client over one HTTP/2 connection; cheap to clone.
#[derive(Clone, Debug)]
pub struct RlsClient {
    grpc: tonic::client::Grpc<Channel>,
}

impl RlsClient {
    /// Connects with the first call, and again after the connection was lost.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self::over(endpoint.connect_lazy())
    }

    /// A client over an existing connection, such as one with TLS.
    pub fn over(channel: Channel) -> Self {
        Self { grpc: tonic::client::Grpc::new(channel) }
    }

    /// # Errors
    ///
    /// The status that the service returns, or `UNAVAILABLE` if there is no connection.
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
