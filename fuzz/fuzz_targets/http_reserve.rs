//! Arbitrary bytes as the body of `POST /v1/reserve`, `/v1/commit` or `/v1/release` at a standalone
//! node. Invariants: no panic; every response is JSON with a status of these routes; what was
//! reserved is committed once, whatever the body said.

#![no_main]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tidegate::config::Auth;
use tidegate::front::bounds::Bounds;
use tidegate::front::http::{HttpListener, router};
use tidegate::front::pages::Page;
use tidegate::front::serve::ListenerStats;
use tidegate_fuzz::standalone::{self, Ready};
use tidegate_limiter::units::Span;
use tower::ServiceExt;

fuzz_target!(|bytes: &[u8]| {
    let Some((route, body)) = bytes.split_first() else { return };
    standalone::with_node(|node| async move {
        let listener = HttpListener {
            decide: Arc::new(node.decider.clone()),
            probes: Arc::new(Ready),
            bounds: Bounds::default(),
            denied_status: 429,
            auth: Auth::default(),
            stats: Arc::<ListenerStats>::default(),
            metrics: Page::default(),
        };
        let http = router(listener);
        match route % 3 {
            0 => reserve(&http, body).await,
            1 => drop(post(&http, "/v1/commit", body.to_vec()).await),
            _ => drop(post(&http, "/v1/release", body.to_vec()).await),
        }
    });
});

/// Reserves; then commits what was reserved, twice.
async fn reserve(http: &Router, body: &[u8]) {
    let (status, answer) = post(http, "/v1/reserve", body.to_vec()).await;
    let Some(id) = answer.get("reservationId") else { return };
    assert_eq!(status, StatusCode::OK);
    let ttl: Span = answer["ttl"].as_str().and_then(|ttl| ttl.parse().ok()).expect("a time");
    let Ok(mut commit) = serde_json::from_slice::<Value>(body) else {
        panic!("a body that was taken is JSON")
    };
    let fields = commit.as_object_mut().expect("an object");
    let amount = fields.remove("amount").expect("an amount");
    fields.remove("ttl");
    fields.remove("reservation_id");
    fields.insert("reservationId".to_owned(), id.clone());
    fields.remove("actual_amount");
    fields.insert("actualAmount".to_owned(), amount);
    for expected in ["COMMITTED", "REPEATED"] {
        let (status, answer) = post(http, "/v1/commit", commit.to_string().into()).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        // Shorter ones may have ended in between.
        if ttl >= Span::from_secs(10) {
            assert_eq!(answer["outcome"], json!(expected), "{answer}");
        }
    }
}

async fn post(http: &Router, path: &str, body: Vec<u8>) -> (StatusCode, Value) {
    let request = Request::post(path).body(Body::from(body)).expect("a request");
    let response = http.clone().oneshot(request).await.expect("infallible");
    let status = response.status();
    assert!(matches!(status.as_u16(), 200 | 400 | 413 | 429 | 503), "{status}");
    let bytes = response.into_body().collect().await.expect("a body in memory").to_bytes();
    (status, serde_json::from_slice(&bytes).expect("JSON"))
}
