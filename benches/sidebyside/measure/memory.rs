//! What a key costs in resident memory: a fresh server, a million keys, one hit each.

use std::io;
use std::path::Path;

use super::{Entrant, Plan, interleave, table};
use crate::engine::{End, Keys, Load, Pace};
use crate::peers::redis::{self, Script, Setting};
use crate::peers::tidegate::Setting as Tidegate;
use crate::peers::{ONE_AN_HOUR, Target, throttlecrab};
use crate::results::Table;

type Start<'a> = Box<dyn Fn() -> io::Result<Target> + 'a>;

pub fn measure(plan: &Plan, folder: &Path) -> Table {
    let about = format!(
        "A fresh server each, {} keys of 16 bytes, each hit once and remembered for an hour. \
         Resident memory of the process behind less before, a key.",
        crate::render::number(plan.keys as f64)
    );
    let mut table = table("memory", "Memory a key", &about, &["B resident a key", "keys added/s"]);
    let (limit, keys) = (ONE_AN_HOUR, plan.keys);
    let mut starts: Vec<(&str, Start<'_>)> = vec![
        (
            super::resp::INCR,
            Box::new(|| Ok(redis::incr(redis::start(folder, Setting::Lean)?, Setting::Lean))),
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
        let start = move || redis::script(redis::start(folder, Setting::Lean)?, script, limit);
        starts.push((name, Box::new(start)));
    }
    let cell = move || Ok(redis::cell(redis::start(folder, Setting::Cell)?, limit));
    starts.push((super::resp::CELL, Box::new(cell)));
    let crab = move || {
        let started = throttlecrab::start(folder, throttlecrab::Setting::Default)?;
        Ok(throttlecrab::target(&started, limit))
    };
    starts.push((super::resp::THROTTLECRAB, Box::new(crab)));
    let entrants = starts.into_iter().map(|(name, start)| {
        // It does not set `TCP_NODELAY`: more would take longer.
        let depth = if name == super::resp::THROTTLECRAB { 1 } else { 16 };
        Entrant::new(name, move || {
            let target = start()?;
            // Connections stand first: their buffers are not the keys'.
            let first = keys / 500;
            fill(&target, first, depth)?;
            let before = target.server.usage()?.resident_bytes;
            let rate = fill(&target, keys, depth)?;
            let after = target.server.usage()?.resident_bytes;
            Ok(vec![after.saturating_sub(before) as f64 / (keys - first) as f64, rate])
        })
    });
    interleave(&mut table, 1, entrants.collect());
    table
}

/// Asks about each key once.
fn fill(target: &Target, keys: u64, depth: u32) -> io::Result<f64> {
    let load = Load {
        addrs: &[target.addr],
        connections: 50,
        wire: &|| target.wire(),
        keys: Keys::From(0),
        pace: Pace::Closed { depth },
        end: End::AfterAsks(keys),
    };
    let outcome = load.run()?;
    match outcome.failed {
        0 => Ok(outcome.rate()),
        failed => Err(io::Error::other(format!("{failed} of {keys} had no answer"))),
    }
}
