//! Resident memory per key: a new server, a million keys, one hit each.

use std::io;
use std::path::Path;

use tidegate_testkit::loadgen::{End, Keys, Load, Pace};

use super::{Case, Plan, interleave, table};
use crate::peers::redis::{self, Script, Setting};
use crate::peers::tidegate::Setting as Tidegate;
use crate::peers::{ONE_AN_HOUR, Target, throttlecrab};
use crate::results::Table;

type Start<'a> = Box<dyn Fn() -> io::Result<Target> + 'a>;

pub fn measure(plan: &Plan, folder: &Path) -> Table {
    let about = format!(
        "A new server for each row, {} keys of 16 bytes, each hit once and stored for an hour. \
         The growth of the resident memory of the process, per key.",
        crate::render::number(plan.keys as f64)
    );
    let mut table =
        table("memory", "Memory per key", &about, &["B resident a key", "keys added/s"]);
    let (limit, keys) = (ONE_AN_HOUR, plan.keys);
    let mut starts: Vec<(&str, Start<'_>)> = vec![
        (
            super::resp::INCR,
            Box::new(|| {
                Ok(redis::incr(redis::start(folder, Setting::InMemory)?, Setting::InMemory))
            }),
        ),
        (
            super::resp::TIDEGATE,
            Box::new(move || {
                let setting = Tidegate::new(folder)?.with("limits.keys_max", 2 * keys);
                setting.start()?.target(limit)
            }),
        ),
    ];
    for (script, name) in Script::ALL {
        let start = move || redis::script(redis::start(folder, Setting::InMemory)?, script, limit);
        starts.push((name, Box::new(start)));
    }
    let cell = move || Ok(redis::cell(redis::start(folder, Setting::Cell)?, limit));
    starts.push((super::resp::CELL, Box::new(cell)));
    let crab = move || {
        let started = throttlecrab::start(folder, throttlecrab::Setting::Default)?;
        Ok(throttlecrab::target(&started, limit))
    };
    starts.push((super::resp::THROTTLECRAB, Box::new(crab)));
    let cases = starts.into_iter().map(|(name, start)| {
        // throttlecrab does not set `TCP_NODELAY`: a deeper pipeline is slower.
        let depth = if name == super::resp::THROTTLECRAB { 1 } else { 16 };
        Case::new(name, move || {
            let target = start()?;
            // Opens the connections first: their buffers are not memory of keys.
            let first = keys / 500;
            fill(&target, first, depth)?;
            let before = target.server.usage()?.resident_bytes;
            let rate = fill(&target, keys, depth)?;
            let after = target.server.usage()?.resident_bytes;
            Ok(vec![after.saturating_sub(before) as f64 / (keys - first) as f64, rate])
        })
    });
    interleave(&mut table, 1, cases.collect());
    table
}

/// Checks each key once. Returns the rate.
fn fill(target: &Target, keys: u64, depth: u32) -> io::Result<f64> {
    let load = Load {
        addrs: &[target.addr],
        connections: 50,
        protocol: &|| target.protocol(),
        keys: Keys::From(0),
        pace: Pace::Closed { depth },
        end: End::AfterRequests(keys),
    };
    let result = load.run()?;
    match result.failed {
        0 => Ok(result.rate()),
        failed => Err(io::Error::other(format!("{failed} of {keys} requests failed"))),
    }
}
