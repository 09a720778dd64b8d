//! What one node counts of a rule: hits, where its checks were decided, and what became of granted
//! hits.
//!
//! A check adds to a handful of counters, which its rule leads to without a search.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::tally::{Tallies, Tally};

/// The counters of one rule on one node. Those that most checks add to come first.
#[derive(Debug, Default)]
pub struct RuleStats {
    /// Hits admitted.
    pub allowed: AtomicU64,
    /// Hits refused.
    pub denied: AtomicU64,
    /// Of the hits admitted those above a soft limit.
    pub soft_limited: AtomicU64,
    /// Checks decided by this node's counters: it owns the key, or the rule is eventual.
    pub local: AtomicU64,
    /// Checks of a leased rule admitted from hits that were granted to this node.
    pub by_grant: AtomicU64,
    pub grants: GrantedHits,
    /// Checks that waited for the owner of their key.
    pub by_owner: AtomicU64,
    /// Those of them that were admitted.
    pub admitted_by_owner: AtomicU64,
    /// Checks refused from the negative cache.
    pub remembered: AtomicU64,
    /// Checks decided by `on_unavailable`.
    pub unavailable: AtomicU64,
    /// Checks of an eventual rule decided while this node had no lease, so that it may have been
    /// without the counts of others.
    pub alone: AtomicU64,
    /// Hits that a rule in shadow mode would have refused.
    pub shadowed: AtomicU64,
    /// Checks of a leased rule refused while others than the node that asked held granted hits.
    pub refused_early: AtomicU64,
    /// The limits of the windows of an eventual rule that this node has seen used up, summed.
    pub full_hits: AtomicU64,
    /// The hits over the limit in these windows.
    pub over_hits: AtomicU64,
    /// The tally under the rule's id, looked up once.
    tally: OnceLock<Arc<Tally>>,
}

/// Granted hits since the start, by what became of them. Those received or refunded and in none of
/// the others are held.
#[derive(Debug, Default)]
pub struct GrantedHits {
    pub received: AtomicU64,
    /// Spent, and given back by a client while the grant was held.
    pub refunded: AtomicU64,
    pub spent: AtomicU64,
    /// Sent back to their owner, which takes off what it can: at their end, by a node that leaves,
    /// or because the rule has changed.
    pub given_back: AtomicU64,
    /// Sent back to their owner at its request.
    pub recalled: AtomicU64,
    /// Received too late to be spent.
    pub late: AtomicU64,
}

/// A reading of [`RuleStats`], in its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleCounts {
    pub allowed: u64,
    pub denied: u64,
    pub soft_limited: u64,
    pub shadowed: u64,
    pub local: u64,
    pub by_grant: u64,
    pub by_owner: u64,
    pub admitted_by_owner: u64,
    pub remembered: u64,
    pub unavailable: u64,
    pub alone: u64,
    pub refused_early: u64,
    pub grants: GrantedCounts,
    pub full_hits: u64,
    pub over_hits: u64,
}

/// A reading of [`GrantedHits`], in its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrantedCounts {
    pub received: u64,
    pub refunded: u64,
    pub spent: u64,
    pub given_back: u64,
    pub recalled: u64,
    pub late: u64,
}

// === impl RuleStats ===

impl RuleStats {
    /// Adds `n` to one of the counters. Relaxed: statistics need no ordering.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// The rule's tally in `tallies`. It is looked up by `id` once, so a process must pass the same
    /// `tallies` every time.
    pub fn tally(&self, tallies: &Tallies, id: &str) -> &Arc<Tally> {
        self.tally.get_or_init(|| tallies.of(id))
    }

    pub fn read(&self) -> RuleCounts {
        RuleCounts {
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            soft_limited: read(&self.soft_limited),
            shadowed: read(&self.shadowed),
            local: read(&self.local),
            by_grant: read(&self.by_grant),
            by_owner: read(&self.by_owner),
            admitted_by_owner: read(&self.admitted_by_owner),
            remembered: read(&self.remembered),
            unavailable: read(&self.unavailable),
            alone: read(&self.alone),
            refused_early: read(&self.refused_early),
            grants: self.grants.read(),
            full_hits: read(&self.full_hits),
            over_hits: read(&self.over_hits),
        }
    }
}

