//! `Retry-After` and the reference's three headers reach the client: Envoy adds
//! `response_headers_to_add` of our answer to the response.

use tidegate_testkit::envoy::Proxy;
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};

use super::day;
use crate::TIDEGATE;

/// A bucket of two that gets a token back each half hour: it may pass again long before it is full.
const RULES: &str = "
domain: edge
descriptors:
  - {key: user, value: plain, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: token_bucket}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_has_a_retry_after() {
    day::far_from_its_end().await;
    let config = "[envoy]\nresponse_headers = true\n";
    let options =
        ClusterOptions { nodes: THREE, rules: RULES, config, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let proxy = Proxy::start(&cluster).await;

    for left in ["1", "0"] {
        let reply = proxy.get("/", &[("x-user", "alice")]).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.header("ratelimit-limit"), Some("2"));
        assert_eq!(reply.header("ratelimit-remaining"), Some(left));
        assert_eq!(reply.header("retry-after"), None);
    }
    let reply = proxy.get("/", &[("x-user", "alice")]).await;
    assert_eq!(reply.status, 429, "{reply:?}");
    let seconds = |name: &str| reply.header(name).unwrap().parse::<u64>().unwrap();
    // The next token is half an hour after the first was taken; a minute is for a busy machine.
    assert!((1_740..=1_800).contains(&seconds("retry-after")), "{reply:?}");
    assert!((3_540..=3_600).contains(&seconds("ratelimit-reset")), "{reply:?}");

    // A plain rule has the headers of envoyproxy/ratelimit alone: the reset is the end of the
    // window.
    let plain = [("x-user", "plain")];
    for _ in 0..2 {
        assert_eq!(proxy.get("/", &plain).await.status, 200);
    }
    let reply = proxy.get("/", &plain).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, None));
    assert_eq!(reply.header("ratelimit-reset"), reply.header("x-ratelimit-reset"));
}
