//! HTTP requests: single ones, bursts, and steady load, with a tally of the responses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::request::Builder;
use axum::http::{HeaderName, Request, Response, StatusCode, Uri};
use futures_util::{StreamExt, stream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::error::Error;

/// The region of the node that decided a request, as the load balancer reports it.
pub(crate) const REGION: HeaderName = HeaderName::from_static("x-region");

/// Requests of a burst that are in flight at once.
pub(crate) const CONCURRENCY: usize = 16;

/// Largest response in bytes. The largest one is that of `/metrics`, well below 1 MB.
const RESPONSE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A client with a connection pool that clones share.
pub(crate) type Http = Client<HttpConnector, Body>;

pub(crate) fn client() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Sends a request and returns the whole response, whatever its status. There is no timeout.
pub(crate) async fn send(
    http: &Http,
    request: Builder,
    body: impl Into<Body>,
) -> Result<Response<Bytes>, Error> {
    let url = request.uri_ref().map(Uri::to_string).unwrap_or_default();
    let exchange = async {
        let (head, body) = http.request(request.body(body.into())?).await?.into_parts();
        let body = to_bytes(Body::new(body), RESPONSE_BYTES_MAX).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Response::from_parts(head, body))
    };
    exchange.await.map_err(|error| {
        Error::new(format!("{url}: {}", innermost(&*error)), "the node's log is above")
    })
}

fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

/// Name and value of the header that limits a request.
pub(crate) type Header<'a> = (&'a str, &'a str);

/// Sends one request for the upstream behind `addr`, limited by `header`. `None`: no response.
pub(crate) async fn one(
    http: &Http,
    addr: SocketAddr,
    (name, value): Header<'_>,
) -> Option<Response<Bytes>> {
    let request = Request::get(format!("http://{addr}/")).header(name, value);
    send(http, request, Body::empty()).await.ok()
}

/// Sends `count` equal requests, [`CONCURRENCY`] at once.
pub(crate) async fn burst(http: &Http, addr: SocketAddr, header: Header<'_>, count: u32) -> Tally {
    let timed = move |_| async move {
        let begin = Instant::now();
        (one(http, addr, header).await, begin.elapsed())
    };
    let responses = stream::iter(0..count).map(timed).buffer_unordered(CONCURRENCY);
    let begin = Instant::now();
    let mut tally = responses
        .fold(Tally::default(), async |mut tally, (response, took)| {
            tally.add(response.as_ref());
            tally.latencies.push(took);
            tally
        })
        .await;
    tally.took = begin.elapsed();
    tally.latencies.sort_unstable();
    tally
}

/// Sends one request each `pause`, without waiting for the responses to earlier ones. Returns the
/// slowest response time too. The requests are those of 200 visitors in turn, so that every node
/// owns some of their keys.
pub(crate) async fn steady(
    http: &Http,
    addr: SocketAddr,
    count: u32,
    pause: Duration,
) -> (Tally, Duration) {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = JoinSet::new();
    for i in 0..count {
        ticks.tick().await;
        let http = http.clone();
        requests.spawn(async move {
            let start = Instant::now();
            let response = one(&http, addr, ("x-visitor", &format!("visitor-{}", i % 200))).await;
            (response, start.elapsed())
        });
    }
    let mut tally = Tally::default();
    let mut slowest = Duration::ZERO;
    while let Some(done) = requests.join_next().await {
        let (response, took) = done.unwrap_or_default();
        tally.add(response.as_ref());
        slowest = slowest.max(took);
    }
    (tally, slowest)
}

/// The responses to some requests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By the region of the node that decided.
    pub(crate) regions: BTreeMap<String, Count>,
    /// Requests that were neither passed nor refused.
    pub(crate) errors: u32,
    /// Of a burst: how long it took.
    pub(crate) took: Duration,
    /// Of a burst: the time of each response, the fastest first.
    latencies: Vec<Duration>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) sent: u32,
    pub(crate) passed: u32,
}

impl Tally {
    /// The sum over all regions.
    pub(crate) fn all(&self) -> Count {
        self.regions.values().fold(Count::default(), |all, count| Count {
            sent: all.sent + count.sent,
            passed: all.passed + count.passed,
        })
    }

    /// Whether each region passed exactly `limit` requests, or all if fewer were sent.
    pub(crate) fn is_exact_by_region(&self, limit: u32) -> bool {
        let is_exact = |count: &Count| count.passed == limit.min(count.sent);
        self.errors == 0 && self.regions.values().all(is_exact)
    }

    /// Whether all regions in total passed exactly `limit` requests.
    pub(crate) fn is_exact(&self, limit: u32) -> bool {
        self.errors == 0 && self.all().passed == limit
    }

    /// The time within which `percent` of the responses came.
    pub(crate) fn latency(&self, percent: usize) -> Duration {
        let at = self.latencies.len() * percent / 100;
        self.latencies.get(at).or_else(|| self.latencies.last()).copied().unwrap_or_default()
    }

    fn add(&mut self, response: Option<&Response<Bytes>>) {
        let passed = match response.map(Response::status) {
            Some(StatusCode::OK) => 1,
            Some(StatusCode::TOO_MANY_REQUESTS) => 0,
            _ => {
                self.errors += 1;
                return;
            }
        };
        let region = response.and_then(|response| response.headers().get(REGION)?.to_str().ok());
        let count = self.regions.entry(region.unwrap_or("?").to_owned()).or_default();
        count.sent += 1;
        count.passed += passed;
    }
}
