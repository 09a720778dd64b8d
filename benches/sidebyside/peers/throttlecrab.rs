//! throttlecrab-server from crates.io, with the Redis protocol and HTTP.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use tidegate_testkit::loadgen::resp::{KEY, Reply};

use super::{Limit, PREFIX, Target, tool, words};
use crate::processes::{self, Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    Default,
    /// Capacity for a million keys from the start.
    Tuned,
}

#[derive(Clone, Debug)]
pub struct Throttlecrab {
    pub server: Rc<Server>,
    pub redis: SocketAddr,
    pub http: SocketAddr,
}

impl Setting {
    pub const fn args(self) -> &'static [&'static str] {
        match self {
            Self::Default => &[],
            Self::Tuned => &["--store-capacity", "1000000", "--buffer-size", "1000000"],
        }
    }
}

/// Starts a server and waits until it listens.
pub fn start(folder: &Path, setting: Setting) -> io::Result<Throttlecrab> {
    let program = tool("bin/throttlecrab-server");
    if !program.exists() {
        return Err(io::Error::other("throttlecrab-server is not installed"));
    }
    let (redis, http) = (processes::free_tcp()?, processes::free_tcp()?);
    let mut command = processes::command(program);
    command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port"]);
    command.arg(redis.port().to_string()).args(["--http", "--http-host", "127.0.0.1"]);
    command.args(["--http-port", &http.port().to_string()]).args(setting.args());
    let name = format!("throttlecrab-{}", redis.port());
    let mut server = Server::start(&mut command, folder, &name)?;
    server.wait_for(redis)?;
    server.wait_for(http)?;
    Ok(Throttlecrab { server: Rc::new(server), redis, http })
}

/// `THROTTLE`. Its burst includes the first hit.
pub fn target(throttlecrab: &Throttlecrab, limit: Limit) -> Target {
    let Limit { burst, count, period } = limit;
    Target {
        server: Rc::clone(&throttlecrab.server),
        addr: throttlecrab.redis,
        command: words(&format!("THROTTLE {KEY} {burst} {count} {period}")),
        prefix: PREFIX,
        reply: Reply::Allowed,
        is_busy: false,
    }
}
