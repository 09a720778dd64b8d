//! `durability: replicated`: an answer waits for one copy.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::Durability;
use tidegate_limiter::store::KeyHash;
use tidegate_limiter::units::Hits;
use tidegate_ownership::identity::NodeId;

use super::Replicator;
use super::batch::Batch;
use super::counters::count;
use crate::mesh::StreamClass;
use crate::mesh::wire::{Call, Reply};

/// Whether these verdicts wait for [`Replicator::confirm`]: something was counted that a crash must
/// not forget. A peek counts nothing, and neither does an ask of which a limit refused.
pub fn is_owed(durability: Durability, hits: Hits, verdicts: &[Verdict]) -> bool {
    durability == Durability::Replicated
        && hits != Hits::PEEK
        && verdicts.iter().all(|verdict| verdict.allowed)
}

impl Replicator {
    /// Sends the present states of these keys, the counters of one check, to their replicas at
    /// once, and waits until the first of them holds all. True at once when the ring has no other
    /// node; false when none of them answers within `deadline`.
    pub async fn confirm(&self, keys: &[KeyHash], deadline: Duration) -> bool {
        let Some(first) = keys.first() else { return true };
        let targets = self.targets();
        if !targets.has_others(*first) {
            return true;
        }
        let is_confirmed = self.ask_replicas(keys, &targets.to_confirm(*first), deadline).await;
        let counters = &self.shared.counters;
        count(if is_confirmed { &counters.confirmed } else { &counters.unconfirmed }, 1);
        is_confirmed
    }

    async fn ask_replicas(
        &self,
        keys: &[KeyHash],
        replicas: &[NodeId],
        deadline: Duration,
    ) -> bool {
        let shared = &self.shared;
        let now = shared.clock.now();
        let mut batch = Batch::default();
        for counted in keys.iter().filter_map(|key| shared.store.get(*key, now)) {
            if batch.add(counted).is_err() {
                // More than a message holds: eight logs of ten thousand hits on one descriptor.
                return false;
            }
        }
        let entries = batch.into_entries();
        if entries.is_empty() {
            return true;
        }
        count(&shared.counters.sent, (entries.len() * replicas.len()) as u64);
        let ask = |to| {
            let call = Call::States(entries.clone());
            shared.mesh.call(to, StreamClass::Checks, call, deadline)
        };
        let mut answers: FuturesUnordered<_> = replicas.iter().map(ask).collect();
        while let Some(answer) = answers.next().await {
            if answer == Ok(Reply::Done) {
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
    fn only_what_was_counted_waits_for_a_copy() {
        let quota = Quota::simple(Algorithm::Gcra, 1, Span::from_secs(60)).expect("valid");
        let (mut state, now) = (State::Absent, Timestamp::from_secs(9));
        let mut ask = |hits| decide(&mut state, &quota, Hits::new(hits), now);
        let (allowed, refused) = (ask(1), ask(1));
        let durable = Durability::Replicated;
        assert!(is_owed(durable, Hits::ONE, &[allowed]));
        assert!(is_owed(durable, Hits::new(-1), &[allowed]));
        assert!(!is_owed(durable, Hits::ONE, &[allowed, refused]));
        assert!(!is_owed(durable, Hits::PEEK, &[allowed]));
        assert!(!is_owed(Durability::Async, Hits::ONE, &[allowed]));
    }
}
