//! One request of the proxy, from its head to the head of its response.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::units::Hits;
use tokio::time::Instant;

use super::access_log::{AccessLog, Entry, Record};
use super::connector::ServerTls;
use super::failure::UpstreamStats;
use super::headers::{self, HeadError, Sender};
use super::queue::Queue;
use super::rejection::{self, Form};
use super::response_body::ResponseBody;
use super::tunnel::{self, Switch};
use super::upstream::{Head, Upstreams};
use crate::config::{Auth, Config, Proxy, proxy};
use crate::decide::{CheckRequest, CheckResponse, Entered, Given, LimitInFlight, Place};
use crate::front::bounds::{Bounds, Refusal};
use crate::front::framing::{Ambiguity, Framing};
use crate::front::http::descriptors::{self, HitsError};
use crate::front::http::original::Original;
use crate::front::serve::{HttpService, ListenerStats, Peer, Streamed, Tunnels};
use crate::front::{render, within};
use crate::traces::{Traces, propagation};

/// How long a client may leave a part of a response untaken, in periods of this length.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Verdicts in the access log.
const ALLOWED: &str = "allowed";
const UNDECIDED: &str = "undecided";

/// The parts of the proxy.
#[derive(Debug)]
pub struct ProxyListener<D> {
    decide: Arc<D>,
    bounds: Bounds,
    mapping: Auth,
    denied_status: StatusCode,
    /// What clients are told they have used.
    scheme: &'static str,
    stats: Arc<ListenerStats>,
    access_log: Option<AccessLog>,
    queue: Queue,
    upstreams: Arc<Upstreams>,
}

/// What the proxy reports to.
#[derive(Clone, Debug, Default)]
pub struct Observers {
    /// Counts malformed requests.
    pub listener: Arc<ListenerStats>,
    /// Counts requests without a response of the application.
    pub upstreams: Arc<UpstreamStats>,
    pub access_log: Option<AccessLog>,
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

/// What is known of a request that passes.
struct Passing {
    sender: Sender,
    form: Form,
    switch: Option<Switch>,
    is_soft_limited: bool,
    /// If its number in flight is limited.
    place: Option<Place>,
}

/// What the limits say of a request.
enum Decision {
    /// The verdicts, `None` when no limit applies; and the place of a request whose number in
    /// flight is limited.
    Pass(Option<CheckResponse>, Option<Place>),
    Refuse(CheckResponse, Response<Full<Bytes>>),
}

/// The service of the listener.
pub fn service<D: LimitInFlight>(listener: ProxyListener<D>) -> impl HttpService {
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

impl<D: LimitInFlight> ProxyListener<D> {
    /// The proxy of a validated configuration, with `in_flight_max` requests at the servers at a
    /// time: what is configured, or less.
    pub fn new(
        config: &Config,
        decide: Arc<D>,
        bounds: &Bounds,
        in_flight_max: usize,
        tls: ServerTls,
        observers: Observers,
    ) -> Self {
        let Observers { listener: stats, upstreams, access_log } = observers;
        let status = StatusCode::from_u16(config.proxy.denied_status);
        let to_servers = Proxy { in_flight_max, ..config.proxy.clone() };
        Self {
            decide,
            bounds: bounds.clone(),
            mapping: proxy::mapping(&config.auth),
            denied_status: status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
            scheme: headers::scheme(config.proxy.tls_cert.is_some()),
            stats,
            access_log,
            queue: Queue::new(config.auth.hold_max.to_std(), config.proxy.held_max),
            upstreams: Arc::new(Upstreams::new(&to_servers, tls, upstreams)),
        }
    }

    /// Checks the servers, and reads changed files, until it is dropped.
    pub fn maintenance(&self) -> impl Future<Output = ()> + Send + 'static + use<D> {
        let upstreams = Arc::clone(&self.upstreams);
        async move { upstreams.maintain().await }
    }

    async fn respond(&self, mut request: Request<Incoming>) -> Response<ResponseBody> {
        let switch = Switch::of(&mut request);
        let (mut parts, body) = request.into_parts();
        // Behind an upgrade that is not made the bytes of the connection are not followed.
        let may_go_on = body.is_end_stream() && !parts.headers.contains_key(UPGRADE);
        let form = Form {
            is_grpc: headers::is_grpc(&parts.headers),
            closes: parts.version < Version::HTTP_2 && !may_go_on,
        };
        let sender = self.sender(&parts);
        let mut record = self.record(&parts, sender);
        let entry = record.as_deref_mut().map(|record| &mut record.entry);
        let decided = self.decided(&mut parts, sender, form, entry).await;
        if let Some(record) = &mut record {
            note(&decided, &mut record.entry);
        }
        let own = match decided {
            Ok(Decision::Pass(answer, place)) => {
                let is_soft_limited = answer.as_ref().is_some_and(CheckResponse::is_soft_limited);
                let passing = Passing { sender, form, switch, is_soft_limited, place };
                let mut response = self.passed_on(parts, body, passing, record).await;
                if let Some(answer) = &answer {
                    render::headers(answer, response.headers_mut());
                }
                return response;
            }
            Ok(Decision::Refuse(_, response)) => response,
            Err(error) => {
                if !matches!(error, Error::Undecided) {
                    self.stats.refused.add(1);
                }
                error.response(form, parts.version)
            }
        };
        own_response(own, record)
    }

    fn record(&self, parts: &Parts, sender: Sender) -> Option<Box<Record>> {
        let log = self.access_log.as_ref()?;
        let client = descriptors::client(&parts.headers, sender.addr, &self.mapping);
        // The one that the application gets: see `headers::check`.
        let host = parts.uri.authority().map(|it| it.as_str().as_bytes());
        let host = host.or_else(|| parts.headers.get(HOST).map(HeaderValue::as_bytes));
        Some(log.begin(Entry {
            client: client.to_string(),
            method: parts.method.to_string(),
            target: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            host: host.map(|host| String::from_utf8_lossy(host).into_owned()),
            protocol: format!("{:?}", parts.version),
            // If the client leaves before.
            verdict: UNDECIDED,
            ..Entry::default()
        }))
    }

    fn sender(&self, parts: &Parts) -> Sender {
        let peer = parts.extensions.get::<Peer>();
        let addr = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(peer)| peer.ip());
        Sender::new(addr, &self.mapping.trust(), self.scheme)
    }

