//! A `Decide` with a table of answers, listeners in front of it, and a byte-level HTTP/1 client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::config::Auth;
use tidegate::decide::{
    CheckRequest, CheckResponse, CommitRequest, Committed, Decide, Entered, LimitInFlight,
    Reservation, Reserve, ReserveRequest, Status, Uncommitted, VerdictSource,
};
use tidegate::front::Probes;
use tidegate::front::bounds::Bounds;
use tidegate::front::http::{HttpListener, router};
use tidegate::front::pages::Page;
use tidegate::front::rls::{Health, RlsService, routes};
use tidegate::front::serve::{ListenerStats, Protocols, serve};
use tidegate::front::tls::Tls;
use tidegate_limiter::engine::{Retry, Verdict};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::{Hits, Span};
use tidegate_rules::rule::{Durability, InFlightLimits, Mode, OnUnavailable, Rule, Scope};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

// === answers ===

pub(crate) fn rule(name: Option<&str>, limits: &[(u32, u64)]) -> Rule {
    let quota = |&(limit, secs): &(u32, u64)| {
        Quota::simple(Algorithm::FixedWindow, limit, Span::from_secs(secs)).expect("a valid quota")
    };
    Rule {
        id: "shop.user".into(),
        name: name.map(Into::into),
        unlimited_per_unit: 0,
        limits: limits.iter().map(quota).collect(),
        soft_limits: Box::default(),
        mode: Mode::Strict,
        scope: Scope::Region,
        on_unavailable: OnUnavailable::Local,
        durability: Durability::Async,
        shadow: false,
        quota_mode: false,
        in_flight: InFlightLimits::default(),
        replaces: Box::default(),
        metadata: None,
        stats: Arc::default(),
    }
}

pub(crate) fn admitted(limit: u32, remaining: u32, reset: Span) -> Verdict {
    Verdict {
        allowed: true,
        limit,
        remaining,
        reset,
        retry: Retry::Now,
        delay: Span::ZERO,
        excess: 0,
    }
}

pub(crate) fn refused(limit: u32, reset: Span, retry: Retry) -> Verdict {
    Verdict { allowed: false, limit, remaining: 0, reset, retry, delay: Span::ZERO, excess: 0 }
}

pub(crate) fn status(rule: Rule, verdicts: &[Verdict], leading: usize) -> Status {
    let allowed = rule.shadow || verdicts.iter().all(|verdict| verdict.allowed);
    Status {
        rule: Some(Arc::new(rule)),
        allowed,
        verdicts: verdicts.iter().copied().collect(),
        leading: (!verdicts.is_empty()).then_some(leading),
        source: VerdictSource::Local,
        metadata: None,
    }
}

pub(crate) fn unmatched() -> Status {
    Status {
        rule: None,
        allowed: true,
        verdicts: SmallVec::new(),
        leading: None,
        source: VerdictSource::Unlimited,
        metadata: None,
    }
}

pub(crate) fn answer(statuses: Vec<Status>) -> CheckResponse {
    CheckResponse {
        allowed: statuses.iter().all(|status| status.allowed),
        statuses: statuses.into(),
    }
}

/// 10 a minute, 7 left, whole again in 12 s.
pub(crate) fn open() -> CheckResponse {
    let verdict = admitted(10, 7, Span::from_secs(12));
    answer(vec![status(rule(Some("login"), &[(10, 60)]), &[verdict], 0)])
}

/// 10 a minute, refused for another 11.2 s.
pub(crate) fn limited() -> CheckResponse {
    let retry = Retry::After(Span::from_millis(11_200));
    let verdict = refused(10, Span::from_secs(12), retry);
    answer(vec![status(rule(Some("login"), &[(10, 60)]), &[verdict], 0)])
}

// === the table ===

/// A check that the table received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedCheck {
    pub(crate) domain: String,
    pub(crate) descriptors: Vec<Vec<(String, String)>>,
    pub(crate) own_hits: Vec<Option<i64>>,
    pub(crate) hits: i64,
}

/// Answers by domain; a domain that is not in the table has no rules. `held` waits for a permit, and
/// in `full` too many requests are in flight.
pub(crate) struct Table {
    pub(crate) answers: BTreeMap<&'static str, CheckResponse>,
    pub(crate) checks: Mutex<Vec<RecordedCheck>>,
    pub(crate) gate: Semaphore,
}