impl GrantedHits {
    pub fn read(&self) -> GrantedCounts {
        GrantedCounts {
            received: read(&self.received),
            refunded: read(&self.refunded),
            spent: read(&self.spent),
            given_back: read(&self.given_back),
            recalled: read(&self.recalled),
            late: read(&self.late),
        }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

// === impl RuleCounts ===

impl RuleCounts {
    /// Checks that were decided, whatever the result.
    pub fn checks(&self) -> u64 {
        let Self { local, by_grant, by_owner, remembered, unavailable, alone, .. } = self;
        let decided = [local, by_grant, by_owner, remembered, unavailable, alone];
        decided.into_iter().fold(0, |sum, checks| sum.saturating_add(*checks))
    }

    /// How far windows that were used up are over their limits, as a part of these; `None` while
    /// none was. Example: 0.05 if 1,050 hits were admitted of 1,000.
    #[expect(clippy::cast_precision_loss, reason = "an estimate, for display")]
    pub fn error(&self) -> Option<f64> {
        (self.full_hits > 0).then(|| self.over_hits as f64 / self.full_hits as f64)
    }

    /// Adds the counts of another rule.
    pub fn add(&mut self, other: &Self) {
        let (mine, theirs) = (&mut self.grants, &other.grants);
        for (sum, more) in [
            (&mut self.allowed, other.allowed),
            (&mut self.denied, other.denied),
            (&mut self.soft_limited, other.soft_limited),
            (&mut self.shadowed, other.shadowed),
            (&mut self.local, other.local),
            (&mut self.by_grant, other.by_grant),
            (&mut self.by_owner, other.by_owner),
            (&mut self.admitted_by_owner, other.admitted_by_owner),
            (&mut self.remembered, other.remembered),
            (&mut self.unavailable, other.unavailable),
            (&mut self.alone, other.alone),
            (&mut self.refused_early, other.refused_early),
            (&mut mine.received, theirs.received),
            (&mut mine.refunded, theirs.refunded),
            (&mut mine.spent, theirs.spent),
            (&mut mine.given_back, theirs.given_back),
            (&mut mine.recalled, theirs.recalled),
            (&mut mine.late, theirs.late),
            (&mut self.full_hits, other.full_hits),
            (&mut self.over_hits, other.over_hits),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl GrantedCounts {
    /// Hits that may still be spent. The counters are read one after the other, so while some are
    /// being spent it is an estimate.
    pub fn held(&self) -> u64 {
        let Self { received, refunded, spent, given_back, recalled, late } = *self;
        (received + refunded).saturating_sub(spent + given_back + recalled + late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_every_counter() {
        let stats = RuleStats::default();
        let counters = [
            &stats.allowed,
            &stats.denied,
            &stats.soft_limited,
            &stats.shadowed,
            &stats.local,
            &stats.by_grant,
            &stats.by_owner,
            &stats.admitted_by_owner,
            &stats.remembered,
            &stats.unavailable,
            &stats.alone,
            &stats.refused_early,
            &stats.grants.received,
            &stats.grants.refunded,
            &stats.grants.spent,
            &stats.grants.given_back,
            &stats.grants.recalled,
            &stats.grants.late,
            &stats.full_hits,
            &stats.over_hits,
        ];
        for (n, counter) in (1..).zip(counters) {
            RuleStats::add(counter, n);
        }
        let once = stats.read();
        let mut twice = once;
        twice.add(&once);
        for (n, counter) in (1..).zip(counters) {
            RuleStats::add(counter, n);
        }
        assert_eq!(twice, stats.read());
        let numbers = serde_json::to_value(once).expect("numbers").to_string();
        for n in 1..=counters.len() {
            let is_there = [",", "}"].iter().any(|end| numbers.contains(&format!(":{n}{end}")));
            assert!(is_there, "{n} is not in {numbers}");
        }
    }

    #[test]
    fn hits_in_no_other_counter_are_held() {
        let received = GrantedCounts { received: 20, refunded: 2, ..GrantedCounts::default() };
        let counts = GrantedCounts { spent: 11, given_back: 4, recalled: 3, late: 1, ..received };
        assert_eq!(counts.held(), 3);
        assert_eq!(GrantedCounts { spent: 25, ..counts }.held(), 0, "read while some are spent");
    }

    #[test]
    fn the_error_is_a_part_of_the_limits_that_were_used_up() {
        let mut counts = RuleCounts::default();
        assert_eq!(counts.error(), None);
        (counts.full_hits, counts.over_hits) = (1_000, 50);
        assert_eq!(counts.error(), Some(0.05));
    }
}
