//! Counts of long windows, kept on disk while the node runs.
//!
//! One [`Snapshots`] a node. [`open`](Snapshots::open) and [`load`](Snapshots::load) come first,
//! before the node decides anything; then [`round`](Snapshots::round) every `storage.interval`, and
//! once more at the end. All of them wait for the disk: `snapshot_task` calls them from a thread that may.
//!
//! | what is wrong | what happens |
//! |---|---|
//! | file torn, or another's | set aside, a new one is begun; a line |
//! | in use, no folder, no permission, at the start | the node runs without; a line |
//! | disk full, I/O error, while it runs | keys stay unsaved, each round tries again; a line |
//! | one count does not fit its sum, or is not plausible | that one is skipped and counted |
//!
//! None of it stops a node: it would answer for its limits without the file, only forget them with
//! the last of its replicas.

use std::{fmt, mem};

use parking_lot::Mutex;
use tidegate_limiter::store::{Cursor, KeyHash, MergeOutcome, Store};
use tidegate_limiter::units::Timestamp;

use super::changes::{Changes, Which};
use super::disk::Disk;
use super::error::Error;
use super::file::{Expired, File, Opened, Written};
use super::origin::{Origin, Secret};
use super::status::Status;

/// Counters of the file that a round looks at for expiry: a million in some twelve minutes at the
/// default interval, at a cost that no round notices.
const SWEEP_KEYS: usize = 4_096;

/// Counts of long windows, kept on disk.
#[derive(Debug)]
pub struct Snapshots {
    disk: Box<dyn Disk>,
    origin: Origin,
    progress: Mutex<Progress>,
    status: Mutex<Status>,
}

/// How far the rounds have come.
#[derive(Default)]
struct Progress {
    access: Access,
    /// Where the walk over the store goes on.
    from: Cursor,
    /// Whether that walk takes every long key. Set while the file may lack what memory has.
    all: bool,
    /// Where the walk over the file for what expired goes on.
    swept: Option<KeyHash>,
}

#[derive(Default)]
enum Access {
    /// In use by somebody else, or not there, since the start. Tried no more: what it holds would
    /// have had to be read first.
    #[default]
    Never,
    /// To be opened by the next round: a write failed, and redb takes no further one.
    Lost,
    Open(File),
}

impl Snapshots {
    /// Opens the file on `disk`, or begins a new one. Whatever is wrong with it, there is a
    /// [`Snapshots`] afterwards; its [`status`](Self::status) says whether it writes.
    ///
    /// Returns the secret that the counts are under, `origin`'s unless the file has a lone node's.
    pub fn open(disk: Box<dyn Disk>, mut origin: Origin, now: Timestamp) -> (Self, Secret) {
        let mut status = Status { path: disk.path().to_owned(), ..Status::default() };
        let mut progress = Progress::default();
        match open_or_begin(&*disk, &origin, now) {
            Ok(Opened { file, secret, .. }) => {
                origin.secret = secret;
                progress.access = Access::Open(file);
            }
            Err(error) => {
                let path = status.path.display();
                tracing::error!(
                    "{path}: {error}; this node runs without storage: what long windows counted \
                     will not outlive the cluster. Put it right and start the node again"
                );
                status.problem = Some(error.to_string());
            }
        }
        let (secret, progress, status) = (origin.secret, progress.into(), status.into());
        (Self { disk, origin, progress, status }, secret)
    }

