//! One row of the table: an algorithm, the stores that decide by it, and its judge.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_limiter::engine::{ActorId, SubWindows};
use tidegate_limiter::quota::{Algorithm, Quota, QuotaParts};
use tidegate_limiter::store::{
    BackgroundScan, Counter, KeyHash, LocalActor, OnFull, Options, SYNC_SLACK_DIVISOR, Store,
};
use tidegate_limiter::units::{Hits, Timestamp};

use crate::judge::Judge;
use crate::workload::{Request, WINDOW, Workload};

const NODES: usize = 3;
/// How long a changed counter takes to the other nodes.
const EXCHANGE_NS: u64 = 5_000_000;
/// A scan for the counters of keys far from their limit takes a minute, as in a cluster.
const SCAN_ROUNDS: usize = 12_000;
/// Before two windows have passed, a store has fewer keys than usual.
const WARM_UP_SECONDS: u64 = 120;
/// The default of `limits.fine_keys_max`.
const FINE_KEYS_MAX: usize = 65_536;

/// What the run must show of a row.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    None,
    /// The workload is as hard as intended.
    Workload,
    OneNode,
    ThreeNodes,
    Exact,
}

pub(crate) struct Row {
    name: &'static str,
    pub(crate) bound: Bound,
    algorithm: Algorithm,
    sub_windows: u8,
    nodes: Nodes,
    judge: Judge,
    requests: u64,
    seconds: u64,
    wrongly_admitted: u64,
    wrongly_refused: u64,
    /// Decisions that a log of what this row has admitted would not have made.
    unlike_past: u64,
    time: Duration,
    bytes: Bytes,
}

enum Nodes {
    /// Each key is decided by one of them.
    Strict(Vec<Store>),
    Eventual(Box<Eventual>),
}

struct Eventual {
    stores: [Store; NODES],
    scans: [BackgroundScan; NODES],
    exchange_at: u64,
}

#[derive(Default)]
struct Bytes {
    samples: u64,
    sum: f64,
    peak: f64,
    fine_keys_max: usize,
}

/// The rows of the table.
pub(crate) fn all(workload: &Workload) -> Vec<Row> {
    let keys_max = workload.sources();
    let store = || Store::new(Options { keys_max, on_full: OnFull::Refuse, shards: None });
    let fine = || store().with_fine_keys(FINE_KEYS_MAX);
    let eventual = || {
        Nodes::Eventual(Box::new(Eventual {
            stores: [store(), store(), store()],
            scans: Default::default(),
            exchange_at: 0,
        }))
    };
    let counter = Algorithm::SlidingWindowCounter;
    let row = |name, bound, algorithm, sub_windows, nodes| Row {
        name,
        bound,
        algorithm,
        sub_windows,
        nodes,
        judge: Judge::new(workload.sources()),
        requests: 0,
        seconds: 0,
        wrongly_admitted: 0,
        wrongly_refused: 0,
        unlike_past: 0,
        time: Duration::ZERO,
        bytes: Bytes::default(),
    };
    vec![
        row("two counts", Bound::Workload, counter, 1, Nodes::Strict(vec![store()])),
        row("12 sub-windows", Bound::None, counter, 12, Nodes::Strict(vec![store()])),
        row("60 sub-windows", Bound::None, counter, 60, Nodes::Strict(vec![store()])),
        row("fine near the limit", Bound::OneNode, counter, 1, Nodes::Strict(vec![fine()])),
        row(
            "sliding_window_log",
            Bound::Exact,
            Algorithm::SlidingWindowLog,
            1,
            Nodes::Strict(vec![store()]),
        ),
        row(
            "three nodes, strict, fine",
            Bound::ThreeNodes,
            counter,
            1,
            Nodes::Strict(vec![fine(), fine(), fine()]),
        ),
        row("three nodes, eventual, two counts", Bound::None, counter, 1, eventual()),
        row("three nodes, eventual, 60 sub-windows", Bound::None, counter, 60, eventual()),
    ]
}

// === impl Row ===

impl Row {
    /// Decides the requests of a second; `exact` is what the log decided.
    pub(crate) fn decide(&mut self, requests: &[Request], exact: &[bool]) {
        let start = Instant::now();
        let allowed: Vec<bool> = requests.iter().map(|request| self.allows(request)).collect();
        self.time += start.elapsed();
        for ((request, allowed), exact) in requests.iter().zip(allowed).zip(exact) {
            self.wrongly_admitted += u64::from(allowed && !exact);
            self.wrongly_refused += u64::from(!allowed && *exact);
            self.unlike_past += u64::from(allowed != self.judge.fits(request));
            if allowed {
                self.judge.admit(request);
            }
        }
        self.requests += requests.len() as u64;
        self.seconds += 1;
        if self.seconds > WARM_UP_SECONDS {
            self.sample();
        }
    }

    pub(crate) fn wrong_percent(&self) -> f64 {
        self.percent(self.wrongly_admitted + self.wrongly_refused)
    }

