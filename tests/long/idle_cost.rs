//! What a cluster costs in which nothing happens: processor time, and messages to other nodes, of
//! voters and of other members, by the number of nodes. And how soon a change of the members is
//! known to all.
//!
//! `scripts/check-long idle` runs it with the release build.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::admin::report::{MapMemberState, Votes};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::{HANGS_AFTER, until};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::TIDEGATE;

const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: idle
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100}}
",
    config: "",
    // All nodes share the machine.
    sets: &["node.threads=1", "cluster.voters_from=auto"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
const SIZES: [usize; 3] = [3, 10, 30];
const VOTERS_MAX: usize = 5;
const STARTED_AT_ONCE: usize = 4;
/// Connections, first copies and the end of the last change are not what is measured.
const SETTLES_FOR: Duration = Duration::from_secs(5);
const MEASURED_FOR: Duration = Duration::from_secs(20);
/// Percent of a core of a member that does not vote.
const CPU_MAX: f64 = 2.0;
/// Bytes of pings and maps that such a member sends, in the largest cluster, of those in the
/// smallest: it pings the voters, and of the others one at a time.
const GROWTH_MAX: f64 = 1.25;
/// From the death of a member to a map without it at all others.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_nodes_cost_little_and_learn_of_changes_soon() {
    let sizes = match std::env::var_os("TIDEGATE_IDLE_NODES") {
        Some(sizes) => {
            let sizes = sizes.into_string().unwrap();
            sizes.split(',').map(|size| size.parse().unwrap()).collect()
        }
        None => SIZES.to_vec(),
    };
    let (mut cpu, mut known) = (0.0_f64, Duration::ZERO);
    let mut membership = Vec::new();
    for size in sizes {
        let mut cluster = Cluster::start_alone(TIDEGATE, OPTIONS).await;
        for number in THREE.len() + 1..=size {
            let id = format!("n{number}");
            cluster.add(&id, &id, OPTIONS).start();
            // On one machine their handshakes would take the time of its pings.
            if number % STARTED_AT_ONCE == 0 || number == size {
                cluster.one_view().await;
            }
        }
        let voters = agreed(&cluster, size.min(VOTERS_MAX)).await;
        tokio::time::sleep(SETTLES_FOR).await;

        let is_voter = |node: &Node| voters.contains(&node.id);
        let before = measure(&cluster).await;
        tokio::time::sleep(MEASURED_FOR).await;
        let after = measure(&cluster).await;
        for (what, votes) in [("voters", true), ("others", false)] {
            let nodes = cluster.nodes.iter().filter(|node| is_voter(node) == votes);
            let spent: Vec<Spent> =
                nodes.map(|node| after[&node.id].since(&before[&node.id])).collect();
            if spent.is_empty() {
                continue;
            }
            let (most, bytes) = print(&format!("{size} nodes, {} {what}", spent.len()), &spent);
            if !votes {
                cpu = cpu.max(most);
                membership.push(bytes);
            }
        }
        if size > THREE.len() {
            known = known.max(changes(&mut cluster).await);
        }
    }
    assert!(cpu <= CPU_MAX, "a member that does not vote uses {cpu} % of a core");
    if let [smallest, .., largest] = membership[..] {
        assert!(largest <= smallest * GROWTH_MAX, "it sends {smallest}, then {largest} bytes");
    }
    assert!(known <= KNOWN_WITHIN, "a death is known to all after {known:?}");
}

/// Waits until all nodes have the same map with `voters` voters; their names.
async fn agreed(cluster: &Cluster, voters: usize) -> Vec<String> {
    let condition = async || {
        let mut maps = Vec::new();
        for node in &cluster.nodes {
            maps.push(node.map().await?);
        }
        let first = &maps[0];
        let agree = maps.iter().all(|map| map.epoch == first.epoch);
        if !agree || first.voters != voters || first.voters_change {
            return Err(format!("{first:?}"));
        }
        let votes = first.members.iter().filter(|member| member.votes != Votes::No);
        Ok(votes.map(|member| member.node.clone()).collect())
    };
    until("the nodes agree on the voters", HANGS_AFTER, condition).await.0
}

/// Since the start of a node.
struct Spent {
    at: Instant,
    cpu_s: f64,
    /// Messages and bytes sent, by kind.
    sent: BTreeMap<String, (f64, f64)>,
}

