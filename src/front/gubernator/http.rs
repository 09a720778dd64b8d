//! The JSON gateway.
//!
//! | call | status | body |
//! |---|---|---|
//! | answered | 200, also over the limit | the message |
//! | not a message, or more than 1,000 requests | 400 | `{"code":3,…}`, `{"code":11,…}` |
//! | larger than 1 MiB | 429 | `{"code":8,…}` |
//! | another method | 501 | `{"code":12,"message":"Method Not Allowed",…}` |
//! | another path | 404 | `{"code":5,"message":"Not Found",…}` |
//! | not ready | 503 | `{"code":14,…}` |
//! | a web page of another site | 403 | `{"code":7,…}`; not there ([`cross_site`]) |

use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, StatusCode, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use prost::Message;
use tidegate_proto::gubernator::GetRateLimitsReq;
use tonic::{Code, Status};

use super::service::{GubernatorListener, too_large};
use super::{MESSAGE_BYTES_MAX, json};
use crate::decide::DecideCarried;
use crate::front::{Probes, cross_site, within};

/// The format of prometheus-client.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// JSON is longer than the message whose size is bounded: up to six bytes, an escape, for each.
const JSON_BYTES_MAX: usize = 6 * MESSAGE_BYTES_MAX;
const GRPC_CONTENT_TYPE: HeaderName = HeaderName::from_static("grpc-metadata-content-type");

type Shared<D, P> = State<Arc<GubernatorListener<D, P>>>;

/// The routes of the HTTP listener.
pub fn router<D: DecideCarried, P: Probes>(listener: Arc<GubernatorListener<D, P>>) -> Router {
    Router::new()
        .route("/v1/GetRateLimits", any(get_rate_limits::<D, P>))
        .route("/v1/HealthCheck", any(health_check::<D, P>))
        .route("/v1/LiveCheck", any(live_check))
        .route("/metrics", get(metrics::<D, P>))
        .fallback(not_found)
        .with_state(listener)
}

async fn get_rate_limits<D: DecideCarried, P: Probes>(
    State(listener): Shared<D, P>,
    request: Request,
) -> Response {
    if request.method() != Method::POST {
        return method_not_allowed(&request);
    }
    let version = request.version();
    let answered = answer(&listener, request).await;
    listener.calls.ended(answered.is_ok());
    match answered {
        Ok(body) => found(body),
        Err(status) => match status.code() {
            Code::PermissionDenied | Code::ResourceExhausted | Code::DeadlineExceeded => {
                closing(failed(&status), version)
            }
            _ => failed(&status),
        },
    }
}

async fn answer<D: DecideCarried, P: Probes>(
    listener: &GubernatorListener<D, P>,
    request: Request,
) -> Result<String, Status> {
    let (head, body) = request.into_parts();
    cross_site::check(&head).map_err(|error| Status::permission_denied(error.to_string()))?;
    let refused = |status| {
        listener.stats.refused.add(1);
        Err(status)
    };
    if body.size_hint().lower() > JSON_BYTES_MAX as u64 {
        return refused(too_large(usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)));
    }
    let timeout = listener.bounds.request_timeout;
    let collected = pin!(Limited::new(body, JSON_BYTES_MAX).collect());
    let body = match within(timeout, collected).await {
        Some(Ok(body)) => body.to_bytes(),
        Some(Err(error)) if error.is::<LengthLimitError>() => {
            return refused(too_large(JSON_BYTES_MAX + 1));
        }
        Some(Err(error)) => return Err(Status::invalid_argument(error.to_string())),
        None => return Err(Status::deadline_exceeded("the body did not arrive in time")),
    };
    let json::Requests { kept, count } = match json::requests(&body) {
        Ok(requests) => requests,
        Err(error) => return refused(Status::invalid_argument(error.to_string())),
    };
    let message = GetRateLimitsReq { requests: kept };
    // There the gateway sends the message to the server, which bounds it.
    if body.len() > MESSAGE_BYTES_MAX && message.encoded_len() > MESSAGE_BYTES_MAX {
        return refused(too_large(message.encoded_len()));
    }
    let answered = listener.rate_limits(&message.requests, count).await?;
    Ok(json::responses(&answered.responses))
}

async fn health_check<D: DecideCarried, P: Probes>(
    State(listener): Shared<D, P>,
    request: Request,
) -> Response {
    if request.method() != Method::GET {
        return method_not_allowed(&request);
    }
    match listener.health() {
        Ok(health) => found(json::health(&health)),
        Err(status) => failed(&status),
    }
}

async fn live_check(request: Request) -> Response {
    match *request.method() {
        Method::GET => found("{}".to_owned()),
        _ => method_not_allowed(&request),
    }
}

async fn metrics<D: DecideCarried, P: Probes>(State(listener): Shared<D, P>) -> Response {
    let body = Body::from(listener.metrics.get(|| listener.probes.metrics()));
    with_content_type(StatusCode::OK, OPEN_METRICS, body)
}

async fn not_found(request: Request) -> Response {
    unread(&request, failed(&Status::not_found("Not Found")))
}

fn method_not_allowed(request: &Request) -> Response {
    unread(request, failed(&Status::unimplemented("Method Not Allowed")))
}

/// The answer to a request whose body is not read.
fn unread(request: &Request, response: Response) -> Response {
    if request.body().is_end_stream() { response } else { closing(response, request.version()) }
}

/// Says that the connection ends with this answer, which comes before the body of the request has.
fn closing(mut response: Response, version: Version) -> Response {
    // Over HTTP/2 the stream ends alone.
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn found(body: String) -> Response {
    let mut response = with_content_type(StatusCode::OK, "application/json", Body::from(body));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(GRPC_CONTENT_TYPE, grpc);
    response
}

fn failed(status: &Status) -> Response {
    let body = json::error(status.code(), status.message());
    with_content_type(http_status(status.code()), "application/json", Body::from(body))
}

fn with_content_type(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// As grpc-gateway translates codes.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
