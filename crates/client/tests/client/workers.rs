//! Ten workers that share a client use a limit, and are not refused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use reqwest_middleware::{ClientBuilder, reqwest};
use tidegate_client::Pacing;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::server::Server;

const WORKERS: usize = 10;
const LIMIT: u32 = 100;
const WINDOW: Duration = Duration::from_secs(4);
const WINDOWS: u32 = 3;

#[tokio::test]
async fn ten_workers_that_share_a_client_use_a_limit_and_are_not_refused() {
    let start = Instant::now();
    let counts = Arc::new(Mutex::new(Counts::default()));
    let counted = counts.clone();
    let server = Server::start(move |_| counted.lock().unwrap().respond(start.elapsed())).await;

    // Retries would hide refusals.
    let client = reqwest::Client::new();
    let client = ClientBuilder::new(client).with(Pacing::default().with_retries(0)).build();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, url) = (client.clone(), server.url.clone());
        workers.spawn(async move {
            let end = start + WINDOW * WINDOWS;
            while Instant::now() < end {
                client.get(&url).send().await.unwrap();
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }

    let counts = counts.lock().unwrap();
    println!("useful responses of {LIMIT} in each window: {counts:?}");
    let least = LIMIT * 98 / 100;
    assert!(counts.useful[..WINDOWS as usize].iter().all(|useful| *useful >= least), "{counts:?}");
    assert!(counts.refused <= 2, "{counts:?}");
}

/// A fixed window, and what it counted.
#[derive(Debug, Default)]
struct Counts {
    /// Of each window, and of what is sent after the last one.
    useful: [u32; WINDOWS as usize + 1],
    refused: u32,
}

impl Counts {
    fn respond(&mut self, now: Duration) -> Response<Bytes> {
        let window = u32::try_from(now.as_nanos() / WINDOW.as_nanos()).unwrap();
        let left = (WINDOW * (window + 1)).saturating_sub(now);
        // Rounded up, as servers do.
        let reset = left.as_secs_f64().ceil().to_string();
        let used = &mut self.useful[window.min(WINDOWS) as usize];
        let mut response = Response::builder();
        if *used < LIMIT {
            *used += 1;
        } else {
            self.refused += 1;
            response = response.status(StatusCode::TOO_MANY_REQUESTS).header("Retry-After", &reset);
        }
        let (remaining, seconds) = (LIMIT - *used, WINDOW.as_secs());
        let policy = format!("\"a\";q={LIMIT};w={seconds}");
        let limit = format!("\"a\";r={remaining};t={reset}");
        let response = response.header("RateLimit-Policy", policy).header("RateLimit", limit);
        response.body(Bytes::new()).unwrap()
    }
}
