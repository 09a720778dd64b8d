//! Responses to a client behind Envoy: status, `X-RateLimit-*`, and whether the request passed.

use tidegate_testkit::envoy::Proxy;
use tidegate_testkit::http_client::Reply;
use tidegate_testkit::process::Cluster;

use super::day;
use crate::TIDEGATE;

/// Envoy makes `X-RateLimit-*` of the descriptor with the least left, and lists the windows of all.
const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: user, value: named, rate_limit: {name: per-user, unit: day, requests_per_unit: 2}}
  - {key: user, value: shadowed, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: user, value: free, rate_limit: {unlimited: true}}
  - key: path
    value: /login
    descriptors:
      - {key: remote_address, rate_limit: {name: logins, unit: day, requests_per_unit: 3}}
  - key: plan
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 12}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_get_envoys_headers_with_our_numbers() {
    day::far_from_its_end().await;
    let cluster = Cluster::three(TIDEGATE, RULES).await;
    let proxy = Proxy::start(&cluster).await;

    a_limit_is_used_up(&proxy).await;
    the_name_of_a_limit_is_in_the_headers(&proxy).await;
    several_descriptors_are_decided_each(&proxy).await;
    a_weighty_request_takes_its_hits(&proxy).await;
    shadow_unlimited_and_unmatched_requests_pass(&proxy).await;
    assert_eq!(proxy.stat("cluster.service.ratelimit.error").await, 0);
}

async fn a_limit_is_used_up(proxy: &Proxy) {
    let served = proxy.upstream.served();
    for left in (0..5).rev() {
        let latest = day::seconds_left();
        let reply = proxy.get("/", &[("x-user", "alice")]).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.header("x-ratelimit-limit"), Some("5, 5;w=86400"));
        assert_eq!(reply.header("x-ratelimit-remaining"), Some(&*left.to_string()));
        assert_ends_at_midnight(&reply, latest);
        assert_eq!(reply.header("x-envoy-ratelimited"), None);
    }
    let latest = day::seconds_left();
    let reply = proxy.get("/", &[("x-user", "alice")]).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(reply.header("x-ratelimit-limit"), Some("5, 5;w=86400"));
    assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
    assert_ends_at_midnight(&reply, latest);
    assert_eq!(
        proxy.upstream.served(),
        served + 5,
        "exactly the admitted requests reach the upstream"
    );
}

/// The window ends at midnight UTC; the response is from between the two readings of the clock.
fn assert_ends_at_midnight(reply: &Reply, latest: u64) {
    let reset: u64 = reply.header("x-ratelimit-reset").unwrap().parse().unwrap();
    // A node's clock may differ by milliseconds, and so be in the second before or after.
    let meant = day::seconds_left() - 1..=latest + 1;
    assert!(meant.contains(&reset), "{reset} is not in {meant:?}");
}

async fn the_name_of_a_limit_is_in_the_headers(proxy: &Proxy) {
    let reply = proxy.get("/", &[("x-user", "named")]).await;
    assert_eq!(reply.header("x-ratelimit-limit"), Some("2, 2;w=86400;name=\"per-user\""));
    assert_eq!(reply.header("x-ratelimit-remaining"), Some("1"));
}

/// A login of bob is two descriptors with a rule; the first that is used up refuses the request,
/// and the other is charged all the same, as envoyproxy/ratelimit does.
async fn several_descriptors_are_decided_each(proxy: &Proxy) {
    let bob = [("x-user", "bob")];
    for left in (0..3).rev() {
        let reply = proxy.get("/login?next=/", &bob).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        // Of bob's five one more is left than of the logins, which therefore come first.
        let logins = "3, 3;w=86400;name=\"logins\", 5;w=86400";
        assert_eq!(reply.header("x-ratelimit-limit"), Some(logins));
        assert_eq!(reply.header("x-ratelimit-remaining"), Some(&*left.to_string()));
    }
    assert_eq!(proxy.get("/login", &bob).await.status, 429);
    let reply = proxy.get("/", &bob).await;
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, Some("0")));
}

/// The example counts an export as five, and not among the user's other requests.
async fn a_weighty_request_takes_its_hits(proxy: &Proxy) {
    let exporter = [("x-user", "exporter")];
    for left in ["7", "2"] {
        let reply = proxy.get("/export/all", &exporter).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.header("x-ratelimit-limit"), Some("12, 12;w=86400"));
        assert_eq!(reply.header("x-ratelimit-remaining"), Some(left));
    }
    assert_eq!(proxy.get("/export/all", &exporter).await.status, 429);
}

async fn shadow_unlimited_and_unmatched_requests_pass(proxy: &Proxy) {
    for user in ["shadowed", "free"] {
        for _ in 0..4 {
            let reply = proxy.get("/", &[("x-user", user)]).await;
            assert_eq!(reply.status, 200, "{user}: {reply:?}");
        }
    }
    // No rule matches a descriptor of this request.
    let reply = proxy.get("/", &[]).await;
    assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (200, None));
}
