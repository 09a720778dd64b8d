//! Limiters as services over gRPC: tidegate, Gubernator, Limitador, and envoyproxy/ratelimit with
//! its Redis, with the same client, the same keys and the same number of calls in flight.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tidegate_proto::gubernator::Behavior;
use tidegate_testkit::loadgen::grpc::{CarriedLimit, Grpc};
use tidegate_testkit::loadgen::{End, Keys, Load, LoadResult, Pace, Protocol};

use super::{Case, Plan, interleave, table};
use crate::peers::envoy_ratelimit::{self, Ratelimit};
use crate::peers::gubernator::{self, Gubernator};
use crate::peers::limitador;
use crate::peers::tidegate::{DOMAIN, EVENTUAL, LEASED, Node, STRICT, Setting};
use crate::processes::{Server, own_cpu};
use crate::results::Table;

pub const COLUMNS: [&str; 5] =
    ["checks/s", "p50 ms", "p99 ms", "server CPU µs/check", "client CPU µs/check"];
/// The rows of tidegate's Gubernator API and of Gubernator that a bound compares.
pub const CARRIED: [(&str, &str); 3] = [
    ("tidegate, Gubernator's API", "Gubernator"),
    ("tidegate, Gubernator's API, 3 nodes", "Gubernator, 3 nodes"),
    ("tidegate, Gubernator's API, GLOBAL, 3 nodes", "Gubernator, GLOBAL, 3 nodes"),
];
pub const ONE: &str = "services-1";
pub const HUNDRED: &str = "services-100";

const LIMITADOR: &str = "Limitador";
const KEYS: u64 = 10_000;
/// Of one check each.
const SINGLE: Shape = Shape { connections: 12, depth: 8, checks: 1 };
/// Of 100 checks each: a server with the default window of HTTP/2 takes some ten such calls on a
/// connection.
const BATCHES: Shape = Shape { connections: 16, depth: 1, checks: 100 };
const NAME: &str = "bench";
const DAY: Duration = Duration::from_secs(86_400);

/// How calls are in flight.
#[derive(Clone, Copy)]
struct Shape {
    connections: usize,
    depth: u32,
    checks: usize,
}

