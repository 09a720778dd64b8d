//! Every node names the same owner for a key, and a check has the same result through every node.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::http_client::{Http, Reply, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions};
use tokio::time::Instant;

use crate::TIDEGATE;

const PLENTY: &str = "
domain: plenty
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

/// A rule for each algorithm, one with several limits, a queue, and one that is only tried out.
/// Windows of a year, so that no time that passes in a test changes what is left.
const EVERY_KIND: &str = "
domain: kinds
descriptors:
  - {key: fixed_window, rate_limit: {window: 365d, requests_per_unit: 10, algorithm: fixed_window}}
  - {key: sliding_window_log,
     rate_limit: {window: 365d, requests_per_unit: 10, algorithm: sliding_window_log}}
  - {key: sliding_window_counter, rate_limit:
      {window: 365d, requests_per_unit: 10, algorithm: sliding_window_counter, sub_windows: 4}}
  - {key: token_bucket, rate_limit: {window: 365d, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: leaky_bucket, rate_limit:
      {window: 365d, requests_per_unit: 10, algorithm: leaky_bucket, burst: 12}}
  - {key: gcra, rate_limit: {window: 365d, requests_per_unit: 10, algorithm: gcra, burst: 8}}
  - {key: first_hit_window, rate_limit:
      {window: 365d, requests_per_unit: 10, algorithm: first_hit_window}}
  - {key: queue, rate_limit: {window: 365d, requests_per_unit: 10, algorithm: leaky_bucket, queue: 5}}
  - {key: several, rate_limit: [{window: 365d, requests_per_unit: 10, name: year},
      {window: 300d, requests_per_unit: 7, algorithm: gcra, name: less}]}
  - {key: tried, shadow_mode: true, rate_limit: {window: 365d, requests_per_unit: 3}}
";

const KINDS: &[&str] = &[
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "first_hit_window",
    "queue",
    "several",
    "tried",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_name_the_same_owner_and_two_thirds_are_forwarded() {
    const CHECKED: u64 = 3_000;
    let cluster = Cluster::three(TIDEGATE, PLENTY).await;
    let mut owned = [0_usize; 3];
    for number in 0..1_000 {
        let value = format!("owned-{number}");
        let owner = cluster.nodes[0].owner("plenty", "user", &value).await;
        for node in &cluster.nodes[1..] {
            assert_eq!(node.owner("plenty", "user", &value).await, owner, "{value}");
        }
        let index = cluster.nodes.iter().position(|node| node.id == owner).expect("a member");
        owned[index] += 1;
    }
    println!("1000 keys are owned by n1, n2, n3: {owned:?}");
    assert!(owned.iter().all(|count| *count > 100), "{owned:?}");

    let (local, forwarded) = (cluster.verdicts("local").await, cluster.verdicts("owner").await);
    for number in 0..CHECKED {
        let node = &cluster.nodes[usize::try_from(number % 3).unwrap()];
        let body = check_body("plenty", "user", &format!("checked-{number}"));
        let reply = cluster.http.check(node.http, &body).await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let local = cluster.verdicts("local").await - local;
    let forwarded = cluster.verdicts("owner").await - forwarded;
    let policy = cluster.verdicts("policy").await;
    println!("{CHECKED} keys: {local} decided by the receiving node, {forwarded} forwarded");
    assert_eq!(local + forwarded + policy, CHECKED, "{policy} by policy");
    let percent = forwarded * 100 / CHECKED;
    assert!((55..78).contains(&percent), "{percent} %");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_answer_is_the_local_one_in_every_field() {
    let sets = &["cluster.deadline=1000ms"];
    let options = ClusterOptions {
        nodes: tidegate_testkit::process::THREE,
        rules: EVERY_KIND,
        config: "",
        sets,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(TIDEGATE, options).await;
    for kind in KINDS {
        // Three keys of one rule and in one state: one asked at its owner, one through another
        // node, one at each node in turn.
        let [n1, n2, n3] = [0, 1, 2].map(|index| cluster.nodes[index].http);
        let local = key_of(&cluster, kind, "n1", "local").await;
        let remote = key_of(&cluster, kind, "n2", "remote").await;
        let turns = key_of(&cluster, kind, "n3", "turns").await;
        let start = Instant::now();
        for (step, hits) in SEQUENCE.iter().enumerate() {
            let send = async |listener, key| check(&cluster.http, listener, kind, key, *hits).await;
            let expected = send(n1, &local).await;
            let forwarded = send(n1, &remote).await;
            let turn = [n1, n2, n3][step % 3];
            let in_turn = check_until(&cluster.http, turn, kind, &turns, *hits, &expected).await;
            let elapsed = start.elapsed();
            assert_alike(
                &expected,
                &forwarded,
                elapsed,
                &format!("{kind}, step {step}, forwarded"),
            );
            assert_alike(&expected, &in_turn, elapsed, &format!("{kind}, step {step}, in turn"));
        }
    }
    assert_eq!(cluster.verdicts("policy").await, 0, "all were decided by owners");
    let forwarded = cluster.verdicts("owner").await + cluster.verdicts("remembered").await;
    assert!(forwarded >= (KINDS.len() * SEQUENCE.len()) as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_answers_as_a_cluster_does() {
    let mut answers: Vec<Vec<Reply>> = Vec::new();
    let start = Instant::now();
    for nodes in [&["n1"][..], tidegate_testkit::process::THREE] {
        let sets = &["cluster.deadline=1000ms"];
        let options = ClusterOptions {
            nodes,
            rules: EVERY_KIND,
            config: "",
            sets,
            ..ClusterOptions::default()
        };
        let cluster = Cluster::start(TIDEGATE, options).await;
        let mut replies = Vec::new();
        for kind in KINDS {
            for (step, hits) in SEQUENCE.iter().enumerate() {
                let listener = cluster.nodes[step % nodes.len()].http;
                let reply = match answers.first() {
                    None => check(&cluster.http, listener, kind, "same", *hits).await,
                    Some(alone) => {
                        let expected: &Reply = &alone[replies.len()];
                        check_until(&cluster.http, listener, kind, "same", *hits, expected).await
                    }
                };
                replies.push(reply);
            }
        }
        answers.push(replies);
    }
    let elapsed = start.elapsed();
    for (index, (alone, all_or_nothing)) in answers[0].iter().zip(&answers[1]).enumerate() {
        let kind = KINDS[index / SEQUENCE.len()];
        let step = index % SEQUENCE.len();
        assert_alike(alone, all_or_nothing, elapsed, &format!("{kind}, step {step}"));
    }
}

/// Read, charge, read, refund, too much, fill up, refused, refused for ever, refund, again.
const SEQUENCE: &[i64] = &[0, 1, 3, 0, -2, 9, 6, 1, 1, 1, 1, 1, 1_000, 0, -1, 1, 1];

/// A key of `kind` that `owner` owns.
async fn key_of(cluster: &Cluster, kind: &str, owner: &str, prefix: &str) -> String {
    for number in 0..1_000 {
        let value = format!("{prefix}-{number}");
        if cluster.nodes[0].owner("kinds", kind, &value).await == owner {
            return value;
        }
    }
    panic!("{owner} owns none of 1000 keys");
}

async fn check(http: &Http, listener: SocketAddr, kind: &str, value: &str, hits: i64) -> Reply {
    let mut body: Value = check_body("kinds", kind, value);
    let descriptor = &mut body["descriptors"][0];
    descriptor["hitsAddend"] = json!(hits.unsigned_abs());
    descriptor["isNegativeHits"] = json!(hits < 0);
    http.check(listener, &body).await.unwrap()
}

/// Like [`check`]. Checks again while a refusal of before is remembered though hits were given back
/// at another node: the notice is on its way, and a refusal from memory counts nothing.
async fn check_until(
    http: &Http,
    listener: SocketAddr,
    kind: &str,
    value: &str,
    hits: i64,
    expected: &Reply,
) -> Reply {
    let mut reply = check(http, listener, kind, value, hits).await;
    for _ in 0..1_000 {
        if expected.status != 200 || reply.status != 429 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        reply = check(http, listener, kind, value, hits).await;
    }
    reply
}

/// Equal in status, body and headers, but for `date`; seconds until something may differ by the
/// time that passed between the two.
fn assert_alike(one: &Reply, other: &Reply, elapsed: Duration, what: &str) {
    let (one, one_seconds) = timeless(one);
    let (other, other_seconds) = timeless(other);
    assert_eq!(one, other, "{what}");
    let most = elapsed.as_secs() + 1;
    for (a, b) in one_seconds.iter().zip(&other_seconds) {
        assert!(a.abs_diff(*b) <= most, "{what}: {one_seconds:?} and {other_seconds:?}");
    }
    assert_eq!(one_seconds.len(), other_seconds.len(), "{what}");
}

/// The answer with `T` for each number of seconds, and those numbers.
fn timeless(reply: &Reply) -> (Reply, Vec<u64>) {
    let mut reply = reply.clone();
    let mut seconds = Vec::new();
    reply.headers.remove("date");
    for (name, value) in &mut reply.headers {
        match name.as_str() {
            "x-ratelimit-reset" | "x-ratelimit-retry-after" | "retry-after" => {
                *value = without_seconds(value, "", "", &mut seconds);
            }
            "x-ratelimit-delay" => {
                let (whole, millis) = value.split_once('.').expect("seconds with milliseconds");
                assert_eq!(millis.len(), 3, "{value}");
                *value = without_seconds(whole, "", "", &mut seconds);
            }
            "ratelimit" => *value = without_seconds(value, ";t=", "", &mut seconds),
            _ => {}
        }
    }
    reply.body = without_seconds(&reply.body, "durationUntilReset\":\"", "s", &mut seconds);
    (reply, seconds)
}

/// `text` with `T` for each number between `before` and `after`; the numbers go to `seconds`.
fn without_seconds(text: &str, before: &str, after: &str, seconds: &mut Vec<u64>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(before) {
        let (head, tail) = rest.split_at(at + before.len());
        out.push_str(head);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(digits);
        match number.parse() {
            Ok(number) if tail.starts_with(after) => {
                seconds.push(number);
                out.push('T');
            }
            _ => out.push_str(number),
        }
        rest = tail;
        if before.is_empty() {
            break;
        }
    }
    out.push_str(rest);
    out
}
