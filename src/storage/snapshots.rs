//! The rounds that keep counters of long windows on disk while the node runs.
//!
//! [`Snapshots::open`] and [`Snapshots::load`] come first, before the node decides anything; then
//! [`Snapshots::round`] every `storage.interval`, and until everything is written at the end. All
//! of them block on the disk; [`SnapshotTask`] runs the rounds on a thread that may block.
//!
//! | problem | effect, each with a log line |
//! |---|---|
//! | file damaged, or of another cluster | set aside, and a new file is created |
//! | at start-up: in use, no folder, no permission | the node runs without storage |
//! | later: disk full, I/O error | changed keys stay queued, and every round tries again |
//! | later: file deleted | the next round creates it again, with all counters, in its folder |
//! | one counter is damaged or implausible | it is skipped and counted |
//!
//! None of them stops the node: it decides correctly without the file, and only loses its counters
//! with the last of its replicas.

use std::sync::Arc;
use std::{mem, vec};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidegate_cluster::environment::Clock;
use tidegate_limiter::engine::first_hit_window;
use tidegate_limiter::store::{Cursor, KeyHash, MergeOutcome, Store, StoredCounter};
use tidegate_limiter::units::{Span, Timestamp};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::disk::Disk;
use super::file::{Error, Expired, File, Opened, Written};
use super::origin::{Origin, Secret};

/// Counters of the file that a round checks for expiry: a million takes some twelve minutes at the
/// default interval, and a round is not measurably longer.
const SWEEP_KEYS: usize = 4_096;
/// Counters that are copied out of the store at once.
const BATCH_KEYS: usize = 256;
/// After this many counters, whose keys take 4 MiB, a round stops at the end of the current part of
/// the store. The next round continues there.
const ROUND_KEYS_MAX: usize = 262_144;

/// Runs a round every interval.
#[derive(Clone, Debug)]
pub struct SnapshotTask {
    pub snapshots: Arc<Snapshots>,
    pub store: Arc<Store>,
    pub clock: Arc<dyn Clock>,
    pub interval: Span,
}

impl SnapshotTask {
    /// Runs rounds until `stop`, then, after `last`, until everything is written. Stop it after the
    /// last decision.
    pub async fn run(self, stop: CancellationToken, last: impl Future<Output = ()>) {
        let mut ticks = interval(self.interval.to_std());
        // The round after a slow one writes what was missed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => {}
            }
            self.round().await;
        }
        last.await;
        while self.round().await {}
    }

    /// One round on a thread that may block. Returns whether there is more to write.
    async fn round(&self) -> bool {
        let Self { snapshots, store, clock, .. } = self.clone();
        let round = tokio::task::spawn_blocking(move || snapshots.round(&store, clock.now()));
        // Fails only while the runtime shuts down.
        round.await.unwrap_or(false)
    }
}

/// The state of the storage, for metrics and `/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub path: String,
    /// Why counters are not written; `None` while they are.
    pub problem: Option<String>,
    /// When the last round began that is on the disk, by the decision clock.
    #[serde(skip)]
    pub written_at: Option<Timestamp>,
    /// Seconds since `written_at`. Only in reports: [`Snapshots::status`] leaves it `None`.
    pub written_s_ago: Option<u64>,
    /// Counters in the file.
    pub keys: u64,
    /// Counters read at start-up and merged.
    pub loaded: u64,
    /// Counters read at start-up that were damaged or implausible, or did not fit.
    pub skipped: u64,
    /// Counters written since the start.
    pub written: u64,
    /// Rounds after which the file was up to date.
    pub rounds: u64,
    /// Rounds that failed.
    pub failed: u64,
}

