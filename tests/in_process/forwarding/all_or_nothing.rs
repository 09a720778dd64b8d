//! All or nothing across owners: a request that one owner refuses charges nothing at the other.

use futures_util::future::join_all;
use tidegate::decide::{CheckRequest, CheckResponse, Decide};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::units::Hits;
use tidegate_testkit::in_process::{Node, cluster};

use super::bench::{RULES, remaining, value_of};

/// One request, then thirty at once through two nodes, take from a `bucket` of 20 of one node and a
/// `window` of 100 of the other. Reads and charges of all of them are mixed; what is taken from the
/// window in the end is what the bucket let pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_one_owner_refuses_are_given_back_by_the_other() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |config| {
        config.envoy.all_or_nothing = true;
    })
    .await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let (bucket, window) = (value_of(a, "bucket", "b"), value_of(a, "window", "a"));
    // The first is alone. A bucket drains from its first hit on, so a check whose clock was read
    // before that hit, and which comes to the store after it, would find it microseconds fuller.
    assert!(both(a, &window, &bucket).await.allowed);
    let checks = (0..30).map(|n| both([a, b][n % 2], &window, &bucket));
    let answers = join_all(checks).await;
    let admitted = answers.iter().filter(|answer| answer.allowed).count();
    assert_eq!(admitted, 19, "the rest of the bucket's limit");
    let left = a.check_hits("window", &window, 0).await;
    assert_eq!(remaining(&left), 80, "the refused eleven took nothing of the window");
}

async fn both(node: &Node, window: &str, bucket: &str) -> CheckResponse {
    let one =
        |key, value| Descriptor { entries: vec![Entry { key, value }], hits: None, limit: None };
    let descriptors = [one("window", window), one("bucket", bucket)];
    let request = CheckRequest {
        domain: "test",
        descriptors: &descriptors,
        hits: Hits::ONE,
        for_envoy: true,
    };
    node.core.decider.decide(request).await
}
