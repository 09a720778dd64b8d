//! Fifty edges beside three cores: they start, limit and leave without a change of the cluster map,
//! and what they cost, idle, is small, and so is that of a thousand.
//!
//! `scripts/check-long edges` runs it with the release build.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::{HANGS_AFTER, until};
use tokio::time::Instant;

use crate::TIDEGATE;

const RULES: &str = "
domain: edge
descriptors:
  - key: strict
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 200}
  - key: leased
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 2000}
  - key: eventual
    mode: eventual
    rate_limit: {unit: day, requests_per_unit: 2000}
";
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: "",
    // All nodes share the machine.
    sets: &["node.threads=1", "cluster.deadline=1s"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
const EDGES: usize = 50;
const STARTED_AT_ONCE: usize = 10;
const SETTLES_FOR: Duration = Duration::from_secs(10);
const MEASURED_FOR: Duration = Duration::from_secs(30);
/// Of an edge that is idle, in a second.
const EDGE_MESSAGES_MAX: f64 = 10.0;
const EDGE_BYTES_MAX: f64 = 2_000.0;
/// Of a core with a thousand edges, by what each of fifty costs it.
const CORE_MESSAGES_MAX: f64 = 1_500.0;
const CORE_BYTES_MAX: f64 = 200_000.0;

/// Messages and bytes sent since the start.
async fn sent(http: &Http, node: &Node) -> (f64, f64) {
    let text = http.get(node.admin, "/metrics").await.unwrap().body;
    let sum = |name: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    };
    (sum("tidegate_mesh_sent_messages_total{"), sum("tidegate_mesh_sent_bytes_total{"))
}

/// Messages and bytes that each sends in a second.
async fn rates<'a>(
    http: &Http,
    nodes: impl Iterator<Item = &'a Node>,
) -> BTreeMap<String, (f64, f64)> {
    let nodes: Vec<&Node> = nodes.collect();
    let (mut before, start) = (Vec::new(), Instant::now());
    for node in &nodes {
        before.push(sent(http, node).await);
    }
    tokio::time::sleep(MEASURED_FOR).await;
    let (mut rates, seconds) = (BTreeMap::new(), start.elapsed().as_secs_f64());
    for (node, (messages, bytes)) in nodes.iter().zip(before) {
        let now = sent(http, node).await;
        rates.insert(node.id.clone(), ((now.0 - messages) / seconds, (now.1 - bytes) / seconds));
    }
    rates
}

