//! The gRPC listener.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body as HttpBody, Incoming};
use prost::Message;
use tidegate_proto::gubernator::{
    GetRateLimitsReq, GetRateLimitsResp, HealthCheckReq, HealthCheckResp, LiveCheckReq,
    LiveCheckResp, SERVICE_NAME,
};
use tonic::{Code, Status};
use tower::service_fn;

use super::service::{GubernatorListener, requests_in, too_large};
use super::{MESSAGE_BYTES_MAX, REQUESTS_MAX};
use crate::decide::DecideCarried;
use crate::front::rls::timeout;
use crate::front::rls::unary::{self, Body, ReadError};
use crate::front::serve::HttpService;
use crate::front::{Probes, cross_site, within};

/// The service of the gRPC listener.
pub fn grpc_routes<D: DecideCarried, P: Probes>(
    listener: Arc<GubernatorListener<D, P>>,
) -> impl HttpService<Body = Body> + use<D, P> {
    service_fn(move |request: Request<Incoming>| -> BoxFuture<'static, Result<_, Infallible>> {
        let listener = Arc::clone(&listener);
        Box::pin(async move { Ok(listener.call(request).await) })
    })
}

impl<D: DecideCarried, P: Probes> GubernatorListener<D, P> {
    /// The response to a call of any method.
    pub async fn call<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes, Error: std::fmt::Display>,
    {
        let (head, body) = request.into_parts();
        if let Err(error) = cross_site::check(&head) {
            let status = Status::permission_denied(error.to_string());
            return unary::response::<LiveCheckResp>(Err(status));
        }
        let (path, headers) = (head.uri.path(), &head.headers);
        let (service, method) =
            path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default();
        if service != SERVICE_NAME {
            let status = Status::unimplemented(format!("unknown service {service}"));
            return unary::response::<LiveCheckResp>(Err(status));
        }
        match method {
            "GetRateLimits" => {
                let answered = self.get_rate_limits(headers, body).await;
                self.calls.ended(answered.is_ok());
                unary::response(answered)
            }
            "HealthCheck" => unary::response(self.health_check(headers, body).await),
            "LiveCheck" => unary::response(self.live_check(headers, body).await),
            _ => {
                let text = format!("unknown method {method} for service {SERVICE_NAME}");
                unary::response::<LiveCheckResp>(Err(Status::unimplemented(text)))
            }
        }
    }

    async fn get_rate_limits<B>(
        &self,
        headers: &HeaderMap,
        body: B,
    ) -> Result<GetRateLimitsResp, Status>
    where
        B: HttpBody<Data = Bytes, Error: std::fmt::Display>,
    {
        let (message, timeout) = self.message(headers, body).await?;
        let count = requests_in(&message);
        // What is refused is not read.
        let requests = if count > REQUESTS_MAX {
            Vec::new()
        } else {
            self.decoded::<GetRateLimitsReq>(message)?.requests
        };
        let answered = pin!(self.rate_limits(&requests, count));
        within(timeout, answered).await.ok_or_else(|| too_slow(timeout))?
    }

    async fn health_check<B>(&self, headers: &HeaderMap, body: B) -> Result<HealthCheckResp, Status>
    where
        B: HttpBody<Data = Bytes, Error: std::fmt::Display>,
    {
        let HealthCheckReq {} = self.decoded(self.message(headers, body).await?.0)?;
        self.health()
    }

    async fn live_check<B>(&self, headers: &HeaderMap, body: B) -> Result<LiveCheckResp, Status>
    where
        B: HttpBody<Data = Bytes, Error: std::fmt::Display>,
    {
        let LiveCheckReq {} = self.decoded(self.message(headers, body).await?.0)?;
        Ok(LiveCheckResp {})
    }

    /// The message of a call, and how long its client waits.
    async fn message<B>(&self, headers: &HeaderMap, body: B) -> Result<(Bytes, Duration), Status>
    where
        B: HttpBody<Data = Bytes, Error: std::fmt::Display>,
    {
        let most = self.bounds.request_timeout;
        let timeout = timeout::of(headers).map_or(most, |it| it.min(most));
        let message = pin!(unary::read_bytes(headers, body, MESSAGE_BYTES_MAX));
        let message = within(timeout, message).await.ok_or_else(|| too_slow(timeout))?;
        let message = message.map_err(|error| {
            let status = match error {
                ReadError::TooLarge { bytes, .. } => too_large(bytes),
                ReadError::Status(status) => *status,
            };
            // A connection that broke off is no bad request.
            if status.code() != Code::Unknown {
                self.stats.refused.add(1);
            }
            status
        })?;
        Ok((message, timeout))
    }

    fn decoded<M: Message + Default>(&self, message: Bytes) -> Result<M, Status> {
        M::decode(message).map_err(|error| {
            self.stats.refused.add(1);
            Status::internal(error.to_string())
        })
    }
}

fn too_slow(timeout: Duration) -> Status {
    Status::deadline_exceeded(format!("no answer within {timeout:?}"))
}
