//! The cases of `scripts/counts`: instructions of the hot paths.
//!
//! Times depend on the machine and its load; instructions depend on the code. The script runs each
//! case in its own process under callgrind, which only counts inside [`counted`]. Without callgrind
//! this program runs the case in its first argument, or lists all cases.

#![allow(clippy::print_stdout, reason = "lists its cases")]

use std::hint::black_box;

use bytes::BytesMut;
use tidegate::front::resp::command::{Command, command};
use tidegate::front::resp::limit::reply;
use tidegate::front::resp::read::{Limits, Read, Words, read};
use tidegate::front::resp::reply::Replies;
use tidegate_cluster::mesh::codec;
use tidegate_cluster::mesh::wire::{Call, Check, Numbered, Reply};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::ActorId;
use tidegate_limiter::policy::{Durability, Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Counter, KeyHasher, OnFull, Options, SingleCheck, Store};
use tidegate_limiter::units::{Hits, Span, Timestamp};

/// Iterations of a case.
const TIMES: usize = 1_000;
/// Checks per batch.
const BATCH: usize = 16;
const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Prepares a case and runs it in [`counted`].
type Case = fn();

const CASES: [(&str, Case); 7] = [
    ("key_hash", key_hash),
    ("decision", decision),
    ("decision_in_batch", decision_in_batch),
    ("pipeline_of_throttles", pipeline_of_throttles),
    ("decision_eventual", decision_eventual),
    ("frame_of_a_check", frame_of_a_check),
    ("frame_of_verdicts", frame_of_verdicts),
];

fn main() {
    let selected = std::env::args().nth(1).unwrap_or_default();
    match CASES.iter().find(|(name, _)| *name == selected) {
        Some((_, case)) => case(),
        // `cargo test` runs benchmarks too, without a name.
        None => CASES.iter().for_each(|(name, _)| println!("{name} {TIMES}")),
    }
}

/// Callgrind counts inside this function. It is selected by name, so it must not be inlined.
#[inline(never)]
fn counted(mut work: impl FnMut()) {
    work();
}

/// Hashes the key of a descriptor.
fn key_hash() {
    let bench = Bench::new(Algorithm::Gcra);
    counted(|| {
        for value in &bench.values {
            black_box(bench.counter(value, Mode::Strict));
        }
    });
}

/// A decision for an existing key, with the key hash.
fn decision() {
    let bench = Bench::new(Algorithm::Gcra);
    let check = |values: &[String], now| {
        for value in values {
            black_box(bench.store.check(&[bench.counter(value, Mode::Strict)], Hits::ONE, now));
        }
    };
    check(&bench.values, NOW);
    counted(|| check(&bench.values, NOW.plus(Span::from_secs(1))));
}

/// As [`decision`], in batches and with a limit from the client.
fn decision_in_batch() {
    let bench = Bench::new(Algorithm::Gcra);
    let check = |values: &[String], now| {
        let mut checks = Vec::with_capacity(BATCH);
        for batch in values.chunks(BATCH) {
            checks.clear();
            checks.extend(
                batch
                    .iter()
                    .map(|value| SingleCheck { counter: bench.bare(value), hits: Hits::ONE }),
            );
            let on_verdict = |verdict| {
                black_box(verdict);
            };
            bench.store.check_batch_if(&checks, now, |_| true, on_verdict);
        }
    };
    check(&bench.values, NOW);
    counted(|| check(&bench.values, NOW.plus(Span::from_secs(1))));
}

