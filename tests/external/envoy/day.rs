//! The rules of these tests have windows of a day, which end at midnight UTC.

use std::time::{Duration, SystemTime};

const DAY_SECS: u64 = 86_400;
/// Longer than any of the tests takes.
const TEST_SECS: u64 = 90;

/// Waits for the next day when this one is about to end.
pub(crate) async fn far_from_its_end() {
    let left = seconds_left();
    if left <= TEST_SECS {
        println!("the day ends in {left} s; wait for the next");
        tokio::time::sleep(Duration::from_secs(left + 1)).await;
    }
}

/// Seconds until the windows end, rounded up.
#[expect(clippy::disallowed_methods, reason = "what matters is the day that the nodes see")]
pub(crate) fn seconds_left() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    DAY_SECS - now.as_secs() % DAY_SECS
}
