//! Open loop at fixed rates over the Redis protocol.

use super::{Entrant, Plan, interleave, table};
use crate::awake;
use crate::engine::{End, Keys, Load, Pace};
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
        "Each request has a time at which it is sent, whatever became of those before; latency \
         counts from then. {CONNECTIONS} connections, 100,000 random keys, a client of our own \
         (one thread, `epoll`). {}",
        awake::about()
    );
    let mut table = table("open", "Redis protocol, open loop", &about, &COLUMNS);
    let mut entrants = Vec::new();
    for rate in RATES {
        for name in [INCR, TIDEGATE, "redis, Lua token bucket", CELL, THROTTLECRAB] {
            let named = format!("{name}, {}/s", crate::render::number(rate as f64));
            match peers.iter().find(|peer| peer.name == name).map(|peer| &peer.target) {
                Some(Ok(target)) => entrants.push(entrant(plan, named, target, rate)),
                Some(Err(why)) => entrants.push(Entrant::absent(named, why)),
                None => {}
            }
        }
    }
    interleave(&mut table, plan.rounds.min(3), entrants);
    table
}

fn entrant<'a>(plan: &'a Plan, name: String, target: &'a Target, rate: u64) -> Entrant<'a> {
    Entrant::new(name, move || {
        let _awake = awake::keep();
        let load = Load {
            addrs: &[target.addr],
            connections: CONNECTIONS,
            wire: &|| target.wire(),
            keys: Keys::Random(100_000),
            pace: Pace::Open { per_second: rate, all_or_nothing: 1 },
            end: End::After(plan.span),
        };
        let (server, client) = (target.server.usage()?.cpu, own_cpu().0);
        let outcome = load.run()?;
        let client = own_cpu().0.saturating_sub(client);
        let server = target.server.usage()?.cpu.saturating_sub(server);
        if outcome.failed > 0 {
            return Err(std::io::Error::other(format!("{} had no answer", outcome.failed)));
        }
        let answered = outcome.latencies.len() as f64;
        Ok(vec![
            outcome.ms(0.5),
            outcome.ms(0.99),
            outcome.ms(0.999),
            outcome.rate(),
            server.as_secs_f64() * 1e6 / answered,
            client.as_secs_f64() * 1e6 / answered,
        ])
    })
}