    /// Checks the form of the request, and decides it. Writes down what is known if it has to wait
    /// for its turn.
    async fn decided(
        &self,
        parts: &mut Parts,
        sender: Sender,
        form: Form,
        entry: Option<&mut Entry>,
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
            return Ok(Decision::Pass(None, None));
        }
        let descriptors: Vec<Descriptor<'_>> = values.iter().map(descriptors::borrowed).collect();
        self.bounds.admit(domain, &descriptors)?;
        if !self.decide.is_loaded() {
            return Err(Refusal::NotLoaded.into());
        }
        let check = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
        let asked_at = Instant::now();
        let deciding = pin!(self.decide.decide(check));
        let answer = within(self.bounds.request_timeout, deciding).await.ok_or(Error::Undecided)?;
        if !answer.allowed {
            let detail = render::refusal(&answer);
            let response = rejection::refused(&answer, self.denied_status, &detail, form);
            return Ok(Decision::Refuse(answer, response));
        }
        let delay = render::delay(&answer).to_std();
        if let Some(entry) = entry.filter(|_| !delay.is_zero()) {
            note_answer(ALLOWED, Some(&answer), entry);
        }
        let (refused, detail) = if self.queue.hold(delay).await.is_err() {
            (None, render::QUEUE_TOO_LONG)
        } else {
            let entering = pin!(self.decide.enter(check));
            let entered = within(self.bounds.request_timeout, entering).await;
            match entered.ok_or(Error::Undecided)? {
                Entered::Admitted(place) => return Ok(Decision::Pass(Some(answer), place)),
                Entered::Refused(refused) => (Some(refused), render::TOO_MANY_IN_FLIGHT),
            }
        };
        // The request is not passed on.
        let given = Given { passed: asked_at.elapsed().into(), turns: refused.is_none() };
        {
            let giving = pin!(self.decide.give_back(check, &answer, given));
            let _ = within(self.bounds.request_timeout, giving).await;
        }
        let refused = refused.unwrap_or(answer);
        let response = rejection::refused(&refused, self.denied_status, detail, form);
        Ok(Decision::Refuse(refused, response))
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
        passing: Passing,
        mut record: Option<Box<Record>>,
    ) -> Response<ResponseBody> {
        let Passing { sender, form, switch, is_soft_limited, place } = passing;
        let Parts { method, uri, mut headers, version, extensions, .. } = parts;
        let has_upgrade = version < Version::HTTP_2 && headers.contains_key(UPGRADE);
        headers::pass_request(&mut headers, version, sender);
        if let Some(span) = self.decide.traces().and_then(Traces::current) {
            propagation::inject(span.context(), &mut headers);
        }
        if is_soft_limited {
            headers.insert(render::SOFT_BREACH, render::BREACHED);
        }
        let path = uri.into_parts().path_and_query;
        // Only a connection of HTTP/1.1 can switch; a wish may be ignored (RFC 9110, 7.8).
        let switch = switch.filter(|_| !self.upstreams.is_http2(form.is_grpc));
        let protocols = switch.as_ref().map(|switch| switch.protocols.clone());
        if let Some(protocols) = &protocols {
            Switch::ask(protocols, &mut headers);
        }
        let is_grpc = form.is_grpc;
        let head = Head { method, path, headers, is_grpc, switch: protocols.clone() };
        let (mut response, mut in_flight) = match self.upstreams.send(head, body, version).await {
            Ok(sent) => sent,
            Err(failure) => {
                if let Some(mut place) = place.filter(|_| failure.is_unsent()) {
                    place.is_done();
                }
                if let Some(record) = &mut record {
                    record.entry.failure = Some(failure.reason());
                }
                let own = rejection::failed(failure.status(), &failure.to_string(), form);
                return own_response(own, record);
            }
        };
        in_flight.has(place);
        if let Some(record) = &mut record {
            record.responds(response.status().as_u16());
        }
        let idle_timeout = self.upstreams.idle_timeout;
        let agreed = protocols.and_then(|asked| Switch::agreed(&asked, response.headers()));
        let agreed = agreed.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS);
        let server = agreed.as_ref().map(|_| hyper::upgrade::on(&mut response));
        let (mut parts, body) = response.into_parts();
        headers::pass_response(&mut parts.headers, parts.version);
        // That of the client's connection; hyper writes it.
        parts.version = version;
        parts.extensions.clear();
        let tunnels = extensions.get::<Tunnels>();
        if let (Some(agreed), Some(server), Some(switch), Some(tunnels)) =
            (agreed, server, switch, tunnels)
        {
            Switch::ask(&agreed, &mut parts.headers);
            in_flight.is_tunnel();
            let tunnel = tunnel::run(switch.client, server, idle_timeout, in_flight);
            tunnels.run(async move {
                tunnel.await;
                drop(record);
            });
            Response::from_parts(parts, ResponseBody::Own(Full::default()))
        } else {
            if has_upgrade {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            parts.extensions.insert(Streamed);
            let body = ResponseBody::passed(
                body,
                idle_timeout,
                in_flight,
                record,
                self.upstreams.stats.clone(),
            );
            Response::from_parts(parts, body)
        }
    }
}

