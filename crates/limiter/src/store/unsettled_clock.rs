//! A store whose clock is not settled yet.
//!
//! A node that starts loads the counts of its last run before it knows by which time the others
//! decide. Its own clock may be ahead of that: by it the windows of those counts would be over, and
//! a limit that is used up would be granted again. And when the clock is set back, what was done
//! before must not hold for later decisions.
//!
//! Example: counts of 10:00 are loaded at 13:00 by the clock of the machine, and stay, though their
//! hour is over. Others decide at 10:05, so the clock is set back, and the hour is used up still.
//! A share that was counted at 13:00 is dropped: it would refuse hits until 14:00.

use super::sharded::{PaddedShard, Store};
use crate::units::Timestamp;

impl Store {
    /// From now on counters that an owner decides are kept when they expire, until
    /// [`Store::clock_is_settled`]. Nothing may be decided by an owner before that. The others
    /// expire as ever, so that a node which answers by its own shares for long does not fill up.
    pub fn keep_owned(&self) {
        for padded in &self.shards {
            padded.lock().keeps_owned = true;
        }
    }

    /// The clock was set back to `now`, and no owner has decided by it before. Drops shares and the
    /// counters of the future, which no other node would merge, or everything if what was loaded is
    /// of the future (`keeps_loaded` is false); returns how many. Locks each shard for a pass over
    /// its counters.
    pub fn clock_went_back(&self, now: Timestamp, keeps_loaded: bool) -> usize {
        let went_back = |padded: &PaddedShard| padded.lock().went_back(now, keeps_loaded);
        self.shards.iter().map(went_back).sum()
    }

    /// Counters expire from now on.
    pub fn clock_is_settled(&self) {
        for padded in &self.shards {
            padded.lock().keeps_owned = false;
        }
    }
}
