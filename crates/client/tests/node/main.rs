//! Ten workers that share a client, against a real node: run by `scripts/check-clients`, which
//! starts it. `NODE_URL` is its HTTP listener; with `PACED_MINUTE` the limit is 100 a minute,
//! otherwise 100 in six seconds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]
#![allow(clippy::disallowed_methods, reason = "the clock of the machine, and what the script says")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use reqwest_middleware::{ClientBuilder, reqwest};
use tidegate_client::Pacing;
use tokio::task::JoinSet;
use tokio::time::Instant;

const WORKERS: usize = 10;
const LIMIT: usize = 100;

#[derive(Default)]
struct Counts {
    useful: AtomicUsize,
    refused: AtomicUsize,
}

#[tokio::test]
async fn ten_workers_that_share_a_client_use_a_limit_and_are_not_refused() {
    let node = std::env::var("NODE_URL").expect("NODE_URL: run scripts/check-clients");
    let is_minute = std::env::var_os("PACED_MINUTE").is_some();
    let (header, seconds, windows) =
        if is_minute { ("x-minute", 60, 1) } else { ("x-six-seconds", 6, 2) };
    let window = Duration::from_secs(seconds);
    // Retries would hide refusals.
    let client = ClientBuilder::new(reqwest::Client::new());
    let client = client.with(Pacing::default().with_retries(0)).build();
    let name = format!("rust-{}", std::process::id());
    let counts = Arc::<Counts>::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let into = Duration::from_nanos(u64::try_from(now.as_nanos() % window.as_nanos()).unwrap());
    tokio::time::sleep(window.saturating_sub(into)).await;
    let end = Instant::now() + window * u32::try_from(windows).unwrap();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, counts) = (client.clone(), counts.clone());
        let (url, name) = (format!("{node}/auth/"), name.clone());
        workers.spawn(async move {
            while Instant::now() < end {
                let response = client.get(&url).header(header, &name).send().await.unwrap();
                if Instant::now() < end {
                    let count = match response.status() {
                        StatusCode::OK => &counts.useful,
                        StatusCode::TOO_MANY_REQUESTS => &counts.refused,
                        other => panic!("{other}"),
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    let useful = counts.useful.load(Ordering::Relaxed);
    let refused = counts.refused.load(Ordering::Relaxed);
    println!("rust: {useful} useful, {refused} refused in {windows} window(s) of {LIMIT}");
    assert!(useful >= windows * LIMIT * 98 / 100, "{useful}");
    assert!(refused <= 2, "{refused}");
}
