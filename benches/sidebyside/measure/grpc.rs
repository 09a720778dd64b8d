//! gRPC with `h2load`, beside a handler that does nothing.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use super::{Entrant, Plan, interleave, table};
use crate::engine::grpc::message;
use crate::peers::tidegate::{DOMAIN, Node, STRICT};
use crate::processes::Server;
use crate::questions::Rls;
use crate::results::Table;
use crate::tools::{self, COLUMNS};

pub const EMPTY: &str = "empty tonic handler";
pub const TIDEGATE: &str = "tidegate, ShouldRateLimit";

type Door = Result<(Rc<Server>, SocketAddr), String>;

pub fn measure(
    plan: &Plan,
    folder: &Path,
    empty: &Door,
    node: &Result<Node, String>,
    depth: u32,
) -> Table {
    let title = format!("gRPC, closed loop, -m{depth}");
    let mut table = table(
        &format!("grpc-{depth}"),
        &title,
        "`h2load` sends the same request each time: one key, a rule of a billion a day. The empty \
         handler stands on the same tonic and reads the same message. h2load tells no percentiles: \
         they are those of one more run with its log.",
        &COLUMNS,
    );
    table.commands.push(format!(
        "h2load -c50 -m{depth} -t1 -n N -p h2c -H 'content-type: application/grpc' \
         -H 'te: trailers' -d request \
         http://ADDRESS/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    ));
    let own = node.clone().map(|node| (node.server, node.grpc));
    let entrants = [(EMPTY, empty.clone()), (TIDEGATE, own)].map(|(name, door)| match door {
        Ok(door) => entrant(plan, folder, name, door, depth),
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
        let log = folder.join("h2load.log");
        let run = |requests, log| tools::h2load(addr, &server, &body, depth, requests, log);
        let requests = match requests {
            Some(requests) => requests,
            None => {
                // h2load takes any answer of status 200 for a good one, also an error of gRPC.
                Rls::connect(addr)?.ask(DOMAIN, STRICT, "first")?;
                fs::write(&body, message(DOMAIN, STRICT, "user:000000000042"))?;
                let tried = run(if plan.is_quick { 200 } else { 20_000 }, None)?;
                *requests.insert(plan.requests(tried.per_second))
            }
        };
        let mut measured = run(requests, None)?;
        let logged = run(requests / 2, Some(log.as_path()))?;
        (measured.p50_ms, measured.p99_ms) = (logged.p50_ms, logged.p99_ms);
        measured.p999_ms = logged.p999_ms;
        Ok::<_, io::Error>(measured.cells())
    })
}
