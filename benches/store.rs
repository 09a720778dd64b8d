//! The time of a decision in process, over a million keys: `cargo bench --bench store`.
//!
//! Each check hashes its descriptor, locks its shard and decides by GCRA. Keys are in random order,
//! so nearly every check is a cache miss, and most of its time is one read from main memory; the
//! time of such a read is measured too. For comparison the same decision runs over sharded `std`
//! hash maps, without a size bound or expiry. It prints and asserts nothing: the numbers depend on
//! the machine. `--json` prints one JSON object per line.

#![allow(clippy::disallowed_methods, reason = "a benchmark has to read a clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]

use std::collections::HashMap;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use smallvec::SmallVec;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::{self, ActorId, State};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, KeyHash, KeyHasher, OnFull, Options, SingleCheck, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const KEYS: usize = 1_000_000;
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const ROUNDS: usize = 5;
/// Checks per batch, as from a pipeline of a Redis client.
const BATCH: usize = 16;

type Part = fn(&Bench);

/// Each part runs in its own process: memory freed by one would be reused by the next.
const PARTS: [(&str, Part); 3] =
    [("part=store", bench_store), ("part=eventual", bench_eventual), ("part=maps", bench_maps)];

fn main() -> std::io::Result<()> {
    if let Some((_, part)) = PARTS.iter().find(|(name, _)| std::env::args().any(|a| a == *name)) {
        part(&Bench::new());
        return Ok(());
    }
    let report = Report::new("store");
    report.title(&format!("tidegate store: {KEYS} keys, GCRA, key hash included, per thread"));
    for (name, _) in PARTS {
        let json = std::env::args().filter(|argument| argument == "--json");
        Command::new(std::env::current_exe()?).arg(name).args(json).status()?;
    }
    report.load();
    Ok(())
}

fn bench_store(bench: &Bench) {
    let hash = bench.time(1, |key, _| {
        black_box(bench.key(key));
    });
    bench.report.row("key hash alone", &[("ns", hash)]);
    bench.report.row("one read of cold memory", &[("ns", cold_read())]);

    let state = Mutex::new(State::Absent);
    let decision = bench.time(1, |_, now| {
        black_box(engine::decide(&mut state.lock(), &bench.quota, Hits::new(-1), now));
        black_box(engine::decide(&mut state.lock(), &bench.quota, Hits::ONE, now));
    });
    bench.report.row("lock and decision, state hot", &[("ns", decision / 2.0)]);

    let before = resident_bytes();
    let store = Store::new(Options { keys_max: 4 * KEYS, on_full: OnFull::Share, shards: None });
    let (insert, longest) = bench.fill(|key, now| {
        black_box(store.check(&[bench.counter(key)], Hits::ONE, now));
    });
    let resident = resident_bytes().saturating_sub(before);
    bench.report.row("new keys, two clock reads each", &[("ns", insert), ("us_longest", longest)]);
    for threads in [1, 2] {
        let ns = bench.time(threads, |key, now| {
            black_box(store.check(&[bench.counter(key)], Hits::ONE, now));
        });
        bench.report.row(&format!("known keys, {threads} thread(s)"), &[("ns", ns)]);
    }
    bench.fill(|key, now| {
        black_box(store.check(&[bench.bare(key)], Hits::ONE, now));
    });
    for threads in [1, 2] {
        let ns = bench.time_batches(threads, |keys, now| {
            let checks: SmallVec<[SingleCheck; BATCH]> = keys
                .iter()
                .map(|key| SingleCheck { counter: bench.bare(key), hits: Hits::ONE })
                .collect();
            store.check_batch_if(
                &checks,
                now,
                |_| true,
                |verdict| {
                    black_box(verdict);
                },
            );
        });
        bench
            .report
            .row(&format!("known keys, batches of {BATCH}, {threads} thread(s)"), &[("ns", ns)]);
    }
    let ns = bench.time(1, |key, now| {
        black_box(store.check(&[bench.counter(key)], Hits::PEEK, now));
    });
    bench.report.row("peek", &[("ns", ns)]);
    let stats = store.stats();
    let (tables, resident) = (per_key(stats.bytes), per_key(resident));
    let shards = stats.shards as f64;
    let memory = [("B_in_tables", tables), ("B_resident", resident), ("shards", shards)];
    bench.report.row("memory a key", &memory);
}

/// The same keys with eventual counters.
fn bench_eventual(bench: &Bench) {
    let me = ActorId::new(1);
    let before = resident_bytes();
    let store = Store::new(Options { keys_max: 2 * KEYS, on_full: OnFull::Share, shards: None });
    let check = |key: &str, now| {
        let counter = Counter { quota: bench.window, ..bench.counter(key) };
        black_box(store.check_eventual(&[counter], Hits::ONE, me, now));
    };
    bench.fill(check);
    let resident = resident_bytes().saturating_sub(before);
    let ns = bench.time(1, check);
    let numbers = [("ns", ns), ("B_resident", per_key(resident))];
    bench.report.row("eventual, known keys", &numbers);
}

/// The alternative from the standard library.
fn bench_maps(bench: &Bench) {
    let before = resident_bytes();
    let maps: Vec<Mutex<HashMap<KeyHash, State>>> = (0..512).map(|_| Mutex::default()).collect();
    let check = |key: &str, now| {
        let Counter { key, quota } = bench.counter(key);
        let index = usize::try_from(key.token % 512).unwrap_or_default();
        let mut map = maps[index].lock();
        black_box(engine::decide(map.entry(key).or_default(), &quota, Hits::ONE, now));
    };
    let (insert, longest) = bench.fill(check);
    let resident = resident_bytes().saturating_sub(before);
    let ns = bench.time(1, check);
    bench.report.row("512 std maps, new keys", &[("ns", insert), ("us_longest", longest)]);
    let numbers = [("ns", ns), ("B_resident", per_key(resident))];
    bench.report.row("512 std maps, known keys", &numbers);
}