    /// Joins what the file holds into `store`, and has `store` note from then on what changes.
    pub fn load(&self, store: &Store, now: Timestamp) {
        let mut progress = self.progress.lock();
        let Access::Open(file) = &progress.access else { return };
        let (mut keys, mut loaded, mut skipped) = (0, 0, 0);
        let read = file.read(|counted| {
            keys += 1;
            let merged = counted.ok().filter(|counted| {
                counted.key.is_long()
                    && counted.key.is_eventual() == counted.state.actor_counters().is_some()
                    && counted.state.is_plausible(counted.expires, now)
            });
            match merged.map(|counted| store.merge(counted, now)) {
                Some(MergeOutcome::Merged { .. }) => loaded += 1,
                Some(MergeOutcome::Expired) => {}
                Some(MergeOutcome::Full | MergeOutcome::WrongForm) | None => skipped += 1,
            }
        });
        if let Err(error) = read {
            // What was read so far is sound; the next file gets it from memory.
            progress.access = Access::Lost;
            tracing::warn!("{}: {error}", self.disk.path().display());
        }
        store.set_snapshotted(true);
        let mut status = self.status.lock();
        (status.loaded, status.skipped, status.keys) = (loaded, skipped, keys);
        let path = status.path.display();
        if skipped == 0 {
            tracing::info!("{loaded} counts of long windows were read from {path}");
        } else {
            tracing::warn!(
                "{loaded} counts of long windows were read from {path}; {skipped} were left out, \
                 because they are damaged, of a clock that was wrong, or find no room"
            );
        }
    }

    /// Writes what changed since the last round, and forgets some of what expired. Returns whether
    /// there is more to write: a round is bounded.
    pub fn round(&self, store: &Store, now: Timestamp) -> bool {
        let mut progress = self.progress.lock();
        if matches!(progress.access, Access::Never) {
            return false;
        }
        let outcome = self.write(&mut progress, store, now);
        let mut status = self.status.lock();
        match outcome {
            Ok(round) => {
                if let Some(written) = round.written {
                    status.written += written.changes;
                    status.keys = written.keys;
                }
                status.rounds += 1;
                status.written_at = Some(now);
                status.turn(None);
                round.more
            }
            Err(error) => {
                status.failed += 1;
                status.turn(Some(error.to_string()));
                false
            }
        }
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    fn write(
        &self,
        progress: &mut Progress,
        store: &Store,
        now: Timestamp,
    ) -> Result<Round, Error> {
        // Taken out: a file whose write failed, or panicked, is not used again.
        let file = match mem::replace(&mut progress.access, Access::Lost) {
            Access::Open(file) => file,
            Access::Never | Access::Lost => {
                let opened = open_or_begin(&*self.disk, &self.origin, now)?;
                let Opened { file, is_new, .. } = opened;
                if is_new {
                    (progress.all, progress.from, progress.swept) = (true, Cursor::default(), None);
                }
                file
            }
        };
        let Expired { keys: gone, next: swept } = file.expired(progress.swept, now, SWEEP_KEYS)?;
        let which = if progress.all { Which::All } else { Which::Unsaved };
        let mut changes = Changes::new(store, which, progress.from, now);
        let mut first = changes.by_ref().peekable();
        let is_idle = gone.is_empty() && first.peek().is_none();
        let written = if is_idle { Ok(None) } else { file.write(&gone, first).map(Some) };
        let (taken, next) = changes.end();
        if written.is_err() {
            for key in taken {
                store.enqueue_snapshot(key);
            }
        }
        let written = written?;
        progress.access = Access::Open(file);
        progress.swept = swept;
        progress.from = next.unwrap_or_default();
        // Behind a walk over everything comes what changed during it.
        let more = next.is_some() || progress.all;
        progress.all &= next.is_some();
        Ok(Round { written, more })
    }
}

/// What a round did.
struct Round {
    /// `None` when there was nothing to write.
    written: Option<Written>,
    /// Whether it stopped at its bound.
    more: bool,
}

/// Opens the file. One that is torn or another's goes out of the way of a new one.
fn open_or_begin(disk: &dyn Disk, origin: &Origin, now: Timestamp) -> Result<Opened, Error> {
    match File::open(disk, origin) {
        Err(error) if error.is_of_the_file() => {
            let aside = disk.set_aside(now).map_err(Error::Io)?;
            let opened = File::open(disk, origin)?;
            tracing::warn!(
                "{}: {error}; it was set aside as {} and a new one was begun, so the counts in it \
                 do not count",
                disk.path().display(),
                aside.display()
            );
            Ok(opened)
        }
        outcome => outcome,
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_open = matches!(self.access, Access::Open(_));
        f.debug_struct("Progress").field("is_open", &is_open).finish_non_exhaustive()
    }
}
