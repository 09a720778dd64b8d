//! Where the files of a node are: writes, and what a loss of power leaves of them.
//!
//! A write is on the platter once a sync that follows it has ended. When the power is lost, an
//! instant is drawn. Of the writes that no sync follows until then each sector is lost or not, in
//! any order: they are lost, torn and late. Example, `w` a write, `|` a sync, `!` the instant:
//!
//! ```text
//! w1 w2 | w3 w4 ! w5 |      w1 and w2 are there, w5 is not, each sector of w3 and w4 may be
//! ```
//!
//! A write that was synced is never lost.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::dice::Dice;

/// The content of one file; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Platter(Arc<Mutex<Content>>);

/// The file as one process has opened it. After a loss of power it can do nothing any more.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    platter: Platter,
    opened: u64,
}

#[derive(Debug, Default)]
struct Content {
    /// What a loss of power leaves.
    durable: Vec<u8>,
    /// What a process reads: all that was written.
    current: Vec<u8>,
    /// What was written since `durable`.
    pending: Vec<Write>,
    /// Number of losses of power.
    losses: u64,
    /// Writes fail.
    is_full: bool,
}

#[derive(Debug)]
enum Write {
    Bytes { offset: usize, bytes: Vec<u8> },
    Length(usize),
    Sync,
}

/// A disk writes a sector or does not.
const SECTOR_BYTES: usize = 512;
const HALF_PPM: u32 = 500_000;

impl Platter {
    pub(crate) fn open(&self) -> OpenFile {
        OpenFile { platter: self.clone(), opened: self.lock().losses }
    }

    /// All syncs until now have ended.
    pub(crate) fn complete(&self) {
        let content = &mut *self.lock();
        let synced = content.pending.iter().rposition(|write| matches!(write, Write::Sync));
        for write in content.pending.drain(..synced.map_or(0, |last| last + 1)) {
            write.apply(&mut content.durable);
        }
    }

    /// Whether writes fail.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_full
    }

    /// Whether writes fail from now on.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.lock().is_full = is_full;
    }

    /// The power is lost at an instant since the last [`Platter::complete`].
    pub(crate) fn lose_power(&self, dice: &mut Dice) {
        let content = &mut *self.lock();
        let mut written = std::mem::take(&mut content.pending);
        written.truncate(dice.index(written.len() + 1));
        let synced = written.iter().rposition(|write| matches!(write, Write::Sync));
        for (number, write) in written.into_iter().enumerate() {
            if synced.is_some_and(|last| number < last) {
                write.apply(&mut content.durable);
            } else {
                write.apply_in_part(&mut content.durable, dice);
            }
        }
        content.current.clone_from(&content.durable);
        content.losses += 1;
    }

    /// Replaces the disk by an empty one.
    pub(crate) fn wipe(&self) {
        let content = &mut *self.lock();
        *content = Content { losses: content.losses + 1, ..Content::default() };
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write {
    fn apply(self, to: &mut Vec<u8>) {
        match self {
            Self::Bytes { offset, bytes } => {
                let end = offset + bytes.len();
                to.resize(to.len().max(end), 0);
                to[offset..end].copy_from_slice(&bytes);
            }
            Self::Length(length) => to.resize(length, 0),
            Self::Sync => {}
        }
    }

    fn apply_in_part(self, to: &mut Vec<u8>, dice: &mut Dice) {
        let Self::Bytes { mut offset, bytes } = self else {
            if dice.chance(HALF_PPM) {
                self.apply(to);
            }
            return;
        };
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            let to_boundary = SECTOR_BYTES - offset % SECTOR_BYTES;
            let (sector, rest) = left.split_at(to_boundary.min(left.len()));
            if dice.chance(HALF_PPM) {
                Self::Bytes { offset, bytes: sector.to_vec() }.apply(to);
            }
            (offset, left) = (offset + sector.len(), rest);
        }
    }
}

impl OpenFile {
    fn content(&self) -> io::Result<MutexGuard<'_, Content>> {
        let content = self.platter.lock();
        let is_open = content.losses == self.opened;
        is_open.then_some(content).ok_or_else(|| io::Error::other("the power was lost"))
    }

    fn write(&self, write: Write) -> io::Result<()> {
        let content = &mut *self.content()?;
        if content.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match &write {
            Write::Bytes { offset, bytes } => {
                let again = Write::Bytes { offset: *offset, bytes: bytes.clone() };
                again.apply(&mut content.current);
            }
            Write::Length(length) => content.current.resize(*length, 0),
            Write::Sync => {}
        }
        content.pending.push(write);
        Ok(())
    }
}

