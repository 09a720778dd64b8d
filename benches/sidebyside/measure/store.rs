//! In process: the store compared with governor, over a million string keys.
//!
//! Both hash the key's bytes, read a clock, and decide. The order of the checks differs from the
//! order of insertion, so that nearly every check is a cache miss. The bytes of the key are in the
//! cache, as after a read from a socket.

use std::hint::black_box;
use std::io;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::DefaultKeyedRateLimiter;
use tidegate::decide::THROTTLE_BATCH_MAX;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Counter, CounterKind, KeyHasher, OnFull, Options, SingleCheck, Store,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

use super::{Case, Plan, interleave, table};
use crate::processes;
use crate::results::{Row, Table};

pub const GOVERNOR: [&str; 2] = ["governor, 1 thread", "governor, 2 threads"];
pub const STORE: [&str; 2] = ["tidegate, 1 thread", "tidegate, 2 threads"];
pub const BATCHES: [&str; 2] =
    ["tidegate, batches of 32, 1 thread", "tidegate, batches of 32, 2 threads"];
pub const MEMORY: [&str; 2] = ["governor, B resident a key", "tidegate, B resident a key"];
/// Arguments with which this program only measures memory.
pub const PARTS: [&str; 2] = ["part=memory-of-governor", "part=memory-of-store"];

/// The batch size of the listeners.
const BATCH: usize = THROTTLE_BATCH_MAX;
const _: () = assert!(BATCH == 32, "the row names contain the batch size");
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
/// No key reaches this limit.
const LIMIT: u32 = 100_000;
const WINDOW: Duration = Duration::from_secs(86_400);

pub fn measure(plan: &Plan) -> io::Result<Table> {
    let about = format!(
        "{} string keys in random order, GCRA in both; key hash and clock included. Nanoseconds a \
         check are the elapsed time by the checks of all threads. `batches`: {BATCH} keys are \
         decided together with one clock read, as in the listeners.",
        crate::render::number(plan.keys as f64)
    );
    let mut table = table("store", "In process", &about, &["ns or B"]);
    let (store, governor) = (Bench::new(plan.keys), limiter());
    let first = ordered(plan.keys);
    store.one_by_one(&first);
    fill(&governor, &first);
    drop(first);
    let keys = shuffled(plan.keys);
    let (keys, store, governor) = (&keys, &store, &governor);
    let mut cases = Vec::new();
    for threads in [1, 2] {
        let names = [GOVERNOR, STORE, BATCHES].map(|names| names[threads - 1]);
        cases.push(Case::new(names[0], move || {
            Ok(vec![time(keys, threads, |keys| fill(governor, keys))])
        }));
        cases.push(Case::new(names[1], move || {
            Ok(vec![time(keys, threads, |keys| store.one_by_one(keys))])
        }));
        cases.push(Case::new(names[2], move || {
            Ok(vec![time(keys, threads, |keys| store.in_batches(keys))])
        }));
    }
    interleave(&mut table, plan.rounds, cases);
    // In new processes: memory freed by one would be reused by the other.
    for (name, part) in MEMORY.iter().zip(PARTS) {
        let mut command = processes::command(std::env::current_exe()?);
        let output =
            processes::run(command.args([part, &plan.keys.to_string()]), Duration::from_secs(60))?;
        let bytes = output.trim().parse::<f64>().map_err(io::Error::other)?;
        table.rows.push(Row::of(name, 1, &[vec![bytes]]));
    }
    Ok(table)
}

/// Resident bytes per key of a part.
pub fn memory(part: &str, count: u64) -> f64 {
    let keys = ordered(count);
    let before = resident();
    let after = if part == PARTS[0] {
        let governor = limiter();
        fill(&governor, &keys);
        let after = resident();
        black_box(&governor);
        after
    } else {
        let store = Bench::new(count);
        store.one_by_one(&keys);
        let after = resident();
        black_box(&store);
        after
    };
    after.saturating_sub(before) as f64 / count as f64
}

struct Bench {
    store: Store,
    hasher: KeyHasher,
    quota: Quota,
    kind: CounterKind,
    begin: Instant,
}

impl Bench {
    fn new(keys: u64) -> Self {
        let keys_max = usize::try_from(2 * keys).unwrap_or(usize::MAX);
        let window = Span::from_secs(WINDOW.as_secs());
        let quota = Quota::simple(Algorithm::Gcra, LIMIT, window).expect("a valid quota");
        Self {
            store: Store::new(Options { keys_max, on_full: OnFull::Share, shards: None }),
            hasher: KeyHasher::new([7; 16]),
            quota,
            kind: CounterKind::of(&quota, Mode::Strict, Scope::Region),
            begin: Instant::now(),
        }
    }

    fn one_by_one(&self, keys: &[String]) {
        for key in keys {
            black_box(self.store.check(&[self.counter(key)], Hits::ONE, self.now()));
        }
    }

    fn in_batches(&self, keys: &[String]) {
        let mut checks = Vec::with_capacity(BATCH);
        for keys in keys.chunks(BATCH) {
            checks.clear();
            let hits = Hits::ONE;
            checks.extend(keys.iter().map(|key| SingleCheck { counter: self.counter(key), hits }));
            self.store.check_batch_if(
                &checks,
                self.now(),
                |_| true,
                |verdict| {
                    black_box(verdict);
                },
            );
        }
    }

    fn counter(&self, key: &str) -> Counter {
        let hash = self.hasher.bare(key.as_bytes());
        let key = hash.counter_of(self.kind);
        Counter { key, quota: self.quota }
    }

    fn now(&self) -> Timestamp {
        let nanos = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        START.plus(Span::from_nanos(nanos))
    }
}

fn limiter() -> DefaultKeyedRateLimiter<String> {
    let limit = NonZeroU32::new(LIMIT).expect("not zero");
    let period = WINDOW / LIMIT;
    let quota = governor::Quota::with_period(period).expect("not zero").allow_burst(limit);
    DefaultKeyedRateLimiter::keyed(quota)
}

fn fill(governor: &DefaultKeyedRateLimiter<String>, keys: &[String]) {
    for key in keys {
        let _ = black_box(governor.check_key(key));
    }
}

/// In the order of insertion.
fn ordered(count: u64) -> Vec<String> {
    (0..count).map(|n| format!("user-{n}")).collect()
}

/// In the order of the checks: a random permutation.
fn shuffled(count: u64) -> Vec<String> {
    // Fisher-Yates with xorshift64: the same on every machine.
    let mut numbers: Vec<u64> = (0..count).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..numbers.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        numbers.swap(last, usize::try_from(random).unwrap_or_default() % (last + 1));
    }
    numbers.into_iter().map(|n| format!("user-{n}")).collect()
}

/// Nanoseconds per check. Each thread checks all keys, starting at a different one.
fn time(keys: &[String], threads: usize, check: impl Fn(&[String]) + Sync) -> f64 {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (tail, head) = keys.split_at(thread * keys.len() / threads);
            let check = &check;
            scope.spawn(move || {
                check(head);
                check(tail);
            });
        }
    });
    begin.elapsed().as_nanos() as f64 / (keys.len() * threads) as f64
}

/// Resident memory of this process in bytes; 0 if unknown. `smaps_rollup` counts pages; the counter
/// in `statm` can be off by some hundred KiB.
fn resident() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok());
    kib.unwrap_or_default() * 1_024
}
