//! Three nodes over gRPC: strict checks are forwarded to the owner, leased ones decided from
//! granted hits, eventual ones locally; as fast as they can, and at a moderate pace.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::loadgen::grpc::Grpc;
use tidegate_testkit::loadgen::{End, Keys, Load, Pace};

use super::resp::{INCR, case as redis_case};
use super::{Case, Plan, interleave, table};
use crate::machine;
use crate::peers::Target;
use crate::peers::tidegate::{DOMAIN, EVENTUAL, LEASED, Node, REPLICATED, STRICT};
use crate::processes::own_cpu;
use crate::results::Table;

pub const STRICT_64: &str = "3 nodes, strict, 64 connections";
pub const EVENTUAL_64: &str = "3 nodes, eventual, 64 connections";
pub const SINGLE_64: &str = "1 node, 64 connections";
pub const LEASED_64: &str = "3 nodes, leased, 100 keys, 64 connections";
pub const ONE_KEY: &str = "3 nodes, strict, one key, 4 connections of 16";
/// At 4,000 checks a second over 10,000 keys, and over 100.
pub const PACED: [&str; 4] = [
    "paced, 3 nodes, strict",
    "paced, 3 nodes, leased",
    "paced, 3 nodes, eventual",
    "paced, 1 node",
];
pub const PACED_100: [&str; 2] =
    ["paced, 3 nodes, strict, 100 keys", "paced, 3 nodes, leased, 100 keys"];
/// The usual columns, and the share of checks that were answered without their owner.
pub const COLUMNS: [&str; 8] = [
    "checks/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "server CPU µs/req",
    "client CPU µs/req",
    "per CPU s of the servers",
    "without owner %",
];

pub struct Nodes {
    pub cluster: Result<Vec<Node>, String>,
    /// The same number of independent nodes.
    pub separate: Result<Vec<Node>, String>,
    pub single: Result<Vec<Node>, String>,
}

const KEYS: u64 = 100_000;

/// The load of one row.
struct ClusterLoad<'a> {
    nodes: &'a [Node],
    rule: &'a str,
    connections: usize,
    keys: u64,
    pace: Pace,
}

pub fn measure(plan: &Plan, nodes: &Nodes, incr: Option<&Target>) -> Table {
    let about = format!(
        "The load generator of this benchmark (one thread), with connections to the nodes in \
         round-robin order, one check per call, and 100,000 random keys, or those of the row, \
         that have counters. Two thirds of the checks arrive at a node that does not own the key. \
         Each of the three nodes has one thread (`node.threads`), the single node the default of \
         two. Other settings have their defaults: one replica, which receives each count within \
         milliseconds, and a timeout of 10 ms for calls to the owner. Nodes and client share the \
         two cores. *3 nodes apart* are three independent single nodes. In the open loops, \
         latency counts from the intended send time. {}",
        machine::idle_note()
    );
    let mut table = table("cluster", "Three nodes, gRPC", &about, &COLUMNS);
    let Nodes { cluster, separate, single } = nodes;
    let closed = |depth| Pace::Closed { depth };
    let open = Pace::Open { per_second: 2_000, burst: 1 };
    let mut cases = Vec::new();
    if let Some(incr) = incr {
        cases.push(redis_case(plan, INCR, incr, 1));
    }
    for (name, nodes, rule, connections, keys, pace) in [
        (STRICT_64, cluster, STRICT, 64, KEYS, closed(1)),
        ("3 nodes, strict, 4 connections of 16", cluster, STRICT, 4, KEYS, closed(16)),
        (ONE_KEY, cluster, STRICT, 4, 1, closed(16)),
        ("3 nodes, strict, confirmed, 64 connections", cluster, REPLICATED, 64, KEYS, closed(1)),
        (LEASED_64, cluster, LEASED, 64, 100, closed(1)),
        (EVENTUAL_64, cluster, EVENTUAL, 64, KEYS, closed(1)),
        (SINGLE_64, single, STRICT, 64, KEYS, closed(1)),
        ("3 nodes apart, 64 connections", separate, STRICT, 64, KEYS, closed(1)),
        ("3 nodes, strict, open loop 2,000/s", cluster, STRICT, 16, KEYS, open),
        ("3 nodes, strict, confirmed, open loop 2,000/s", cluster, REPLICATED, 16, KEYS, open),
        ("3 nodes, eventual, open loop 2,000/s", cluster, EVENTUAL, 16, KEYS, open),
    ] {
        cases.push(match nodes {
            Ok(nodes) => case(plan, name, ClusterLoad { nodes, rule, connections, keys, pace }),
            Err(why) => Case::absent(name, why),
        });
    }
    interleave(&mut table, plan.rounds, cases);
    table
}

