//! An axum service with five requests a minute for each address; or, with the URL of a node, with
//! the limits that the node has for the domain `http`.
//!
//! ```sh
//! cargo run -p tidegate-tower --example service &                         # or
//! cargo run -p tidegate-tower --example service http://127.0.0.1:8080 &   # a node
//! for _ in 1 2 3 4 5 6; do curl -i http://127.0.0.1:8000/; done
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tidegate_tower::{HttpNode, InProcess, RateLimitLayer};
use tokio::net::TcpListener;

const RULES: &str = "domain: http
descriptors:
  - key: remote_address
    rate_limit: {name: requests, unit: minute, requests_per_unit: 5}
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = match std::env::args().nth(1) {
        Some(url) => RateLimitLayer::new(HttpNode::new(&url)?, "http"),
        None => RateLimitLayer::new(InProcess::from_yaml(RULES)?, "http"),
    };
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limits);
    let listener = TcpListener::bind("127.0.0.1:8000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
