//! A node that is killed under load: clients of the other nodes see no error.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, Load, Results, THREE};
use tidegate_testkit::wait::until;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;

/// So large that nothing is refused: the subject is failure, not limiting.
const RULES: &str = "
domain: load
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100000000}
";

const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);
/// How many times the p99 before the kill the p99 around it may be. Each request that waits for the
/// dead owner waits for the deadline, ten milliseconds, and these are more than one in a hundred; a
/// request without a deadline would wait for the failure detector, a hundred times as long.
const P99_RATIO_MAX: u32 = 20;
/// Below this, the p99 before the kill is that of the timer, not of the nodes.
const P99_FLOOR: Duration = Duration::from_millis(2);
const ROUTED_AROUND_WITHIN: Duration = Duration::from_secs(2);
/// Keys whose owners are looked up.
const KEYS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_costs_no_client_of_a_living_one_an_error() {
    let options = ClusterOptions { nodes: THREE, rules: RULES, ..ClusterOptions::default() };
    let mut cluster = Cluster::start_alone(TIDEGATE, options).await;
    let listeners: Vec<_> = cluster.nodes.iter().map(|node| node.http).collect();
    let (stop, stop_victim) = (CancellationToken::new(), CancellationToken::new());
    let (before, late_before) = steady(&cluster, &listeners).await;
    let mut load = Load::new();
    load.add(8, listeners[0], &stop);
    load.add(8, listeners[1], &stop);
    load.add(4, listeners[2], &stop_victim);
    let victim_decides = async || match cluster.nodes[2].verdicts("peer").await {
        0 => Err("no request".to_owned()),
        _ => Ok(()),
    };
    until("the victim decides for its peers", Duration::from_secs(10), victim_decides).await;
    let first_generation = cluster.nodes[2].status().await.unwrap().node.generation;

    let already =
        cluster.nodes[0].verdicts("policy").await + cluster.nodes[1].verdicts("policy").await;
    let killed = Instant::now();
    cluster.nodes[2].kill();
    stop_victim.cancel();
    for node in &cluster.nodes[..2] {
        let gone = async || match node.members().await? {
            members if members.len() == 2 => Ok(()),
            members => Err(format!("{members:?}")),
        };
        until("a living node removes the dead one from its view", Duration::from_secs(10), gone)
            .await;
    }
    let taken_over = async || {
        let mut decided = 0.0;
        for node in &cluster.nodes[..2] {
            decided += node.status().await?.ownership.map_or(0.0, |ownership| ownership.decides);
        }
        if decided > 0.999 { Ok(()) } else { Err(format!("{decided} of the ring is decided")) }
    };
    until("the living nodes own all keys", Duration::from_secs(10), taken_over).await;
    let routed_around = killed.elapsed();
    let policy = cluster.verdicts("policy").await - already;
    let (unsent, late) = (calls(&cluster, "unsent").await, calls(&cluster, "timeout").await);
    println!(
        "routed around after {routed_around:?}; until then {policy} responses by on_unavailable: \
         {late} calls timed out, {unsent} not sent"
    );
    assert!(policy > 0, "the load includes keys of the dead node");
    assert!(routed_around < ROUTED_AROUND_WITHIN, "routed around after {routed_around:?}");

    tokio::time::sleep(AFTER).await;
    stop.cancel();
    let seen = load.results().await;
    let mut living = seen[&listeners[0]].clone();
    living.add(&seen[&listeners[1]]);
    println!("clients of the living nodes: {}", living.summary());
    println!("clients of the victim until it died: {}", seen[&listeners[2]].summary());
    assert_eq!(living.errors, Vec::<String>::new());
    let p99_max = before.p99().max(P99_FLOOR) * P99_RATIO_MAX;
    assert!(living.p99() < p99_max, "{}; before: {}", living.summary(), before.summary());

    // From then on every key has a living owner, and there are no calls to the dead one. A living
    // owner may still be late now and then, on a busy machine.
    let policy = cluster.verdicts("policy").await - already - policy;
    println!("after that {policy} responses by on_unavailable");
    assert_eq!(calls(&cluster, "unsent").await, unsent, "no call to a node that is gone");
    let late = share(policy, living.responses);
    assert!(late < (2.0 * late_before).max(0.01), "{late}, with all nodes up {late_before}");
    for number in 0..KEYS {
        let key = format!("load-{number}");
        let owner = cluster.nodes[0].owner("load", "user", &key).await;
        assert_ne!(owner, "n3", "{key}");
        assert_eq!(cluster.nodes[1].owner("load", "user", &key).await, owner, "{key}");
    }

    comes_back(&mut cluster, first_generation).await;
}

/// Without a majority the map goes on to name members that are dead; `status` says that they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_majority_shows_dead_members_as_down() {
    let mut cluster = Cluster::three(TIDEGATE, RULES).await;
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let are_down = async || match &cluster.nodes[0].members().await?[..] {
        [(_, "self"), (_, "down"), (_, "down")] => Ok(()),
        members => Err(format!("{members:?}")),
    };
    until("the dead are shown as down", Duration::from_secs(15), are_down).await;
}

/// The same load with all nodes up: results of those that stay up, and the share of late owners.
async fn steady(cluster: &Cluster, listeners: &[SocketAddr]) -> (Results, f64) {
    let stop = CancellationToken::new();
    let mut load = Load::new();
    for (listener, clients) in listeners.iter().zip([8, 8, 4]) {
        load.add(clients, *listener, &stop);
    }
    tokio::time::sleep(BEFORE).await;
    stop.cancel();
    let results = load.results().await;
    let mut living = results[&listeners[0]].clone();
    living.add(&results[&listeners[1]]);
    let responses = results.values().map(|results| results.responses).sum();
    let late = share(cluster.verdicts("policy").await, responses);
    println!("with all nodes up: {}, {late:.3} of them by on_unavailable", living.summary());
    (living, late)
}

/// The dead node starts again under its id: its generation is higher, and it owns keys again.
async fn comes_back(cluster: &mut Cluster, first_generation: u64) {
    cluster.nodes[2].start();
    for node in &mut cluster.nodes {
        node.ready(3).await;
    }
    for node in &cluster.nodes {
        let status = node.status().await.unwrap();
        let member = status.members.iter().find(|member| member.id == "n3").expect("a member");
        assert!(member.generation > first_generation, "{member:?}");
    }
    let mut owned = Vec::new();
    for number in 0..KEYS {
        let key = format!("load-{number}");
        let owner = cluster.nodes[0].owner("load", "user", &key).await;
        for node in &cluster.nodes[1..] {
            assert_eq!(node.owner("load", "user", &key).await, owner, "{key}");
        }
        if owner == "n3" {
            owned.push(key);
        }
    }
    assert!(!owned.is_empty(), "it owns none of {KEYS} keys");
    for key in &owned {
        let body = check_body("load", "user", key);
        let reply = cluster.http.check(cluster.nodes[0].http, &body).await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    assert!(cluster.nodes[2].verdicts("peer").await > 0, "it decides for its peers again");
}

fn share(part: u64, whole: u64) -> f64 {
    let small = |count: u64| f64::from(u32::try_from(count).expect("a short load"));
    small(part) / small(whole.max(1))
}

/// Calls of the living nodes to their peers, by outcome.
async fn calls(cluster: &Cluster, outcome: &str) -> u64 {
    let mut calls = 0;
    for node in &cluster.nodes[..2] {
        calls += node.metric(&format!("tidegate_mesh_calls_total{{outcome=\"{outcome}\"}}")).await;
    }
    calls
}
