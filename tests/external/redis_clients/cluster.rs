//! Three nodes share a limit that is part of the command.

use std::net::SocketAddr;

use redis::Client;
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tokio::task::JoinSet;

use super::RULES;
use crate::TIDEGATE;

const LIMIT: i64 = 500;
const CLIENTS: usize = 12;
const REQUESTS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_2_400_requests_through_three_nodes_exactly_the_limit_passes() {
    // On two cores that also run the clients, ten milliseconds now and then are not enough.
    let sets = &["cluster.deadline=1000ms"];
    let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    // One comes back every three hours, so none does while it lasts.
    for pipeline in [1, 20] {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let listener = cluster.nodes[number % THREE.len()].resp;
            let key = format!("shared-{pipeline}");
            clients.spawn_blocking(move || send(listener, &key, pipeline));
        }
        let admitted: usize = clients.join_all().await.into_iter().sum();
        assert_eq!(i64::try_from(admitted).unwrap(), LIMIT, "{pipeline} at a time");
    }
    for node in &cluster.nodes {
        assert_eq!(node.verdicts("policy").await, 0);
    }
}

/// Sends `REQUESTS` commands, `at_once` in a pipeline; how many passed.
fn send(listener: SocketAddr, key: &str, at_once: usize) -> usize {
    let mut connection =
        Client::open(format!("redis://{listener}/")).unwrap().get_connection().unwrap();
    let mut admitted = 0;
    for _ in 0..REQUESTS / at_once {
        let mut pipeline = redis::pipe();
        for _ in 0..at_once {
            pipeline.cmd("CL.THROTTLE").arg(key).arg(&[LIMIT - 1, 8, 86_400]);
        }
        let found: Vec<(i64, i64, i64, i64, i64)> = pipeline.query(&mut connection).unwrap();
        admitted += found.iter().filter(|five| five.0 == 0).count();
    }
    admitted
}
