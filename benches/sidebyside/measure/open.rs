//! Open loops at fixed rates with the Redis protocol.

use tidegate_testkit::loadgen::{End, Keys, Load, Pace};

use super::{Case, Plan, interleave, table};
use crate::machine;
use crate::measure::resp::{CELL, INCR, THROTTLECRAB, TIDEGATE};
use crate::peers::{Peer, Target};
use crate::processes::own_cpu;
use crate::results::Table;

const CONNECTIONS: usize = 50;
const RATES: [u64; 2] = [10_000, 40_000];
pub const COLUMNS: [&str; 6] =
    ["p50 ms", "p99 ms", "p99.9 ms", "answered/s", "server CPU µs/req", "client CPU µs/req"];

pub fn measure(plan: &Plan, peers: &[Peer]) -> Table {
    let about = format!(
        "Each request has an intended send time, independent of earlier replies; latency counts \
         from that time. {CONNECTIONS} connections, 100,000 random keys, the load generator of \
         this benchmark (one thread, `epoll`). {}",
        machine::idle_note()
    );
    let mut table = table("open", "Redis protocol, open loop", &about, &COLUMNS);
    let mut cases = Vec::new();
    for rate in RATES {
        for name in [INCR, TIDEGATE, "redis, Lua token bucket", CELL, THROTTLECRAB] {
            let row = format!("{name}, {}/s", crate::render::number(rate as f64));
            match peers.iter().find(|peer| peer.name == name).map(|peer| &peer.target) {
                Some(Ok(target)) => cases.push(case(plan, row, target, rate)),
                Some(Err(why)) => cases.push(Case::absent(row, why)),
                None => {}
            }
        }
    }
    interleave(&mut table, plan.rounds.min(3), cases);
    table
}

fn case<'a>(plan: &'a Plan, name: String, target: &'a Target, rate: u64) -> Case<'a> {
    Case::new(name, move || {
        let _no_idle = machine::disable_idle();
        let load = Load {
            addrs: &[target.addr],
            connections: CONNECTIONS,
            protocol: &|| target.protocol(),
            keys: Keys::Random(100_000),
            pace: Pace::Open { per_second: rate, burst: 1 },
            end: End::After(plan.span),
        };
        let (server, client) = (target.server.usage()?.cpu, own_cpu().0);
        let result = load.run()?;
        let client = own_cpu().0.saturating_sub(client);
        let server = target.server.usage()?.cpu.saturating_sub(server);
        if result.failed > 0 {
            return Err(std::io::Error::other(format!("{} requests failed", result.failed)));
        }
        let answered = result.latencies.len() as f64;
        Ok(vec![
            result.ms(0.5),
            result.ms(0.99),
            result.ms(0.999),
            result.rate(),
            server.as_secs_f64() * 1e6 / answered,
            client.as_secs_f64() * 1e6 / answered,
        ])
    })
}
