//! An owner that dies with counts: the next owner continues from them.

use std::time::Duration;

use tidegate_testkit::http_client::{Http, Reply, hits_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::TIDEGATE;

const RULES: &str = "
domain: quota
descriptors:
  - {key: async, rate_limit: {window: 7d, requests_per_unit: 100, on_unavailable: deny}}
  - {key: durable, rate_limit:
      {window: 7d, requests_per_unit: 100, on_unavailable: deny, durability: replicated}}
";
const LIMIT: usize = 100;
const USED: usize = 60;
/// Keys of each rule that the victim owns.
const KEYS: usize = 20;
const VICTIM: &str = "n3";
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// What a count takes at most to reach a replica: a few intervals of five milliseconds, on a
/// machine that carries three nodes and their clients.
const REPLICATION_LAG: Duration = Duration::from_millis(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_goes_on_from_what_the_dead_one_counted() {
    let options = ClusterOptions {
        nodes: THREE,
        rules: RULES,
        config: "",
        sets: &["cluster.deadline=1000ms"],
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let mut keys = Vec::new();
    for rule in ["async", "durable"] {
        keys.extend(owned(&cluster, rule).await.into_iter().map(|value| (rule, value)));
    }
    let client = Client { http: cluster.http.clone(), listeners: listeners(&cluster) };
    let used = each(&keys, |rule, value| client.clone().use_up(rule, value, USED)).await;
    assert!(used.iter().all(|times| times.len() == USED), "the dead owner admitted them all");

    let killed = Instant::now();
    cluster.nodes[2].kill();
    let answered = each(&keys, |rule, value| client.clone().first_answer(rule, value)).await;
    let latest = answered.into_iter().max().expect("keys").duration_since(killed);
    let policy = policy(&cluster).await;
    println!("all keys have an owner after {latest:?}; {policy} answers by policy until then");
    assert!(latest < ANSWERED_WITHIN, "an owner answers only after {latest:?}");
    assert!(policy > 0, "checks without an owner were counted");

    let after = each(&keys, |rule, value| client.clone().use_up(rule, value, 2 * LIMIT)).await;
    let mut beyond = 0;
    for ((rule, value), after) in keys.iter().zip(&after) {
        let admitted = USED + after.len();
        if *rule == "durable" {
            assert_eq!(admitted, LIMIT, "{rule}={value}");
        }
        assert!(admitted >= LIMIT, "{rule}={value}: {admitted}");
        beyond += admitted - LIMIT;
    }
    let late = |times: &Vec<Instant>| {
        times.iter().filter(|time| **time + REPLICATION_LAG >= killed).count()
    };
    let is_async = |((rule, _), _): &(&(&str, String), &Vec<Instant>)| *rule == "async";
    let of_async = keys.iter().zip(&used).filter(is_async);
    let late: usize = of_async.map(|(_, times)| late(times)).sum();
    println!("{beyond} hits beyond the limits of {KEYS} keys; {late} were admitted at the last");
    assert!(beyond <= late, "{beyond} hits beyond the limits, {late} may be");
}

/// The node that takes ranges over says what may be lost: nothing before the last copy, or without
/// replicas everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_says_what_it_may_have_lost() {
    for (replicas, rule, copy) in [(1, "durable", true), (0, "async", false)] {
        let replicas = format!("cluster.replicas={replicas}");
        let sets: &[&str] = &["cluster.deadline=1000ms", &replicas];
        let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..Default::default() };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        for key in &cluster.owned("quota", rule, "user", VICTIM, KEYS).await {
            assert_eq!(cluster.admitted(&[0], "quota", rule, key, 1).await, 1);
        }
        cluster.nodes[2].kill();
        let (mut taken, mut left, mut none) = (0, 0, 0);
        for node in &cluster.nodes[..2] {
            node.logged("took over ranges of an evicted member", 1).await;
            let log = node.log();
            let line = log.lines().find(|line| line.contains("took over ranges")).unwrap();
            for part in ["WARN", "member=n3", "keys=", "heard_ms_ago=", "states_refused=0"] {
                assert!(line.contains(part), "{part} is not in {line}");
            }
            assert_eq!(line.contains("last_copy_ms_ago="), copy, "{line}");
            assert_eq!(node.metric("tidegate_takeovers_total").await, 1);
            taken += node.metric("tidegate_takeover_keys_total").await;
            left += node.metric("tidegate_takeover_ranges_total{copy=\"left\"}").await;
            none += node.metric("tidegate_takeover_ranges_total{copy=\"none\"}").await;
        }
        assert_eq!(taken, if copy { KEYS as u64 } else { 0 });
        assert_eq!((left > 0, none > 0), (copy, !copy), "{left} with a copy, {none} without");
    }
}

/// Sends to the living nodes in turn.
#[derive(Clone)]
struct Client {
    http: Http,
    listeners: [std::net::SocketAddr; 2],
}

impl Client {
    /// Hits until one is refused or `hits` were admitted; when each was.
    async fn use_up(self, rule: &'static str, value: String, hits: usize) -> Vec<Instant> {
        let mut admitted = Vec::new();
        while admitted.len() < hits {
            let reply = self.check(admitted.len(), rule, &value, 1).await;
            if reply.status == 429 {
                break;
            }
            admitted.push(Instant::now());
        }
        admitted
    }

    /// Reads the counter until an owner answers; when it did.
    async fn first_answer(self, rule: &'static str, value: String) -> Instant {
        for turn in 0.. {
            // The fallback refuses; an owner admits a read, because 60 of 100 are used.
            if self.check(turn, rule, &value, 0).await.status == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Instant::now()
    }

    async fn check(&self, turn: usize, rule: &str, value: &str, hits: u64) -> Reply {
        let body = hits_body("quota", rule, value, hits);
        let reply = self.http.check(self.listeners[turn % 2], &body).await.unwrap();
        assert!([200, 429].contains(&reply.status), "{reply:?}");
        reply
    }
}

/// The results of `run` for all `keys`, at once.
async fn each<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    keys: &[(&'static str, String)],
    run: impl Fn(&'static str, String) -> F,
) -> Vec<T> {
    let mut tasks = JoinSet::new();
    for (index, (rule, value)) in keys.iter().enumerate() {
        let result = run(rule, value.clone());
        tasks.spawn(async move { (index, result.await) });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Keys of `rule` that the victim owns.
async fn owned(cluster: &Cluster, rule: &str) -> Vec<String> {
    let mut owned = Vec::new();
    for number in 0.. {
        let value = format!("user-{number}");
        if cluster.nodes[0].owner("quota", rule, &value).await == VICTIM {
            owned.push(value);
        }
        if owned.len() == KEYS {
            break;
        }
    }
    owned
}

fn listeners(cluster: &Cluster) -> [std::net::SocketAddr; 2] {
    [cluster.nodes[0].http, cluster.nodes[1].http]
}

/// Answers by `on_unavailable`, as the nodes that live count them by rule.
async fn policy(cluster: &Cluster) -> u64 {
    let mut sum = 0;
    for node in &cluster.nodes[..2] {
        for rule in ["async", "durable"] {
            let sample = format!("tidegate_rule_unavailable_total{{rule=\"quota.{rule}\"}}");
            sum += node.metric(&sample).await;
        }
    }
    sum
}
