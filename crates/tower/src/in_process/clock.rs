//! The clock of decisions: the system's time at the start, advanced by the monotonic clock.
//!
//! A system clock may be set back, or ahead by years for a minute, and neither may admit or refuse
//! hits. So it is read once. Windows begin at whole minutes of that time: after a correction of the
//! system clock by one second they begin one second off, which no limit notices.

use std::time::{Instant, SystemTime};

use tidegate_limiter::units::{Span, Timestamp};

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
    time: Timestamp,
}

#[expect(clippy::disallowed_methods, reason = "the one place of this crate that reads clocks")]
impl Clock {
    pub(super) fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = Timestamp::EPOCH.plus(Span::from(since_epoch.unwrap_or_default()));
        Self { start: Instant::now(), time }
    }

    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        self.time.plus(Span::from(self.start.elapsed()))
    }
}