impl Status {
    /// Sets the problem, and logs it if it begins or ends: a full disk is one line, not one per
    /// round.
    fn set_problem(&mut self, problem: Option<String>) {
        let path = &self.path;
        match (&self.problem, &problem) {
            (None, Some(problem)) => tracing::error!(
                "failed to write counters of long windows to {path}: {problem}; they stay in \
                 memory, and every round tries again until that is fixed"
            ),
            (Some(_), None) => {
                tracing::info!("counters of long windows are written to {path} again");
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.problem = problem;
    }
}

/// Counters of long windows, kept on disk.
#[derive(Debug)]
pub struct Snapshots {
    disk: Box<dyn Disk>,
    origin: Origin,
    written_at: Option<Timestamp>,
    progress: Mutex<Progress>,
    status: Mutex<Status>,
}

/// How far the rounds have come.
#[derive(Debug, Default)]
struct Progress {
    access: Access,
    /// Where the scan of the store continues.
    from: Cursor,
    /// Whether that scan takes every long key. Set while the file may lack what memory has.
    all: bool,
    /// Where the sweep of the file for expired counters continues.
    swept: Option<KeyHash>,
}

#[derive(Debug, Default)]
enum Access {
    /// Could not be opened at start-up, and is not tried again: what the file holds would have had
    /// to be read first.
    #[default]
    Never,
    /// To be opened by the next round: a write failed, after which redb accepts no other.
    Lost,
    Open(File),
}

impl Snapshots {
    /// Opens the file on `disk`, or creates one. Never fails: [`Snapshots::status`] has the
    /// problem, if any.
    ///
    /// Returns the secret under which the keys are hashed: the origin's, unless the file contains
    /// that of a standalone node.
    pub fn open(disk: Box<dyn Disk>, mut origin: Origin, now: Timestamp) -> (Self, Secret) {
        let mut status = Status { path: disk.path().display().to_string(), ..Status::default() };
        let mut progress = Progress::default();
        let mut written_at = None;
        match open_or_create(&*disk, &origin, now) {
            Ok(Opened { file, secret, written_at: clock, .. }) => {
                (origin.secret, written_at) = (secret, clock);
                progress.access = Access::Open(file);
            }
            Err(error) => {
                let path = &status.path;
                tracing::error!(
                    "failed to open {path}: {error}; this node runs without storage: its counters \
                     of long windows do not survive a stop of the whole cluster. Fix the cause \
                     and restart the node"
                );
                status.problem = Some(error.to_string());
            }
        }
        let (secret, progress, status) = (origin.secret, progress.into(), status.into());
        (Self { disk, origin, written_at, progress, status }, secret)
    }

    /// The decision clock at the last write before this start; `None` if there was none. A clock
    /// that shows an earlier time was set back since: counters of the future would be skipped.
    pub fn written_at(&self) -> Option<Timestamp> {
        self.written_at
    }

    /// Merges the file's counters into `store`, which from then on queues changed keys for the
    /// rounds.
    pub fn load(&self, store: &Store, now: Timestamp) {
        let mut progress = self.progress.lock();
        let Access::Open(file) = &progress.access else { return };
        let (mut keys, mut loaded, mut skipped) = (0, 0, 0);
        let read = file.read(|counter| {
            keys += 1;
            // Without peers a node counts the keys of eventual rules as those of strict ones. Its
            // file has a secret of its own, so that nobody else reads it.
            let is_alone = matches!(self.origin.secret, Secret::Own(_));
            let is_of_its_kind = |counter: &StoredCounter| {
                let has_actors = counter.state.actor_counters().is_some();
                if is_alone { !has_actors } else { counter.key.is_eventual() == has_actors }
            };
            let plausible = counter.ok().filter(|counter| {
                counter.key.is_long()
                    && is_of_its_kind(counter)
                    && counter.state.is_plausible(counter.expires, now)
            });
            let loaded_counter = plausible.map(|mut counter| {
                // Another node may have ended it since.
                if !is_alone {
                    first_hit_window::end_credit(&mut counter.state);
                }
                store.merge(counter, now)
            });
            match loaded_counter {
                Some(MergeOutcome::Merged { .. }) => loaded += 1,
                Some(MergeOutcome::Expired) => {}
                Some(MergeOutcome::Full | MergeOutcome::WrongKind) | None => skipped += 1,
            }
        });
        if let Err(error) = read {
            // What was read so far is valid; the next file gets it from memory.
            progress.access = Access::Lost;
            tracing::warn!("failed to read all of {}: {error}", self.disk.path().display());
        }
        store.set_snapshotted(true);
        let mut status = self.status.lock();
        (status.loaded, status.skipped, status.keys) = (loaded, skipped, keys);
        let path = &status.path;
        if skipped == 0 {
            tracing::info!("loaded {loaded} counters of long windows from {path}");
        } else {
            tracing::warn!(
                "loaded {loaded} counters of long windows from {path}; skipped {skipped} that are \
                 damaged, were counted by a wrong clock, or do not fit"
            );
        }
    }

    /// Writes the counters that changed since the last round, and removes some expired ones and
    /// those that the store has dropped. Returns whether there is more to write: a round is
    /// bounded.
    pub fn round(&self, store: &Store, now: Timestamp) -> bool {
        let mut progress = self.progress.lock();
        if matches!(progress.access, Access::Never) {
            return false;
        }
        let result = self.write(&mut progress, store, now);
        let mut status = self.status.lock();
        match result {
            Ok((written, has_more)) => {
                if let Some(written) = written {
                    status.written += written.changes;
                    status.keys = written.keys;
                }
                status.rounds += 1;
                status.written_at = Some(now);
                status.set_problem(None);
                has_more
            }
            Err(error) => {
                status.failed += 1;
                status.set_problem(Some(error.to_string()));
                false
            }
        }
    }

    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Returns what was written, if anything, and whether the round stopped at its bound.
    fn write(
        &self,
        progress: &mut Progress,
        store: &Store,
        now: Timestamp,
    ) -> Result<(Option<Written>, bool), Error> {
        let is_in_place = self.disk.is_in_place();
        // Taken out: a file whose write failed, or panicked, is not used again.
        let file = match mem::replace(&mut progress.access, Access::Lost) {
            Access::Open(file) if is_in_place => file,
            Access::Never | Access::Lost | Access::Open(_) => {
                let Opened { file, is_new, .. } = open_or_create(&*self.disk, &self.origin, now)?;
                // The one that was open may have been replaced by an earlier copy of itself.
                if is_new || !is_in_place {
                    (progress.all, progress.from, progress.swept) = (true, Cursor::default(), None);
                }
                file
            }
        };
        let Expired { keys: mut removed, next: swept } =
            file.expired(progress.swept, now, SWEEP_KEYS)?;
        let dropped = store.take_dropped();
        removed.extend(&dropped);
        let mut round = Round {
            store,
            all: progress.all,
            now,
            next: Some(progress.from),
            has_passed: false,
            scan: Scan::First,
            has_left: false,
            batch: Vec::new().into_iter(),
            taken: Vec::new(),
        };
        let mut changes = round.by_ref().peekable();
        let is_idle = removed.is_empty() && changes.peek().is_none();
        let written = if is_idle { Ok(None) } else { file.write(&removed, changes, now).map(Some) };
        let Round { taken, next, has_left, .. } = round;
        if written.is_err() {
            store.enqueue_dropped(dropped);
            for key in taken {
                store.enqueue_snapshot(key);
            }
        }
        let written = written?;
        progress.access = Access::Open(file);
        progress.swept = swept;
        // Parts before it may have changed since the round that took them; and after a scan of
        // everything come the keys that changed meanwhile.
        let is_rest = progress.from != Cursor::default();
        let has_more = next.is_some() || is_rest || progress.all || has_left;
        progress.from = next.unwrap_or_default();
        progress.all &= next.is_some();
        Ok((written, has_more))
    }
}

/// Opens the file. A damaged one, or another cluster's, is set aside and replaced by a new one.
fn open_or_create(disk: &dyn Disk, origin: &Origin, now: Timestamp) -> Result<Opened, Error> {
    match File::open(disk, origin) {
        Err(error) if error.is_permanent() => {
            let aside = disk.set_aside(now).map_err(Error::Io)?;
            let opened = File::open(disk, origin)?;
            tracing::warn!(
                "{}: {error}; the file was set aside as {} and its counters are not used; a new \
                 file was created",
                disk.path().display(),
                aside.display()
            );
            Ok(opened)
        }
        result => result,
    }
}

/// Iterates over the counters of one round, taken from the store in small batches.
///
/// A round may take a million keys, and a log has 160 kB, so memory holds one batch of states, and
/// the keys of the round in case its write fails.
struct Round<'a> {
    store: &'a Store,
    /// Every counter of a long window, not only those that changed since they were written: the
    /// file is new, and memory has what the old one held.
    all: bool,
    now: Timestamp,
    /// Where the scan continues; `None` at its end.
    next: Option<Cursor>,
    /// Whether ends of reservations in this part of the store wait for another scan of it: the
    /// disk gets them no earlier than their costs, which are in the same part.
    has_passed: bool,
    /// That of the part.
    scan: Scan,
    /// Whether some wait for the next round.
    has_left: bool,
    batch: vec::IntoIter<StoredCounter>,
    /// The keys so far.
    taken: Vec<KeyHash>,
}

/// The scans of a part of the store in a round: the second one only where the first has passed
/// ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    First,
    Second,
}

