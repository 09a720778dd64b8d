//! How long a draining node hands over its ranges: as long as it makes progress, within a bound.
//! Several that drain do so one after the other, so it may have to wait for its turn.
//!
//! A fixed time would be too short for a million counts over a long link, and too long where no
//! peer takes anything. Progress is a count that is copied or a range that is handed over.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_cluster::ownership::Driver;
use tidegate_limiter::store::{Cursor, KeyHash, Store};
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::autopilot::DRAIN_TURN_MAX;
use tidegate_ownership::cluster_map::MapState;
use tidegate_ownership::ranges::Ranges;
use tokio::time::Instant;

/// When to give up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Without progress.
    pub(super) patience: Duration,
    /// In all.
    pub(super) timeout: Duration,
}

/// Whether the voters that stay are a majority after a node has handed over everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Majority,
    /// Without it they decide no strict key.
    NoMajority,
}

/// Why a draining node stops without having handed over everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GivenUp {
    #[error("it is no member of the cluster since it started, and had nothing to hand over")]
    NoMember,
    #[error("no progress for {0:?}; the rest continues with the counts of its replicas")]
    Stalled(Duration),
    #[error(
        "`cluster.handover_timeout` of {0:?} is over; the rest continues with the counts of its \
         replicas"
    )]
    Timeout(Duration),
    #[error(
        "the next owner refused counts, because it or a domain is full, or its clock is behind; \
         these keys are counted anew"
    )]
    Refused,
}

const POLL: Duration = Duration::from_millis(10);
/// How long the voters let a member wait for its turn.
const TURN_MAX: Duration = DRAIN_TURN_MAX.to_std();
/// How often progress is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until `driver` has handed over everything. `decided` are the ranges that this node decided
/// when it began to leave. `begins` is called when it is this node's turn.
///
/// # Errors
///
/// A limit is reached.
pub(super) async fn until_complete(
    driver: &Driver,
    store: &Store,
    decided: &Ranges,
    limits: Limits,
    begins: impl Fn(),
) -> Result<(), GivenUp> {
    let read = || {
        let counters = &driver.counters;
        let copied = counters.copied.load(Ordering::Relaxed);
        (copied, counters.handed_over.load(Ordering::Relaxed))
    };
    let (start, before) = (Instant::now(), read());
    let (mut progress, mut progress_at, mut logged_at) = (before, start, start);
    let (mut keys, mut has_begun) = (None, false);
    while driver.is_up() || !driver.has_transferred_all() {
        tokio::time::sleep(POLL).await;
        let (current, now) = (read(), Instant::now());
        let has_turn = !driver.is_up();
        if has_turn && !has_begun {
            has_begun = true;
            begins();
        }
        let waits = !has_turn && now - start < TURN_MAX && others_drain(driver);
        if waits || current != progress {
            (progress, progress_at) = (current, now);
        }
        if now - progress_at >= limits.patience {
            return Err(GivenUp::Stalled(limits.patience));
        }
        if now - start >= limits.timeout {
            return Err(GivenUp::Timeout(limits.timeout));
        }
        if now - logged_at >= LOG_INTERVAL {
            logged_at = now;
            // Only a long drain pays for this scan.
            let keys = match keys {
                Some(keys) => keys,
                None => *keys.insert(count_keys(store, decided).await),
            };
            let (copied, ranges) = (current.0 - before.0, current.1 - before.1);
            tracing::info!(copied, keys, ranges, "draining: handing counts over");
        }
    }
    Ok(())
}

fn others_drain(driver: &Driver) -> bool {
    driver.map().present().any(|member| member.state == MapState::Draining)
}

/// How many strict keys have their tokens in `ranges`.
async fn count_keys(store: &Store, ranges: &Ranges) -> u64 {
    let is_counted = |key: KeyHash| key.is_owned() && ranges.contains(key.token);
    let (mut keys, mut from) = (0, Some(Cursor::default()));
    while let Some(cursor) = from {
        from = store.visit(cursor, Timestamp::EPOCH, is_counted, |_, _, _| keys += 1);
        tokio::task::yield_now().await;
    }
    keys
}
