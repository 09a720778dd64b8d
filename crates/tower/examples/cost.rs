//! What a layer adds to an empty handler of axum, in CPU time: without a layer, with one that does
//! nothing, with limits in the process, and with `tower_governor` (with its headers), in turn, for
//! several rounds.
//!
//! ```sh
//! cargo run --release -p tidegate-tower --example cost
//! ```
//!
//! Each request is of one of 10,000 addresses with 1,000 a minute each, and is allowed. The least
//! of the rounds is printed: what else the machine does only adds to it. Requests are calls of the
//! router: no socket, no parser.
#![expect(clippy::print_stdout, reason = "prints what it measured")]

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::Request;
use rustix::time::{ClockId, clock_gettime};
use tidegate_tower::{InProcess, RateLimitLayer};
use tower::Service;
use tower::layer::util::Identity;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

const ROUNDS: usize = 15;
const REQUESTS: u32 = 100_000;
const CLIENTS: u32 = 10_000;

const RULES: &str = "domain: http
descriptors:
  - key: remote_address
    rate_limit: {name: requests, unit: minute, requests_per_unit: 1000, algorithm: gcra}
";

fn main() {
    let bare = Router::new().route("/", get(|| async {}));
    let limiter = InProcess::from_yaml(RULES).expect("valid rules");
    let ours = bare.clone().layer(RateLimitLayer::new(limiter, "http"));
    let config = GovernorConfigBuilder::default()
        .per_millisecond(60)
        .burst_size(1_000)
        .use_headers()
        .finish()
        .expect("a valid quota");
    let governor = bare.clone().layer(GovernorLayer::new(config));

    let empty = bare.clone().layer(Identity::new());

    let mut routers = [
        ("no layer", bare),
        ("an empty layer", empty),
        ("tidegate-tower", ours),
        ("tower_governor", governor),
    ];
    let mut costs = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        for ((_, router), costs) in routers.iter_mut().zip(&mut costs) {
            costs.push(round(router));
        }
    }
    let least = costs.map(|costs| costs.into_iter().min().unwrap_or(0));
    println!("{:16} {:>10} {:>10}", "", "ns/request", "added");
    for ((name, _), cost) in routers.iter().zip(least) {
        println!("{name:16} {cost:>10} {:>10}", cost.saturating_sub(least[0]));
    }
}

/// CPU time of a request, in nanoseconds.
fn round(router: &mut Router) -> u64 {
    let start = cpu_time();
    for number in 0..REQUESTS {
        let mut request = Request::new(Body::empty());
        let address = Ipv4Addr::from_bits(0x0a00_0000 + number % CLIENTS);
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 4711))));
        let mut response = pin!(router.call(request));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) else {
            panic!("an empty handler is ready at once");
        };
        assert!(response.status().is_success());
    }
    (cpu_time() - start) / u64::from(REQUESTS)
}

fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}
