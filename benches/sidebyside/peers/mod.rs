//! The measured servers: start and commands.

pub mod empty_tonic;
pub mod envoy_ratelimit;
pub mod gubernator;
pub mod limitador;
pub mod nginx;
pub mod redis;
pub mod throttlecrab;
pub mod tidegate;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use tidegate_testkit::loadgen::resp::{KEY, Reply};

use crate::processes::Server;

/// The path of a tool that `scripts/bench` installs.
pub fn tool(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(path)
}

/// A server with the Redis protocol, and its command for a check.
#[derive(Clone, Debug)]
pub struct Target {
    pub server: Rc<Server>,
    pub addr: SocketAddr,
    /// [`KEY`] is the placeholder of the key.
    pub command: Vec<String>,
    /// Prefix of the keys: several targets share a server. All prefixes have the same length.
    pub prefix: &'static str,
    pub reply: Reply,
    /// Uses CPU time while idle, so it is paused while others are measured.
    pub is_busy: bool,
}

/// Prefix of the keys if the server is not shared.
pub const PREFIX: &str = "key:";

/// A target, or why it is not available.
#[derive(Clone, Debug)]
pub struct Peer {
    pub name: &'static str,
    pub target: Result<Target, String>,
}

/// `burst` at once, then `count` per `period` in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub burst: u32,
    pub count: u32,
    pub period: u32,
}

/// No key reaches this limit, and its state outlives a run: every check is admitted and stored.
pub const NEVER_REACHED: Limit = Limit { burst: 100_000, count: 100_000, period: 86_400 };
/// A single hit, stored for an hour.
pub const ONE_AN_HOUR: Limit = Limit { burst: 1, count: 1, period: 3_600 };

impl Peer {
    pub fn of(name: &'static str, target: io::Result<Target>) -> Self {
        Self { name, target: target.map_err(|error| error.to_string()) }
    }
}

impl Target {
    pub fn protocol(&self) -> Box<dyn tidegate_testkit::loadgen::Protocol> {
        Box::new(tidegate_testkit::loadgen::resp::Resp::new(&self.command, self.prefix, self.reply))
    }

    /// The command in the syntax of `redis-benchmark`.
    pub fn words(&self) -> Vec<String> {
        let word = |word: &String| match word.as_str() {
            KEY => format!("{}__rand_int__", self.prefix),
            _ => word.clone(),
        };
        self.command.iter().map(word).collect()
    }
}

/// `CL.THROTTLE`. Its burst does not include the first hit.
pub fn cl_throttle(limit: Limit) -> Vec<String> {
    let burst = limit.burst - 1;
    words(&format!("CL.THROTTLE {KEY} {burst} {} {}", limit.count, limit.period))
}

pub fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}
