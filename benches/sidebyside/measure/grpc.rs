//! gRPC with `h2load`, beside a handler that does nothing.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use super::{Entrant, Plan, interleave, table};
use crate::engine::grpc::{Grpc, message};
use crate::engine::{End, Keys, Load, Pace};
use crate::peers::tidegate::{DOMAIN, Node, STRICT};
use crate::processes::Server;
use crate::questions::Rls;
use crate::results::Table;
use crate::tools::{self, COLUMNS};

pub const EMPTY: &str = "empty tonic handler";
pub const TIDEGATE: &str = "tidegate, ShouldRateLimit";

type Listener = Result<(Rc<Server>, SocketAddr), String>;

pub fn measure(
    plan: &Plan,
    folder: &Path,
    empty: &Listener,
    node: &Result<Node, String>,
    depth: u32,
) -> Table {
    let mut columns = COLUMNS.to_vec();
    columns.push("random keys, req/s");
    let title = format!("gRPC, closed loop, -m{depth}");
    let mut table = table(
        &format!("grpc-{depth}"),
        &title,
        "`h2load` sends the same request each time: one key, a rule of a billion a day. The empty \
         handler stands on the same tonic and reads the same message. h2load tells no percentiles: \
         they, and the last column, are those of a client of our own with as many connections and \
         streams, over 100,000 random keys.",
        &columns,
    );
    table.commands.push(format!(
        "h2load -c50 -m{depth} -t1 -n N -p h2c -H 'content-type: application/grpc' \
         -H 'te: trailers' -d request \
         http://ADDRESS/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    ));
    let own = node.clone().map(|node| (node.server, node.grpc));
    let entrants =
        [(EMPTY, empty.clone()), (TIDEGATE, own)].map(|(name, listener)| match listener {
            Ok(listener) => entrant(plan, folder, name, listener, depth),
            Err(why) => Entrant::absent(name, why),
        });
    interleave(&mut table, plan.rounds, entrants.into());
    table
}

fn entrant<'a>(
    plan: &'a Plan,
    folder: &'a Path,
    name: &'a str,
    (server, addr): (Rc<Server>, SocketAddr),
    depth: u32,
) -> Entrant<'a> {
    let mut requests = None;
    Entrant::new(name, move || {
        let body = folder.join("request");
        let run = |requests| tools::h2load(addr, &server, &body, depth, requests);
        let requests = if let Some(requests) = requests {
            requests
        } else {
            // h2load takes any answer of status 200 for a good one, also an error of gRPC.
            Rls::connect(addr)?.ask(DOMAIN, STRICT, "first")?;
            fs::write(&body, message(DOMAIN, STRICT, "user:000000000042"))?;
            let tried = run(if plan.is_quick { 200 } else { 20_000 })?;
            *requests.insert(plan.requests(tried.per_second))
        };
        let mut measured = run(requests)?;
        let own = Load {
            addrs: &[addr],
            connections: 50,
            wire: &|| Box::new(Grpc::new(DOMAIN, STRICT)),
            keys: Keys::Random(100_000),
            pace: Pace::Closed { depth },
            end: End::After(plan.span / 2),
        };
        let own = own.run()?;
        if own.failed > 0 {
            return Err(io::Error::other(format!("{} had no answer", own.failed)));
        }
        (measured.p50_ms, measured.p99_ms) = (own.ms(0.5), own.ms(0.99));
        measured.p999_ms = own.ms(0.999);
        let mut cells = measured.cells();
        cells.push(own.rate());
        Ok(cells)
    })
}
