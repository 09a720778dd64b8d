//! The decider with the metrics of one listener, and of limits that requests carry.

use std::sync::Arc;

use tidegate_cluster::environment::Clock;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_rules::tally::Tallies;

use crate::config::Envoy;
use crate::decide::{
    CarriedCheck, CarriedVerdict, CheckRequest, CheckResponse, CommitRequest, Committed, Decide,
    DecideCarried, Decider, Entered, LimitInFlight, Reservation, Reserve, ReserveRequest, Throttle,
    ThrottleRequest, Uncommitted,
};
use crate::observe::metrics::Listener;
use crate::traces::Traces;

/// Decides, and records outcome and duration in the listener's metrics.
#[derive(Debug)]
pub(super) struct Measured {
    decider: Decider,
    listener: Listener,
    clock: Arc<dyn Clock>,
}

impl Measured {
    pub(super) fn new(decider: Decider, listener: Listener, clock: Arc<dyn Clock>) -> Self {
        Self { decider, listener, clock }
    }
}

impl Decide for Measured {
    async fn decide(&self, request: CheckRequest<'_>) -> CheckResponse {
        let start = self.clock.monotonic();
        let answer = self.decider.decide(request).await;
        self.listener.latency.record(self.clock.monotonic().since(start));
        let counter = if answer.allowed { &self.listener.allowed } else { &self.listener.denied };
        counter.inc();
        answer
    }

    fn is_loaded(&self) -> bool {
        self.decider.is_loaded()
    }

    fn envoy(&self) -> &Envoy {
        self.decider.envoy()
    }

    fn tallies(&self) -> Option<&Tallies> {
        self.decider.tallies()
    }

    fn traces(&self) -> Option<&Traces> {
        self.decider.traces()
    }
}

impl Reserve for Measured {
    async fn reserve(&self, request: ReserveRequest<'_>) -> Reservation {
        let start = self.clock.monotonic();
        let answer = self.decider.reserve(request).await;
        self.listener.latency.record(self.clock.monotonic().since(start));
        let is_allowed = answer.response.allowed;
        if is_allowed {
            self.listener.allowed.inc()
        } else {
            self.listener.denied.inc()
        };
        answer
    }

    /// No verdict, so it counts as neither.
    async fn commit(&self, request: CommitRequest<'_>) -> Result<Committed, Uncommitted> {
        self.decider.commit(request).await
    }
}

impl LimitInFlight for Measured {
    /// A part of a verdict that is recorded already.
    async fn enter(&self, request: CheckRequest<'_>) -> Entered {
        self.decider.enter(request).await
    }
}

impl DecideCarried for Measured {
    /// As for [`Throttle::throttle`].
    async fn decide_carried(&self, checks: &[CarriedCheck<'_>]) -> Vec<CarriedVerdict> {
        let start = self.clock.monotonic();
        let decided = self.decider.decide_carried(checks).await;
        self.decider.count_carried(checks, &decided);
        let took = self.clock.monotonic().since(start);
        let allowed = decided.iter().filter(|it| it.verdict.allowed).count() as u64;
        self.count(took, decided.len() as u64, allowed);
        decided
    }

    fn now(&self) -> Timestamp {
        self.decider.now()
    }
}

impl Throttle for Measured {
    /// Two looks at the clock and one addition to each counter for all requests together.
    async fn throttle(&self, requests: &[ThrottleRequest<'_>], verdicts: &mut Vec<Verdict>) {
        let begun = verdicts.len();
        let start = self.clock.monotonic();
        self.decider.throttle(requests, verdicts).await;
        let took = self.clock.monotonic().since(start);
        let decided = verdicts.get(begun..).unwrap_or_default();
        let allowed = decided.iter().filter(|verdict| verdict.allowed).count() as u64;
        self.count(took, decided.len() as u64, allowed);
    }
}

impl Measured {
    /// Adds up decisions that were made together.
    fn count(&self, took: Span, all: u64, allowed: u64) {
        self.listener.latency.record_many(took, all);
        for (counter, count) in [
            (&self.listener.allowed, allowed),
            (&self.listener.denied, all.saturating_sub(allowed)),
        ] {
            if count > 0 {
                counter.inc_by(count);
            }
        }
    }
}
