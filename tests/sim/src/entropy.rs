//! Randomness of a node, drawn from the seed.

use std::io;
use std::sync::{Mutex, PoisonError};

use tidegate_cluster::environment::Entropy;

use crate::dice::Dice;

/// The randomness of one process.
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
