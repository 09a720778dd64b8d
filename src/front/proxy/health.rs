//! Which servers are used: those that answer.
//!
//! A server that failed several times in a row is left out for a while (ejection), and so is one
//! whose health check fails. When the while is over, one request tries it; the others go elsewhere
//! until that has ended. A response brings the server back; a failure, also that of a health check,
//! ejects it again. A health check that succeeds does not bring it back: it may be all that the
//! server can answer.
//! If none is left, all are used: a wrong guess must not take the last server away.
//!
//! ```text
//! used ── failures in a row ─▶ ejected ── 10 s ─▶ open to one attempt ── response ─▶ used
//!                                 ▲                  └─ failure ─┘
//! ```

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
    /// Until there was a response.
    ejected_until: Option<Instant>,
    /// After that time: whether a request tries the server.
    is_tried: bool,
    /// Checks since the last that succeeded.
    checks_failed: u32,
}

/// Whether a request may be sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Usual,
    /// As the one attempt; ends with [`Health::tried`].
    Attempt,
    LeftOut,
}

/// What an observation has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Ejected,
    Unhealthy,
    Healthy,
}

impl Health {
    /// Whether a request may be sent now; if as the attempt, further ones may not.
    pub(super) fn enter(&mut self, now: Instant) -> Use {
        match self.ejected_until {
            _ if self.checks_failed >= CHECKS_FAILED_MAX => Use::LeftOut,
            None => Use::Usual,
            Some(_) if self.is_due(now) => {
                self.is_tried = true;
                Use::Attempt
            }
            Some(_) => Use::LeftOut,
        }
    }

    /// Whether the next request is the attempt.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_over = self.ejected_until.is_some_and(|until| now >= until);
        is_over && !self.is_tried && self.checks_failed < CHECKS_FAILED_MAX
    }

    /// The attempt is over. Without a result, as when the client has left, there is another.
    pub(super) fn tried(&mut self) {
        self.is_tried = false;
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
    pub(super) fn checked(&mut self, is_healthy: bool, now: Instant) -> Option<Change> {
        if let Some(until) =
            self.ejected_until.as_mut().filter(|until| !is_healthy && now >= **until)
        {
            *until = now + EJECTED_FOR;
        }
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
        assert_eq!(health.enter(start), Use::LeftOut);
        assert_eq!(Health::default().failed(0, start), None);
    }

    #[test]
    fn a_server_that_was_left_out_has_one_attempt() {
        let start = Instant::now();
        let mut health = Health::default();
        assert_eq!(health.failed(1, start), Some(Change::Ejected));
        let over = start + EJECTED_FOR;
        assert_eq!((health.enter(over), health.enter(over)), (Use::Attempt, Use::LeftOut));
        health.tried();
        assert_eq!(health.enter(over), Use::Attempt, "the first had no result");
        assert_eq!(health.failed(1, over), Some(Change::Ejected));
        health.tried();
        let again = over + EJECTED_FOR;
        assert_eq!((health.enter(over), health.enter(again)), (Use::LeftOut, Use::Attempt));
        assert_eq!(health.checked(true, again), None);
        assert_eq!(health.enter(again), Use::LeftOut, "a check that succeeds changes nothing");
        health.succeeded();
        health.tried();
        assert_eq!((health.enter(again), health.enter(again)), (Use::Usual, Use::Usual));
    }

    #[test]
    fn a_check_that_fails_is_a_failed_attempt() {
        let start = Instant::now();
        let mut health = Health::default();
        health.failed(1, start);
        assert_eq!(health.checked(false, start), None);
        let over = start + EJECTED_FOR;
        assert_eq!(health.checked(true, over), None);
        assert_eq!(health.checked(false, over), None);
        assert_eq!(health.enter(over), Use::LeftOut);
        assert_eq!(health.enter(over + EJECTED_FOR), Use::Attempt);
    }

    #[test]
    fn checks_in_a_row_take_a_server_out_and_one_brings_it_back() {
        let now = Instant::now();
        let mut health = Health::default();
        assert_eq!((health.checked(false, now), health.checked(true, now)), (None, None));
        assert_eq!(health.checked(false, now), None);
        assert_eq!(health.enter(now), Use::Usual);
        assert_eq!(health.checked(false, now), Some(Change::Unhealthy));
        assert_eq!(health.checked(false, now), None);
        assert_eq!(health.enter(now), Use::LeftOut);
        health.succeeded();
        assert_eq!(health.enter(now), Use::LeftOut, "requests do not outvote the check");
        assert_eq!(health.checked(true, now), Some(Change::Healthy));
        assert_eq!(health.enter(now), Use::Usual);
    }
}
