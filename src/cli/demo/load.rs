//! Requests in numbers, and what became of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::super::client::{self, Http};
use super::gateway::REGION;

/// What became of some requests.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By the region that answered.
    pub(super) regions: BTreeMap<String, Count>,
    /// Neither passed nor refused.
    pub(super) errors: u32,
    /// The longest that an answer took.
    pub(super) slowest: Duration,
}

/// What one region answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) asked: u32,
    pub(super) passed: u32,
}

impl Tally {
    /// All regions together.
    pub(super) fn all(&self) -> Count {
        self.regions.values().fold(Count::default(), |all, count| Count {
            asked: all.asked + count.asked,
            passed: all.passed + count.passed,
        })
    }

    fn add(&mut self, answer: Option<&Response<Bytes>>, took: Duration) {
        self.slowest = self.slowest.max(took);
        let passed = match answer.map(Response::status) {
            Some(StatusCode::OK) => 1,
            Some(StatusCode::TOO_MANY_REQUESTS) => 0,
            _ => {
                self.errors += 1;
                return;
            }
        };
        let region = answer.and_then(|answer| answer.headers().get(REGION)?.to_str().ok());
        let count = self.regions.entry(region.unwrap_or("?").to_owned()).or_default();
        count.asked += 1;
        count.passed += passed;
    }
}

/// One request for the upstream, limited by `header`.
pub(super) async fn one(
    http: &Http,
    gateway: SocketAddr,
    header: &str,
    value: &str,
) -> Option<Response<Bytes>> {
    let request = Request::get(format!("http://{gateway}/"))
        .header(header, value)
        .body(Full::default())
        .ok()?;
    client::exchange(http, request).await.ok()
}

/// `count` requests, `at_once` of them under way at any time.
pub(super) async fn burst(
    http: &Http,
    gateway: SocketAddr,
    (header, value): (&str, &str),
    count: usize,
    at_once: usize,
) -> Tally {
    let requests = stream::iter(0..count).map(async |_| {
        let start = Instant::now();
        (one(http, gateway, header, value).await, start.elapsed())
    });
    let mut tally = Tally::default();
    let mut answers = std::pin::pin!(requests.buffer_unordered(at_once));
    while let Some((answer, took)) = answers.next().await {
        tally.add(answer.as_ref(), took);
    }
    tally
}

/// `count` requests, one each `pause`, whatever becomes of those before: nobody waits for a slow
/// answer before asking again. The requests are those of some visitors in turn.
pub(super) async fn steady(http: &Http, gateway: SocketAddr, count: u32, pause: Duration) -> Tally {
    /// Enough for every node to own some.
    const VISITORS: u32 = 200;
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut tally = Tally::default();
    let mut asking = JoinSet::new();
    for i in 0..count {
        ticks.tick().await;
        let http = http.clone();
        asking.spawn(async move {
            let start = Instant::now();
            let visitor = format!("visitor-{}", i % VISITORS);
            (one(&http, gateway, "x-visitor", &visitor).await, start.elapsed())
        });
    }
    while let Some(asked) = asking.join_next().await {
        match asked {
            Ok((answer, took)) => tally.add(answer.as_ref(), took),
            Err(_) => tally.errors += 1,
        }
    }
    tally
}
