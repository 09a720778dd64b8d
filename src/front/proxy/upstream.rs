//! The servers of the application: choice and connections.
//!
//! A request goes to the server with the fewest requests in flight. If that cannot be reached,
//! nothing was sent, and the others are tried, each once. Whatever may have reached a server is
//! never sent again. The one other retry is hyper's: of a request on a kept connection that turned
//! out to be closed before the first byte was written.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::adaptive_limit::{AdaptiveLimit, Outcome, Slot};
use super::at_server::Load;
use super::connector::{Connector, HTTP1, HTTP2, ServerTls};
use super::failure::{Failure, UpstreamStats};
use super::headers;
use super::health::{Change, EJECTED_FOR, Health, Use};
use super::in_flight::InFlight;
use super::request_body::{Progress, RequestBody, Upload};
use super::response_body::ServerBody;
use super::tunnel::Switch;
use crate::config::Proxy;
use crate::config::proxy::UpstreamProtocol;

/// A server that is gone must not keep requests waiting: an HTTP/2 connection is pinged.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one stream in flight before a server waits.
const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;
/// Bytes of one connection in flight before a server waits.
const HTTP2_CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Most bytes of a response head, and of a body that is read ahead.
const HTTP1_BUFFER_MAX: usize = 64 * 1024;

/// The servers, and the connections to them.
#[derive(Debug)]
pub(super) struct Upstreams {
    targets: Vec<Target>,
    /// Where the search for the next server begins, so that idle ones take turns.
    turn: AtomicUsize,
    protocol: UpstreamProtocol,
    http1: Client<Connector, RequestBody>,
    http2: Client<Connector, RequestBody>,
    tls: ServerTls,
    response_timeout: Duration,
    /// How long a response may stay without a byte.
    pub(super) idle_timeout: Duration,
    in_flight: Arc<Semaphore>,
    /// Failures in a row that eject a server; 0 is never.
    eject_after: u32,
    /// Path and interval of health checks.
    checks: Option<(PathAndQuery, Duration)>,
    pub(super) stats: Arc<UpstreamStats>,
}

#[derive(Debug)]
struct Target {
    scheme: Scheme,
    authority: Authority,
    load: Load,
    limit: Option<AdaptiveLimit>,
    http1: Spoken,
    http2: Spoken,
}

/// What is known of a server by one version of HTTP. Apart, because by `auto` the header of a
/// client says which one a server has to understand.
#[derive(Debug, Default)]
struct Spoken {
    health: Mutex<Health>,
    /// There was a response.
    has_responded: AtomicBool,
}

/// A server as a request comes to it.
struct Turn<'a> {
    target: &'a Target,
    is_left_out: bool,
    attempt: Option<Attempt<'a>>,
}

impl<'a> Turn<'a> {
    fn of(target: &'a Target) -> Self {
        Self { target, is_left_out: false, attempt: None }
    }
}

/// The one request that tries a server which was left out; until it is dropped.
#[derive(Debug)]
struct Attempt<'a>(&'a Mutex<Health>);

/// What is sent to a server, apart from its body.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) path: Option<PathAndQuery>,
    pub(super) headers: HeaderMap,
    pub(super) is_grpc: bool,
    /// Another protocol that the client wants to switch to.
    pub(super) switch: Option<HeaderValue>,
}

