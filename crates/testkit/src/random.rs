//! Random numbers from a seed that a failure prints.

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Another generator, whose numbers are independent of those of this one.
    #[must_use]
    pub fn apart(&mut self) -> Self {
        Self(self.next())
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        let below = self.next() % u64::try_from(bound.max(1)).expect("64 bits");
        usize::try_from(below).expect("below a usize")
    }

    /// The numbers below `count` in a random order.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        self.shuffle(&mut order);
        order
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Distance between two states.
pub(crate) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that belongs to a state.
pub(crate) fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
