//! A load balancer with the upstream that it protects.
//!
//! It does what nginx does with `auth_request` and `proxy_next_upstream`: it checks each request
//! with one node, in turn, or with the next one if that node cannot be reached.

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
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::cluster::KEYS;
use crate::node::Node;
use crate::requests::{self, REGION};

/// The id of the node that decided a request.
pub(crate) const NODE: HeaderName = HeaderName::from_static("x-node");

/// What the upstream responds.
pub(crate) const HELLO: &str = "hello from the upstream\n";

/// How long a node may take to respond.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the load balancer on a free port. It runs until the runtime ends.
pub(crate) async fn start(nodes: &[Node]) -> io::Result<SocketAddr> {
    let balancer = Balancer { nodes: nodes.to_vec(), next: AtomicUsize::new(0) };
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
    nodes: Vec<Node>,
    next: AtomicUsize,
}

/// Checks the request with one node; the upstream responds if it may pass.
async fn pass(State(balancer): State<Arc<Balancer>>, request: Request<Body>) -> Response<Body> {
    // Limits do not depend on the body.
    let (request, _) = request.into_parts();
    let Balancer { nodes, next } = &*balancer;
    let first = next.fetch_add(1, Ordering::Relaxed) % nodes.len();
    for node in nodes[first..].iter().chain(&nodes[..first]) {
        if let Some(verdict) = check(node, &request).await {
            return respond(node, &verdict);
        }
    }
    (StatusCode::BAD_GATEWAY, "no node responds\n").into_response()
}

/// The node's response; `None` when it cannot be reached.
async fn check(node: &Node, request: &Parts) -> Option<Response<Bytes>> {
    let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut check = Request::get(format!("http://{}/auth", node.http))
        .header("x-original-uri", path)
        .header("x-original-method", request.method.as_str());
    for name in KEYS.map(|key| format!("x-{key}")) {
        if let Some(value) = request.headers.get(&name) {
            check = check.header(name, value);
        }
    }
    timeout(TIMEOUT, requests::send(&node.client, check, Body::empty())).await.ok()?.ok()
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