impl Upstreams {
    pub(super) fn new(config: &Proxy, tls: ServerTls, stats: Arc<UpstreamStats>) -> Self {
        let timeout = config.connect_timeout.to_std();
        let adaptive = config.adaptive_concurrency();
        let connector = |alpn| Connector::new(tls.clone(), alpn, timeout);
        let target = |upstream: &crate::config::proxy::Upstream| Target {
            scheme: upstream.scheme.clone(),
            authority: upstream.authority.clone(),
            load: Load::default(),
            limit: adaptive.map(|adaptive| AdaptiveLimit::new(adaptive, Instant::now())),
            http1: Spoken::default(),
            http2: Spoken::default(),
        };
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(config.pool_idle_timeout.to_std())
            .http1_max_buf_size(HTTP1_BUFFER_MAX)
            .http2_initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .http2_initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
            .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
            .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT);
        let http1 = builder.build(connector(HTTP1));
        let http2 = builder.http2_only(true).build(connector(HTTP2));
        let targets: Vec<Target> = config.upstream.iter().map(target).collect();
        let limits: Vec<_> = targets.iter().filter_map(|target| target.limit.clone()).collect();
        if !limits.is_empty() {
            // The statistics are of one proxy.
            let _ = stats.limits.set(limits);
        }
        Self {
            targets,
            turn: AtomicUsize::new(0),
            protocol: config.protocol,
            http1,
            http2,
            tls,
            response_timeout: config.response_timeout.to_std(),
            idle_timeout: config.idle_timeout.to_std(),
            in_flight: Arc::new(Semaphore::new(config.in_flight_max)),
            // The last server is never left out.
            eject_after: if config.upstream.len() > 1 { config.eject_after } else { 0 },
            checks: config
                .health_path
                .as_ref()
                .map(|path| (path.0.clone(), config.health_interval.to_std())),
            stats,
        }
    }

    /// Sends the request, which came by `version`, to one of the servers. It counts as in flight
    /// until its response and its own body have ended.
    pub(super) async fn send(
        &self,
        head: Head,
        body: Incoming,
        version: Version,
    ) -> Result<(Response<ServerBody>, InFlight), Failure> {
        let sent = self.try_send(head, body, version).await;
        if let Err(failure) = &sent {
            self.stats.count(failure);
        }
        sent
    }

    async fn try_send(
        &self,
        head: Head,
        body: Incoming,
        version: Version,
    ) -> Result<(Response<ServerBody>, InFlight), Failure> {
        let permit = Arc::clone(&self.in_flight).try_acquire_owned().map_err(|_| Failure::Full)?;
        let permit = Arc::new(permit);
        let (progress, body) = Progress::of(body, version);
        let mut upload = Upload::of(&progress);
        let mut failure = Failure::Unreachable;
        let is_http2 = self.is_http2(head.is_grpc);
        let mut is_full = false;
        for turn in self.by_load(is_http2, Instant::now()) {
            let Turn { target, is_left_out, attempt: _attempt } = turn;
            // What too many requests are in flight at is up.
            if is_left_out && is_full {
                break;
            }
            let slot = match target.enter() {
                Ok(slot) => slot,
                Err(full) => {
                    (failure, is_full) = (full, true);
                    continue;
                }
            };
            let mut in_flight = InFlight::new(&target.load, slot, &permit);
            let mut request = self.request(&head, target, body.clone());
            progress.is_sent(in_flight.at_server(), &mut request);
            let start = Instant::now();
            let sent = self.send_to(request, &head, &progress).await;
            self.observe(target, is_http2, sent.as_ref().err());
            let has_spoken = target.spoken(is_http2).has_responded.load(Ordering::Relaxed);
            if let Some(slot) = in_flight.slot().filter(|_| has_spoken) {
                note(slot, &sent, start, &progress);
            }
            match sent {
                Ok(response) => {
                    upload.may_go_on(self.response_timeout);
                    in_flight.uploads(upload);
                    return Ok((response, in_flight));
                }
                Err(unreached @ (Failure::Unreachable | Failure::ConnectTimeout))
                    if progress.is_untouched() =>
                {
                    failure = unreached;
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(failure)
    }

    /// The servers in the order in which they are tried: one that was left out and has an attempt
    /// now, then the one with the fewest requests. Others that an attempt is due of follow, without
    /// one: this request may never come to them, and must not keep those of others away meanwhile.
    /// Those that are left out are the last, for when none of the others can be reached.
    fn by_load(&self, is_http2: bool, now: Instant) -> Vec<Turn<'_>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.targets.len().max(1);
        let (before, from) = self.targets.split_at(turn.min(self.targets.len()));
        let all = from.iter().chain(before);
        let (mut attempts, mut usual) = (Vec::new(), Vec::new());
        let (mut due, mut left_out) = (Vec::new(), Vec::new());
        for target in all.clone() {
            let shared = &target.spoken(is_http2).health;
            let mut health = shared.lock();
            if !attempts.is_empty() && health.is_due(now) {
                due.push(Turn::of(target));
                continue;
            }
            match health.enter(now) {
                Use::Usual => usual.push(Turn::of(target)),
                Use::Attempt => {
                    attempts.push(Turn { attempt: Some(Attempt(shared)), ..Turn::of(target) });
                }
                Use::LeftOut => left_out.push(Turn { is_left_out: true, ..Turn::of(target) }),
            }
        }
        if attempts.is_empty() && usual.is_empty() {
            left_out.clear();
            usual = all.map(Turn::of).collect();
        }
        usual.sort_by_key(|turn| turn.target.load.get());
        attempts.into_iter().chain(usual).chain(due).chain(left_out).collect()
    }

    /// Notes how a request at a server has ended.
    fn observe(&self, target: &Target, is_http2: bool, failure: Option<&Failure>) {
        let spoken = target.spoken(is_http2);
        let mut health = spoken.health.lock();
        let change = match failure {
            None => {
                spoken.has_responded.store(true, Ordering::Relaxed);
                health.succeeded();
                None
            }
            Some(failure) if failure.is_of_server() => {
                health.failed(self.eject_after, Instant::now())
            }
            Some(_) => None,
        };
        self.report(target, is_http2, change);
    }

    fn report(&self, target: &Target, is_http2: bool, change: Option<Change>) {
        let server = &target.authority;
        match change {
            Some(Change::Ejected) => {
                self.stats.ejections.add(1);
                let (failures, version) = (self.eject_after, if is_http2 { "2" } else { "1.1" });
                tracing::warn!(
                    %server, failures, version,
                    "server left out for {EJECTED_FOR:?} by this version of HTTP: it failed"
                );
            }
            Some(Change::Unhealthy) => {
                self.stats.ejections.add(1);
                tracing::warn!(%server, "server left out: its health check fails");
            }
            Some(Change::Healthy) => tracing::info!(%server, "server is healthy again"),
            None => {}
        }
    }

    /// Checks the servers, and reads the file with their authorities, again and again.
    pub(super) async fn maintain(&self) {
        join(self.check_health(), self.tls.reload()).await;
    }

    /// Checks the servers again and again, if they are to be checked.
    async fn check_health(&self) {
        let Some((path, interval)) = &self.checks else { return std::future::pending().await };
        loop {
            let checks = self.targets.iter().map(|target| async {
                let is_healthy = self.is_healthy(target, path, *interval).await;
                let now = Instant::now();
                // It is up or down, whatever it speaks.
                let _ = target.http2.health.lock().checked(is_healthy, now);
                let change = target.http1.health.lock().checked(is_healthy, now);
                self.report(target, false, change);
            });
            join_all(checks).await;
            tokio::time::sleep(*interval).await;
        }
    }

    async fn is_healthy(&self, target: &Target, path: &PathAndQuery, within: Duration) -> bool {
        let (method, headers) = (Method::GET, HeaderMap::new());
        let path = Some(path.clone());
        let head = Head { method, path, headers, is_grpc: false, switch: None };
        let request = self.request(&head, target, RequestBody::empty());
        let responding = self.client(&head).request(request);
        let status = tokio::time::timeout(within, responding).await;
        let status = status.ok().and_then(Result::ok).map(|response| response.status());
        status.is_some_and(|status| status.is_success() || status.is_redirection())
    }

    /// Whether a request is sent by HTTP/2.
    pub(super) fn is_http2(&self, is_grpc: bool) -> bool {
        match self.protocol {
            UpstreamProtocol::Auto => is_grpc,
            UpstreamProtocol::Http1 => false,
            UpstreamProtocol::H2c => true,
        }
    }

    fn client(&self, head: &Head) -> &Client<Connector, RequestBody> {
        if self.is_http2(head.is_grpc) { &self.http2 } else { &self.http1 }
    }

    fn request(&self, head: &Head, target: &Target, body: RequestBody) -> Request<RequestBody> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(target.scheme.clone());
        parts.authority = Some(target.authority.clone());
        parts.path_and_query =
            Some(head.path.clone().unwrap_or_else(|| PathAndQuery::from_static("/")));
        let length = body.size_hint().exact();
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        // All parts are there.
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.headers_mut() = head.headers.clone();
        if self.is_http2(head.is_grpc) {
            // The authority is the server's; that of the client is in `X-Forwarded-Host`.
            request.headers_mut().remove(http::header::HOST);
            *request.version_mut() = Version::HTTP_2;
        } else {
            headers::frame(request.headers_mut(), length);
        }
        request
    }

    /// Waits for the head of the response.
    async fn send_to(
        &self,
        request: Request<RequestBody>,
        head: &Head,
        progress: &Progress,
    ) -> Result<Response<ServerBody>, Failure> {
        let mut responding = pin!(self.client(head).request(request));
        // A server that was sent half a request says what it likes.
        let unless_of_client =
            |failure| if progress.has_failed() { Failure::ClientBody } else { failure };
        loop {
            let deadline = progress.last() + self.response_timeout;
            match timeout_at(deadline, &mut responding).await {
                Ok(Ok(mut response)) => {
                    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    let agreed = head.switch.as_ref();
                    let agreed = agreed.and_then(|it| Switch::agreed(it, response.headers()));
                    // What follows a switch that was not asked for has no known form.
                    let is_valid = (!switches || agreed.is_some())
                        && headers::has_one_form(response.headers_mut());
                    if !is_valid {
                        return Err(Failure::Broken);
                    }
                    let (parts, body) = response.into_parts();
                    let body = ServerBody::begin(body, parts.version).await;
                    let body = body.map_err(|_| unless_of_client(Failure::Broken))?;
                    return Ok(Response::from_parts(parts, body));
                }
                Ok(Err(error)) => return Err(unless_of_client(Failure::of(&error))),
                // The body moved on meanwhile.
                Err(_) if progress.last() + self.response_timeout > Instant::now() => {}
                Err(_) if progress.waits_for_client() => return Err(Failure::ClientTimeout),
                Err(_) => return Err(Failure::ResponseTimeout),
            }
        }
    }
}

