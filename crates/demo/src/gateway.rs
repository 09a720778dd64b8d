//! A load balancer with the upstream that it protects.
//!
//! It does what nginx does with `auth_request` and `proxy_next_upstream`: check each request with
//! the nodes in turn, and skip a node for a second after it could not be reached.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

use crate::node::Node;
use crate::requests::{self, Http, REGION};

/// The id of the node that decided a request.
pub(crate) const NODE: HeaderName = HeaderName::from_static("x-node");

/// What the upstream responds.
pub(crate) const HELLO: &str = "hello from the upstream\n";

/// The headers that requests are limited by; see the rules.
const KEYS: [&str; 5] = ["x-user", "x-login", "x-licence", "x-page", "x-visitor"];

/// How long a node that could not be reached is skipped.
const SKIPPED: Duration = Duration::from_secs(1);
/// How long a node may take to respond.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the load balancer on a free port. It runs until the runtime ends.
pub(crate) async fn start(nodes: &[Node]) -> io::Result<SocketAddr> {
    let backend = |node: &Node| Backend { node: node.clone(), skipped_until: Mutex::new(None) };
    let balancer = Balancer {
        http: requests::client(),
        backends: nodes.iter().map(backend).collect(),
        next: AtomicUsize::new(0),
    };
    serve(Router::new().fallback(pass).with_state(Arc::new(balancer))).await
}

/// Serves `router` on a free port until the runtime ends.
pub(crate) async fn serve(router: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, router).into_future());
    Ok(addr)
}

struct Balancer {
    http: Http,
    backends: Vec<Backend>,
    next: AtomicUsize,
}

struct Backend {
    node: Node,
    skipped_until: Mutex<Option<Instant>>,
}

/// Checks the request with one node; the upstream responds if it may pass.
async fn pass(State(balancer): State<Arc<Balancer>>, request: Request<Body>) -> Response<Body> {
    // Limits do not depend on the body.
    let (request, _) = request.into_parts();
    let now = Instant::now();
    let is_skipped = |backend: &Backend| backend.skipped_until.lock().is_some_and(|end| now < end);
    let mut backends: Vec<&Backend> =
        balancer.backends.iter().filter(|backend| !is_skipped(backend)).collect();
    let next = balancer.next.fetch_add(1, Ordering::Relaxed);
    let first = next.checked_rem(backends.len()).unwrap_or(0);
    backends.rotate_left(first);
    for Backend { node, skipped_until } in backends {
        match check(&balancer.http, node, &request).await {
            Some(verdict) => return respond(node, &verdict),
            None => *skipped_until.lock() = Some(Instant::now() + SKIPPED),
        }
    }
    (StatusCode::BAD_GATEWAY, "no node responds\n").into_response()
}

/// The node's response; `None` when it cannot be reached.
async fn check(http: &Http, node: &Node, request: &Parts) -> Option<Response<Bytes>> {
    let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut check = Request::get(format!("http://{}/auth", node.http))
        .header("x-original-uri", path)
        .header("x-original-method", request.method.as_str());
    for key in KEYS {
        if let Some(value) = request.headers.get(key) {
            check = check.header(key, value);
        }
    }
    timeout(TIMEOUT, requests::send(http, check, Body::empty())).await.ok()?.ok()
}

fn respond(node: &Node, verdict: &Response<Bytes>) -> Response<Body> {
    let mut response = match verdict.status() {
        StatusCode::OK => HELLO.into_response(),
        status @ StatusCode::TOO_MANY_REQUESTS => {
            (status, "over the limit; the upstream was not called\n").into_response()
        }
        _ => (StatusCode::BAD_GATEWAY, "unexpected response from a node\n").into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in verdict.headers() {
        if name.as_str().contains("ratelimit") || name == header::RETRY_AFTER {
            headers.insert(name, value.clone());
        }
    }
    headers.insert(NODE, HeaderValue::from_static(node.id));
    headers.insert(REGION, HeaderValue::from_static(node.region));
    response
}
