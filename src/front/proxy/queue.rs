//! Requests that wait for their turn: a leaky bucket used as a queue admits with a delay, and the
//! proxy holds the request for as long.
//!
//! Bounded in time (`auth.hold_max`) and in number (`proxy.held_max`). A client that disconnects
//! while its request is held leaves its turn unused.

use std::time::Duration;

use tokio::sync::Semaphore;

#[derive(Debug)]
pub(super) struct Queue {
    hold_max: Duration,
    places: Semaphore,
}

/// The request would wait for too long, or too many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Queue {
    pub(super) fn new(hold_max: Duration, held_max: usize) -> Self {
        Self { hold_max, places: Semaphore::new(held_max.min(Semaphore::MAX_PERMITS)) }
    }

    /// Waits for `delay`.
    pub(super) async fn hold(&self, delay: Duration) -> Result<(), TooLong> {
        if delay.is_zero() {
            return Ok(());
        }
        if delay > self.hold_max {
            return Err(TooLong);
        }
        let _place = self.places.try_acquire().map_err(|_| TooLong)?;
        tokio::time::sleep(delay).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_held_for_its_delay_within_both_bounds() {
        let queue = Queue::new(Duration::from_secs(2), 1);
        let start = tokio::time::Instant::now();
        let mut first = std::pin::pin!(queue.hold(Duration::from_secs(2)));
        assert_eq!(first.as_mut().now_or_never(), None);
        assert_eq!(queue.hold(Duration::from_secs(1)).await, Err(TooLong), "no place");
        assert_eq!(queue.hold(Duration::ZERO).await, Ok(()));
        assert_eq!(queue.hold(Duration::from_millis(2_001)).await, Err(TooLong), "too long");
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(first.await, Ok(()));
        assert_eq!(start.elapsed(), Duration::from_secs(2));
        assert_eq!(queue.hold(Duration::from_secs(1)).await, Ok(()), "the place is free again");
    }
}
