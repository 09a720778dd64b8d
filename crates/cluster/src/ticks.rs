//! Timers of one node that expire together.
//!
//! A node has a timer for each of its peers and some for itself. Begun at any time, each of them
//! wakes the process on its own; here all of one period expire in one millisecond, and wake it
//! once: `start + period`, `start + 2 * period`, and so on. Example: with pings to 29 peers every
//! 100 ms a node wakes 10 times a second, not 290 times. Nodes start at different times, so their
//! timers do not expire together.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

/// When the timers of this node began.
#[derive(Clone, Copy, Debug)]
pub struct Ticks(Instant);

impl Ticks {
    /// To be called once for each node.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Ticks at each multiple of `period` from now on; those that were missed are left out.
    ///
    /// # Panics
    ///
    /// If `period` is zero.
    pub fn every(self, period: Duration) -> Interval {
        let periods = self.0.elapsed().as_nanos() / period.as_nanos() + 1;
        let first = u64::try_from(periods * period.as_nanos()).unwrap_or(u64::MAX);
        let mut ticks = tokio::time::interval_at(self.0 + Duration::from_nanos(first), period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn timers_that_begin_at_different_times_expire_together() {
        const PERIOD: Duration = Duration::from_millis(100);
        let ticks = Ticks::start();
        let start = Instant::now();
        let mut expired = Vec::new();
        for pause in [0, 30, 45] {
            tokio::time::advance(Duration::from_millis(pause)).await;
            let mut timer = ticks.every(PERIOD);
            expired.push(tokio::spawn(async move {
                timer.tick().await;
                let first = start.elapsed();
                timer.tick().await;
                (first, start.elapsed())
            }));
        }
        for timer in expired {
            let (first, second) = timer.await.unwrap();
            assert_eq!(first.as_millis() / 10, 10, "after {first:?}");
            assert_eq!(second, first + PERIOD);
        }
    }
}
