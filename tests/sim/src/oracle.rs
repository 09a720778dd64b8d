//! The oracle: one exact node that hears every hit at the moment its ask was answered.

use tidegate_limiter::engine::{State, decide};
use tidegate_limiter::units::{Hits, Span, Timestamp};

use crate::history::Record;
use crate::keys::Key;

/// Hits of `key` that one exact node would admit of those in `records` that an owner
/// judged.
///
/// Exact for limits whose window outlasts the run: which ask comes first makes no difference then,
/// only how many there are.
pub(crate) fn admitted(key: Key, records: &[Record]) -> u64 {
    let quota = key.kind.quota();
    let mut state = State::Absent;
    let mut admitted = 0;
    for record in records.iter().filter(|record| record.key == key && record.is_judged()) {
        let now = START.plus(Span::from_millis(record.at_ms));
        if decide(&mut state, &quota, Hits::new(record.hits), now).allowed {
            admitted += record.hits.unsigned_abs();
        }
    }
    admitted
}

/// Any instant that no window of a day ends after within a run.
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
