//! The file of the cluster map in `node.data_dir`: a redb database with a row for the map of the
//! region, and one for the global map.
//!
//! A write is one transaction, and is on the disk (`fdatasync`) when it returns. A file that cannot
//! be read stops the node: without it the node would forget what it promised as a voter.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use redb::{Database, ReadableDatabase, StorageBackend, TableDefinition};
use tidegate_cluster::consensus::Disk;

/// The name of the file.
pub const FILE_NAME: &str = "cluster-map.redb";
const MAP: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("map");
const REGION: &str = "record 1";
const GLOBAL: &str = "global 1";

/// The open file.
#[derive(Clone, Debug)]
pub struct MapFile {
    db: Arc<Database>,
    row: &'static str,
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
        let db = Database::create(path).map_err(io::Error::other)?;
        Ok(Self { db: Arc::new(db), row: REGION })
    }

    /// Opens the database in `backend`, or creates one: a disk that a test has made.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is damaged.
    pub fn in_backend(backend: impl StorageBackend) -> io::Result<Self> {
        let db = Database::builder().create_with_backend(backend).map_err(io::Error::other)?;
        Ok(Self { db: Arc::new(db), row: REGION })
    }

    /// The row of the global map in the same file.
    #[must_use]
    pub fn global(&self) -> Self {
        Self { db: self.db.clone(), row: GLOBAL }
    }

    /// The record; `None` in a new file. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn read(&self) -> Result<Option<Vec<u8>>, redb::Error> {
        let transaction = self.db.begin_read()?;
        match transaction.open_table(MAP) {
            Ok(table) => Ok(table.get(self.row)?.map(|record| record.value().to_vec())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the record. Blocks on the disk until it is there.
    ///
    /// # Errors
    ///
    /// If it cannot be written; the record before is still there.
    pub fn write(&self, record: &[u8]) -> Result<(), redb::Error> {
        let transaction = self.db.begin_write()?;
        transaction.open_table(MAP)?.insert(self.row, record)?;
        Ok(transaction.commit()?)
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

#[cfg(test)]
mod tests {
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
}