/// In turn at each of `nodes`, from as many clients.
async fn admitted(nodes: &[&Node], key: &str, value: &str, checks: usize) -> usize {
    let http = Http::new();
    let body = check_body("edge", key, value);
    let each = checks / nodes.len();
    let of_one = |node: &Node| {
        let (http, body, addr) = (http.clone(), body.clone(), node.http);
        async move {
            let mut admitted = 0;
            for _ in 0..each {
                let reply = http.check(addr, &body).await.unwrap();
                assert!([200, 429].contains(&reply.status), "{reply:?}");
                admitted += usize::from(reply.status == 200);
            }
            admitted
        }
    };
    let all = futures_util::future::join_all(nodes.iter().map(|node| of_one(node))).await;
    all.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_edges_cost_little_and_change_no_map() {
    let cluster = Cluster::start_alone(TIDEGATE, OPTIONS).await;
    let http = cluster.http.clone();
    tokio::time::sleep(SETTLES_FOR).await;
    let map = cluster.nodes[0].map().await.unwrap();
    let alone = rates(&http, cluster.nodes.iter()).await;
    let memory = |nodes: &[Node]| nodes.iter().map(Node::resident_bytes).collect::<Vec<_>>();
    let memory_before = memory(&cluster.nodes);

    let mut edges = Vec::new();
    let start = Instant::now();
    while edges.len() < EDGES {
        let mut batch: Vec<Node> = (edges.len()..EDGES.min(edges.len() + STARTED_AT_ONCE))
            .map(|number| cluster.edge(&format!("e{number}"), OPTIONS))
            .collect();
        batch.iter_mut().for_each(Node::start);
        for edge in &mut batch {
            edge.is_serving().await;
        }
        edges.append(&mut batch);
    }
    println!("{EDGES} edges are ready after {:.1?}", start.elapsed());
    let spread = async || {
        let mut connected = Vec::new();
        for core in &cluster.nodes {
            connected.push(core.status().await?.edges.ok_or("no core")?.connected);
        }
        let all: usize = connected.iter().sum();
        if all >= 2 * EDGES { Ok(connected) } else { Err(format!("{connected:?}")) }
    };
    let (connected, _) = until("each follows two cores", HANGS_AFTER, spread).await;
    println!("connected to the cores: {connected:?}");
    tokio::time::sleep(SETTLES_FOR).await;

    let idle = rates(&http, cluster.nodes.iter().chain(&edges)).await;
    let most = edges
        .iter()
        .map(|edge| idle[&edge.id])
        .fold((0.0, 0.0), |most: (f64, f64), it| (most.0.max(it.0), most.1.max(it.1)));
    println!("an idle edge sends at most {:.2} messages, {:.0} bytes a second", most.0, most.1);
    assert!(most.0 <= EDGE_MESSAGES_MAX && most.1 <= EDGE_BYTES_MAX);
    for (at, core) in cluster.nodes.iter().enumerate() {
        let (now, before) = (idle[&core.id], alone[&core.id]);
        let edges = f64::from(u32::try_from(connected[at]).unwrap());
        let of_thousand =
            |now: f64, before: f64| before + (now - before).max(0.0) / edges * 1_000.0;
        let (messages, bytes) = (of_thousand(now.0, before.0), of_thousand(now.1, before.1));
        let grown = core.resident_bytes().saturating_sub(memory_before[at]);
        println!(
            "{} with {edges} edges sends {:.1} messages, {:.0} bytes a second; {:.1}, {:.0} without; \
             with a thousand it would be {messages:.0}, {bytes:.0}; {} kB of memory for each edge",
            core.id,
            now.0,
            now.1,
            before.0,
            before.1,
            grown / 1_000 / connected[at] as u64,
        );
        assert!(messages <= CORE_MESSAGES_MAX && bytes <= CORE_BYTES_MAX);
    }

    let all: Vec<&Node> = edges.iter().collect();
    let strict = admitted(&all, "strict", "x", 500).await;
    assert_eq!(strict, 200, "by fifty edges at once");
    let leased = admitted(&all, "leased", "x", 5_000).await;
    println!("of a leased limit of 2,000 fifty edges admitted {leased} at once");
    assert!((1..=2_000).contains(&leased), "{leased}");
    let eventual = admitted(&all, "eventual", "x", 5_000).await;
    println!("of an eventual limit of 2,000 fifty edges admitted {eventual} at once");
    assert!(eventual >= 2_000, "{eventual}");

    for edge in &edges[..EDGES / 2] {
        edge.terminate();
    }
    for edge in &mut edges[..EDGES / 2] {
        assert_eq!(edge.exit_code(Duration::from_secs(20)).await, Some(0), "{}", edge.id);
    }
    edges[EDGES / 2..].iter_mut().for_each(Node::kill);
    let gone = async || {
        for core in &cluster.nodes {
            let status = core.status().await?;
            let connected = status.edges.ok_or("no core")?.connected;
            if connected > 0 {
                return Err(format!("{} has {connected}", core.id));
            }
        }
        Ok(())
    };
    let ((), took) = until("the cores have no edges", HANGS_AFTER, gone).await;
    println!("all have left, the half that was killed after {took:.1?}");
    for core in &cluster.nodes {
        let after = core.map().await.unwrap();
        assert_eq!((after.epoch, after.members.len()), (map.epoch, THREE.len()), "{}", core.id);
    }
}
