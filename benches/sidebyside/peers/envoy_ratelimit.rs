//! envoyproxy/ratelimit: one or several instances that share one Redis.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::{fs, io};

use super::redis::{self, Setting};
use super::tidegate::{DOMAIN, STRICT};
use crate::processes::{self, Server};

/// Names the program, if it is not in the search path.
pub const VARIABLE: &str = "RATELIMIT_BIN";

/// Instances, and the Redis that counts for them.
#[derive(Clone, Debug)]
pub struct Ratelimit {
    /// Redis last.
    pub servers: Vec<Rc<Server>>,
    pub grpc: Vec<SocketAddr>,
}

/// Starts instances with the limit of the benchmarks. Several run Go code on one thread each, as
/// the nodes of tidegate do.
pub fn start(folder: &Path, instances: usize) -> io::Result<Ratelimit> {
    let program = processes::find_peer("ratelimit", VARIABLE)?;
    let config = folder.join("ratelimit/config");
    fs::create_dir_all(&config)?;
    fs::write(
        config.join("bench.yaml"),
        format!(
            "domain: {DOMAIN}\ndescriptors:\n  - key: {STRICT}\n    rate_limit: {{unit: day, \
             requests_per_unit: 1000000000}}\n"
        ),
    )?;
    let (store, redis) = redis::start(folder, Setting::InMemory)?;
    let mut ratelimit = Ratelimit { servers: Vec::new(), grpc: Vec::new() };
    for _ in 0..instances {
        let [http, grpc, debug] = [(); 3].map(|()| processes::free_tcp());
        let (http, grpc, debug) = (http?, grpc?, debug?);
        let mut command = processes::command(&program);
        command
            .env("RUNTIME_ROOT", folder)
            .env("RUNTIME_SUBDIRECTORY", "ratelimit")
            .env("REDIS_SOCKET_TYPE", "tcp")
            .env("REDIS_URL", redis.to_string())
            .env("USE_STATSD", "false")
            .env("LOG_LEVEL", "error");
        for (name, addr) in [("", http), ("GRPC_", grpc), ("DEBUG_", debug)] {
            command.env(format!("{name}HOST"), addr.ip().to_string());
            command.env(format!("{name}PORT"), addr.port().to_string());
        }
        if instances > 1 {
            command.env("GOMAXPROCS", "1");
        }
        let name = format!("ratelimit-{}", grpc.port());
        let mut server = Server::start(&mut command, folder, &name)?;
        server.wait_for(grpc)?;
        ratelimit.servers.push(Rc::new(server));
        ratelimit.grpc.push(grpc);
    }
    ratelimit.servers.push(store);
    Ok(ratelimit)
}
