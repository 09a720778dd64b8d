//! The disk of a node, which its processes use one after the other: the product's own file of the
//! cluster map and the global map, on a [`Platter`].

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tidegate::storage::map_file::MapFile;
use tidegate_cluster::consensus::Disk;

use crate::dice::Dice;
use crate::platter::Platter;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SimDisk {
    inner: Arc<Mutex<Inner>>,
    /// Whether this is the row of the global map.
    is_global: bool,
}

#[derive(Debug)]
struct Inner {
    platter: Platter,
    dice: Dice,
    /// Whether some writes take long, or fail until there is room again.
    is_bad: bool,
    /// How many more writes fail.
    failures: u64,
    /// Whether one has.
    has_failed: bool,
    /// As the running process has opened it.
    file: Option<MapFile>,
}

/// How long a write takes until it is synced.
const SYNC_MS: u64 = 2;
/// The longest, on a slow disk, and how many of a million take up to that.
const SYNC_MAX_MS: u64 = 2_000;
const SLOW_PPM: u32 = 50_000;
/// How many of a million writes find the disk full, and how many fail then at most: for a
/// second, with the pause after each.
const FULL_PPM: u32 = 10_000;
const FAILURES_MAX: u64 = 4;

impl SimDisk {
    pub(crate) fn new(dice: Dice, is_bad: bool) -> Self {
        let inner = Arc::new(Mutex::new(Inner {
            platter: Platter::default(),
            dice,
            is_bad,
            failures: 0,
            has_failed: false,
            file: None,
        }));
        Self { inner, is_global: false }
    }

    /// The process ended, or the power of the node was lost.
    pub(crate) fn lose_power(&self) {
        let Inner { platter, dice, file, failures, .. } = &mut *self.lock();
        platter.lose_power(dice);
        // A node that finds the disk full ends, and is started until there is room.
        platter.set_full(false);
        (*file, *failures) = (None, 0);
    }

    /// Replaces the disk by an empty one.
    pub(crate) fn wipe(&self) {
        let Inner { platter, file, .. } = &mut *self.lock();
        platter.wipe();
        *file = None;
    }

    /// Whether the last write failed for want of room.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().platter.is_full()
    }

    /// Whether a write has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Disk for SimDisk {
    async fn load(&self) -> io::Result<Option<Vec<u8>>> {
        let Inner { platter, file, .. } = &mut *self.lock();
        if self.is_global {
            // A process reads the map of its region first.
            let Some(file) = file else { return Err(io::Error::other("not open")) };
            return file.global().read().map_err(io::Error::other);
        }
        // Closed before it is opened again.
        *file = None;
        let backend = platter.open();
        let opened = MapFile::in_backend(move || backend.clone())?;
        let record = opened.read().map_err(io::Error::other)?;
        *file = Some(opened);
        Ok(record)
    }

    async fn save(&self, record: Vec<u8>) -> io::Result<()> {
        let takes_ms = {
            let Inner { file, dice, platter, is_bad, failures, has_failed } = &mut *self.lock();
            let Some(file) = file else { return Err(io::Error::other("not open")) };
            let row = if self.is_global { file.global() } else { file.clone() };
            let is_full = *failures > 0 || *is_bad && dice.chance(FULL_PPM);
            *failures = match *failures {
                0 if is_full => dice.below(FAILURES_MAX),
                left => left.saturating_sub(1),
            };
            *has_failed |= is_full;
            platter.set_full(is_full);
            row.write(&record).map_err(io::Error::other)?;
            let is_late = *is_bad && dice.chance(SLOW_PPM);
            if is_late { dice.between(SYNC_MS, SYNC_MAX_MS) } else { SYNC_MS }
        };
        tokio::time::sleep(Duration::from_millis(takes_ms)).await;
        self.lock().platter.complete();
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn beside(&self) -> Arc<dyn Disk> {
        Arc::new(Self { is_global: true, ..self.clone() })
    }
}
