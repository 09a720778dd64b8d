//! Limits that Redis clients name themselves, on several nodes.

use tidegate::config::Config;
use tidegate::decide::{Throttle, ThrottleRequest};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::{Hits, Span};
use tidegate_testkit::in_process::{Node, cluster};

use super::bench::{RULES, id, patient};

const LIMIT: u32 = 40;

/// Keys that `owner` owns.
fn keys_of(node: &Node, owner: &str) -> impl Iterator<Item = String> {
    let (topology, hasher) = (node.core.topology.load_full(), node.core.hasher.clone());
    let owner = id(owner);
    (0..).map(|number| format!("k{number}")).filter(move |key| {
        topology.owner(Scope::Region, hasher.bare(key.as_bytes()).token()) == Some(&owner)
    })
}

/// Whether each command of a pipeline on `key` is admitted; those on `other` are between them.
async fn pipeline<'k>(node: &Node, key: &'k str, other: &'k str, hits: &[i64]) -> Vec<bool> {
    let window = Span::from_secs(400 * 86_400);
    let quota = Quota::simple(Algorithm::Gcra, LIMIT, window).expect("valid");
    let request =
        |key: &'k str, hits| ThrottleRequest { key: key.as_bytes(), quota, hits: Hits::new(hits) };
    let requests: Vec<ThrottleRequest<'_>> =
        hits.iter().flat_map(|hits| [request(key, *hits), request(other, 0)]).collect();
    let mut verdicts = Vec::new();
    node.core.decider.throttle(&requests, &mut verdicts).await;
    verdicts.iter().step_by(2).map(|verdict| verdict.allowed).collect()
}

fn eventual(config: &mut Config) {
    patient(config);
    config.resp.mode = Some(Mode::Eventual);
}

/// At the owner and elsewhere, also where a refusal of the key is remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_on_a_refund_in_a_pipeline_may_use_it() {
    // An owner that has just become one waits with refunds of leased limits.
    for is_eventual in [false, true] {
        let mode = if is_eventual { Mode::Eventual } else { Mode::Strict };
        let configure = if is_eventual { eventual } else { patient };
        let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, configure).await;
        let mut keys = keys_of(&nodes[0], "b");
        for node in &nodes {
            let (key, other) = (keys.next().expect("one"), keys.next().expect("one"));
            assert_eq!(pipeline(node, &key, &other, &[40, 1]).await, [true, false], "{mode:?}");
            let admitted = pipeline(node, &key, &other, &[1, -30, 20, 11, 10]).await;
            assert_eq!(admitted, [false, true, true, false, true], "{mode:?}");
        }
    }
}