    /// On average over the run.
    pub(crate) fn bytes_per_key(&self) -> f64 {
        self.bytes.sum / self.bytes.samples.max(1) as f64
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "wrong_percent": self.wrong_percent(),
            "wrongly_admitted_percent": self.percent(self.wrongly_admitted),
            "wrongly_refused_percent": self.percent(self.wrongly_refused),
            "unlike_its_past_percent": self.percent(self.unlike_past),
            "bytes_per_key": self.bytes_per_key(),
            "bytes_per_key_peak": self.bytes.peak,
            "fine_keys_peak": self.bytes.fine_keys_max,
            "nanoseconds_per_check": self.nanos_per_check(),
        })
    }

    fn percent(&self, decisions: u64) -> f64 {
        decisions as f64 * 100.0 / self.requests.max(1) as f64
    }

    fn nanos_per_check(&self) -> f64 {
        self.time.as_secs_f64() * 1e9 / self.requests.max(1) as f64
    }

    fn allows(&mut self, request: &Request) -> bool {
        let counter = self.counter(request);
        let (counters, now) = ([counter], Timestamp::from_nanos(request.at));
        let verdicts = match &mut self.nodes {
            Nodes::Strict(stores) => {
                let owner = (counter.key.token >> 32) as usize % stores.len();
                stores[owner].check(&counters, Hits::ONE, now)
            }
            Nodes::Eventual(nodes) => {
                nodes.exchange(request.at);
                let node = usize::from(request.node);
                nodes.stores[node].check_eventual(&counters, Hits::ONE, actor(node), now)
            }
        };
        verdicts[0].allowed
    }

    fn counter(&self, request: &Request) -> Counter {
        let parts = QuotaParts {
            algorithm: self.algorithm,
            limit: request.limit,
            window: WINDOW,
            burst: request.limit,
            sub_windows: self.sub_windows,
            queue: None,
        };
        let n = u64::from(request.source);
        let key = KeyHash { token: spread(2 * n + 1), tag: spread(2 * n + 2) };
        Counter { key, quota: Quota::new(parts).expect("a valid quota") }
    }

    fn sample(&mut self) {
        let stats = match &self.nodes {
            Nodes::Strict(stores) => stores.iter().map(Store::stats).collect::<Vec<_>>(),
            // Per-actor counters are not part of the statistics.
            Nodes::Eventual(_) => return,
        };
        assert!(stats.iter().all(|stats| stats.refused == 0), "a store was full");
        let keys: usize = stats.iter().map(|stats| stats.keys).sum();
        let boxed = match self.algorithm {
            Algorithm::SlidingWindowLog => 16 * self.judge.hits(),
            _ if self.sub_windows > 1 => {
                keys * (size_of::<SubWindows>() + 4 * (usize::from(self.sub_windows) + 1))
            }
            _ => 0,
        };
        let bytes: usize = stats.iter().map(|stats| stats.bytes).sum();
        let fine_keys: usize = stats.iter().map(|stats| stats.fine_keys).sum();
        self.bytes.fine_keys_max = self.bytes.fine_keys_max.max(fine_keys);
        let per_key = (bytes + boxed) as f64 / keys.max(1) as f64;
        self.bytes.samples += 1;
        self.bytes.sum += per_key;
        self.bytes.peak = self.bytes.peak.max(per_key);
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<40} {:>9.5} {:>9.5} {:>9.5} {:>9.5} ",
            self.name,
            self.wrong_percent(),
            self.percent(self.wrongly_admitted),
            self.percent(self.wrongly_refused),
            self.percent(self.unlike_past),
        )?;
        match self.bytes.samples {
            0 => write!(f, "{:>7} {:>7} ", "", "")?,
            _ => write!(f, "{:>7.1} {:>7.1} ", self.bytes_per_key(), self.bytes.peak)?,
        }
        write!(f, "{:>9} {:>6.0}", self.bytes.fine_keys_max, self.nanos_per_check())
    }
}

// === impl Eventual ===

impl Eventual {
    /// Exchanges the changed counters as often as is due at `now`.
    fn exchange(&mut self, now: u64) {
        if self.exchange_at == 0 {
            self.exchange_at = now + EXCHANGE_NS;
        }
        while self.exchange_at <= now {
            let at = Timestamp::from_nanos(self.exchange_at);
            let mut changed = Vec::new();
            for (node, (store, scan)) in self.stores.iter().zip(&mut self.scans).enumerate() {
                let mut send = |key, counters: &tidegate_limiter::engine::ActorCounters| {
                    let own = actor(node).actor;
                    changed.push((node, key, counters.delta_of(|actor| actor == own)));
                };
                store.drain_sync_queue(usize::MAX, &mut send);
                store.drain_lazy(scan, SCAN_ROUNDS, usize::MAX, at, &mut send);
            }
            for (from, key, delta) in changed {
                for (node, store) in self.stores.iter().enumerate() {
                    if node != from {
                        store.merge_actor_counters(key, &delta, at);
                    }
                }
            }
            self.exchange_at += EXCHANGE_NS;
        }
    }
}

fn actor(node: usize) -> LocalActor {
    let nodes = u32::try_from(NODES).expect("three");
    LocalActor { actor: ActorId::new(node as u64), slack_divisor: SYNC_SLACK_DIVISOR * nodes }
}

/// Spreads numbers as the key hash spreads keys.
fn spread(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
