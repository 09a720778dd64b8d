//! Three nodes over gRPC: forwarded to the owner, and decided on the spot.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::resp::{INCR, entrant as redis_entrant};
use super::{Entrant, Plan, interleave, table};
use crate::awake;
use crate::engine::grpc::Grpc;
use crate::engine::{End, Keys, Load, Pace};
use crate::peers::Target;
use crate::peers::tidegate::{CONFIRMED, DOMAIN, EVENTUAL, Node, STRICT};
use crate::processes::own_cpu;
use crate::results::Table;

pub const STRICT_64: &str = "3 nodes, strict, 64 connections";
pub const EVENTUAL_64: &str = "3 nodes, eventual, 64 connections";
pub const ALONE_64: &str = "1 node, 64 connections";
/// The share of checks that were answered without their owner stands beside what all have.
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

/// What is asked.
pub struct Nodes {
    pub cluster: Result<Vec<Node>, String>,
    /// As many, each a cluster of one.
    pub apart: Result<Vec<Node>, String>,
    pub alone: Result<Vec<Node>, String>,
}

/// Keys that are asked about.
const KEYS: u64 = 100_000;

/// A row: its rule, how many connections with how many calls under way, and over how many nodes.
struct CountingMode<'a> {
    nodes: &'a [Node],
    rule: &'a str,
    connections: usize,
    pace: Pace,
}

pub fn measure(plan: &Plan, nodes: &Nodes, incr: Option<&Target>) -> Table {
    let about = format!(
        "A client of our own (one thread, HTTP/2 frames made by hand), connections dealt to the \
         nodes in turn, one check a call, 100,000 random keys that were all asked about before, \
         and of which two thirds belong to another node than the one that is asked. Each of three \
         nodes has one thread (`node.threads`), a node by itself its default of two; all else is \
         at its default: one replica that hears of each count within milliseconds, 10 ms for an \
         owner to answer. Three nodes and the client share the two cores; three apart do so too, \
         and know nothing of each other. The open loop is latency from the intended time, and \
         there: {}",
        awake::about()
    );
    let mut table = table("cluster", "Three nodes, gRPC", &about, &COLUMNS);
    let Nodes { cluster, apart, alone } = nodes;
    let closed = |depth| Pace::Closed { depth };
    let open = Pace::Open { per_second: 2_000, all_or_nothing: 1 };
    let mut entrants = Vec::new();
    if let Some(incr) = incr {
        entrants.push(redis_entrant(plan, INCR, incr, 1));
    }
    for (name, nodes, rule, connections, pace) in [
        (STRICT_64, cluster, STRICT, 64, closed(1)),
        ("3 nodes, strict, 4 connections of 16", cluster, STRICT, 4, closed(16)),
        ("3 nodes, strict, confirmed, 64 connections", cluster, CONFIRMED, 64, closed(1)),
        (EVENTUAL_64, cluster, EVENTUAL, 64, closed(1)),
        (ALONE_64, alone, STRICT, 64, closed(1)),
        ("3 nodes apart, 64 connections", apart, STRICT, 64, closed(1)),
        ("3 nodes, strict, open loop 2,000/s", cluster, STRICT, 16, open),
        ("3 nodes, strict, confirmed, open loop 2,000/s", cluster, CONFIRMED, 16, open),
        ("3 nodes, eventual, open loop 2,000/s", cluster, EVENTUAL, 16, open),
    ] {
        entrants.push(match nodes {
            Ok(nodes) => {
                let way = CountingMode { nodes, rule, connections, pace };
                let mut is_warm = false;
                Entrant::new(name, move || {
                    if !std::mem::replace(&mut is_warm, true) {
                        way.warm(plan)?;
                    }
                    let is_open = matches!(way.pace, Pace::Open { .. });
                    let _awake = is_open.then(awake::keep);
                    way.measure(plan.span)
                })
            }
            Err(why) => Entrant::absent(name, why),
        });
    }
    interleave(&mut table, plan.rounds, entrants);
    table
}

impl CountingMode<'_> {
    /// Asks about every key once, of whoever is to count it: what a counter costs when it begins
    /// is not what it costs.
    fn warm(&self, plan: &Plan) -> io::Result<()> {
        let counting = if self.rule == EVENTUAL { self.nodes } else { &self.nodes[..1] };
        for node in counting {
            Load {
                addrs: &[node.grpc],
                connections: 16,
                wire: &|| Box::new(Grpc::new(DOMAIN, self.rule)),
                keys: Keys::From(0),
                pace: Pace::Closed { depth: 4 },
                end: End::AfterAsks(KEYS.min(plan.keys)),
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
            wire: &|| Box::new(Grpc::new(DOMAIN, self.rule)),
            keys: Keys::Random(KEYS),
            pace: self.pace,
            end: End::After(span),
        };
        let (cpu, policy, client) = (self.cpu()?, self.by_policy()?, own_cpu().0);
        let outcome = load.run()?;
        let client = own_cpu().0.saturating_sub(client);
        let (cpu, policy) = (self.cpu()?.saturating_sub(cpu), self.by_policy()? - policy);
        if outcome.failed > 0 {
            return Err(io::Error::other(format!("{} had no answer", outcome.failed)));
        }
        let answered = outcome.latencies.len() as f64;
        Ok(vec![
            outcome.rate(),
            outcome.ms(0.5),
            outcome.ms(0.99),
            outcome.ms(0.999),
            cpu.as_secs_f64() * 1e6 / answered,
            client.as_secs_f64() * 1e6 / answered,
            answered / cpu.as_secs_f64(),
            policy / answered * 100.0,
        ])
    }

    fn cpu(&self) -> io::Result<Duration> {
        self.nodes.iter().map(|node| Ok(node.server.usage()?.cpu)).sum()
    }

    fn by_policy(&self) -> io::Result<f64> {
        let label = "source=\"policy\"";
        self.nodes.iter().map(|node| node.metric("tidegate_verdicts_total", label)).sum()
    }
}
