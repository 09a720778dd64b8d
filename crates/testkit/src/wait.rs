//! Waiting for a condition, never for a time.

use std::time::Duration;

use tokio::time::Instant;

/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Looks until `condition` answers something and returns it and how long that took, or fails after
/// `within` with what it still lacked.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut condition: impl AsyncFnMut() -> Result<T, String>,
) -> (T, Duration) {
    let start = Instant::now();
    loop {
        match condition().await {
            Ok(found) => return (found, start.elapsed()),
            Err(lacks) => {
                assert!(start.elapsed() < within, "{what}: not within {within:?}: {lacks}");
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
