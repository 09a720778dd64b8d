//! What a check costs a client, answered by the asked node or forwarded: `cargo bench --bench
//! forward`.
//!
//! Three node processes with certificates of their own stand on loopback, and 16 connections ask
//! the first of them 2,000 times a second. The load is an open loop: every check has a time at
//! which it is due, whatever became of the one before, and its latency counts from then. A slow
//! answer so makes those behind it slow, as it would for clients who do not know of each other.
//!
//! Each is measured three times: without copies of the counts, with one replica that hears of them
//! later, and with one that confirms each before its answer.
//!
//! The client runs on the same cores as the nodes, and so do all of them: a node per machine has
//! more room. It prints and asserts nothing: numbers belong to the machine.

#![allow(clippy::disallowed_methods, reason = "a benchmark has to read a clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
#![allow(unreachable_pub, reason = "a benchmark is a crate of its own")]

mod cluster;
mod door;
mod load;
#[path = "../report/mod.rs"]
mod report;

use std::io;

use cluster::{Cluster, Copies, DOMAIN, KEY};
use door::{Door, Grpc, Http};
use load::{Connect, Load, Outcome};
use report::Report;

/// Distinct keys of each kind.
const KEYS: usize = 1_000;
const PER_SECOND: u32 = 2_000;
const CONNECTIONS: u32 = 16;
const SECONDS: u32 = 10;
const WARM_UP_SECONDS: u32 = 1;

fn main() -> io::Result<()> {
    let report = Report::new("forward");
    report.say(&format!(
        "tidegate forward: 3 nodes and the client on this machine, {PER_SECOND} checks a second in \
         an open loop for {SECONDS} s, us"
    ));
    for (copies, name) in [
        (Copies::None, "no replica"),
        (Copies::Async, "1 replica"),
        (Copies::Confirmed, "1 replica, confirmed"),
    ] {
        measure(report, copies, name)?;
    }
    report.load();
    Ok(())
}

fn measure(report: Report, copies: Copies, copied: &str) -> io::Result<()> {
    let cluster = Cluster::start(copies)?;
    let (local, forwarded) = keys(&cluster)?;
    let http = || Http::connect(cluster.http()).map(|http| Box::new(http) as Box<dyn Door>);
    let grpc = || Grpc::connect(cluster.grpc()).map(|grpc| Box::new(grpc) as Box<dyn Door>);
    let doors: [(&str, Connect<'_>); 2] = [("http", &http), ("grpc", &grpc)];
    for (name, door) in doors {
        for (way, keys) in [("local", &local), ("forwarded", &forwarded)] {
            let load =
                |seconds| Load { keys, per_second: PER_SECOND, connections: CONNECTIONS, seconds };
            load(WARM_UP_SECONDS).run(door)?;
            let before = cluster.usage()?;
            let outcome = load(SECONDS).run(door)?;
            let used = cluster.usage()?.since(before);
            tell(report, &format!("{name}, {way}, {copied}"), &outcome, &used);
        }
    }
    Ok(())
}

fn tell(report: Report, what: &str, outcome: &Outcome, used: &cluster::Usage) {
    let at = |quantile| outcome.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
    report.row(
        what,
        &[
            ("p50_us", at(0.5)),
            ("p90_us", at(0.9)),
            ("p99_us", at(0.99)),
            ("p99.9_us", at(0.999)),
            ("max_us", at(1.0)),
            ("cpu_us", used.cpu_us / outcome.latencies.len().max(1) as f64),
            ("checks", outcome.latencies.len() as f64),
            ("errors", outcome.errors as f64),
            ("by_policy", used.by_policy),
            ("forwarded", used.forwarded),
        ],
    );
}

/// Keys that the asked node owns, and keys that it forwards.
fn keys(cluster: &Cluster) -> io::Result<(Vec<String>, Vec<String>)> {
    let (mut local, mut forwarded) = (Vec::new(), Vec::new());
    let mut admin = Http::connect(cluster.admin())?;
    for n in 0..KEYS * 12 {
        let key = format!("user-{n}");
        let answer = admin.get(&format!("/owner?domain={DOMAIN}&{KEY}={key}"))?;
        let report: tidegate::admin::OwnerReport = serde_json::from_str(&answer)?;
        let is_local = report.owners.iter().any(|owner| owner.node == cluster::ASKED);
        let kind = if is_local { &mut local } else { &mut forwarded };
        if kind.len() < KEYS {
            kind.push(key);
        }
        if local.len() == KEYS && forwarded.len() == KEYS {
            return Ok((local, forwarded));
        }
    }
    Err(io::Error::other(format!("{} of {KEYS} keys are the asked node's own", local.len())))
}
