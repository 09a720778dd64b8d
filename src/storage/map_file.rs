//! The file of the cluster map in `node.data_dir`: a redb database with a row for the map of the
//! region, and one for the global map.
//!
//! A write is one transaction, and is on the disk (`fdatasync`) when it returns. A file that cannot
//! be read when the node starts stops it: without the file it would forget what it promised as a
//! voter. A redb database that an operation of the disk has failed in refuses all others, so it is
//! closed then, and opened again by the next read or write: a full disk is cured by making room. A
//! file that was deleted or replaced under a running node is not written any more: the node cannot
//! vote until it restarts, with the file back in its place or as a new voter.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use redb::{Database, DatabaseError, ReadableDatabase, StorageBackend, TableDefinition};
use tidegate_cluster::consensus::Disk;

use super::disk::{Inode, when_free};

/// The name of the file.
pub const FILE_NAME: &str = "cluster-map.redb";
/// What it is called until it is a database. A file of that name is never read.
const UNFINISHED: &str = "cluster-map.redb.new";
const MAP: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("map");
const REGION: &str = "record 1";
const GLOBAL: &str = "global 1";

/// The file, open or to be opened again. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MapFile {
    shared: Arc<Shared>,
    row: &'static str,
}

struct Shared {
    reopen: Box<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>,
    /// Where the file is, and which one; `None` in memory.
    place: Option<(PathBuf, Inode)>,
    /// `None` after a failure of the disk.
    open: Mutex<Option<Database>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("open", &self.open).finish_non_exhaustive()
    }
}

