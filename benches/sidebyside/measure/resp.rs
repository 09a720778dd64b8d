//! Closed loops with `redis-benchmark`, against all targets with the Redis protocol.

use std::io;
use std::path::Path;
use std::rc::Rc;

use super::{Case, Plan, interleave, table};
use crate::clients::Redis;
use crate::peers::redis::{self, Script, Setting};
use crate::peers::tidegate::Node;
use crate::peers::{NEVER_REACHED, Peer, Target, throttlecrab};
use crate::results::Table;
use crate::tools::{self, COLUMNS};

pub const INCR: &str = "redis, INCR (no limiter)";
pub const TIDEGATE: &str = "tidegate, CL.THROTTLE";
pub const CELL: &str = "redis-cell, CL.THROTTLE";
pub const THROTTLECRAB: &str = "throttlecrab";

/// Starts the baseline of every part: redis without a limiter.
pub fn baseline(folder: &Path, node: &Result<Node, String>) -> Vec<Peer> {
    let lean = redis::start(folder, Setting::InMemory);
    let own = node.clone().map_err(io::Error::other).and_then(|node| node.target(NEVER_REACHED));
    checked(vec![
        Peer::of(INCR, lean.map(|server| redis::incr(server, Setting::InMemory))),
        Peer::of(TIDEGATE, own),
    ])
}

/// Starts all peers.
pub fn peers(folder: &Path, node: &Result<Node, String>) -> Vec<Peer> {
    let lean = redis::start(folder, Setting::InMemory).map_err(|error| error.to_string());
    let lean = || lean.clone().map_err(io::Error::other);
    let incr = |setting| redis::start(folder, setting).map(|server| redis::incr(server, setting));
    let crab = |setting| {
        throttlecrab::start(folder, setting)
            .map(|started| throttlecrab::target(&started, NEVER_REACHED))
    };
    let own = node.clone().map_err(io::Error::other).and_then(|node| node.target(NEVER_REACHED));
    let mut peers = vec![
        Peer::of(INCR, lean().map(|server| redis::incr(server, Setting::InMemory))),
        Peer::of(TIDEGATE, own),
        Peer::of("redis, INCR, Debian's settings", incr(Setting::Default)),
        Peer::of("redis, INCR, 2 I/O threads", incr(Setting::Threads)),
    ];
    for (script, name) in Script::ALL {
        let target = lean().and_then(|server| redis::script(server, script, script_limit(script)));
        peers.push(Peer::of(name, target));
    }
    let cell = redis::start(folder, Setting::Cell).map(|server| redis::cell(server, NEVER_REACHED));
    peers.push(Peer::of(CELL, cell));
    peers.push(Peer::of(THROTTLECRAB, crab(throttlecrab::Setting::Default)));
    peers.push(Peer::of("throttlecrab, room for 1 M", crab(throttlecrab::Setting::Tuned)));
    checked(peers)
}

/// Sends one request to each, and pauses those that use CPU time while idle.
fn checked(mut peers: Vec<Peer>) -> Vec<Peer> {
    for peer in &mut peers {
        if let Ok(target) = &peer.target {
            if let Err(error) = check_reply(target) {
                peer.target = Err(error.to_string());
            } else if target.is_busy {
                target.server.pause();
            }
        }
    }
    peers
}

pub fn peer<'a>(peers: &'a [Peer], name: &str) -> Option<&'a Target> {
    peers.iter().find(|peer| peer.name == name)?.target.as_ref().ok()
}

/// A closed loop of 50 connections with `pipeline` commands in flight on each.
///
/// `id` is `resp` for tidegate and redis, `peers` for all.
pub fn measure(plan: &Plan, peers: &[Peer], id: &str, pipeline: u32) -> Table {
    let about = format!(
        "50 connections, {pipeline} command{} in flight on each, 100,000 random keys. Servers that \
         are not measured are idle. Latency is that of a whole pipeline.",
        if pipeline == 1 { "" } else { "s" }
    );
    let with = if id == "peers" { ", all peers" } else { "" };
    let title = format!("Redis protocol, closed loop, -P {pipeline}{with}");
    let mut table = table(&format!("{id}-{pipeline}"), &title, &about, &COLUMNS);
    let is_measured = |peer: &&Peer| id == "peers" || [INCR, TIDEGATE].contains(&peer.name);
    let peers = || peers.iter().filter(is_measured);
    for peer in peers() {
        if let Ok(target) = &peer.target {
            let words = target.words().join(" ");
            let args = format!("-c 50 -r 100000 -P {pipeline} --precision 3 -n N");
            table.commands.push(format!("# {}\nredis-benchmark {args} {words}", peer.name));
        }
    }
    let cases = peers().map(|peer| match &peer.target {
        Ok(target) => case(plan, peer.name, target, pipeline),
        Err(why) => Case::absent(peer.name, why),
    });
    interleave(&mut table, plan.rounds, cases.collect());
    table
}

/// Rounds against a target. The first one determines the number of requests per round.
pub fn case<'a>(plan: &'a Plan, name: &str, target: &'a Target, pipeline: u32) -> Case<'a> {
    let mut requests = None;
    Case::new(name, move || {
        if target.is_busy {
            target.server.resume();
        }
        let run = |requests| {
            let words = target.words();
            tools::redis_benchmark(target.addr, &target.server, &words, pipeline, requests)
        };
        let requests = if let Some(requests) = requests {
            requests
        } else {
            let trial = run(if plan.is_quick { 200 } else { 20_000 })?;
            // Again with more requests: the first trial of a fast target is too short.
            let trial = run(plan.requests(trial.per_second) / 4)?;
            *requests.insert(plan.requests(trial.per_second))
        };
        let run = run(requests)?;
        if target.is_busy {
            target.server.pause();
        }
        Ok(run.cells())
    })
}

/// Fails if the target replies with an error: load tools count errors as replies.
fn check_reply(target: &Target) -> io::Result<()> {
    let words = target.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Redis::connect(target.addr)?.command(&words).map(drop)
}

/// A log stores every hit of its window, so its window is short: about ten hits per key here.
pub fn script_limit(script: Script) -> crate::peers::Limit {
    match script {
        Script::SlidingWindow => crate::peers::Limit { burst: 1_000, count: 1_000, period: 10 },
        Script::TokenBucket | Script::Gcra => NEVER_REACHED,
    }
}

/// The server of the scripts, for the accuracy part.
pub fn scripts(peers: &[Peer]) -> Result<std::net::SocketAddr, String> {
    let peer = peers.iter().find(|peer| peer.name == INCR);
    let target = peer.map_or(Err("not started".into()), |peer| peer.target.clone());
    target.map(|target| {
        let _running = Rc::clone(&target.server);
        target.addr
    })
}
