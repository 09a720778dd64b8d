//! Which servers are used: those that answer.
//!
//! A server that failed several times in a row is left out for a while (ejection), and so is one
//! whose health check fails. When the while is over, the next failure ejects it again. If none is
//! left, all are used: a wrong guess must not take the last server away.

use std::time::Duration;

use tokio::time::Instant;

/// How long an ejected server is left out.
pub(super) const EJECTED_FOR: Duration = Duration::from_secs(10);
/// Failed checks in a row after which a server is left out; the first that succeeds brings it back.
pub(super) const CHECKS_FAILED_MAX: u32 = 2;

/// What is known about one server.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Failures since the last response.
    failures: u32,
    ejected_until: Option<Instant>,
    /// Checks since the last that succeeded.
    checks_failed: u32,
}

/// What an observation has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Ejected,
    Unhealthy,
    Healthy,
}

impl Health {
    pub(super) fn is_usable(&self, now: Instant) -> bool {
        self.ejected_until.is_none_or(|until| now >= until)
            && self.checks_failed < CHECKS_FAILED_MAX
    }

    /// It has responded.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.ejected_until = None;
    }

    /// It has not, for the `max`-th time in a row or more it is ejected; 0 is never.
    pub(super) fn failed(&mut self, max: u32, now: Instant) -> Option<Change> {
        self.failures = self.failures.saturating_add(1);
        if max == 0 || self.failures < max || self.ejected_until.is_some_and(|until| now < until) {
            return None;
        }
        self.ejected_until = Some(now + EJECTED_FOR);
        Some(Change::Ejected)
    }

    /// The result of a check.
    pub(super) fn checked(&mut self, is_healthy: bool) -> Option<Change> {
        let before = self.checks_failed;
        self.checks_failed = if is_healthy { 0 } else { before.saturating_add(1) };
        if is_healthy && before >= CHECKS_FAILED_MAX {
            return Some(Change::Healthy);
        }
        (self.checks_failed == CHECKS_FAILED_MAX).then_some(Change::Unhealthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_eject_a_server_for_a_while() {
        let start = Instant::now();
        let mut health = Health::default();
        assert_eq!(health.failed(3, start), None);
        assert_eq!(health.failed(3, start), None);
        health.succeeded();
        assert_eq!((health.failed(3, start), health.failed(3, start)), (None, None));
        assert_eq!(health.failed(3, start), Some(Change::Ejected));
        assert_eq!(health.failed(3, start), None, "it is ejected already");
        assert!(!health.is_usable(start));
        let over = start + EJECTED_FOR;
        assert!(health.is_usable(over));
        assert_eq!(health.failed(3, over), Some(Change::Ejected), "it has one attempt");
        health.succeeded();
        assert!(health.is_usable(over));
        assert_eq!(Health::default().failed(0, start), None);
    }

    #[test]
    fn checks_in_a_row_take_a_server_out_and_one_brings_it_back() {
        let now = Instant::now();
        let mut health = Health::default();
        assert_eq!((health.checked(false), health.checked(true)), (None, None));
        assert_eq!(health.checked(false), None);
        assert!(health.is_usable(now));
        assert_eq!(health.checked(false), Some(Change::Unhealthy));
        assert_eq!(health.checked(false), None);
        assert!(!health.is_usable(now));
        health.succeeded();
        assert!(!health.is_usable(now), "requests do not outvote the check");
        assert_eq!(health.checked(true), Some(Change::Healthy));
        assert!(health.is_usable(now));
    }
}