/// Writes down what was decided.
fn note(decided: &Result<Decision, Error>, entry: &mut Entry) {
    let (verdict, answer) = match decided {
        Ok(Decision::Pass(None, _)) => ("unlimited", None),
        Ok(Decision::Pass(Some(answer), _)) => (ALLOWED, Some(answer)),
        Ok(Decision::Refuse(answer, _)) => ("refused", Some(answer)),
        Err(Error::Undecided | Error::Refusal(Refusal::NotLoaded)) => (UNDECIDED, None),
        Err(_) => ("malformed", None),
    };
    note_answer(verdict, answer, entry);
}

fn note_answer(verdict: &'static str, answer: Option<&CheckResponse>, entry: &mut Entry) {
    entry.verdict = verdict;
    entry.soft_limited = answer.is_some_and(CheckResponse::is_soft_limited);
    entry.rule = answer.and_then(render::leading_rule).map(|rule| rule.id.to_string());
}

/// A response of the proxy itself.
fn own_response(
    response: Response<Full<Bytes>>,
    record: Option<Box<Record>>,
) -> Response<ResponseBody> {
    if let Some(mut record) = record {
        record.responds(response.status().as_u16());
        // The response to a HEAD leaves without its body.
        let bytes = response.body().size_hint().exact().filter(|_| record.entry.method != "HEAD");
        record.passed(bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0));
    }
    response.map(ResponseBody::Own)
}

impl Error {
    fn response(&self, form: Form, version: Version) -> Response<Full<Bytes>> {
        let status = match self {
            Self::Refusal(Refusal::NotLoaded) | Self::Undecided => StatusCode::SERVICE_UNAVAILABLE,
            Self::Head(HeadError::Connect) => StatusCode::NOT_IMPLEMENTED,
            Self::Head(HeadError::Expectation) => StatusCode::EXPECTATION_FAILED,
            _ => StatusCode::BAD_REQUEST,
        };
        // What follows such a request is not another one: a client may not wait for the answer.
        let is_bad = matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED);
        let closes = form.closes || version < Version::HTTP_2 && is_bad;
        rejection::failed(status, &self.to_string(), Form { closes, ..form })
    }
}
