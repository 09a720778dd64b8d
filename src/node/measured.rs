//! The decider as one door sees it: counted and timed under the door's name.

use std::sync::Arc;

use crate::config::Envoy;
use crate::decide::{Answer, Ask, Decide, Decider};
use crate::observe::metrics::Door;
use crate::observe::tally::Tallies;
use crate::seam::Clock;

/// Decides, and notes for the metrics how it went and how long it took.
#[derive(Debug)]
pub(super) struct Measured {
    decider: Decider,
    door: Door,
    clock: Arc<dyn Clock>,
}

impl Measured {
    pub(super) fn new(decider: Decider, door: Door) -> Self {
        let clock = decider.parts().clock.clone();
        Self { decider, door, clock }
    }
}

impl Decide for Measured {
    async fn decide(&self, ask: Ask<'_>) -> Answer {
        let start = self.clock.now();
        let answer = self.decider.decide(ask).await;
        self.door.latency.record(self.clock.now().since(start));
        let counter = if answer.allowed { &self.door.allowed } else { &self.door.denied };
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
}