impl Table {
    pub(crate) fn new(
        answers: impl IntoIterator<Item = (&'static str, CheckResponse)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            answers: answers.into_iter().collect(),
            checks: Mutex::default(),
            gate: Semaphore::new(0),
        })
    }

    pub(crate) fn usual() -> Arc<Self> {
        Self::new([("open", open()), ("limited", limited())])
    }

    /// Waits for the first check.
    pub(crate) async fn until_checked(&self) {
        let checked = async {
            while self.checks.lock().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        in_time("a check arrives", checked).await;
    }

    pub(crate) fn checks(&self) -> Vec<RecordedCheck> {
        self.checks.lock().clone()
    }
}

impl Decide for Table {
    async fn decide(&self, request: CheckRequest<'_>) -> CheckResponse {
        let entries = |descriptor: &tidegate_limiter::descriptor::Descriptor<'_>| {
            descriptor.entries.iter().map(|e| (e.key.to_owned(), e.value.to_owned())).collect()
        };
        self.checks.lock().push(RecordedCheck {
            domain: request.domain.to_owned(),
            descriptors: request.descriptors.iter().map(entries).collect(),
            own_hits: request.descriptors.iter().map(|d| d.hits.map(Hits::get)).collect(),
            hits: request.hits.get(),
        });
        if request.domain == "held" {
            self.gate.acquire().await.expect("an open gate").forget();
        }
        let unmatched = || answer(request.descriptors.iter().map(|_| unmatched()).collect());
        self.answers.get(request.domain).cloned().unwrap_or_else(unmatched)
    }
}

/// The listeners of these tests are not asked to reserve.
impl Reserve for Table {
    async fn reserve(&self, request: ReserveRequest<'_>) -> Reservation {
        let response = answer(request.descriptors.iter().map(|_| unmatched()).collect());
        Reservation { response, id: None, ttl: Span::ZERO }
    }

    async fn commit(&self, _: CommitRequest<'_>) -> Result<Committed, Uncommitted> {
        Err(Uncommitted)
    }
}

impl LimitInFlight for Table {
    async fn enter(&self, request: CheckRequest<'_>) -> Entered {
        if request.domain == "full" { Entered::Refused(limited()) } else { Entered::Admitted(None) }
    }
}

/// Ready or not, as set.
pub(crate) struct Readiness(pub(crate) Result<(), String>);

impl Probes for Readiness {
    fn ready(&self) -> Result<(), String> {
        self.0.clone()
    }

    fn metrics(&self) -> String {
        "# EOF\n".to_owned()
    }
}

// === listeners ===

/// A running listener. It drains when it is dropped.
pub(crate) struct Listener {
    pub(crate) addr: SocketAddr,
    pub(crate) stats: Arc<ListenerStats>,
    pub(crate) drain: CancellationToken,
    pub(crate) served: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.served.abort();
    }
}

pub(crate) async fn http_listener(table: &Arc<Table>, bounds: Bounds, auth: &str) -> Listener {
    let auth: Auth = toml::from_str(auth).expect("a valid [auth] section");
    http_listener_with(table, bounds, auth, Readiness(Ok(())), 429).await
}