/// The `CL.THROTTLE`s of one read: parsed, decided in batches, and answered.
fn pipeline_of_throttles() {
    let bench = Bench::new(Algorithm::Gcra);
    let argument = |word: &str| format!("${}\r\n{word}\r\n", word.len());
    let encode = |key: &String| {
        let words = ["CL.THROTTLE", key, "999", "1000", "3600"];
        format!("*{}\r\n{}", words.len(), words.map(argument).concat())
    };
    let reads: Vec<String> =
        bench.values.chunks(BATCH).map(|keys| keys.iter().map(encode).collect()).collect();
    let limits =
        Limits { bytes_max: 65_536, words_max: 64, word_bytes_max: 1_024, before_auth: false };
    let mut replies = Replies::default();
    let mut checks = Vec::with_capacity(BATCH);
    let mut serve = |now| {
        for bytes in reads.iter().map(String::as_bytes) {
            checks.clear();
            replies.clear(65_536);
            let (mut words, mut at) = (Words::new(), 0);
            while let Ok(Read::Command(length)) = read(&bytes[at..], &limits, &mut words) {
                at += length;
                let Ok(Command::Throttle { key, limit, quantity: hits }) = command(&mut words)
                else {
                    continue;
                };
                let quota = limit.quota(Mode::Strict).expect("a limit");
                checks.push(SingleCheck { counter: bench.bare_of(key, quota), hits });
            }
            bench.store.check_batch_if(
                &checks,
                now,
                |_| true,
                |verdict| {
                    let verdict = verdict.expect("permitted");
                    replies.integers(reply(verdict.allowed, verdict.limit, &verdict));
                },
            );
            black_box(replies.bytes());
        }
    };
    serve(NOW);
    counted(|| serve(NOW.plus(Span::from_secs(1))));
}

/// A decision for an existing eventual key.
fn decision_eventual() {
    let bench = Bench::new(Algorithm::SlidingWindowCounter);
    let check = |values: &[String], now| {
        for value in values {
            let counters = [bench.counter(value, Mode::Eventual)];
            let me = ActorId::new(7);
            black_box(bench.store.check_eventual(&counters, Hits::ONE, me, now));
        }
    };
    check(&bench.values, NOW);
    counted(|| check(&bench.values, NOW.plus(Span::from_secs(1))));
}

/// Encodes and decodes a forwarded check.
fn frame_of_a_check() {
    let bench = Bench::new(Algorithm::Gcra);
    let counters = smallvec::smallvec![bench.counter("user-1", Mode::Strict)];
    let (scope, durability) = (Scope::Region, Durability::Async);
    let deadline = Span::from_secs(60);
    let check = Check { id: 7, scope, counters, hits: Hits::ONE, durability, deadline };
    let call = Numbered { id: 7, body: Call::Check(check) };
    frames(&call);
}

/// Encodes and decodes the reply to it.
fn frame_of_verdicts() {
    let bench = Bench::new(Algorithm::Gcra);
    let counters = [bench.counter("user-1", Mode::Strict)];
    let verdicts = bench.store.check(&counters, Hits::ONE, NOW);
    frames(&Numbered { id: 7, body: Reply::Verdicts(verdicts) });
}

fn frames<T: serde::Serialize + serde::de::DeserializeOwned>(message: &T) {
    let mut bytes = BytesMut::with_capacity(4_096);
    let mut once = || {
        codec::encode(message, codec::VERSION, &mut bytes).expect("a small message");
        let frame = codec::split(&mut bytes).expect("a frame").expect("a complete one");
        black_box(codec::decode::<T>(&frame, codec::VERSION).expect("the message"));
    };
    once();
    counted(|| (0..TIMES).for_each(|_| once()));
}

struct Bench {
    hasher: KeyHasher,
    quota: Quota,
    store: Store,
    values: Vec<String>,
}

impl Bench {
    fn new(algorithm: Algorithm) -> Self {
        let keys_max = 100 * TIMES;
        Self {
            hasher: KeyHasher::new([7; 16]),
            quota: Quota::simple(algorithm, 1_000, Span::from_secs(3_600)).expect("a valid quota"),
            store: Store::new(Options { keys_max, on_full: OnFull::Share, shards: None }),
            values: (0..TIMES).map(|n| format!("user-{n:06}")).collect(),
        }
    }

    fn counter(&self, value: &str, mode: Mode) -> Counter {
        let entries = [Entry { key: "user", value }];
        let hash = self.hasher.descriptor("edge", &entries);
        Counter { key: hash.counter(&self.quota, mode, Scope::Region), quota: self.quota }
    }

    fn bare(&self, key: &str) -> Counter {
        self.bare_of(key.as_bytes(), self.quota)
    }

    /// The counter of a limit from the client.
    fn bare_of(&self, key: &[u8], quota: Quota) -> Counter {
        let hash = self.hasher.bare(key);
        Counter { key: hash.counter(&quota, Mode::Strict, Scope::Region), quota }
    }
}
