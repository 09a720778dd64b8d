//! A node that dies without a word, under load: nobody who asks the others notices.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;
use tidegate_testkit::http_client::check_body;
use tidegate_testkit::process::{Cluster, Load};
use tidegate_testkit::wait::until;

/// So large that nothing here is refused: what is measured is failure, not limiting.
const RULES: &str = "
domain: load
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100000000}
";

const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);
/// Promised by the contract, with the deadline of ten milliseconds that is the default.
const P99_MAX: Duration = Duration::from_millis(20);
const ROUTED_AROUND_WITHIN: Duration = Duration::from_secs(2);
/// Keys that are looked at one by one.
const KEYS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_costs_no_client_of_a_living_one_an_error() {
    let mut cluster = Cluster::three(TIDEGATE, RULES).await;
    let listeners: Vec<_> = cluster.nodes.iter().map(|node| node.http).collect();
    let (stop, stop_victim) = (CancellationToken::new(), CancellationToken::new());
    let mut load = Load::new();
    load.add(8, listeners[0], &stop);
    load.add(8, listeners[1], &stop);
    load.add(4, listeners[2], &stop_victim);
    tokio::time::sleep(BEFORE).await;
    assert!(cluster.nodes[2].verdicts("peer").await > 0, "the victim owns keys that are asked for");
    let first_generation = cluster.nodes[2].status().await.unwrap().node.generation;

    let killed = Instant::now();
    cluster.nodes[2].kill();
    stop_victim.cancel();
    for node in &cluster.nodes[..2] {
        let gone = async || match node.members().await? {
            members if members.len() == 2 => Ok(()),
            members => Err(format!("{members:?}")),
        };
        until("a living node forgets the dead one", Duration::from_secs(10), gone).await;
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
    let policy = cluster.verdicts("policy").await;
    let (unsent, late) = (calls(&cluster, "unsent").await, calls(&cluster, "timeout").await);
    println!(
        "routed around after {routed_around:?}; until then {policy} answers by on_unavailable: \
         {late} calls not answered, {unsent} not sent"
    );
    assert!(policy > 0, "the load met keys of the dead node");
    assert!(routed_around < ROUTED_AROUND_WITHIN, "routed around after {routed_around:?}");

    tokio::time::sleep(AFTER).await;
    stop.cancel();
    let seen = load.results().await;
    let mut living = seen[&listeners[0]].clone();
    living.add(&seen[&listeners[1]]);
    println!("clients of the living nodes: {}", living.summary());
    println!("clients of the victim until it died: {}", seen[&listeners[2]].summary());
    assert_eq!(living.errors, Vec::<String>::new());
    assert!(living.p99() < P99_MAX, "{}", living.summary());

    // From then on every key has a living owner: nobody asks the dead one. A living owner may still
    // be late now and then, on a machine that does more than this.
    let policy = cluster.verdicts("policy").await - policy;
    println!("after that {policy} answers by on_unavailable");
    assert_eq!(calls(&cluster, "unsent").await, unsent, "no ask for a node that is not there");
    assert!(policy * 100 < living.responses, "{policy} of {} answers", living.responses);
    for number in 0..KEYS {
        let key = format!("load-{number}");
        let owner = cluster.nodes[0].owner("load", "user", &key).await;
        assert_ne!(owner, "n3", "{key}");
        assert_eq!(cluster.nodes[1].owner("load", "user", &key).await, owner, "{key}");
    }

    comes_back(&mut cluster, first_generation).await;
}

/// The dead node starts again under its name: a newer generation, and its keys are its own again.
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

/// Calls of the living nodes to their peers, by outcome.
async fn calls(cluster: &Cluster, outcome: &str) -> u64 {
    let mut calls = 0;
    for node in &cluster.nodes[..2] {
        calls += node.metric(&format!("tidegate_mesh_calls_total{{outcome=\"{outcome}\"}}")).await;
    }
    calls
}