#[derive(Clone, Copy)]
enum Api {
    /// Envoy's, with the key of a rule.
    RateLimit(&'static str),
    /// Gubernator's, with a behavior.
    Carried(Behavior),
}

/// The processes of one target, and where they are asked.
#[derive(Clone)]
struct Service {
    servers: Vec<Rc<Server>>,
    addrs: Vec<SocketAddr>,
}

type Started = Result<Service, String>;
type Start<'a> = Box<dyn Fn() -> io::Result<Service> + 'a>;

/// All targets, running.
pub struct Services {
    tidegate: [Started; 2],
    /// The same nodes, at their listener of Gubernator's API.
    tidegate_carried: [Started; 2],
    gubernator: [Started; 2],
    ratelimit: [Started; 2],
    limitador: Started,
}

/// Starts all of them, single and in three nodes. Those that are not measured are idle.
pub fn start(folder: &Path) -> io::Result<Services> {
    let text = |error: io::Error| error.to_string();
    let setting = || -> io::Result<Setting> {
        let setting = Setting::new(folder)?.with_gubernator();
        Ok(setting.with("limits.descriptors_max", BATCHES.checks as u64))
    };
    let single = setting()?.start().map(|node| vec![node]);
    let cluster = setting()?.with("node.threads", 1).start_cluster();
    let nodes = [single.map_err(text), cluster.map_err(text)];
    let gubernator =
        [gubernator::start(folder).map(|node| vec![node]), gubernator::start_cluster(folder, 3)];
    let ratelimit = [1, 3].map(|instances| envoy_ratelimit::start(folder, instances));
    Ok(Services {
        tidegate: nodes.clone().map(|nodes| nodes.map(|nodes| Service::of_nodes(&nodes))),
        tidegate_carried: nodes
            .map(|nodes| nodes.and_then(|nodes| Service::of_carried(&nodes).map_err(text))),
        gubernator: gubernator
            .map(|nodes| nodes.map(|nodes| Service::of_gubernator(&nodes)).map_err(text)),
        ratelimit: ratelimit.map(|started| started.map(Service::of_ratelimit).map_err(text)),
        limitador: limitador::start(folder)
            .map(|(server, addr)| Service { servers: vec![server], addrs: vec![addr] })
            .map_err(text),
    })
}

/// One check per call.
pub fn measure(plan: &Plan, services: &Services) -> Table {
    let about = "The load generator of this benchmark (one thread): 12 connections of 8 calls \
                 each, 96 in flight, one check per call, 10,000 random keys that have counters, \
                 limits that no key reaches. Connections go to the nodes in round-robin order. \
                 A single node has the threads that it takes by itself; of three, each has one \
                 (`node.threads`, `GOMAXPROCS`), as they share two cores with the client. Other \
                 settings have their defaults, but for the number of counters that are kept, \
                 and of descriptors in a request. The CPU of envoyproxy/ratelimit includes that \
                 of its Redis. *strict* is exact over all nodes, *leased* never over, \
                 *eventual* and `GLOBAL` of Gubernator are counted on the spot and sent later. \
                 `GLOBAL` at tidegate is leased. Limitador counts in the memory of one node.";
    let mut table = table(ONE, "Limiters as services, one check per call", about, &COLUMNS);
    let cases = cases(services).map(|(name, started, api)| case(plan, name, started, api, SINGLE));
    interleave(&mut table, plan.rounds, cases.collect());
    table
}

/// A hundred checks per call.
pub fn measure_batches(plan: &Plan, services: &Services) -> Table {
    let about = "As above, with 100 checks per call and 16 calls in flight. Latency is that of a \
                 call. Limitador checks one descriptor's limits for each call.";
    let mut table = table(HUNDRED, "Limiters as services, 100 checks per call", about, &COLUMNS);
    let cases = cases(services)
        .filter(|(name, ..)| *name != LIMITADOR)
        .map(|(name, started, api)| case(plan, name, started, api, BATCHES));
    interleave(&mut table, plan.rounds, cases.collect());
    table
}

/// The rows of both tables, in their order.
fn cases(services: &Services) -> impl Iterator<Item = (&'static str, &Started, Api)> {
    let Services { tidegate, tidegate_carried, gubernator, ratelimit, limitador } = services;
    let (local, global) = (Api::Carried(Behavior::Batching), Api::Carried(Behavior::Global));
    [
        ("tidegate", &tidegate[0], Api::RateLimit(STRICT)),
        (CARRIED[0].0, &tidegate_carried[0], local),
        (CARRIED[0].1, &gubernator[0], local),
        (LIMITADOR, limitador, Api::RateLimit(STRICT)),
        ("envoyproxy/ratelimit and Redis", &ratelimit[0], Api::RateLimit(STRICT)),
        ("tidegate, strict, 3 nodes", &tidegate[1], Api::RateLimit(STRICT)),
        (CARRIED[1].0, &tidegate_carried[1], local),
        (CARRIED[1].1, &gubernator[1], local),
        ("envoyproxy/ratelimit, 3 instances, and Redis", &ratelimit[1], Api::RateLimit(STRICT)),
        ("tidegate, leased, 3 nodes", &tidegate[1], Api::RateLimit(LEASED)),
        ("tidegate, eventual, 3 nodes", &tidegate[1], Api::RateLimit(EVENTUAL)),
        (CARRIED[2].0, &tidegate_carried[1], global),
        (CARRIED[2].1, &gubernator[1], global),
    ]
    .into_iter()
}

/// Resident memory for each key, of new servers.
pub fn measure_memory(plan: &Plan, folder: &Path) -> Table {
    let keys = plan.keys / 2;
    let about = format!(
        "A new server for each row, {} keys of 17 bytes, each hit once, a window of a day. The \
         growth of the resident memory of the processes, per key; that of envoyproxy/ratelimit \
         includes its Redis. Gubernator and Limitador are set to keep two million keys.",
        crate::render::number(keys as f64)
    );
    let columns = ["B resident a key", "keys added/s"];
    let mut table = table("services-memory", "Limiters as services, memory", &about, &columns);
    let single = move || {
        let setting = Setting::new(folder)?.with_gubernator().with("limits.keys_max", 2 * keys);
        setting.start()
    };
    let local = Api::Carried(Behavior::Batching);
    let starts: [(&str, Api, Shape, Start<'_>); 5] = [
        (
            "tidegate",
            Api::RateLimit(STRICT),
            SINGLE,
            Box::new(move || Ok(Service::of_nodes(&[single()?]))),
        ),
        (CARRIED[0].0, local, BATCHES, Box::new(move || Service::of_carried(&[single()?]))),
        (
            CARRIED[0].1,
            local,
            BATCHES,
            Box::new(|| Ok(Service::of_gubernator(&[gubernator::start(folder)?]))),
        ),
        (
            LIMITADOR,
            Api::RateLimit(STRICT),
            SINGLE,
            Box::new(|| {
                let (server, addr) = limitador::start(folder)?;
                Ok(Service { servers: vec![server], addrs: vec![addr] })
            }),
        ),
        (
            "envoyproxy/ratelimit and Redis",
            Api::RateLimit(STRICT),
            SINGLE,
            Box::new(|| Ok(Service::of_ratelimit(envoy_ratelimit::start(folder, 1)?))),
        ),
    ];
    let cases = starts.into_iter().map(|(name, api, shape, start)| {
        Case::new(name, move || {
            let service = start()?;
            let checks = shape.checks as u64;
            // Opens the connections first: their buffers are not memory of keys.
            service.add(api, shape, keys / 100)?;
            let before = service.resident_bytes()?;
            let result = service.add(api, shape, keys)?;
            let growth = service.resident_bytes()?.saturating_sub(before);
            Ok(vec![growth as f64 / (keys - keys / 100) as f64, result.rate() * checks as f64])
        })
    });
    interleave(&mut table, 1, cases.collect());
    table
}

fn case<'a>(plan: &'a Plan, name: &str, started: &'a Started, api: Api, shape: Shape) -> Case<'a> {
    let service = match started {
        Ok(service) => service,
        Err(why) => return Case::absent(name, why),
    };
    let mut is_warm = false;
    Case::new(name, move || {
        let keys = KEYS.min(plan.keys);
        if !std::mem::replace(&mut is_warm, true) {
            // The first check of a key costs more.
            service.add(api, SINGLE, keys)?;
        }
        let (cpu, client) = (service.cpu()?, own_cpu().0);
        let calls = Keys::Random(keys / shape.checks as u64);
        let result = service.run(api, shape, calls, End::After(plan.span))?;
        let (cpu, client) =
            (service.cpu()?.saturating_sub(cpu), own_cpu().0.saturating_sub(client));
        let checks = (result.latencies.len() * shape.checks as u64) as f64;
        Ok(vec![
            result.rate() * shape.checks as f64,
            result.ms(0.5),
            result.ms(0.99),
            cpu.as_secs_f64() * 1e6 / checks,
            client.as_secs_f64() * 1e6 / checks,
        ])
    })
}

impl Service {
    fn of_nodes(nodes: &[Node]) -> Self {
        Self {
            servers: nodes.iter().map(|node| Rc::clone(&node.server)).collect(),
            addrs: nodes.iter().map(|node| node.grpc).collect(),
        }
    }

    fn of_carried(nodes: &[Node]) -> io::Result<Self> {
        let addrs: Option<_> = nodes.iter().map(|node| node.gubernator).collect();
        let addrs = addrs.ok_or_else(|| io::Error::other("this build has no [gubernator]"))?;
        Ok(Self { addrs, ..Self::of_nodes(nodes) })
    }

    fn of_gubernator(nodes: &[Gubernator]) -> Self {
        Self {
            servers: nodes.iter().map(|node| Rc::clone(&node.server)).collect(),
            addrs: nodes.iter().map(|node| node.grpc).collect(),
        }
    }

    fn of_ratelimit(Ratelimit { servers, grpc }: Ratelimit) -> Self {
        Self { servers, addrs: grpc }
    }

    /// Checks each key below `keys` once.
    fn add(&self, api: Api, shape: Shape, keys: u64) -> io::Result<LoadResult> {
        let calls = keys / shape.checks as u64;
        self.run(api, shape, Keys::From(0), End::AfterRequests(calls))
    }

    fn run(&self, api: Api, shape: Shape, keys: Keys, end: End) -> io::Result<LoadResult> {
        let Shape { connections, depth, checks } = shape;
        let protocol = || -> Box<dyn Protocol> {
            Box::new(match api {
                Api::RateLimit(key) => Grpc::batch(DOMAIN, key, checks),
                Api::Carried(behavior) => {
                    let behavior = behavior.into();
                    let (name, limit, duration) = (NAME, 1_000_000_000, DAY);
                    Grpc::carried(&CarriedLimit { name, limit, duration, behavior }, checks)
                }
            })
        };
        let pace = Pace::Closed { depth };
        let load = Load { addrs: &self.addrs, connections, protocol: &protocol, keys, pace, end };
        let result = load.run()?;
        match result.failed {
            0 => Ok(result),
            failed => Err(io::Error::other(format!("{failed} calls failed"))),
        }
    }

    fn cpu(&self) -> io::Result<Duration> {
        self.servers.iter().map(|server| Ok(server.usage()?.cpu)).sum()
    }

    fn resident_bytes(&self) -> io::Result<u64> {
        self.servers.iter().map(|server| Ok(server.usage()?.resident_bytes)).sum()
    }
}