impl Target {
    fn spoken(&self, is_http2: bool) -> &Spoken {
        if is_http2 { &self.http2 } else { &self.http1 }
    }

    /// A place for a request, `None` if their number is not limited.
    fn enter(&self) -> Result<Option<Slot>, Failure> {
        let Some(limit) = &self.limit else { return Ok(None) };
        limit.enter().map(Some).ok_or(Failure::Overloaded)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.lock().tried();
    }
}

/// Notes what the end of a request that began at `start` says about the load of its server.
fn note(
    slot: &Slot,
    sent: &Result<Response<ServerBody>, Failure>,
    start: Instant,
    progress: &Progress,
) {
    let now = Instant::now();
    match (sent, progress.ended()) {
        (Ok(response), Some(end)) => {
            let rtt = now.duration_since(end.max(start));
            slot.responded(Outcome::of(response), rtt, now);
        }
        (Err(failure), _) if failure.is_of_server() => slot.failed(now),
        // The server may have waited for the client.
        (Ok(_) | Err(_), _) => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::OwnedSemaphorePermit;

    use super::*;
    use crate::config::proxy::Upstream;

    #[tokio::test]
    async fn one_request_tries_a_server_that_was_left_out() {
        let url = |url: &str| Upstream::try_from(url.to_owned()).expect("a server");
        let upstream = vec![url("http://127.0.0.1:1"), url("http://127.0.0.1:2")];
        let config = Proxy { upstream, eject_after: 2, ..Proxy::default() };
        let tls = ServerTls::of(&config).expect("no authorities");
        let upstreams = Upstreams::new(&config, tls, Arc::default());
        let chosen = |now| -> Vec<_> {
            let servers = upstreams.by_load(false, now).into_iter();
            let used = servers.filter(|turn| !turn.is_left_out);
            used.map(|turn| (turn.target.authority.as_str(), turn.attempt)).collect()
        };
        let (bad, good) = ("127.0.0.1:1", "127.0.0.1:2");
        let fails = || upstreams.observe(&upstreams.targets[0], false, Some(&Failure::Broken));
        let is = |chosen: &[(&str, Option<Attempt<'_>>)], expected: &[(&str, bool)]| {
            let chosen: Vec<_> = chosen.iter().map(|(name, it)| (*name, it.is_some())).collect();
            assert_eq!(chosen, expected);
        };
        let start = Instant::now();
        fails();
        assert_eq!(chosen(start).len(), 2);
        fails();
        is(&chosen(start), &[(good, false)]);
        let last = upstreams.by_load(false, start).pop().expect("another one");
        assert_eq!((last.target.authority.as_str(), last.is_left_out), (bad, true), "in case");

        let over = Instant::now() + EJECTED_FOR;
        let _load = InFlight::new(&upstreams.targets[0].load, None, &permit(&upstreams));
        let first = chosen(over);
        is(&first, &[(bad, true), (good, false)]);
        is(&chosen(over), &[(good, false)]);
        // Its client has left.
        drop(first);
        let second = chosen(over);
        is(&second, &[(bad, true), (good, false)]);
        upstreams.observe(&upstreams.targets[0], false, None);
        drop(second);
        assert_eq!(chosen(over).iter().filter(|(_, attempt)| attempt.is_none()).count(), 2);

        // If all are left out, all are used.
        for target in &upstreams.targets {
            upstreams.observe(target, false, Some(&Failure::Broken));
            upstreams.observe(target, false, Some(&Failure::Broken));
        }
        assert_eq!(chosen(start).iter().filter(|(_, attempt)| attempt.is_none()).count(), 2);
    }

    #[tokio::test]
    async fn an_attempt_at_one_server_keeps_no_other_from_its_own() {
        let url = |port| Upstream::try_from(format!("http://127.0.0.1:{port}")).expect("a server");
        let config =
            Proxy { upstream: (1..=3).map(url).collect(), eject_after: 1, ..Proxy::default() };
        let tls = ServerTls::of(&config).expect("no authorities");
        let upstreams = Upstreams::new(&config, tls, Arc::default());
        let [first, second, _] = &upstreams.targets[..] else { panic!("three servers") };
        for target in [first, second] {
            upstreams.observe(target, false, Some(&Failure::Broken));
        }
        let over = Instant::now() + EJECTED_FOR;
        // The request that has this waits for a server that hangs.
        let hangs = upstreams.by_load(false, over);
        let tried = |turns: &[Turn<'_>]| -> Vec<String> {
            let tried = turns.iter().filter(|turn| turn.attempt.is_some());
            tried.map(|turn| turn.target.authority.to_string()).collect()
        };
        let left_out = |turns: &[Turn<'_>]| turns.iter().filter(|turn| turn.is_left_out).count();
        assert_eq!((hangs.len(), tried(&hangs).len(), left_out(&hangs)), (3, 1, 0), "in case");
        let next = upstreams.by_load(false, over);
        assert_eq!((next.len(), tried(&next).len(), left_out(&next)), (3, 1, 1));
        assert_ne!(tried(&hangs), tried(&next));
        assert_eq!(left_out(&upstreams.by_load(false, over)), 2);
    }

    fn permit(upstreams: &Upstreams) -> Arc<OwnedSemaphorePermit> {
        Arc::new(Arc::clone(&upstreams.in_flight).try_acquire_owned().expect("a permit"))
    }
}
