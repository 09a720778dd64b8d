//! The bounds of a store.

use serde::Deserialize;

/// Keys per shard when the number of shards is not set. Small enough that growing a shard, the
/// longest operation under a lock, is short (the longest insertion in `benches/store.rs` took 0.2
/// ms); large enough that keys spread evenly, within some 5 %.
const KEYS_PER_SHARD: usize = 4_096;
/// Fewest keys per shard: below this, one shard may be full while its neighbour is half empty.
const KEYS_PER_SHARD_MIN: usize = 64;
/// Fewest shards of a store with enough keys, to keep lock contention low.
const SHARDS_MIN: usize = 64;
/// Most shards. Each costs 256 bytes when empty, and eight for each page that it may have
/// (`PageIndex`).
const SHARDS_MAX: usize = 65_536;

/// The bounds of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most counters. Each shard gets an equal part, so the first shard is full at some 95 %.
    pub keys_max: usize,
    /// What a new key gets when its shard is full.
    pub on_full: OnFull,
    /// Number of shards; `None` means one per 4,096 keys.
    pub shards: Option<usize>,
}

impl Options {
    /// The number of shards, limited so that each holds at least [`KEYS_PER_SHARD_MIN`] keys.
    pub(super) fn shards(&self) -> usize {
        let most = (self.keys_max / KEYS_PER_SHARD_MIN).clamp(1, SHARDS_MAX);
        let usual = (self.keys_max / KEYS_PER_SHARD).max(SHARDS_MIN);
        self.shards.unwrap_or(usual).clamp(1, most)
    }
}

/// What a new key gets when the store is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// New keys with the same quota share one counter.
    #[default]
    Share,
    /// Requests for new keys are denied.
    Refuse,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_follow_the_number_of_keys() {
        let shards =
            |keys_max, shards| Options { keys_max, on_full: OnFull::Share, shards }.shards();
        assert_eq!(shards(1_000_000, None), 244);
        assert_eq!(shards(10_000, None), 64);
        assert_eq!(shards(100, None), 1);
        assert_eq!(shards(0, None), 1);
        assert_eq!(shards(1_000_000, Some(8)), 8);
        assert_eq!(shards(1_000_000, Some(0)), 1);
        assert_eq!(shards(100, Some(8)), 1);
    }
}
