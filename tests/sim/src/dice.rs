//! Random numbers, drawn from the seed of the run.

use std::io;
use std::sync::{Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate_cluster::environment::Entropy;

/// A random number stream. Each component of a run has its own, so an extra draw in one does not
/// change the others.
#[derive(Debug)]
pub(crate) struct Dice(StdRng);

/// Probabilities are in parts per million.
const MILLION: u64 = 1_000_000;

impl Dice {
    /// The stream of `part` in the run of `seed`. Changing the name of a part changes every run.
    pub(crate) fn new(seed: u64, part: &str) -> Self {
        // FNV-1a. Any hash works that is the same on every build.
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let part = part.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
        Self(StdRng::seed_from_u64(seed ^ part))
    }

    /// A number from `0` up to, not including, `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The bias of the remainder is 2^-40 at the sizes drawn here.
        self.0.next_u64() % end.max(1)
    }

    /// A number from `first` to `last`, both included.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// A number from `-most` to `most`.
    pub(crate) fn around(&mut self, most: i64) -> i64 {
        let width = most.unsigned_abs() * 2 + 1;
        i64::try_from(self.below(width)).unwrap_or(0) - most
    }

    /// An index below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap_or(0)
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// True in `ppm` of a million draws.
    pub(crate) fn chance(&mut self, ppm: u32) -> bool {
        self.below(MILLION) < u64::from(ppm)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

/// The product's entropy source in one process.
#[derive(Debug)]
pub(crate) struct SimEntropy(Mutex<Dice>);

impl SimEntropy {
    pub(crate) fn new(dice: Dice) -> Self {
        Self(Mutex::new(dice))
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
        Ok(())
    }
}