impl MapFile {
    /// Opens the file in `folder`, or creates both. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created, or the file cannot be opened, is in use by another process,
    /// or is damaged.
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path: PathBuf = folder.join(FILE_NAME);
        let created = if path.try_exists()? { None } else { create(folder, &path)? };
        let first = match created {
            Some(created) => created,
            None => when_free(|| Database::open(&path)).map_err(io::Error::other)?,
        };
        let place = (path.clone(), Inode::at(&path)?);
        // Not created again: a folder that is empty now is not the one with the node's promises.
        Ok(Self::new(first, Some(place), move || Database::open(&path)))
    }

    /// Opens the database in the backend that `open` returns, or creates one: a disk that a test
    /// has made.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is damaged.
    pub fn in_backend<B: StorageBackend>(
        open: impl Fn() -> B + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let open = move || Database::builder().create_with_backend(open());
        Ok(Self::new(open().map_err(io::Error::other)?, None, open))
    }

    fn new(
        first: Database,
        place: Option<(PathBuf, Inode)>,
        reopen: impl Fn() -> Result<Database, DatabaseError> + Send + Sync + 'static,
    ) -> Self {
        let open = Mutex::new(Some(first));
        let shared = Shared { reopen: Box::new(reopen), place, open };
        Self { shared: Arc::new(shared), row: REGION }
    }

    /// The row of the global map in the same file.
    #[must_use]
    pub fn global(&self) -> Self {
        Self { shared: self.shared.clone(), row: GLOBAL }
    }

    /// The record; `None` in a new file. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn read(&self) -> Result<Option<Vec<u8>>, redb::Error> {
        self.with_open(|db| {
            let transaction = db.begin_read()?;
            match transaction.open_table(MAP) {
                Ok(table) => Ok(table.get(self.row)?.map(|record| record.value().to_vec())),
                Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Replaces the record. Blocks on the disk until it is there.
    ///
    /// # Errors
    ///
    /// If it cannot be written: then the record before is still there, or the new one. If the file
    /// was deleted or replaced: a voter must not promise what it would not know after a restart.
    pub fn write(&self, record: &[u8]) -> Result<(), redb::Error> {
        if let Some((path, inode)) = &self.shared.place
            && Inode::at(path).ok() != Some(*inode)
        {
            let text = "the file was deleted or replaced while the node ran; restart the node";
            return Err(io::Error::other(text).into());
        }
        self.with_open(|db| {
            let transaction = db.begin_write()?;
            transaction.open_table(MAP)?.insert(self.row, record)?;
            Ok(transaction.commit()?)
        })
    }

    /// Calls `work` with the open database, which is closed if that fails.
    fn with_open<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let mut open = self.shared.open.lock();
        let db = match open.take() {
            Some(db) => db,
            None => (self.shared.reopen)()?,
        };
        let done = work(&db)?;
        *open = Some(db);
        Ok(done)
    }
}

#[async_trait]
impl Disk for MapFile {
    async fn load(&self) -> io::Result<Option<Vec<u8>>> {
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || this.read());
        read.await?.map_err(io::Error::other)
    }

    async fn save(&self, record: Vec<u8>) -> io::Result<()> {
        let this = self.clone();
        let written = tokio::task::spawn_blocking(move || this.write(&record));
        written.await?.map_err(io::Error::other)
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn beside(&self) -> Arc<dyn Disk> {
        Arc::new(self.global())
    }
}

/// A new database at `path`; `None` if another process has created one meanwhile. Under its own
/// name it never is unfinished: an empty file is a damaged one, not a node's first start.
fn create(folder: &Path, path: &Path) -> io::Result<Option<Database>> {
    let unfinished = folder.join(UNFINISHED);
    let created = when_free(|| match Database::create(&unfinished) {
        // What a start that was killed has left.
        Err(DatabaseError::Storage(_)) => {
            std::fs::remove_file(&unfinished)?;
            Database::create(&unfinished)
        }
        created => created,
    });
    let created = created.map_err(io::Error::other)?;
    // The open database is locked, so no other process renames the file meanwhile.
    if path.try_exists()? {
        std::fs::remove_file(&unfinished)?;
        return Ok(None);
    }
    std::fs::rename(&unfinished, path)?;
    std::fs::File::open(folder)?.sync_all()?;
    Ok(Some(created))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_record_survives_the_process_and_belongs_to_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = MapFile::open(folder.path()).expect("a file");
        assert_eq!(file.load().await.expect("readable"), None);
        for record in [&b"one"[..], b"two"] {
            file.save(record.to_vec()).await.expect("writable");
        }
        assert!(MapFile::open(folder.path()).is_err(), "in use");
        drop(file);
        let again = MapFile::open(folder.path()).expect("a file");
        assert_eq!(again.load().await.expect("readable").as_deref(), Some(&b"two"[..]));
    }

    /// A start that was killed leaves no file of this name, so an empty one was emptied.
    #[test]
    fn an_empty_file_is_a_damaged_one_and_an_unfinished_one_is_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let unfinished = folder.path().join(UNFINISHED);
        for left in [&b""[..], b"what was written so far"] {
            std::fs::write(&unfinished, left).expect("writable");
            MapFile::open(folder.path()).expect("a file").write(b"one").expect("writable");
            assert!(!unfinished.exists());
            std::fs::remove_file(folder.path().join(FILE_NAME)).expect("deleted");
        }
        std::fs::write(folder.path().join(FILE_NAME), b"").expect("writable");
        MapFile::open(folder.path()).expect_err("it has no record, and is no new one");
    }

    #[tokio::test]
    async fn a_file_that_was_deleted_or_replaced_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = MapFile::open(folder.path()).expect("a file");
        file.save(b"one".to_vec()).await.expect("writable");
        let (path, away) = (folder.path().join(FILE_NAME), folder.path().join("away"));
        std::fs::rename(&path, &away).expect("moved");
        let refused = async || file.save(b"two".to_vec()).await.unwrap_err().to_string();
        assert!(refused().await.contains("deleted or replaced"));
        std::fs::copy(&away, &path).expect("a copy");
        assert!(refused().await.contains("deleted or replaced"));
        std::fs::rename(&away, &path).expect("moved back");
        file.save(b"two".to_vec()).await.expect("writable");
    }

    /// A disk that can be full: no write succeeds then.
    #[derive(Clone, Debug, Default)]
    struct FullAtTimes {
        content: Arc<Mutex<Vec<u8>>>,
        is_full: Arc<AtomicBool>,
    }

    impl FullAtTimes {
        fn room(&self) -> io::Result<()> {
            let is_full = self.is_full.load(Ordering::Relaxed);
            if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    impl StorageBackend for FullAtTimes {
        fn len(&self) -> io::Result<u64> {
            Ok(self.content.lock().len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            out.copy_from_slice(&self.content.lock()[start..start + out.len()]);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.room()?;
            let len = usize::try_from(len).map_err(io::Error::other)?;
            self.content.lock().resize(len, 0);
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            self.room()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.room()?;
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            self.content.lock()[start..start + data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_was_full_is_written_again() {
        let disk = FullAtTimes::default();
        let backend = disk.clone();
        let file = MapFile::in_backend(move || backend.clone()).expect("a file");
        file.write(b"one").expect("writable");
        disk.is_full.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            file.write(b"lost").expect_err("the disk is full");
            file.global().write(b"lost").expect_err("the disk is full");
        }
        disk.is_full.store(false, Ordering::Relaxed);
        file.write(b"two").expect("writable again");
        assert_eq!(file.read().expect("readable").as_deref(), Some(&b"two"[..]));
        assert_eq!(file.global().read().expect("readable"), None);
    }
}
