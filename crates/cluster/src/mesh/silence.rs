//! For how long a peer has been silent.
//!
//! Peers that are not in use are pinged seldom, so having received nothing says nothing: silence
//! begins with a ping. Example: a peer that is pinged every 100 ms sent its last bytes at 0 and
//! crashed. It is silent for 350 ms at 350 ms, whether it was pinged at 10 or at 90 ms. One that
//! was idle for a minute and is pinged again counts as silent for 100 ms then, and for 350 ms a
//! quarter of a second later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How often a peer is pinged that votes or is in use.
pub const PING_INTERVAL: Duration = Duration::from_millis(100);

/// When something was last received from a peer, and since when it owes an answer; shared by the
/// tasks that read from it and ping it.
#[derive(Clone, Debug)]
pub(super) struct LastSeen {
    start: Instant,
    last_ns: Arc<AtomicU64>,
    /// The first ping after that.
    pinged_ns: Arc<AtomicU64>,
}

impl LastSeen {
    pub(super) fn now() -> Self {
        Self { start: Instant::now(), last_ns: Arc::default(), pinged_ns: Arc::default() }
    }

    pub(super) fn touch(&self) {
        self.last_ns.store(self.since_start_ns(), Ordering::Relaxed);
    }

    pub(super) fn pinged(&self) {
        if self.pinged_ns.load(Ordering::Relaxed) <= self.last_ns.load(Ordering::Relaxed) {
            self.pinged_ns.store(self.since_start_ns(), Ordering::Relaxed);
        }
    }

    /// Since when it should have answered: since the last bytes of it, or since the interval
    /// between pings before the first one that followed, whichever is later. Zero when no ping is
    /// unanswered: an idle peer is pinged seldom, and silent in between.
    pub(super) fn silence(&self) -> Duration {
        let last = self.last_ns.load(Ordering::Relaxed);
        let pinged = self.pinged_ns.load(Ordering::Relaxed);
        if pinged <= last {
            return Duration::ZERO;
        }
        let interval = u64::try_from(PING_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
        let since = last.max(pinged.saturating_sub(interval));
        Duration::from_nanos(self.since_start_ns().saturating_sub(since))
    }

    /// Whether something was received within [`PING_INTERVAL`].
    pub(super) fn is_fresh(&self) -> bool {
        let last = Duration::from_nanos(self.last_ns.load(Ordering::Relaxed));
        Duration::from_nanos(self.since_start_ns()).saturating_sub(last) <= PING_INTERVAL
    }

    fn since_start_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_peer_that_is_pinged_is_silent() {
        let seen = LastSeen::now();
        let advance = tokio::time::advance;
        advance(ms(10_000)).await;
        assert_eq!(seen.silence(), Duration::ZERO);
        seen.pinged();
        assert_eq!(seen.silence(), PING_INTERVAL);
        advance(ms(200)).await;
        seen.pinged();
        assert_eq!(seen.silence(), ms(300), "since the first ping that was not answered");
        seen.touch();
        assert_eq!(seen.silence(), Duration::ZERO);
        advance(ms(50)).await;
        seen.pinged();
        assert_eq!(seen.silence(), ms(50), "not before its last bytes");
    }
}
