//! Debian's redis-server: alone, with Lua scripts, and with redis-cell.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use tidegate_testkit::loadgen::resp::{KEY, Reply, Value};

use super::{Limit, PREFIX, Target, cl_throttle, tool, words};
use crate::clients::Redis;
use crate::processes::{self, Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Debian's settings: snapshots on disk after changes.
    Default,
    /// No persistence.
    InMemory,
    /// `InMemory` with a second I/O thread.
    Threads,
    /// `InMemory` with redis-cell.
    Cell,
}

/// The algorithm of a Lua script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    TokenBucket,
    SlidingWindow,
    Gcra,
}

impl Setting {
    pub fn args(self) -> io::Result<Vec<String>> {
        let base = ["--save", "", "--appendonly", "no"].map(str::to_owned).to_vec();
        let more = match self {
            Self::Default => return Ok(Vec::new()),
            Self::InMemory => Vec::new(),
            Self::Threads => words("--io-threads 2 --io-threads-do-reads yes"),
            Self::Cell => {
                let module = tool("lib/libredis_cell.so");
                if !module.exists() {
                    return Err(io::Error::other("redis-cell did not build or was not fetched"));
                }
                vec!["--loadmodule".into(), module.display().to_string()]
            }
        };
        Ok([base, more].concat())
    }
}

/// Starts a server and waits until it listens.
pub fn start(folder: &Path, setting: Setting) -> io::Result<(Rc<Server>, SocketAddr)> {
    if processes::find("redis-server").is_none() {
        return Err(io::Error::other("redis-server is not installed"));
    }
    let addr = processes::free_tcp()?;
    let mut command = processes::command("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()]);
    command.arg("--dir").arg(folder).args(setting.args()?);
    let mut server = Server::start(&mut command, folder, &format!("redis-{}", addr.port()))?;
    server.wait_for(addr)?;
    Ok((Rc::new(server), addr))
}

/// `INCR`: no limiter.
pub fn incr((server, addr): (Rc<Server>, SocketAddr), setting: Setting) -> Target {
    let is_busy = setting == Setting::Default;
    let command = words(&format!("INCR {KEY}"));
    Target { server, addr, command, prefix: PREFIX, reply: Reply::Any, is_busy }
}

/// A Lua script by `EVALSHA`.
pub fn script(
    (server, addr): (Rc<Server>, SocketAddr),
    script: Script,
    limit: Limit,
) -> io::Result<Target> {
    let sha = load(&mut Redis::connect(addr)?, script)?;
    let Limit { burst, count, period } = limit;
    let command = words(&match script {
        // The log has no separate burst.
        Script::SlidingWindow => format!("EVALSHA {sha} 1 {KEY} {count} {period} 1"),
        Script::TokenBucket | Script::Gcra => {
            format!("EVALSHA {sha} 1 {KEY} {burst} {count} {period} 1")
        }
    });
    let prefix = match script {
        Script::TokenBucket => "tok:",
        Script::SlidingWindow => "log:",
        Script::Gcra => "tat:",
    };
    Ok(Target { server, addr, command, prefix, reply: Reply::Allowed, is_busy: false })
}

/// Loads a script and returns its SHA.
pub fn load(redis: &mut Redis, script: Script) -> io::Result<String> {
    match redis.command(&["SCRIPT", "LOAD", script.text()])? {
        Value::Text(sha) => Ok(sha),
        other => Err(io::Error::other(format!("the script was not loaded: {other:?}"))),
    }
}

/// `CL.THROTTLE` of redis-cell.
pub fn cell((server, addr): (Rc<Server>, SocketAddr), limit: Limit) -> Target {
    let command = cl_throttle(limit);
    Target { server, addr, command, prefix: PREFIX, reply: Reply::Limited, is_busy: false }
}

impl Script {
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::TokenBucket, "redis, Lua token bucket"),
        (Self::SlidingWindow, "redis, Lua sliding window log"),
        (Self::Gcra, "redis, Lua GCRA"),
    ];

    fn text(self) -> &'static str {
        match self {
            Self::TokenBucket => include_str!("../lua/token_bucket.lua"),
            Self::SlidingWindow => include_str!("../lua/sliding_window.lua"),
            Self::Gcra => include_str!("../lua/gcra.lua"),
        }
    }
}
