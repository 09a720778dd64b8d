//! The bounds: mostly ratios of two medians of the same run.

use super::{cluster, expiry as expiring, grpc, proxy, resp, services, store};
use crate::render::number;
use crate::results::{Bound, Results};

/// All bounds, also those of parts that were not measured.
pub fn all(results: &Results) -> Vec<Bound> {
    let median = |table: &str, row: &str, column: &str| results.median(table, row, column);
    let mut bounds = Vec::new();
    for (pipeline, least) in [(1, 0.95), (16, 1.2)] {
        let table = format!("resp-{pipeline}");
        let of = |row: &str, column: &str| median(&table, row, column);
        bounds.push(at_least(
            &format!("CL.THROTTLE by redis INCR, -P {pipeline}, requests a second"),
            of(resp::TIDEGATE, "req/s"),
            of(resp::INCR, "req/s"),
            least,
        ));
        bounds.push(at_most(
            &format!("p99 of CL.THROTTLE by that of redis INCR, -P {pipeline}"),
            of(resp::TIDEGATE, "p99 ms"),
            of(resp::INCR, "p99 ms"),
            1.0,
        ));
    }
    for depth in [1, 16] {
        let table = format!("grpc-{depth}");
        bounds.push(at_least(
            &format!("ShouldRateLimit by an empty tonic handler, -m{depth}, requests a second"),
            median(&table, grpc::TIDEGATE, "req/s"),
            median(&table, grpc::EMPTY, "req/s"),
            0.9,
        ));
    }
    for (theirs, least) in [(proxy::ASKING, 0.75), (proxy::BARE, 0.5)] {
        let of = |row: &str| median("proxy", row, proxy::COLUMNS[0]);
        bounds.push(at_least(
            &format!("the proxy by {theirs}, requests a second"),
            of(proxy::TIDEGATE),
            of(theirs),
            least,
        ));
    }
    let of = |row: &str, column: &str| median("cluster", row, column);
    let (strict, eventual, single) = (cluster::STRICT_64, cluster::EVENTUAL_64, cluster::SINGLE_64);
    let rate = cluster::COLUMNS[0];
    bounds.push(at_least(
        "three nodes, strict, by redis INCR -P 1, checks a second",
        of(strict, rate),
        of(resp::INCR, rate),
        0.25,
    ));
    bounds.push(below("three nodes, strict, p99", of(strict, "p99 ms"), 10.0, "ms"));
    let per_cpu = cluster::COLUMNS[6];
    bounds.push(at_least(
        "three nodes, eventual, by one node, checks a CPU second of the servers",
        of(eventual, per_cpu),
        of(single, per_cpu),
        0.85,
    ));
    bounds.push(at_least(
        "three nodes, leased, 100 keys, by one node, checks a CPU second of the servers",
        of(cluster::LEASED_64, per_cpu),
        of(single, per_cpu),
        0.7,
    ));
    let cpu = cluster::COLUMNS[4];
    let [strict, leased, eventual, _] = cluster::PACED.map(|row| median("paced", row, cpu));
    let [strict_100, leased_100] = cluster::PACED_100.map(|row| median("paced", row, cpu));
    for (what, ours, theirs, most) in [
        ("leased by strict, server CPU at 4,000/s, 10,000 keys", leased, strict, 1.0),
        ("eventual by strict, server CPU at 4,000/s, 10,000 keys", eventual, strict, 0.8),
        ("leased by strict, server CPU at 4,000/s, 100 keys", leased_100, strict_100, 0.6),
    ] {
        bounds.push(at_most(what, ours, theirs, most));
    }
    let column = "ns or B";
    for (ours, how) in [(store::STORE, "one by one"), (store::BATCHES, "in batches of 32")] {
        for threads in [1, 2] {
            bounds.push(at_most(
                &format!("a decision by governor's, {how}, {threads} thread(s)"),
                median("store", ours[threads - 1], column),
                median("store", store::GOVERNOR[threads - 1], column),
                0.2,
            ));
        }
    }
    let memory = median("store", store::MEMORY[1], column);
    bounds.push(below("resident memory a key", memory, 48.0, "B"));
    let expiry = |column| median("expiry", resp::TIDEGATE, column);
    let p999 = |row| median("expiry", row, "p99.9 ms");
    let what = "p99.9 while a million keys come and expire";
    for (row, baseline, how) in [
        (resp::TIDEGATE, expiring::BASELINE[0], "real-time class, cores awake"),
        (expiring::ORDINARY, expiring::BASELINE[1], "ordinary class, cores awake"),
        (expiring::HALTING, expiring::BASELINE[2], "real-time class, cores that halt"),
    ] {
        let mut bound = below(&format!("{what}, {how}"), p999(row), 2.0, "ms");
        if let Some(baseline) = p999(baseline) {
            let measured = &mut bound.measured;
            *measured = format!("{measured} (redis INCR while none come: {} ms)", number(baseline));
        }
        bounds.push(bound);
    }
    bounds.push(returned(
        expiry("MiB at most"),
        expiry("MiB behind"),
        expiry("s until it was back"),
    ));
    let cpu = services::COLUMNS[3];
    for (table, calls) in [(services::ONE, "1 check"), (services::HUNDRED, "100 checks")] {
        for (ours, theirs) in services::CARRIED {
            bounds.push(at_most(
                &format!("{ours}, by {theirs}, {calls} a call, server CPU a check"),
                median(table, ours, cpu),
                median(table, theirs, cpu),
                0.25,
            ));
        }
    }
    bounds.push(accuracy(results));
    bounds
}

