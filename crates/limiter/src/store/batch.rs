//! Many checks of one counter each, decided one after the other, their memory fetched ahead.
//!
//! Each takes its own lock and is decided as it would be alone, in the order of the slice. The only
//! difference is time: while one is decided, the slots of the [`AHEAD`] next ones are on their way
//! (`prefetch.rs`), so a thread waits for memory about once where it would wait as often as there
//! are checks.
//!
//! **Measured** (a million keys in random order, one thread): 310 to 400 ns a check one by one,
//! 95 to 140 ns in batches of 32, as quiet as the machine was (`docs/benchmarks.md`).

use super::Store;
use super::background_scan::LocalActor;
use super::check::{Counter, Question};
use super::counting_mode::CountingMode;
use crate::engine::Verdict;
use crate::units::{Hits, Timestamp};

/// How many checks ahead of its decision the memory of a check is asked for. From 4 to 16 the time
/// a check takes did not change beyond noise.
const AHEAD: usize = 8;

/// A counter that is asked for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleCheck {
    /// What is counted.
    pub counter: Counter,
    /// What is taken from it; zero looks and leaves no trace.
    pub hits: Hits,
}

impl Store {
    /// Decides `asks` in their order as [`Store::check_if`] does, and hands what came of each to
    /// `answer`: `None` where `owns`, asked under the lock for its place, says no.
    pub fn check_batch_if(
        &self,
        asks: &[SingleCheck],
        now: Timestamp,
        owns: impl Fn(u64) -> bool,
        answer: impl FnMut(Option<Verdict>),
    ) {
        self.each(asks, CountingMode::Strict, now, owns, answer);
    }

    /// Decides `asks` in their order as [`Store::check_eventual`] does.
    pub fn check_batch_eventual(
        &self,
        asks: &[SingleCheck],
        me: impl Into<LocalActor>,
        now: Timestamp,
        mut answer: impl FnMut(Verdict),
    ) {
        let (always, counting_mode) = (|_| true, CountingMode::Eventual(me.into()));
        self.each(asks, counting_mode, now, always, |verdict| verdict.map_or((), &mut answer));
    }

    fn each(
        &self,
        asks: &[SingleCheck],
        counting_mode: CountingMode,
        now: Timestamp,
        owns: impl Fn(u64) -> bool,
        mut answer: impl FnMut(Option<Verdict>),
    ) {
        for ask in asks.iter().take(AHEAD) {
            self.fetch(&ask.counter);
        }
        for (at, ask) in asks.iter().enumerate() {
            if let Some(later) = asks.get(at + AHEAD) {
                self.fetch(&later.counter);
            }
            let token = ask.counter.key.token;
            let mut shard = self.shard(token).lock();
            let question = Question { hits: ask.hits, now, counting_mode };
            let verdict =
                owns(token).then(|| shard.check_single(&ask.counter, question, &self.overflow));
            drop(shard);
            answer(verdict);
        }
    }

    /// Asks for the memory that a check of `counter` will read.
    fn fetch(&self, counter: &Counter) {
        self.shard(counter.key.token).fetch(counter.key);
    }
}