impl Iterator for Round<'_> {
    type Item = StoredCounter;

    fn next(&mut self) -> Option<StoredCounter> {
        loop {
            if let Some(counter) = self.batch.next() {
                return Some(counter);
            }
            let from = self.next?;
            if from == from.part() && self.taken.len() >= ROUND_KEYS_MAX {
                return None;
            }
            let mut batch = Vec::new();
            if self.all {
                self.next = self.store.scan_snapshot(from, self.now, BATCH_KEYS, &mut batch);
            } else {
                let step = self.store.drain_snapshot_queue(from, self.now, BATCH_KEYS, &mut batch);
                self.next = step.next;
                self.has_passed |= step.has_passed;
            }
            if self.next.is_none_or(|next| next.part() != from.part()) {
                let has_passed = mem::take(&mut self.has_passed);
                self.scan = if has_passed && self.scan == Scan::First {
                    self.next = Some(from.part());
                    Scan::Second
                } else {
                    self.has_left |= has_passed;
                    Scan::First
                };
            }
            // A share is used while this node has no owner to ask; the next start does not need it.
            // The end of a reservation that no replica has confirmed is queued again when one has.
            batch.retain(|counter| {
                !counter.key.is_share() && !self.store.is_unconfirmed(counter.key)
            });
            self.taken.extend(batch.iter().map(|counter| counter.key));
            self.batch = batch.into_iter();
        }
    }
}