fn at_least(what: &str, ours: Option<f64>, theirs: Option<f64>, least: f64) -> Bound {
    ratio(what, ours, theirs, format!("at least {least}"), |ratio| ratio >= least)
}

fn at_most(what: &str, ours: Option<f64>, theirs: Option<f64>, most: f64) -> Bound {
    ratio(what, ours, theirs, format!("at most {most}"), |ratio| ratio <= most)
}

fn ratio(
    what: &str,
    ours: Option<f64>,
    theirs: Option<f64>,
    limit: String,
    is_met: impl Fn(f64) -> bool,
) -> Bound {
    let ratio = ours.zip(theirs).map(|(ours, theirs)| (ours / theirs, ours, theirs));
    Bound {
        name: what.into(),
        limit,
        measured: ratio.map_or(String::new(), |(ratio, ours, theirs)| {
            format!("{ratio:.3} ({} by {})", number(ours), number(theirs))
        }),
        is_met: ratio.map(|(ratio, ..)| is_met(ratio)),
    }
}

fn below(what: &str, measured: Option<f64>, most: f64, unit: &str) -> Bound {
    Bound {
        name: what.into(),
        limit: format!("at most {most} {unit}"),
        measured: measured.map_or(String::new(), |measured| format!("{} {unit}", number(measured))),
        is_met: measured.map(|measured| measured <= most),
    }
}

fn returned(most: Option<f64>, behind: Option<f64>, seconds: Option<f64>) -> Bound {
    let measured = most.zip(behind).map(|(most, behind)| {
        let (most, behind) = (number(most), number(behind));
        match seconds {
            Some(seconds) => format!("{most} MiB, then {behind} MiB, {} s later", number(seconds)),
            None => format!("{most} MiB, then {behind} MiB"),
        }
    });
    Bound {
        name: "memory behind a million keys that expired".into(),
        limit: "at most a tenth of the growth is left".into(),
        is_met: measured.as_ref().map(|_| seconds.is_some()),
        measured: measured.unwrap_or_default(),
    }
}

fn accuracy(results: &Results) -> Bound {
    let ours = || results.accuracy.iter().filter(|target| target.name.starts_with("tidegate"));
    let absent = ours().filter(|target| target.absent.is_some()).count();
    let scenarios: Vec<_> = ours().flat_map(|target| &target.scenarios).collect();
    let right = scenarios.iter().filter(|scenario| scenario.is_right).count();
    Bound {
        name: "the duel: every row right for tidegate".into(),
        limit: "all".into(),
        measured: format!("{right} of {} correct, {absent} targets not available", scenarios.len()),
        is_met: (!scenarios.is_empty()).then_some(right == scenarios.len() && absent == 0),
    }
}