/// Prints the results: text, or with `--json` one JSON object per line.
#[derive(Clone, Copy, Debug)]
struct Report {
    bench: &'static str,
    is_json: bool,
}

impl Report {
    fn new(bench: &'static str) -> Self {
        Self { bench, is_json: std::env::args().any(|argument| argument == "--json") }
    }

    /// Prints a title, in text only.
    fn title(self, text: &str) {
        if !self.is_json {
            println!("{text}");
        }
    }

    /// Prints a row of numbers, each with its unit as its name.
    fn row(self, what: &str, numbers: &[(&str, f64)]) {
        if self.is_json {
            let mut object = Map::new();
            object.insert("bench".into(), json!(self.bench));
            object.insert("what".into(), json!(what));
            for (name, number) in numbers {
                object.insert((*name).into(), json!((number * 10.0).round() / 10.0));
            }
            println!("{}", Value::Object(object));
        } else {
            let numbers: Vec<_> =
                numbers.iter().map(|(name, number)| format!("{number:.1} {name}")).collect();
            println!("  {what:<32} {}", numbers.join("  "));
        }
    }

    /// Prints the load average, which affects the numbers.
    fn load(self) {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let minute = load.split(' ').next().and_then(|minute| minute.parse().ok());
        self.row("load average of the last minute", &[("tasks", minute.unwrap_or(f64::NAN))]);
    }
}

struct Bench {
    report: Report,
    hasher: KeyHasher,
    quota: Quota,
    window: Quota,
    /// In random order, and allocated in that order: the bytes of a key are in the cache when it is
    /// checked.
    keys: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let quota = |algorithm| {
            Quota::simple(algorithm, 1_000, Span::from_secs(3_600)).expect("a valid quota")
        };
        Self {
            report: Report::new("store"),
            hasher: KeyHasher::new([7; 16]),
            quota: quota(Algorithm::Gcra),
            window: quota(Algorithm::SlidingWindowCounter),
            keys: (0..KEYS).map(|n| format!("user-{}", n * 611_953 % KEYS)).collect(),
        }
    }

    fn key(&self, value: &str) -> KeyHash {
        let entries = [Entry { key: "user", value }];
        self.hasher.descriptor("edge", &entries).counter(&self.quota, Mode::Strict, Scope::Region)
    }

    /// The counter of a limit from the client.
    fn bare(&self, key: &str) -> Counter {
        let hash = self.hasher.bare(key.as_bytes());
        Counter { key: hash.counter(&self.quota, Mode::Strict, Scope::Region), quota: self.quota }
    }

    fn counter(&self, value: &str) -> Counter {
        Counter { key: self.key(value), quota: self.quota }
    }

    /// Inserts all keys. Returns nanoseconds per key, and the longest check in microseconds, which
    /// includes table growth and the noise of the system.
    fn fill(&self, check: impl Fn(&str, Timestamp)) -> (f64, f64) {
        let mut longest = 0;
        let start = Instant::now();
        for key in &self.keys {
            let begin = Instant::now();
            check(key, START);
            longest = longest.max(begin.elapsed().as_nanos());
        }
        (start.elapsed().as_nanos() as f64 / KEYS as f64, longest as f64 / 1_000.0)
    }

    /// Nanoseconds per check and thread, the minimum of the rounds over all keys. Threads start at
    /// different keys, so they rarely contend for a shard.
    fn time(&self, threads: usize, check: impl Fn(&str, Timestamp) + Sync) -> f64 {
        self.time_batches(threads, |keys, now| keys.iter().for_each(|key| check(key, now)))
    }

    fn time_batches(&self, threads: usize, check: impl Fn(&[String], Timestamp) + Sync) -> f64 {
        let round = |round: usize| {
            let now = START.plus(Span::from_secs(round as u64));
            let start = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (tail, head) = self.keys.split_at(thread * KEYS / threads);
                    let check = &check;
                    let batches = head.chunks(BATCH).chain(tail.chunks(BATCH));
                    scope.spawn(move || batches.for_each(|keys| check(keys, now)));
                }
            });
            start.elapsed().as_nanos() as f64 / KEYS as f64
        };
        (1..=ROUNDS).map(round).fold(f64::INFINITY, f64::min)
    }
}

/// Nanoseconds of a dependent read that misses all caches: pointer chasing over the cache lines of
/// 64 MiB.
fn cold_read() -> f64 {
    const LINE: usize = 8;
    const LINES: usize = 1 << 20;
    let mut next = vec![0_usize; LINES * LINE];
    // A linear congruential generator of full period (Hull and Dobell, 1962) makes one cycle of
    // all lines that no prefetcher predicts.
    let step = |line: usize| {
        (line.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
            % LINES
    };
    for line in 0..LINES {
        next[line * LINE] = step(line) * LINE;
    }
    let start = Instant::now();
    let end = (0..LINES).fold(0, |at, _| next[at]);
    let ns = start.elapsed().as_nanos() as f64 / LINES as f64;
    black_box(end);
    ns
}

fn per_key(bytes: usize) -> f64 {
    bytes as f64 / KEYS as f64
}

/// Resident memory of this process; 0 if unknown.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or_default() * 4_096
}
