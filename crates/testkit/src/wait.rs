//! Waiting for a condition, never for a time.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use tokio::time::Instant;

/// How often a condition is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Far above what anything in a test takes: it ends a test that would hang.
pub const HANGS_AFTER: Duration = Duration::from_secs(60);

/// Polls `condition` until it returns something; returns that, and how long it took. Fails after
/// `within` with the last reason.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut condition: impl AsyncFnMut() -> Result<T, String>,
) -> (T, Duration) {
    let start = Instant::now();
    loop {
        match condition().await {
            Ok(found) => return (found, start.elapsed()),
            Err(reason) => {
                assert!(start.elapsed() < within, "{what}: not within {within:?}: {reason}");
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Polls `holds` until it is true and returns how long it took. Fails after `within`.
pub async fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < within, "not within {within:?}: {what}");
        // Short, because some callers measure how long it took.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    start.elapsed()
}

/// Waits for `future`. Fails when it takes so long that it hangs.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(HANGS_AFTER, future).await else {
        panic!("{what}: not within {HANGS_AFTER:?}");
    };
    value
}

/// The lines of a file that a process writes: not the last one as long as it has no end. None
/// without the file.
pub fn whole_lines(file: &Path) -> Vec<String> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.unwrap(),
    };
    text.rsplit_once('\n')
        .map_or_else(Vec::new, |(whole, _)| whole.lines().map(str::to_owned).collect())
}
