//! gRPC with `h2load`, compared with a handler that does nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::{fs, io};

use tidegate_testkit::loadgen::grpc::{Grpc, message};
use tidegate_testkit::loadgen::{End, Keys, Load, Pace};

use super::{Case, Plan, interleave, table};
use crate::clients::Rls;
use crate::peers::tidegate::{DOMAIN, Node, STRICT};
use crate::processes::Server;
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
        "`h2load` repeats one request: one key, with a limit of a billion a day. The empty handler \
         uses the same tonic and decodes the same message. `h2load` prints no percentiles. They \
         and the last column are from the load generator of this benchmark, with the same number \
         of connections and streams, over 100,000 random keys.",
        &columns,
    );
    table.commands.push(format!(
        "h2load -c50 -m{depth} -t1 -n N -p h2c -H 'content-type: application/grpc' \
         -H 'te: trailers' -d request \
         http://ADDRESS/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    ));
    let own = node.clone().map(|node| (node.server, node.grpc));
    let cases = [(EMPTY, empty.clone()), (TIDEGATE, own)].map(|(name, listener)| match listener {
        Ok(listener) => case(plan, folder, name, listener, depth),
        Err(why) => Case::absent(name, why),
    });
    interleave(&mut table, plan.rounds, cases.into());
    table
}

fn case<'a>(
    plan: &'a Plan,
    folder: &'a Path,
    name: &'a str,
    (server, addr): (Rc<Server>, SocketAddr),
    depth: u32,
) -> Case<'a> {
    let mut requests = None;
    Case::new(name, move || {
        let body = folder.join("request");
        let run = |requests| tools::h2load(addr, &server, &body, depth, requests);
        let requests = if let Some(requests) = requests {
            requests
        } else {
            // h2load counts every HTTP status 200 as a success, also gRPC errors.
            Rls::connect(addr)?.check(DOMAIN, STRICT, "first")?;
            fs::write(&body, message(DOMAIN, STRICT, "user:000000000042"))?;
            let trial = run(if plan.is_quick { 200 } else { 20_000 })?;
            *requests.insert(plan.requests(trial.per_second))
        };
        let mut measured = run(requests)?;
        let own = Load {
            addrs: &[addr],
            connections: 50,
            protocol: &|| Box::new(Grpc::new(DOMAIN, STRICT)),
            keys: Keys::Random(100_000),
            pace: Pace::Closed { depth },
            end: End::After(plan.span / 2),
        };
        let own = own.run()?;
        if own.failed > 0 {
            return Err(io::Error::other(format!("{} requests failed", own.failed)));
        }
        (measured.p50_ms, measured.p99_ms) = (own.ms(0.5), own.ms(0.99));
        measured.p999_ms = own.ms(0.999);
        let mut cells = measured.cells();
        cells.push(own.rate());
        Ok(cells)
    })
}
