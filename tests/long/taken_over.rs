//! How long the keys of a node that dies have no owner, over many deaths.
//!
//! `scripts/check-long takeover` runs it.

use std::time::Duration;

use tidegate_testkit::http_client::{Http, hits_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tidegate_testkit::variable;
use tidegate_testkit::wait::{HANGS_AFTER, until};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::TIDEGATE;

/// Nothing reaches this limit: a refusal is that of `on_unavailable`.
const RULES: &str = "
domain: takeover
descriptors:
  - {key: user, rate_limit: {window: 365d, requests_per_unit: 1000000, on_unavailable: deny}}
";
/// Each node votes again after its restart, so that the leader may be any of them.
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: "",
    sets: &["cluster.voters_from=auto"],
    has_disks: true,
    has_drain_delay: false,
    regions: &[],
};
/// `TIDEGATE_TAKEOVERS` has another number.
const DEATHS: u32 = 50;
/// Keys of each node that is killed.
const KEYS: usize = 4;
const P50_MAX: Duration = Duration::from_millis(1_200);
const P99_MAX: Duration = Duration::from_millis(1_800);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_dead_nodes_soon_have_an_owner() {
    let deaths = variable::number("TIDEGATE_TAKEOVERS", DEATHS) as usize;
    let mut cluster = Cluster::start_alone(TIDEGATE, OPTIONS).await;
    let (mut leaders, mut others) = (Vec::new(), Vec::new());
    for death in 0..deaths {
        let leader = settled(&cluster).await;
        let leader = THREE.iter().position(|id| *id == leader).expect("one of the nodes");
        let is_leader = death % 2 == 0;
        // Of the two others each in turn.
        let victim = if is_leader { leader } else { (leader + 1 + death / 2 % 2) % THREE.len() };
        let prefix = format!("death-{death}");
        let keys = cluster.owned("takeover", "user", &prefix, THREE[victim], KEYS).await;
        let killed = Instant::now();
        cluster.nodes[victim].kill();
        let took = decided_again(&cluster, "takeover", &keys, killed).await;
        println!("{} ({}): {took:?}", THREE[victim], if is_leader { "leader" } else { "other" });
        if is_leader {
            leaders.push(took);
        } else {
            others.push(took);
        }
        cluster.nodes[victim].start();
        cluster.one_view().await;
    }
    let all: Vec<Duration> = leaders.iter().chain(&others).copied().collect();
    summary("leaders", &leaders);
    summary("others", &others);
    let [p50, p99, _] = summary("all", &all);
    assert!(p50 <= P50_MAX && p99 <= P99_MAX, "p50 {p50:?}, p99 {p99:?}");
}

/// Waits until all running nodes have the same map, in which three vote that are all there, and own
/// all keys together; the leader's id.
pub(crate) async fn settled(cluster: &Cluster) -> String {
    let condition = async || {
        let (mut maps, mut decides) = (Vec::new(), 0.0);
        for node in cluster.nodes.iter().filter(|node| node.is_running()) {
            maps.push(node.map().await?);
            decides += node.status().await?.ownership.map_or(0.0, |ownership| ownership.decides);
        }
        let leader = maps.iter().find_map(|map| map.leader.clone());
        let agree = maps.iter().all(|map| {
            (map.epoch, map.voters, map.voters_present) == (maps[0].epoch, 3, 3)
                && !map.voters_change
                && map.leader.as_ref().is_none_or(|known| Some(known) == leader.as_ref())
        });
        match leader {
            Some(leader) if agree && decides > 0.999 => Ok(leader),
            _ => Err(format!("{decides} of the ring is decided; {maps:?}")),
        }
    };
    until("the nodes agree", HANGS_AFTER, condition).await.0
}

/// Waits until all running nodes have answers of owners for all `keys`; the time since `killed`.
pub(crate) async fn decided_again(
    cluster: &Cluster,
    domain: &str,
    keys: &[String],
    killed: Instant,
) -> Duration {
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    let mut readers = JoinSet::new();
    for node in cluster.nodes.iter().filter(|node| node.is_running()) {
        for key in keys {
            let (http, listener, name) = (Http::new(), node.http, node.id.clone());
            let body = hits_body(domain, "user", key, 0);
            readers.spawn(async move {
                loop {
                    let reply = http.check(listener, &body).await.unwrap();
                    match reply.status {
                        200 => return killed.elapsed(),
                        429 => {}
                        status => panic!("{name}: {status}: {}", reply.body),
                    }
                    assert!(killed.elapsed() < HANGS_AFTER, "{body} at {name}");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            });
        }
    }
    readers.join_all().await.into_iter().max().expect("keys")
}

/// Prints and returns p50, p99 and the maximum.
fn summary(what: &str, took: &[Duration]) -> [Duration; 3] {
    let mut took = took.to_vec();
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
    let [p50, p99, max] = [at(50), at(99), at(100)];
    println!("{what}: {} deaths, p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?}", took.len());
    [p50, p99, max]
}
