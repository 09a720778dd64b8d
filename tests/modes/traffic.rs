//! Messages of hot keys, and bytes of eventual synchronisation by the number of nodes.

use std::time::Duration;

use tidegate_testkit::http_client::hits_body;
use tidegate_testkit::loadgen::{End, Keys, Pace, Run, Spread};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tokio::task::JoinSet;

use crate::metrics::Metrics;
use crate::nodes::{CLIENTS, Nodes, open};
use crate::options::Options;
use crate::row::{Figure, Is, Report, Row};
use crate::rules::{self, DOMAIN, HOT, MILLION, ROOMY, SHARED};

/// The streams of the hot strict key: connections, and calls on each.
const HOT_CONNECTIONS: usize = 6;
const HOT_DEPTH: u32 = 16;
const HOT_LASTS: Duration = Duration::from_secs(3);
/// A leased key that is far from its limit.
const ROOMY_LASTS: Duration = Duration::from_secs(5);
const ROOMY_PER_SECOND: u64 = 3_000;
/// The longest time to live of a grant (`decide/leased.rs`).
const TERM: Duration = Duration::from_secs(1);
/// Nodes of the larger cluster.
const MANY: usize = 30;
const STARTED_AT_ONCE: usize = 4;
/// Bytes for each peer of the owner may be this many times those on three nodes.
const GROWTH_MAX: f64 = 1.25;
/// Each node counts as many hits in each step, in which all nodes together use up this part of what
/// was left of the limit at the first step.
const STEPS: u32 = 20;
const STEP: Duration = Duration::from_millis(200);
/// Of the limit, what is used before the first step, and by all steps.
const USED_BEFORE: u32 = MILLION / 5 * 4;
const USED_BY_STEPS: u32 = MILLION / 20 * 3;

/// The most messages about a leased key on three nodes that is checked for so long: `2 (2n ln(L /
/// 2n) + 4n)`, and two more for each of the others in each time to live.
pub(crate) fn messages_max(limit: u32, lasts: Duration) -> f64 {
    let n = 3.0;
    let in_burst = 2.0 * (2.0 * n * (f64::from(limit) / (2.0 * n)).ln() + 4.0 * n);
    let terms = lasts.as_secs_f64() / TERM.as_secs_f64();
    2.0f64.mul_add((n - 1.0) * terms.ceil(), in_burst)
}

pub(crate) fn measure(nodes: Nodes, options: &Options, report: &mut Report) {
    let mut measure = |name: &str, row: &dyn Fn(&str) -> Row| {
        if options.has(name) {
            eprintln!("{name}");
            report.add(&row(name));
        }
    };
    measure("messages/strict/96-streams", &|name| hot(name, &nodes));
    measure("messages/leased/steady", &|name| roomy(name, &nodes));
    if options.has("bytes/eventual") {
        eprintln!("bytes/eventual");
        report.add(&bytes("bytes/eventual", nodes));
    }
}

fn hot(name: &str, nodes: &Nodes) -> Row {
    let mut clients = nodes.clients(HOT, HOT_CONNECTIONS);
    let run = Run {
        keys: Keys::One(nodes.next_key()),
        pace: Pace::Closed { depth: HOT_DEPTH },
        end: End::After(HOT_LASTS),
        spread: Spread::Even,
    };
    let before = nodes.metrics();
    let result = clients.run(&run, |_| {}).unwrap();
    let after = nodes.settled_metrics();
    let checks = result.admitted as f64;
    let messages = after.messages_since(&before, "checks") / checks;
    let mut row = Row::new(name);
    row.bound("messages a check", messages, Is::AtMost(0.2));
    row.figures.push(Figure::of("messages a check", [messages]));
    let forwarded = after.verdicts_since(&before, "owner");
    row.figures.push(Figure::of("forwarded %", [forwarded / checks * 100.0]));
    row.figures.push(Figure::of("checks/s", [result.rate()]));
    row.figures.push(Figure::of("p99 ms", [result.ms(0.99)]));
    row.figures.push(Figure::of("failed", [result.failed as f64]));
    row
}

