//! Tasks that wait for a pacer.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate_client::{Pacer, WaitError};
use tokio::task::JoinSet;
use tokio::time::Instant;

const ORIGIN: &str = "https://a.example";

#[tokio::test]
async fn tasks_leave_in_the_order_of_their_arrival() {
    let (pacer, order) = (Arc::new(Pacer::default()), Arc::new(Mutex::new(Vec::new())));
    learn(&pacer, "", r#""a";r=20;t=1"#).await;
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let (pacer, order) = (pacer.clone(), order.clone());
        tasks.spawn(async move {
            let permit = pacer.acquire(ORIGIN, "").await;
            order.lock().unwrap().push(number);
            drop(permit);
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_response_ends_a_wait_that_it_makes_shorter() {
    let (pacer, begun) = (Pacer::default(), Instant::now());
    learn(&pacer, "/x", r#""a";r=0;t=60"#).await;
    let wait = async { pacer.acquire(ORIGIN, "/x").await.unwrap() };
    // The routes share a policy, and the second one gets its first response while the first waits.
    let (_permit, ()) = tokio::join!(wait, learn(&pacer, "/y", r#""a";r=50;t=1"#));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_task_that_stops_waiting_takes_nothing_and_lets_the_others_pass() {
    let pacer = Pacer::default();
    learn(&pacer, "", r#""a";r=1;t=1"#).await;
    {
        // One waits for the quota, the other one for its turn; both give up.
        let (mut first, mut second) =
            (pin!(pacer.acquire(ORIGIN, "")), pin!(pacer.acquire(ORIGIN, "")));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(first.as_mut().poll(&mut context), Poll::Pending));
        assert!(matches!(second.as_mut().poll(&mut context), Poll::Pending));
    }
    let _permit = pacer.acquire(ORIGIN, "").await.unwrap();
}

#[tokio::test]
async fn who_would_wait_too_long_is_told_at_once() {
    let pacer = Pacer::new(Duration::from_secs(30));
    learn(&pacer, "", r#""a";r=0;t=60"#).await;
    let begun = Instant::now();
    let WaitError { origin, wait } = pacer.acquire(ORIGIN, "").await.unwrap_err();
    assert!(wait > Duration::from_secs(30) && begun.elapsed() < Duration::from_secs(20));
    assert_eq!(origin, ORIGIN);
}

/// Sends a first request, whose response says this.
async fn learn(pacer: &Pacer, route: &str, said: &str) {
    let permit = pacer.acquire(ORIGIN, route).await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("RateLimit", said.parse().unwrap());
    assert_eq!(pacer.observe(permit, StatusCode::OK, &headers), None);
}
