//! `/json` and `/healthcheck`, as envoyproxy/ratelimit answers them.

use tidegate::config::Auth;
use tidegate::front::bounds::Bounds;

use super::support::{Readiness, Reply, Table, http_listener, http_listener_with, request};

fn body_in(domain: &str) -> String {
    format!(r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"k","value":"v"}}]}}]}}"#)
}

#[tokio::test]
async fn json_is_the_response_with_the_statuses_of_envoy_ratelimit_and_without_our_headers() {
    let table = Table::usual();
    // The refusal's status is the reference's, whatever that of /v1/check is.
    let auth = Auth::default();
    let listener =
        http_listener_with(&table, Bounds::default(), auth, Readiness(Ok(())), 503).await;
    for (method, domain, status, body) in [
        (
            "POST",
            "open",
            200,
            r#"{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"login","requestsPerUnit":10,"unit":"MINUTE"},"limitRemaining":7,"durationUntilReset":"12s"}]}"#,
        ),
        (
            "PUT",
            "limited",
            429,
            r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"name":"login","requestsPerUnit":10,"unit":"MINUTE"},"durationUntilReset":"12s"}]}"#,
        ),
        ("POST", "unknown", 200, r#"{"overallCode":"OK","statuses":[{"code":"OK"}]}"#),
    ] {
        // No content type: envoyproxy/ratelimit ignores it.
        let reply = request(listener.addr, method, "/json", &[], body_in(domain).as_bytes()).await;
        assert_eq!((reply.status, &*reply.body), (status, body));
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert!(!reply.headers.keys().any(|name| name.contains("ratelimit")), "{reply:?}");
        assert_eq!(reply.header("retry-after"), None);
    }
    assert_eq!(table.checks().len(), 3);
}

#[tokio::test]
async fn json_refuses_as_go_does_and_nothing_is_counted() {
    let table = Table::usual();
    let bounds = Bounds { body_bytes_max: 1_024, ..Bounds::default() };
    let listener = http_listener(&table, bounds, "").await;
    let large = body_in(&"x".repeat(2_000));
    for (body, status, text) in [
        ("", 400, "Bad Request\n"),
        ("{", 400, "Bad Request\n"),
        (r#"{"domain":"open","unknown":1}"#, 400, "Bad Request\n"),
        (r#"{"domain":"","descriptors":[{}]}"#, 400, "Bad Request\n"),
        (r#"{"domain":"open"}"#, 400, "Bad Request\n"),
        (&*large, 413, "Payload Too Large\n"),
    ] {
        let reply = request(listener.addr, "POST", "/json", &[], body.as_bytes()).await;
        assert_eq!((reply.status, &*reply.body), (status, text), "{body}");
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(table.checks(), []);
    assert_eq!(listener.stats.refused.get(), 6);
}

#[tokio::test]
async fn json_that_is_not_decided_in_time_is_an_error_of_the_service() {
    let table = Table::usual();
    let bounds =
        Bounds { request_timeout: std::time::Duration::from_millis(50), ..Bounds::default() };
    let listener = http_listener(&table, bounds, "").await;
    let reply = request(listener.addr, "POST", "/json", &[], body_in("held").as_bytes()).await;
    assert_eq!((reply.status, &*reply.body), (500, "Internal Server Error\n"));
}

#[tokio::test]
async fn healthcheck_is_ok_while_traffic_may_be_sent() {
    let send = async |readiness: Result<(), String>| -> Reply {
        let (table, auth) = (Table::usual(), Auth::default());
        let listener =
            http_listener_with(&table, Bounds::default(), auth, Readiness(readiness), 429).await;
        request(listener.addr, "GET", "/healthcheck", &[], b"").await
    };
    let reply = send(Ok(())).await;
    assert_eq!((reply.status, &*reply.body), (200, "OK"));
    let reply = send(Err("rules: none".to_owned())).await;
    assert_eq!((reply.status, &*reply.body), (500, "rules: none\n"));
}
