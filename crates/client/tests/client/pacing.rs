//! The middleware, against a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use http_body_util::Full;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error, reqwest};
use tidegate_client::{Pacer, Pacing, WaitError};

use super::server::Server;

#[tokio::test]
async fn a_refused_request_is_sent_again_with_its_body() {
    let server = refuses_first(1, "0").await;
    let sent = client(Pacing::default()).post(&server.url).body("hello").send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::OK);
    assert_eq!(sent.text().await.unwrap(), "hello");
    assert_eq!(server.served(), 2);
}

#[tokio::test]
async fn a_refused_request_is_sent_again_as_often_as_was_said() {
    let server = refuses_first(u32::MAX, "0").await;
    let sent = client(Pacing::default().with_retries(1)).get(&server.url).send().await.unwrap();
    assert_eq!((sent.status(), server.served()), (StatusCode::TOO_MANY_REQUESTS, 2));
    // Never, so it does not wait either.
    let server = refuses_first(u32::MAX, "0").await;
    let sent = client(Pacing::default().with_retries(0)).get(&server.url).send().await.unwrap();
    assert_eq!((sent.status(), server.served()), (StatusCode::TOO_MANY_REQUESTS, 1));
}

#[tokio::test]
async fn a_body_that_is_a_stream_is_sent_once() {
    let server = refuses_first(1, "0").await;
    let body = reqwest::Body::wrap(Full::new(Bytes::from("hello")));
    let sent = client(Pacing::default()).post(&server.url).body(body).send().await.unwrap();
    assert_eq!((sent.status(), server.served()), (StatusCode::TOO_MANY_REQUESTS, 1));
}

#[tokio::test]
async fn a_request_that_would_wait_too_long_is_not_sent() {
    let server = refuses_first(u32::MAX, "3600").await;
    let client = client(Pacing::default());
    // The pause is longer than requests wait, so the refusal is the response.
    let sent = client.get(&server.url).send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::TOO_MANY_REQUESTS);
    let refused = wait_error(client.get(&server.url).send().await.unwrap_err());
    assert!(refused.wait > Duration::from_secs(3500), "{refused}");
    assert_eq!((refused.origin, server.served()), (server.url.clone(), 1));
}

#[tokio::test]
async fn routes_are_paced_apart_and_clients_that_share_a_pacer_together() {
    let server = Server::start(|request| match request.uri().path() {
        "/scarce" => refusal("3600"),
        _ => Response::default(),
    })
    .await;
    let pacer = Arc::new(Pacer::default());
    let by_path = Pacing::new(pacer.clone()).with_route(|request| request.url().path().into());
    let (one, other) = (client(by_path.clone()), client(by_path));
    let (scarce, plenty) = (format!("{}/scarce", server.url), format!("{}/plenty", server.url));
    one.get(&scarce).send().await.unwrap();
    for _ in 0..3 {
        assert_eq!(one.get(&plenty).send().await.unwrap().status(), StatusCode::OK);
    }
    wait_error(other.get(&scarce).send().await.unwrap_err());
    assert_eq!(server.served(), 4);
}

fn client(pacing: Pacing) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(pacing).build()
}

/// A server that refuses the first `refusals` requests and echoes the others.
async fn refuses_first(refusals: u32, retry_after: &'static str) -> Server {
    let left = AtomicU32::new(refusals);
    Server::start(move |request| {
        let refuses = |left: u32| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuses) {
            Ok(_) => refusal(retry_after),
            Err(_) => Response::new(request.into_body()),
        }
    })
    .await
}

fn refusal(retry_after: &'static str) -> Response<Bytes> {
    let response = Response::builder().status(StatusCode::TOO_MANY_REQUESTS);
    response.header(RETRY_AFTER, retry_after).body(Bytes::from("wait")).unwrap()
}

fn wait_error(error: Error) -> WaitError {
    match error {
        Error::Middleware(error) => error.downcast().unwrap(),
        Error::Reqwest(error) => panic!("{error}"),
    }
}
