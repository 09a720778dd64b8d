//! `durability: replicated`: a verdict waits for one copy of its counters.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::Durability;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::Hits;
use tidegate_ownership::identity::NodeId;

use super::batch::Batch;
use super::replicator::{Replicator, count};
use crate::mesh::StreamClass;
use crate::mesh::wire::{Call, Reply};

/// Whether these verdicts wait for [`Replicator::confirm`]: something was counted. A peek counts
/// nothing, and neither does a check that one of its limits denied.
pub fn awaits_confirm(durability: Durability, hits: Hits, verdicts: &[Verdict]) -> bool {
    durability == Durability::Replicated
        && hits != Hits::PEEK
        && verdicts.iter().all(|verdict| verdict.allowed)
}

impl Replicator {
    /// Sends the current states of these keys, the counters of one check, to their replicas, and
    /// waits until one replica holds all of them. Returns true at once if the ring has no other
    /// node, and false if no replica confirms within `deadline`.
    pub async fn confirm(&self, keys: &[KeyHash], deadline: Duration) -> bool {
        let Some(first) = keys.first() else { return true };
        let targets = self.targets();
        if !targets.has_others(*first) {
            return true;
        }
        let is_confirmed = self.confirm_by(keys, &targets.confirming(*first), deadline).await;
        let counters = &self.shared.counters;
        count(if is_confirmed { &counters.confirmed } else { &counters.unconfirmed }, 1);
        is_confirmed
    }

    async fn confirm_by(&self, keys: &[KeyHash], replicas: &[NodeId], deadline: Duration) -> bool {
        let shared = &self.shared;
        let now = shared.clock.now();
        let mut batch = Batch::default();
        for counter in keys.iter().filter_map(|key| shared.store.get(*key, now)) {
            if batch.add(counter).is_err() {
                // More than a message can hold: eight logs of ten thousand hits on one descriptor.
                return false;
            }
        }
        let entries = batch.into_entries();
        if entries.is_empty() {
            return true;
        }
        count(&shared.counters.sent, (entries.len() * replicas.len()) as u64);
        let call = |to| {
            let call = Call::States(entries.clone());
            shared.mesh.call(to, StreamClass::Checks, call, deadline)
        };
        let mut replies: FuturesUnordered<_> = replicas.iter().map(call).collect();
        while let Some(reply) = replies.next().await {
            if reply == Ok(Reply::Done) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::{State, decide};
    use tidegate_limiter::quota::{Algorithm, Quota};
    use tidegate_limiter::units::{Span, Timestamp};

    use super::*;

    #[test]
    fn only_counted_hits_wait_for_a_copy() {
        let quota = Quota::simple(Algorithm::Gcra, 1, Span::from_secs(60)).expect("valid");
        let (mut state, now) = (State::Absent, Timestamp::from_secs(9));
        let mut check = |hits| decide(&mut state, &quota, Hits::new(hits), now);
        let (allowed, denied) = (check(1), check(1));
        let durable = Durability::Replicated;
        assert!(awaits_confirm(durable, Hits::ONE, &[allowed]));
        assert!(awaits_confirm(durable, Hits::new(-1), &[allowed]));
        assert!(!awaits_confirm(durable, Hits::ONE, &[allowed, denied]));
        assert!(!awaits_confirm(durable, Hits::PEEK, &[allowed]));
        assert!(!awaits_confirm(Durability::Async, Hits::ONE, &[allowed]));
    }
}
