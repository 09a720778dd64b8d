//! One request of the proxy, from its head to the head of its response.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::units::Hits;

use super::body::ResponseBody;
use super::headers::{self, HeadError, Sender};
use super::queue::Queue;
use super::rejection::{self, Form};
use super::upstream::{Head, UpstreamStats, Upstreams};
use crate::config::{Auth, Config, proxy};
use crate::decide::{CheckRequest, CheckResponse, Decide};
use crate::front::bounds::{Bounds, Refusal};
use crate::front::framing::{Ambiguity, Framing};
use crate::front::http::descriptors::{self, HitsError};
use crate::front::http::original::Original;
use crate::front::serve::{HttpService, ListenerStats, Peer, Streamed};
use crate::front::{render, within};

/// How long a client may leave a part of a response untaken, in periods of this length.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// The parts of the proxy.
#[derive(Debug)]
pub struct ProxyListener<D> {
    decide: Arc<D>,
    bounds: Bounds,
    mapping: Auth,
    denied_status: StatusCode,
    stats: Arc<ListenerStats>,
    queue: Queue,
    upstreams: Upstreams,
}

/// Why a request is neither decided nor passed on. Nothing was counted for it.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the request may be read in two ways: {0}")]
    Ambiguous(#[from] Ambiguity),
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error(transparent)]
    Hits(#[from] HitsError),
    #[error(transparent)]
    Refusal(#[from] Refusal),
    #[error("no decision in time; try again")]
    Undecided,
}

/// What the limits say of a request.
enum Decision {
    /// `None` when no limit applies.
    Pass(Option<CheckResponse>),
    Refuse(Response<Full<Bytes>>),
}

/// The service of the listener.
pub fn service<D: Decide>(listener: ProxyListener<D>) -> impl HttpService {
    let listener = Arc::new(listener);
    tower::service_fn(move |request: Request<Incoming>| {
        let listener = Arc::clone(&listener);
        async move { Ok::<_, Infallible>(listener.respond(request).await) }
    })
}

/// The bounds of the listener: clients may take long to read a response, as long as they do.
pub fn bounds(bounds: &Bounds) -> Bounds {
    Bounds { send_timeout: SEND_TIMEOUT, ..bounds.clone() }
}

impl<D: Decide> ProxyListener<D> {
    /// The proxy of a validated configuration. `stats` counts malformed requests, `upstream_stats`
    /// those without a response of the application.
    pub fn new(
        config: &Config,
        decide: Arc<D>,
        bounds: &Bounds,
        stats: Arc<ListenerStats>,
        upstream_stats: Arc<UpstreamStats>,
    ) -> Self {
        let status = StatusCode::from_u16(config.proxy.denied_status);
        Self {
            decide,
            bounds: bounds.clone(),
            mapping: proxy::mapping(&config.auth),
            denied_status: status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
            stats,
            queue: Queue::new(config.auth.hold_max.to_std(), config.proxy.held_max),
            upstreams: Upstreams::new(&config.proxy, upstream_stats),
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (mut parts, body) = request.into_parts();
        let form = Form {
            is_grpc: headers::is_grpc(&parts.headers),
            closes: parts.version < Version::HTTP_2 && !body.is_end_stream(),
        };
        let sender = self.sender(&parts);
        let answer = match self.decided(&mut parts, sender, form).await {
            Ok(Decision::Pass(answer)) => answer,
            Ok(Decision::Refuse(response)) => return response.map(ResponseBody::Own),
            Err(error) => {
                if !matches!(error, Error::Undecided) {
                    self.stats.refused.add(1);
                }
                return error.response(form, parts.version).map(ResponseBody::Own);
            }
        };
        let mut response = self.passed_on(parts, body, sender, form).await;
        if let Some(answer) = &answer {
            render::headers(answer, response.headers_mut());
        }
        response
    }

    fn sender(&self, parts: &Parts) -> Sender {
        let peer = parts.extensions.get::<Peer>();
        let addr = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(peer)| peer.ip());
        Sender::new(addr, &self.mapping.trust(), headers::scheme(false))
    }

    /// Checks the form of the request, and decides it.
    async fn decided(
        &self,
        parts: &mut Parts,
        sender: Sender,
        form: Form,
    ) -> Result<Decision, Error> {
        if let Some(ambiguity) =
            parts.extensions.get::<Arc<Framing>>().and_then(|framing| framing.ambiguity())
        {
            return Err(ambiguity.into());
        }
        headers::check(parts)?;
        let hits = self.hits(&parts.headers, sender)?;
        let original = Original::of(parts, self.bounds.value_bytes_max);
        let peer = Some(sender.addr);
        let values = descriptors::values(&parts.headers, peer, &original, &self.mapping);
        let domain = self.mapping.domain.as_deref().unwrap_or_default();
        if values.is_empty() {
            return Ok(Decision::Pass(None));
        }
        let descriptors: Vec<Descriptor<'_>> = values.iter().map(descriptors::borrowed).collect();
        self.bounds.admit(domain, &descriptors)?;
        if !self.decide.is_loaded() {
            return Err(Refusal::NotLoaded.into());
        }
        let check = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
        let deciding = pin!(self.decide.decide(check));
        let answer = within(self.bounds.request_timeout, deciding).await.ok_or(Error::Undecided)?;
        let delay = render::delay(&answer).to_std();
        let detail = if !answer.allowed {
            render::refusal(&answer)
        } else if self.queue.hold(delay).await.is_ok() {
            return Ok(Decision::Pass(Some(answer)));
        } else {
            // The request will not wait, so its hits are returned to the queue.
            let returned = Hits::new(hits.get().saturating_neg());
            let returning = self.decide.decide(CheckRequest { hits: returned, ..check });
            let _ = within(self.bounds.request_timeout, pin!(returning)).await;
            render::QUEUE_TOO_LONG.to_owned()
        };
        Ok(Decision::Refuse(rejection::refused(&answer, self.denied_status, &detail, form)))
    }

    /// The cost of the request. Only a proxy in front may name it; a client could use up a limit
    /// that it shares with others.
    fn hits(&self, headers: &HeaderMap, sender: Sender) -> Result<Hits, HitsError> {
        let cost = self.mapping.hits.as_ref().filter(|_| sender.is_trusted);
        descriptors::hits(headers, cost)
    }

    /// Passes the request on, and the response back.
    async fn passed_on(
        &self,
        parts: Parts,
        body: Incoming,
        sender: Sender,
        form: Form,
    ) -> Response<ResponseBody> {
        let Parts { method, uri, mut headers, version, .. } = parts;
        headers::pass_request(&mut headers, version, sender);
        let path = uri.into_parts().path_and_query;
        let head = Head { method, path, headers, is_grpc: form.is_grpc };
        match self.upstreams.send(head, body).await {
            Ok((response, in_flight)) => {
                let (mut parts, body) = response.into_parts();
                headers::pass_response(&mut parts.headers, parts.version);
                // That of the client's connection; hyper writes it.
                parts.version = version;
                parts.extensions.clear();
                parts.extensions.insert(Streamed);
                let idle_timeout = self.upstreams.idle_timeout;
                Response::from_parts(parts, ResponseBody::passed(body, idle_timeout, in_flight))
            }
            Err(failure) => {
                let response = rejection::failed(failure.status(), &failure.to_string(), form);
                response.map(ResponseBody::Own)
            }
        }
    }
}

impl Error {
    fn response(&self, form: Form, version: Version) -> Response<Full<Bytes>> {
        let status = match self {
            Self::Refusal(Refusal::NotLoaded) | Self::Undecided => StatusCode::SERVICE_UNAVAILABLE,
            Self::Head(HeadError::Connect) => StatusCode::NOT_IMPLEMENTED,
            Self::Head(HeadError::Expectation) => StatusCode::EXPECTATION_FAILED,
            _ => StatusCode::BAD_REQUEST,
        };
        // What follows such a request is not another one.
        let closes = form.closes || version < Version::HTTP_2 && status == StatusCode::BAD_REQUEST;
        rejection::failed(status, &self.to_string(), Form { closes, ..form })
    }
}