impl Spent {
    fn since(&self, before: &Self) -> Self {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let sent = self.sent.iter().map(|(kind, (messages, bytes))| {
            let (messages_before, bytes_before) = before.sent[kind];
            let per_second =
                ((messages - messages_before) / seconds, (bytes - bytes_before) / seconds);
            (kind.clone(), per_second)
        });
        let cpu_s = (self.cpu_s - before.cpu_s) / seconds;
        Self { at: self.at, cpu_s, sent: sent.collect() }
    }
}

async fn measure(cluster: &Cluster) -> BTreeMap<String, Spent> {
    let mut all = BTreeMap::new();
    for node in &cluster.nodes {
        let text = cluster.http.get(node.admin, "/metrics").await.unwrap().body;
        let samples = |name: &str| -> BTreeMap<String, f64> {
            let prefix = format!("tidegate_mesh_sent_{name}_total{{kind=\"");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
            let sample = |rest: &str| {
                let (kind, value) = rest.split_once("\"} ").unwrap();
                (kind.to_owned(), value.parse().unwrap())
            };
            lines.map(sample).collect()
        };
        let bytes = samples("bytes");
        let sent = samples("messages").into_iter().map(|(kind, messages)| {
            let both = (messages, bytes[&kind]);
            (kind, both)
        });
        let cpu_s = node.cpu_seconds();
        all.insert(node.id.clone(), Spent { at: Instant::now(), cpu_s, sent: sent.collect() });
    }
    all
}

/// Prints averages; returns the most processor time of a node, in percent, and the bytes of pings
/// and maps that each sends in a second.
fn print(what: &str, spent: &[Spent]) -> (f64, f64) {
    let average = |of: &dyn Fn(&Spent) -> f64| {
        spent.iter().map(of).sum::<f64>() / f64::from(u32::try_from(spent.len()).unwrap())
    };
    let most = spent.iter().map(|spent| spent.cpu_s * 100.0).fold(0.0, f64::max);
    let mean = average(&|spent| spent.cpu_s * 100.0);
    println!("{what}: {mean:.2} % of a core each, {most:.2} % at most; sent a second:");
    let mut membership = 0.0;
    for kind in spent[0].sent.keys() {
        let messages = average(&|spent| spent.sent[kind].0);
        let bytes = average(&|spent| spent.sent[kind].1);
        if ["pings", "map"].contains(&kind.as_str()) {
            membership += bytes;
        }
        if messages > 0.0 {
            println!("    {kind:<9} {messages:7.1} messages {bytes:9.0} bytes");
        }
    }
    println!("    pings and map together {membership:.0} bytes");
    (most, membership)
}

/// Starts one more node, and kills it: when all others know; the latter.
async fn changes(cluster: &mut Cluster) -> Duration {
    let newcomer = format!("n{}", cluster.nodes.len() + 1);
    cluster.add(&newcomer, &newcomer, OPTIONS).start();
    let joined = known(cluster, &newcomer, true).await;
    cluster.one_view().await;
    cluster.nodes.last_mut().expect("the newcomer").kill();
    let left = known(cluster, &newcomer, false).await;
    let others = cluster.nodes.len() - 1;
    for (what, [first, last]) in [("start", joined), ("death", left)] {
        println!(
            "{what} of one more: in the map of the first node after {first:.1?}, of all \
             {others} after {last:.1?}"
        );
    }
    left[1]
}

/// When the first and the last of the other nodes have a map of which `id` is or is no member.
async fn known(cluster: &Cluster, id: &str, is_member: bool) -> [Duration; 2] {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let start = Instant::now();
    let mut readers = JoinSet::new();
    for node in cluster.nodes.iter().filter(|node| node.id != id) {
        let (http, admin, id) = (cluster.http.clone(), node.admin, id.to_owned());
        readers.spawn(async move {
            loop {
                let reply = http.get(admin, "/members").await.unwrap();
                let report: tidegate::admin::MembersReport =
                    serde_json::from_str(&reply.body).unwrap();
                let members = report.map.unwrap().members;
                let is_there = members
                    .iter()
                    .any(|one| one.node == id && one.state == MapMemberState::default());
                if is_there == is_member {
                    return start.elapsed();
                }
                assert!(start.elapsed() < HANGS_AFTER, "{members:?}");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
    }
    let times = readers.join_all().await;
    [times.iter().min(), times.iter().max()].map(|time| *time.expect("other nodes"))
}