pub(crate) async fn http_listener_with(
    table: &Arc<Table>,
    bounds: Bounds,
    auth: Auth,
    probes: Readiness,
    denied_status: u16,
) -> Listener {
    let stats = Arc::<ListenerStats>::default();
    let service = router(HttpListener {
        decide: Arc::clone(table),
        probes: Arc::new(probes),
        bounds: bounds.clone(),
        denied_status,
        auth,
        stats: Arc::clone(&stats),
        metrics: Page::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let drain = CancellationToken::new();
    let served = {
        let (stats, drain) = (Arc::clone(&stats), drain.clone());
        tokio::spawn(async move {
            serve(listener, service, Protocols::Http(None), &bounds, stats, drain).await;
        })
    };
    Listener { addr, stats, drain, served }
}

pub(crate) async fn grpc_listener(table: &Arc<Table>, bounds: Bounds) -> (Listener, Health) {
    grpc_listener_with(table, bounds, None).await
}

pub(crate) async fn grpc_listener_with(
    table: &Arc<Table>,
    bounds: Bounds,
    tls: Option<Tls>,
) -> (Listener, Health) {
    let stats = Arc::<ListenerStats>::default();
    let health = Health::new().await;
    let (decide, stats_of) = (Arc::clone(table), Arc::clone(&stats));
    let service = RlsService { decide, bounds: bounds.clone(), stats: stats_of };
    let service = routes(service, &health);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let drain = CancellationToken::new();
    let served = {
        let (stats, drain) = (Arc::clone(&stats), drain.clone());
        tokio::spawn(async move {
            serve(listener, service, Protocols::Grpc(tls), &bounds, stats, drain).await;
        })
    };
    (Listener { addr, stats, drain, served }, health)
}

/// A guard against hanging for ever; far above what anything here takes.
pub(crate) async fn in_time<T>(what: &str, done: impl Future<Output = T>) -> T {
    let guard = std::time::Duration::from_secs(30);
    tokio::time::timeout(guard, done).await.unwrap_or_else(|_| panic!("{what}: it hangs"))
}

// === an HTTP/2 client that reads nothing ===

/// Responses that are not read.
pub(crate) struct Unread {
    _responses: Vec<Response<Incoming>>,
    _sender: SendRequest<Full<Bytes>>,
    /// Ends when the server closes the connection.
    pub(crate) closed: JoinHandle<()>,
}

/// Sends the request `count` times over one connection whose streams have a receive window of
/// `window` bytes, waits for the heads of the responses, and reads nothing else.
pub(crate) async fn unread(
    addr: SocketAddr,
    window: u32,
    request: &Request<Full<Bytes>>,
    count: usize,
) -> Unread {
    let stream = TcpStream::connect(addr).await.expect("a connection");
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .expect("a handshake");
    let closed = tokio::spawn(async move { drop(connection.await) });
    let mut responses = Vec::new();
    for _ in 0..count {
        responses.push(sender.send_request(request.clone()).await.expect("a response"));
    }
    Unread { _responses: responses, _sender: sender, closed }
}

// === an HTTP/2 client that sends any frames ===

/// The headers of a POST to `path`, without an end of the request.
pub(crate) fn open_stream(stream: u32, path: &str) -> Vec<u8> {
    // Of the static table: POST and http; then `:path` and `:authority` as literals.
    let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).expect("a short path")];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x01t");
    header_frame(stream, &block)
}

pub(crate) fn header_frame(stream: u32, block: &[u8]) -> Vec<u8> {
    const END_HEADERS: u8 = 4;
    let mut frame = vec![0, 0, u8::try_from(block.len()).expect("a short block"), 1, END_HEADERS];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(block);
    frame
}

/// Sends the frames on a new connection and returns stream and error code of the first
/// `RST_STREAM`.
pub(crate) async fn first_reset(addr: SocketAddr, frames: &[u8]) -> (u32, u32) {
    const RST_STREAM: u8 = 3;
    let mut stream = TcpStream::connect(addr).await.expect("a connection");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    stream.write_all(frames).await.expect("sent");
    let reset = async {
        loop {
            let [a, b, c, kind, _flags, id @ ..] = {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await.expect("a frame");
                head
            };
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            stream.read_exact(&mut payload).await.expect("a payload");
            if kind == RST_STREAM {
                let code = payload.try_into().expect("an error code");
                return (u32::from_be_bytes(id), u32::from_be_bytes(code));
            }
        }
    };
    in_time("a stream is reset", reset).await
}

// === an HTTP/1 client that sends any bytes ===

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The text of `{"error": text}`.
    pub(crate) fn error(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        let body: serde_json::Value = serde_json::from_str(&self.body).expect("JSON");
        body["error"].as_str().expect("an error text").to_owned()
    }
}

/// Sends the bytes and reads until the server closes.
pub(crate) async fn send(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).await.expect("a connection");
    // The server may answer and close before everything is sent; its answer counts.
    let _ = stream.write_all(bytes).await;
    let mut reply = Vec::new();
    let _ = in_time("read the answer", stream.read_to_end(&mut reply)).await;
    reply
}

pub(crate) async fn request(
    addr: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let own = format!("host: test\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    let headers: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("{method} {target} HTTP/1.1\r\n{own}{}\r\n", headers.concat());
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    parse(&send(addr, &bytes).await)
}

pub(crate) async fn post_check(addr: SocketAddr, body: &[u8]) -> Reply {
    request(addr, "POST", "/v1/check", &[("content-type", "application/json")], body).await
}

pub(crate) fn parse(reply: &[u8]) -> Reply {
    let text = String::from_utf8_lossy(reply);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no reply: {text:?}"));
    let mut lines = head.lines();
    let status_line = lines.next().expect("a status line");
    let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").expect("a header");
        (name.to_owned(), value.to_owned())
    };
    Reply {
        status: status.unwrap_or_else(|| panic!("no status: {status_line:?}")),
        headers: lines.map(header).collect(),
        body: body.to_owned(),
    }
}
