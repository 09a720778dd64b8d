//! What must hold: ratios of medians of this run.

use super::{cluster, expiry as expiring, grpc, resp, store};
use crate::render::number;
use crate::results::{Hold, Results};

/// Everything that must hold, measured or not.
pub fn all(results: &Results) -> Vec<Hold> {
    let median = |table: &str, row: &str, column: &str| results.median(table, row, column);
    let mut holds = Vec::new();
    for (pipeline, least) in [(1, 0.95), (16, 1.2)] {
        let table = format!("resp-{pipeline}");
        let of = |row: &str, column: &str| median(&table, row, column);
        holds.push(at_least(
            &format!("CL.THROTTLE by redis INCR, -P {pipeline}, requests a second"),
            of(resp::TIDEGATE, "req/s"),
            of(resp::INCR, "req/s"),
            least,
        ));
        holds.push(at_most(
            &format!("p99 of CL.THROTTLE by that of redis INCR, -P {pipeline}"),
            of(resp::TIDEGATE, "p99 ms"),
            of(resp::INCR, "p99 ms"),
            1.0,
        ));
    }
    for depth in [1, 16] {
        let table = format!("grpc-{depth}");
        holds.push(at_least(
            &format!("ShouldRateLimit by an empty tonic handler, -m{depth}, requests a second"),
            median(&table, grpc::TIDEGATE, "req/s"),
            median(&table, grpc::EMPTY, "req/s"),
            0.9,
        ));
    }
    let of = |row: &str, column: &str| median("cluster", row, column);
    let (strict, eventual, alone) = (cluster::STRICT_64, cluster::EVENTUAL_64, cluster::ALONE_64);
    let rate = cluster::COLUMNS[0];
    holds.push(at_least(
        "three nodes, strict, by redis INCR -P 1, checks a second",
        of(strict, rate),
        of(resp::INCR, rate),
        0.25,
    ));
    holds.push(below("three nodes, strict, p99", of(strict, "p99 ms"), 10.0, "ms"));
    let per_cpu = cluster::COLUMNS[6];
    holds.push(at_least(
        "three nodes, eventual, by one node, checks a CPU second of the servers",
        of(eventual, per_cpu),
        of(alone, per_cpu),
        0.85,
    ));
    let column = "ns or B";
    for (ours, how) in [(store::STORE, "one by one"), (store::BATCHES, "in batches of 32")] {
        for threads in [1, 2] {
            holds.push(at_most(
                &format!("a decision by governor's, {how}, {threads} thread(s)"),
                median("store", ours[threads - 1], column),
                median("store", store::GOVERNOR[threads - 1], column),
                0.2,
            ));
        }
    }
    let memory = median("store", store::MEMORY[1], column);
    holds.push(below("resident memory a key", memory, 48.0, "B"));
    let expiry = |column| median("expiry", resp::TIDEGATE, column);
    let late = |row| median("expiry", row, "p99.9 ms");
    let what = "p99.9 while a million keys come and expire";
    for (row, calm, how) in [
        (resp::TIDEGATE, expiring::CALM[0], "real-time class, cores awake"),
        (expiring::ORDINARY, expiring::CALM[1], "ordinary class, cores awake"),
        (expiring::HALTING, expiring::CALM[2], "real-time class, cores that halt"),
    ] {
        let mut hold = below(&format!("{what}, {how}"), late(row), 2.0, "ms");
        if let Some(calm) = late(calm) {
            let told = &mut hold.measured;
            *told = format!("{told} (redis INCR while none come: {} ms)", number(calm));
        }
        holds.push(hold);
    }
    holds.push(returned(
        expiry("MiB at most"),
        expiry("MiB behind"),
        expiry("s until it was back"),
    ));
    holds.push(duel(results));
    holds
}

fn at_least(what: &str, ours: Option<f64>, theirs: Option<f64>, least: f64) -> Hold {
    ratio(what, ours, theirs, format!("at least {least}"), |ratio| ratio >= least)
}

fn at_most(what: &str, ours: Option<f64>, theirs: Option<f64>, most: f64) -> Hold {
    ratio(what, ours, theirs, format!("at most {most}"), |ratio| ratio <= most)
}

fn ratio(
    what: &str,
    ours: Option<f64>,
    theirs: Option<f64>,
    bound: String,
    is_fine: impl Fn(f64) -> bool,
) -> Hold {
    let ratio = ours.zip(theirs).map(|(ours, theirs)| (ours / theirs, ours, theirs));
    Hold {
        what: what.into(),
        bound,
        measured: ratio.map_or(String::new(), |(ratio, ours, theirs)| {
            format!("{ratio:.3} ({} by {})", number(ours), number(theirs))
        }),
        holds: ratio.map(|(ratio, ..)| is_fine(ratio)),
    }
}

fn below(what: &str, measured: Option<f64>, most: f64, unit: &str) -> Hold {
    Hold {
        what: what.into(),
        bound: format!("at most {most} {unit}"),
        measured: measured.map_or(String::new(), |measured| format!("{} {unit}", number(measured))),
        holds: measured.map(|measured| measured <= most),
    }
}

fn returned(most: Option<f64>, behind: Option<f64>, seconds: Option<f64>) -> Hold {
    let measured = most.zip(behind).map(|(most, behind)| {
        let (most, behind) = (number(most), number(behind));
        match seconds {
            Some(seconds) => format!("{most} MiB, then {behind} MiB, {} s later", number(seconds)),
            None => format!("{most} MiB, then {behind} MiB"),
        }
    });
    Hold {
        what: "memory behind a million keys that expired".into(),
        bound: "at most a tenth of the growth is left".into(),
        holds: measured.as_ref().map(|_| seconds.is_some()),
        measured: measured.unwrap_or_default(),
    }
}

fn duel(results: &Results) -> Hold {
    let ours = || results.duel.iter().filter(|duelist| duelist.name.starts_with("tidegate"));
    let absent = ours().filter(|duelist| duelist.absent.is_some()).count();
    let bouts: Vec<_> = ours().flat_map(|duelist| &duelist.bouts).collect();
    let right = bouts.iter().filter(|bout| bout.is_right).count();
    Hold {
        what: "the duel: every row right for tidegate".into(),
        bound: "all".into(),
        measured: format!("{right} of {} right, {absent} targets not had", bouts.len()),
        holds: (!bouts.is_empty()).then_some(right == bouts.len() && absent == 0),
    }
}
