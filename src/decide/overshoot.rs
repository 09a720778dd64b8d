//! How far windows of eventual rules are over their limits, as this node sees it.
//!
//! # Idea
//!
//! Nodes that have not synchronised yet may admit more than a limit together. A node learns of it
//! when the counts of the others arrive: the count of the window is above the limit then, and the
//! next check of the key is refused by that much. So the refusals of a window say how far it is
//! over, at no further cost. Of each window in which a check was refused because nothing was left,
//! a node adds the limit to [`RuleStats::full_hits`], and to [`RuleStats::over_hits`] the most that
//! it was over:
//!
//! ```text
//! error = over_hits / full_hits
//! ```
//!
//! Several nodes see the same window, and each adds it to both. So the error of a node, and that of
//! the sums over all nodes, is a mean over windows. Windows that were not used up have none.
//!
//! # Example
//!
//! 100 a minute. Three nodes admit 45 each before they synchronise. Each refuses its next check
//! with a count of 135, and adds 100 and 35: the error is 0.35. The minute after, 101 are admitted:
//! it is 36 / 200 = 0.18.
//!
//! # What it does not see
//!
//! Counts that arrive after the last check of a window, and those of nodes that are cut off. Of a
//! `sliding_window_counter` a window is a stretch between two multiples of its length.
//!
//! **Bound.** [`WINDOWS`] are remembered; the newest replaces another. One that was replaced and is
//! refused again adds limit and excess again, so it weighs more and the error stays.

use parking_lot::Mutex;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::store::{Counter, KeyHash};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_rules::stats::RuleStats;

use super::plan::PlannedCheck;

/// Windows that are remembered, of all rules.
const WINDOWS: usize = 4_096;

#[derive(Debug)]
pub(super) struct Overshoot {
    /// A window is in the slot that its key selects.
    windows: Box<[Mutex<Window>]>,
}

/// A window that is used up.
#[derive(Debug, Default)]
struct Window {
    key: KeyHash,
    number: u64,
    /// The most hits over the limit so far.
    over: u32,
}

impl Overshoot {
    /// Looks at the verdicts of a check of an eventual rule. Those that admit it cost nothing.
    pub(super) fn observe(
        &self,
        check: &PlannedCheck,
        hits: Hits,
        verdicts: &[Verdict],
        now: Timestamp,
    ) {
        let asked = u32::try_from(hits.charge()).unwrap_or(u32::MAX);
        for (counter, verdict) in check.counters.iter().zip(verdicts) {
            // A full store refuses without a count.
            let is_full = !verdict.allowed && verdict.remaining == 0 && verdict.excess >= asked;
            if is_full {
                self.add(counter, verdict.excess - asked, now, &check.rule.stats);
            }
        }
    }

    fn add(&self, counter: &Counter, over: u32, now: Timestamp, stats: &RuleStats) {
        let Counter { key, quota } = counter;
        let number = now.as_nanos() / quota.window().as_nanos().max(1);
        let mut window = self.slot(*key).lock();
        if (window.key, window.number) != (*key, number) {
            *window = Window { key: *key, number, over: 0 };
            RuleStats::add(&stats.full_hits, u64::from(quota.limit()));
        }
        let more = over.saturating_sub(window.over);
        if more > 0 {
            window.over = over;
            RuleStats::add(&stats.over_hits, u64::from(more));
        }
    }

    fn slot(&self, key: KeyHash) -> &Mutex<Window> {
        let at = (key.token ^ key.tag) % self.windows.len() as u64;
        &self.windows[usize::try_from(at).unwrap_or(0)]
    }
}

impl Default for Overshoot {
    fn default() -> Self {
        Self { windows: std::iter::repeat_with(Mutex::default).take(WINDOWS).collect() }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::engine::ActorId;
    use tidegate_limiter::quota::{Algorithm, Quota};
    use tidegate_limiter::store::{OnFull, Options, Store};
    use tidegate_limiter::units::Span;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_040);
    const KEY: KeyHash = KeyHash { token: 7, tag: 8 };

    /// Three nodes that each admit `hits` of 100 a minute at `now` and then synchronise.
    fn admit(nodes: &[Store; 3], counter: &Counter, hits: i64, now: Timestamp) {
        for (node, actor) in nodes.iter().zip(1..) {
            let me = ActorId::new(actor);
            let verdicts = node.check_eventual(&[*counter], Hits::new(hits), me, now);
            assert!(verdicts[0].allowed);
        }
        let read = |node: &Store| node.actor_counters(KEY).expect("counted").to_delta();
        let deltas: Vec<_> = nodes.iter().map(read).collect();
        for node in nodes {
            for delta in &deltas {
                node.merge_actor_counters(KEY, delta, now);
            }
        }
    }

    /// The worked example, and a window that is found by further checks to be further over.
    #[test]
    fn the_error_is_what_was_admitted_beyond_the_limits_of_windows_that_were_used_up() {
        let quota = Quota::simple(Algorithm::SlidingWindowCounter, 100, Span::from_secs(60));
        let counter = Counter { key: KEY, quota: quota.expect("valid") };
        let options = Options { keys_max: 100, on_full: OnFull::Refuse, shards: None };
        let nodes = [(); 3].map(|()| Store::new(options));
        admit(&nodes, &counter, 45, START);
        let (overshoot, stats) = (Overshoot::default(), RuleStats::default());
        let refuse = |node: &Store, hits, now| {
            let verdict = node.check_eventual(&[counter], Hits::new(hits), ActorId::new(1), now)[0];
            assert!(!verdict.allowed);
            let asked = u32::try_from(hits).expect("small");
            overshoot.add(&counter, verdict.excess - asked, now, &stats);
            (stats.read().full_hits, stats.read().over_hits)
        };
        assert_eq!(refuse(&nodes[0], 1, START), (100, 35));
        assert_eq!(refuse(&nodes[0], 7, START), (100, 35), "the same window");
        // Two minutes later nothing is left of it.
        let later = START.plus(Span::from_secs(120));
        admit(&nodes, &counter, 33, later);
        assert!(nodes[0].check_eventual(&[counter], Hits::ONE, ActorId::new(1), later)[0].allowed);
        assert!(nodes[1].check_eventual(&[counter], Hits::ONE, ActorId::new(2), later)[0].allowed);
        assert_eq!(refuse(&nodes[0], 1, later), (200, 35), "as far as it knows, exactly used up");
        let news = nodes[1].actor_counters(KEY).expect("counted").to_delta();
        nodes[0].merge_actor_counters(KEY, &news, later);
        assert_eq!(refuse(&nodes[0], 1, later), (200, 36));
        assert_eq!(stats.read().error(), Some(0.18));
    }
}
