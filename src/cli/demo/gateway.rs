//! A small load balancer with the upstream that it guards.
//!
//! It does what nginx does with `auth_request` and `proxy_next_upstream`: ask the nodes in turn,
//! take the next one when a node cannot be reached, and leave that one alone for a second.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::super::client::{self, Http};
use super::fleet::Node;
use crate::config::Limits;
use crate::front::bounds::Bounds;
use crate::front::serve::{ListenerStats, Protocols, serve};

/// Which node answered.
pub(super) const NODE: HeaderName = HeaderName::from_static("x-node");
/// The region of the node that answered.
pub(super) const REGION: HeaderName = HeaderName::from_static("x-region");

/// The headers that requests are limited by; see the rules.
const KEYS: [HeaderName; 5] = [
    HeaderName::from_static("x-user"),
    HeaderName::from_static("x-login"),
    HeaderName::from_static("x-licence"),
    HeaderName::from_static("x-page"),
    HeaderName::from_static("x-visitor"),
];

/// How long a node that could not be reached is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(1);
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The load balancer. It ends when it is dropped.
pub(super) struct Gateway {
    pub(super) addr: SocketAddr,
    running: JoinHandle<()>,
}

impl Gateway {
    /// Starts it on a free port.
    pub(super) async fn start(nodes: &[Node]) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let backends = nodes.iter().map(Backend::new).collect();
        let balancer =
            Arc::new(Balancer { http: client::http(), backends, turn: AtomicUsize::new(0) });
        let router = Router::new().fallback(pass).with_state(balancer);
        let running = tokio::spawn(async move {
            let bounds = Bounds::from(&Limits::default());
            let stats = Arc::new(ListenerStats::default());
            let never = CancellationToken::new();
            serve(listener, router, Protocols::Http, &bounds, stats, never).await;
        });
        Ok(Self { addr, running })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.running.abort();
    }
}

struct Balancer {
    http: Http,
    backends: Vec<Backend>,
    turn: AtomicUsize,
}

struct Backend {
    node: Node,
    left_alone_until: Mutex<Option<Instant>>,
}

impl Backend {
    fn new(node: &Node) -> Self {
        Self { node: node.clone(), left_alone_until: Mutex::new(None) }
    }

    fn is_left_alone(&self) -> bool {
        self.left_alone_until.lock().is_some_and(|until| Instant::now() < until)
    }
}

/// Asks a node; the upstream answers what may pass.
async fn pass(State(balancer): State<Arc<Balancer>>, request: Request<Body>) -> Response {
    // Bodies are none of a limiter's business.
    let (request, _) = request.into_parts();
    let mut backends: Vec<&Backend> =
        balancer.backends.iter().filter(|backend| !backend.is_left_alone()).collect();
    let turn = balancer.turn.fetch_add(1, Ordering::Relaxed);
    let first = turn.checked_rem(backends.len()).unwrap_or(0);
    backends.rotate_left(first);
    for backend in backends {
        match ask(&balancer.http, &backend.node, &request).await {
            Some(answer) => return render(&backend.node, &answer),
            None => *backend.left_alone_until.lock() = Some(Instant::now() + LEFT_ALONE),
        }
    }
    status(StatusCode::BAD_GATEWAY, "no node answers\n")
}

/// The node's answer; none when it cannot be reached.
async fn ask(http: &Http, node: &Node, request: &Parts) -> Option<Response<Bytes>> {
    let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut question = Request::get(format!("http://{}/auth", node.http))
        .header("x-original-uri", path)
        .header("x-original-method", request.method.as_str());
    for key in KEYS {
        if let Some(value) = request.headers.get(&key) {
            question = question.header(key, value);
        }
    }
    let question = question.body(Full::default()).ok()?;
    timeout(PATIENCE, client::exchange(http, question)).await.ok()?.ok()
}

fn render(node: &Node, answer: &Response<Bytes>) -> Response {
    let mut response = match answer.status() {
        StatusCode::OK => status(StatusCode::OK, "hello from the upstream\n"),
        StatusCode::TOO_MANY_REQUESTS => {
            status(StatusCode::TOO_MANY_REQUESTS, "over the limit; the upstream saw nothing\n")
        }
        _ => status(StatusCode::BAD_GATEWAY, "a node answered neither yes nor no\n"),
    };
    let headers = response.headers_mut();
    for (name, value) in answer.headers() {
        if name.as_str().contains("ratelimit") || name == http::header::RETRY_AFTER {
            headers.insert(name, value.clone());
        }
    }
    headers.insert(NODE, HeaderValue::from_static(node.id));
    headers.insert(REGION, HeaderValue::from_static(node.region));
    response
}

fn status(status: StatusCode, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}
