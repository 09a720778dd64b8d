//! What is measured beside each other: how each is started, and how it is asked.

pub mod empty_tonic;
pub mod redis;
pub mod throttlecrab;
pub mod tidegate;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use crate::engine::resp::{KEY, Reply};
use crate::processes::Server;

/// The tools that `scripts/bench` installs.
pub fn tool(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(path)
}

/// A server that speaks the Redis protocol, and the command that asks it.
#[derive(Clone, Debug)]
pub struct Target {
    pub server: Rc<Server>,
    pub addr: SocketAddr,
    /// The word [`KEY`] stands for a key.
    pub command: Vec<String>,
    /// What its keys begin with: several share a server. All are as long as this.
    pub prefix: &'static str,
    pub reply: Reply,
    /// It works by itself, so it is paused while others are measured.
    pub is_busy: bool,
}

/// What keys begin with, where a server is not shared.
pub const PREFIX: &str = "key:";

/// A target, or why it cannot be had.
#[derive(Clone, Debug)]
pub struct Peer {
    pub name: &'static str,
    pub target: Result<Target, String>,
}

/// What a limiter is asked for: `burst` at once, then `count` in `period` seconds.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub burst: u32,
    pub count: u32,
    pub period: u32,
}

/// A limit that no key comes near, and whose state outlives a run: every ask admits and writes.
pub const NEVER_REACHED: Limit = Limit { burst: 100_000, count: 100_000, period: 86_400 };
/// A single hit, remembered for an hour: what a key costs while it is remembered.
pub const ONE_AN_HOUR: Limit = Limit { burst: 1, count: 1, period: 3_600 };

impl Peer {
    pub fn of(name: &'static str, target: io::Result<Target>) -> Self {
        Self { name, target: target.map_err(|error| error.to_string()) }
    }
}

impl Target {
    pub fn wire(&self) -> Box<dyn crate::engine::Wire> {
        Box::new(crate::engine::resp::Resp::new(&self.command, self.prefix, self.reply))
    }

    /// The command as `redis-benchmark` wants it.
    pub fn words(&self) -> Vec<String> {
        let word = |word: &String| match word.as_str() {
            KEY => format!("{}__rand_int__", self.prefix),
            _ => word.clone(),
        };
        self.command.iter().map(word).collect()
    }
}

/// `CL.THROTTLE`, or what takes the same arguments under another name. Its burst is what may come
/// on top of the first.
pub fn cl_throttle(limit: Limit) -> Vec<String> {
    let burst = limit.burst - 1;
    words(&format!("CL.THROTTLE {KEY} {burst} {} {}", limit.count, limit.period))
}

pub fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}