impl StorageBackend for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content()?.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.content()?;
        let offset = number(offset)?;
        let bytes = content.current.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write(Write::Length(number(len)?))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.write(Write::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(Write::Bytes { offset: number(offset)?, bytes: data.to_vec() })
    }
}

fn number(number: u64) -> io::Result<usize> {
    usize::try_from(number).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use redb::{Builder, Database, DatabaseError};
    use tidegate::storage::disk::Disk;
    use tidegate::storage::map_file::MapFile;
    use tidegate::storage::{Origin, Secret, Snapshots};
    use tidegate_limiter::descriptor::Entry;
    use tidegate_limiter::policy::{Mode, Scope};
    use tidegate_limiter::store::{Counter, KeyHasher, OnFull, Options, Store};
    use tidegate_limiter::units::{Hits, Timestamp};

    use super::*;
    use crate::keys::{DOMAIN, Kind};

    const SEEDS: u64 = 100;
    const OPTIONS: Options = Options { keys_max: 100, on_full: OnFull::Share, shards: None };
    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    /// The record of the cluster map is the last one that was synced, or one that was being
    /// written.
    #[test]
    fn a_map_that_was_synced_survives_every_loss_of_power() {
        for seed in 0..SEEDS {
            let (platter, mut dice) = (Platter::default(), Dice::new(seed, "platter"));
            let (mut synced, mut written) = (0_u8, 0);
            for _ in 0..10 {
                let backend = platter.open();
                let opened = MapFile::in_backend(move || backend.clone());
                let file = opened.expect("opened after any loss");
                let found = file.read().expect("readable").map_or(0, |record| record[0]);
                assert!((synced..=written).contains(&found), "seed {seed}: {found}");
                (synced, written) = (found, found);
                platter.complete();
                for _ in 0..dice.below(4) {
                    written += 1;
                    file.write(&[written; 900]).expect("written");
                    if dice.chance(HALF_PPM) {
                        platter.complete();
                        synced = written;
                    }
                }
                platter.lose_power(&mut dice);
            }
        }
    }

    /// The same for the counts of `[storage]`: what was synced is read again, and no more is read
    /// than was counted. A database that cannot be opened would be set aside, with all counts.
    #[test]
    fn counts_that_were_synced_survive_every_loss_of_power() {
        for seed in 0..SEEDS {
            let (platter, mut dice) = (Platter::default(), Dice::new(seed, "platter"));
            let (mut synced, mut counted) = (0, 0);
            for _ in 0..5 {
                let disk = Box::new(OnPlatter(platter.clone()));
                let origin = Origin {
                    cluster: "c".to_owned(),
                    node: "n1".to_owned(),
                    secret: Secret::Shared(7),
                };
                let (snapshots, _) = Snapshots::open(disk, origin, NOW);
                let store = Store::new(OPTIONS);
                snapshots.load(&store, NOW);
                let found = used(&store);
                assert!((synced..=counted).contains(&found), "seed {seed}: {found}");
                (synced, counted) = (found, found);
                platter.complete();
                for _ in 0..dice.below(4) {
                    store.check(&[counter()], Hits::ONE, NOW);
                    counted += 1;
                    snapshots.round(&store, NOW);
                    if dice.chance(HALF_PPM) {
                        platter.complete();
                        synced = counted;
                    }
                }
                platter.lose_power(&mut dice);
            }
        }
    }

    #[derive(Debug)]
    struct OnPlatter(Platter);

    impl Disk for OnPlatter {
        fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
            builder.create_with_backend(self.0.open())
        }

        fn set_aside(&self, _: Timestamp) -> io::Result<PathBuf> {
            panic!("the file is not readable");
        }

        fn is_in_place(&self) -> bool {
            true
        }

        fn path(&self) -> &Path {
            Path::new("platter")
        }
    }

    fn counter() -> Counter {
        let entries = [Entry { key: "key", value: "1" }];
        let quota = Kind::Strict.quota();
        let hash = KeyHasher::new([1; 16]).descriptor(DOMAIN, &entries);
        Counter { key: hash.counter(&quota, Mode::Strict, Scope::Region), quota }
    }

    fn used(store: &Store) -> u32 {
        Kind::Strict.limit() - store.check(&[counter()], Hits::PEEK, NOW)[0].remaining
    }
}
