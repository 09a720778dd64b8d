//! What bounds a store.

use serde::Deserialize;

/// Keys of one shard, when the number of shards is not given. Small enough that the one step that
/// takes longest, giving a full shard slightly more room, is short (the longest insertion that
/// `benches/store.rs` saw took 0.2 ms, on a machine with other work); large enough that keys spread
/// evenly, within some 5 %.
const KEYS_PER_SHARD: usize = 4_096;
/// Fewest keys of a shard: below this, chance fills one shard while its neighbour is half empty.
const KEYS_PER_SHARD_MIN: usize = 64;
/// Fewest shards of a store that has the keys for it, so that threads seldom meet.
const SHARDS_MIN: usize = 64;
/// Most shards; each costs 256 bytes empty, and eight for each page it may have (`page_index.rs`).
const SHARDS_MAX: usize = 65_536;

/// What bounds a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most counters. Each shard holds an equal share, so the first shard is full at some 95 %.
    pub keys_max: usize,
    /// What a new key gets when its shard is full.
    pub on_full: OnFull,
    /// Number of shards; `None`: one per 4,096 keys.
    pub shards: Option<usize>,
}

impl Options {
    /// The number of shards: no more than leaves each a sensible share of the keys.
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
    /// New keys of a rule share one bucket, with that rule's limit.
    #[default]
    Share,
    /// New keys are refused.
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