fn roomy(name: &str, nodes: &Nodes) -> Row {
    let mut clients = nodes.clients(ROOMY, CLIENTS);
    let run = Run {
        keys: Keys::One(nodes.next_key()),
        pace: open(ROOMY_PER_SECOND),
        end: End::After(ROOMY_LASTS),
        spread: Spread::Even,
    };
    let before = nodes.metrics();
    let result = clients.run(&run, |_| {}).unwrap();
    let after = nodes.settled_metrics();
    let messages = after.messages_since(&before, "checks");
    let waited = after.verdicts_since(&before, "owner") / result.admitted as f64;
    let mut row = Row::new(name);
    row.bound("messages", messages, Is::AtMost(messages_max(MILLION, ROOMY_LASTS)));
    row.bound("without waiting %", (1.0 - waited) * 100.0, Is::AtLeast(98.0));
    row.figures.push(Figure::of("messages", [messages]));
    row.figures.push(Figure::of("without waiting %", [(1.0 - waited) * 100.0]));
    row.figures.push(Figure::of("p99 ms", [result.ms(0.99)]));
    row.figures.push(Figure::of("failed", [result.failed as f64]));
    row
}

/// One key that all nodes use, at three and at thirty nodes.
fn bytes(name: &str, nodes: Nodes) -> Row {
    let Nodes { mut cluster, runtime, .. } = nodes;
    let few = runtime.block_on(bytes_of_step(&cluster, "few"));
    runtime.block_on(grow(&mut cluster));
    let many = runtime.block_on(bytes_of_step(&cluster, "many"));
    let mut row = Row::new(name);
    let figures = [
        ("3 nodes: bytes a peer of the owner and round", few.bytes),
        ("3 nodes: messages a peer of the owner and round", few.messages),
        ("30 nodes: bytes a peer of the owner and round", many.bytes),
        ("30 nodes: messages a peer of the owner and round", many.messages),
    ];
    row.figures.extend(figures.map(|(what, value)| Figure::of(what, [value])));
    let growth = many.bytes / few.bytes;
    row.bound("bytes a peer of the owner and round, 30 nodes by 3", growth, Is::AtMost(GROWTH_MAX));
    row
}

/// Of synchronisation, a step and node that is not the owner of the key: what is sent is between
/// these and the owner, so that of three nodes two have a part in it, and of thirty 29.
struct Sent {
    bytes: f64,
    messages: f64,
}

async fn bytes_of_step(cluster: &Cluster, value: &str) -> Sent {
    let users = u32::try_from(cluster.nodes.len()).unwrap();
    let first = hits_body(DOMAIN, SHARED, value, u64::from(USED_BEFORE));
    let reply = cluster.http.check(cluster.nodes[0].http, &first).await.unwrap();
    assert_eq!(reply.status, 200);
    let hits = USED_BY_STEPS / STEPS / users;
    let body = hits_body(DOMAIN, SHARED, value, u64::from(hits));
    // The first step makes each node a user of the key.
    let mut before = None;
    for step in 0..=STEPS {
        if step == 1 {
            before = Some(Metrics::read(cluster).await);
        }
        let mut checks = JoinSet::new();
        for node in &cluster.nodes {
            let (http, listener, body) = (cluster.http.clone(), node.http, body.clone());
            checks.spawn(async move { http.check(listener, &body).await.unwrap().status });
        }
        assert!(checks.join_all().await.iter().all(|status| *status == 200), "step {step}");
        tokio::time::sleep(STEP).await;
    }
    let (before, after) = (before.unwrap(), Metrics::read(cluster).await);
    let per_step = f64::from((users - 1) * STEPS);
    Sent {
        bytes: after.bytes_since(&before, "sync") / per_step,
        messages: after.messages_since(&before, "sync") / per_step,
    }
}

/// Adds nodes, some at a time: on one machine their handshakes take the time of pings.
async fn grow(cluster: &mut Cluster) {
    let rules = rules::yaml();
    let options = ClusterOptions {
        nodes: THREE,
        rules: &rules,
        sets: &["node.threads=1"],
        ..Default::default()
    };
    for number in THREE.len() + 1..=MANY {
        let id = format!("n{number}");
        cluster.add(&id, &id, options).start();
        if number % STARTED_AT_ONCE == 0 || number == MANY {
            cluster.one_view().await;
            eprintln!("{number} nodes");
        }
    }
}