/// At the pace that most installations run at, most of a check is waking threads and sending
/// packets with one message.
pub fn measure_paced(plan: &Plan, nodes: &Nodes) -> Table {
    let about = format!(
        "An open loop of 4,000 checks a second over 96 connections, so that each check travels \
         alone, with 10,000 random keys or 100. Settings and load generator are those of the table \
         above. {}",
        machine::idle_note()
    );
    let mut table = table("paced", "Three nodes, gRPC, at a moderate pace", &about, &COLUMNS);
    let Nodes { cluster, single, .. } = nodes;
    let pace = Pace::Open { per_second: 4_000, burst: 1 };
    let mut cases = Vec::new();
    for (name, nodes, rule, keys) in [
        (PACED[0], cluster, STRICT, 10_000),
        (PACED[1], cluster, LEASED, 10_000),
        (PACED[2], cluster, EVENTUAL, 10_000),
        (PACED[3], single, STRICT, 10_000),
        (PACED_100[0], cluster, STRICT, 100),
        (PACED_100[1], cluster, LEASED, 100),
    ] {
        cases.push(match nodes {
            Ok(nodes) => case(plan, name, ClusterLoad { nodes, rule, connections: 96, keys, pace }),
            Err(why) => Case::absent(name, why),
        });
    }
    interleave(&mut table, plan.rounds, cases);
    table
}

fn case<'a>(plan: &'a Plan, name: &str, load: ClusterLoad<'a>) -> Case<'a> {
    let mut is_warm = false;
    Case::new(name, move || {
        if !std::mem::replace(&mut is_warm, true) {
            load.warm_up(plan)?;
        }
        let is_open = matches!(load.pace, Pace::Open { .. });
        let _no_idle = is_open.then(machine::disable_idle);
        load.measure(plan.span)
    })
}

impl ClusterLoad<'_> {
    /// Creates all counters, at every node that counts them: the first check of a key costs more.
    fn warm_up(&self, plan: &Plan) -> io::Result<()> {
        let counting = if self.rule == EVENTUAL { self.nodes } else { &self.nodes[..1] };
        for node in counting {
            Load {
                addrs: &[node.grpc],
                connections: 16,
                protocol: &|| Box::new(Grpc::new(DOMAIN, self.rule)),
                keys: Keys::From(0),
                pace: Pace::Closed { depth: 4 },
                end: End::AfterRequests(self.keys.min(plan.keys)),
            }
            .run()?;
        }
        Ok(())
    }

    fn measure(&self, span: Duration) -> io::Result<Vec<f64>> {
        let addrs: Vec<SocketAddr> = self.nodes.iter().map(|node| node.grpc).collect();
        let load = Load {
            addrs: &addrs,
            connections: self.connections,
            protocol: &|| Box::new(Grpc::new(DOMAIN, self.rule)),
            keys: Keys::Random(self.keys),
            pace: self.pace,
            end: End::After(span),
        };
        let (cpu, fallback, client) = (self.cpu()?, self.fallback_verdicts()?, own_cpu().0);
        let result = load.run()?;
        let client = own_cpu().0.saturating_sub(client);
        let (cpu, fallback) =
            (self.cpu()?.saturating_sub(cpu), self.fallback_verdicts()? - fallback);
        if result.failed > 0 {
            return Err(io::Error::other(format!("{} requests failed", result.failed)));
        }
        let answered = result.latencies.len() as f64;
        Ok(vec![
            result.rate(),
            result.ms(0.5),
            result.ms(0.99),
            result.ms(0.999),
            cpu.as_secs_f64() * 1e6 / answered,
            client.as_secs_f64() * 1e6 / answered,
            answered / cpu.as_secs_f64(),
            fallback / answered * 100.0,
        ])
    }

    fn cpu(&self) -> io::Result<Duration> {
        self.nodes.iter().map(|node| Ok(node.server.usage()?.cpu)).sum()
    }

    /// Checks that were answered without their owner.
    fn fallback_verdicts(&self) -> io::Result<f64> {
        let label = "source=\"policy\"";
        self.nodes.iter().map(|node| node.metric("tidegate_verdicts_total", label)).sum()
    }
}
