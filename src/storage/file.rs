//! The storage file: a redb database with two tables.
//!
//! | table | key | value |
//! |---|---|---|
//! | `about` | `format`, `cluster`, `node`, `secret` | see [`Origin`] |
//! | `about` | `clock` | the decision clock at the last write, nanoseconds, 8 bytes |
//! | `counts` | 16 bytes, token and tag | see [`record`] |
//!
//! **Durable.** One write is one transaction, and is on the disk (`fdatasync`) when [`File::write`]
//! returns. redb is copy-on-write, so a crash at any instant leaves the last complete write.
//!
//! **Checked twice.** redb has checksums of its pages, and [`File::open`] verifies all of them;
//! every value has a checksum of its own, so that a counter is either read as it was written or not
//! at all.
//!
//! Everything here blocks on the disk: call it on a thread that may block.

use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
};
use tidegate_limiter::store::{KeyHash, StoredCounter};
use tidegate_limiter::units::Timestamp;

use super::disk::{Disk, when_free};
use super::origin::{Origin, Secret};
use super::record::{self, KEY_BYTES};

/// The version of the layout: the tables and their contents. A file of another format is set aside.
const FORMAT: &[u8] = b"tidegate counts 1";

/// Memory for pages. A round writes changes and reads little, so more would not help.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
/// An entry of `about`.
const CLOCK: &str = "clock";
const COUNTS: TableDefinition<'_, [u8; KEY_BYTES], &[u8]> = TableDefinition::new("counts");

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    db: Database,
}

pub(super) struct Opened {
    pub(super) file: File,
    /// The secret under which its keys are hashed.
    pub(super) secret: Secret,
    /// Whether the file was created.
    pub(super) is_new: bool,
    /// The decision clock when it was written last: no counter in it is of a later time.
    pub(super) written_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Counters in the file after the write.
    pub(super) keys: u64,
    /// Counters written.
    pub(super) changes: u64,
}

/// One step of a sweep for expired counters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expired {
    pub(super) keys: Vec<KeyHash>,
    /// Where to continue; `None` at the end.
    pub(super) next: Option<KeyHash>,
}

impl File {
    /// Opens the file on `disk`, or creates one.
    ///
    /// Repairs what a crash left incomplete, and reads every page once: some 0.1 s for 100 MB.
    ///
    /// # Errors
    ///
    /// Any [`Error`].
    pub(super) fn open(disk: &dyn Disk, origin: &Origin) -> Result<Opened, Error> {
        guarded(|| -> Result<Opened, Error> {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            let mut db = when_free(|| disk.open(&builder)).map_err(redb::Error::from)?;
            db.check_integrity().map_err(redb::Error::from)?;
            let found = check_origin(&db, origin)?;
            if found.is_none() {
                create(&db, origin)?;
            }
            let secret = found.unwrap_or_else(|| origin.secret.after_create());
            let written_at = read_clock(&db)?;
            Ok(Opened { file: Self { db }, secret, is_new: found.is_none(), written_at })
        })
    }

    /// Calls `each` with every counter, or with the reason why its bytes are not one.
    ///
    /// # Errors
    ///
    /// If a page cannot be read; `each` has been called with what comes before it.
    pub(super) fn read(
        &self,
        mut each: impl FnMut(Result<StoredCounter, record::Error>),
    ) -> Result<(), Error> {
        guarded(|| -> Result<(), redb::Error> {
            let table = self.db.begin_read()?.open_table(COUNTS)?;
            for entry in table.iter()? {
                let (key, value) = entry?;
                each(record::decode(key.value(), value.value()));
            }
            Ok(())
        })
    }

    /// Removes `removed`, then writes `changes`, counted until `now`, in one transaction. A counter
    /// larger than any that a node keeps is skipped, so that one key does not block the others.
    ///
    /// # Errors
    ///
    /// If the transaction fails. The file then holds what it held before, and must be opened again,
    /// because redb accepts no other write.
    pub(super) fn write(
        &self,
        removed: &[KeyHash],
        changes: impl Iterator<Item = StoredCounter>,
        now: Timestamp,
    ) -> Result<Written, Error> {
        guarded(|| -> Result<Written, redb::Error> {
            let transaction = self.db.begin_write()?;
            let mut written = Written { keys: 0, changes: 0 };
            {
                let mut table = transaction.open_table(COUNTS)?;
                for key in removed {
                    table.remove(record::encode_key(*key))?;
                }
                for counter in changes {
                    if let Ok(value) = record::encode(&counter) {
                        table.insert(record::encode_key(counter.key), &*value)?;
                        written.changes += 1;
                    }
                }
                written.keys = table.len()?;
                let clock = now.as_nanos().to_le_bytes();
                transaction.open_table(ABOUT)?.insert(CLOCK, &clock[..])?;
            }
            transaction.commit()?;
            Ok(written)
        })
    }

    /// Checks up to `max` counters after the key `after` for those that have expired by `now`.
    ///
    /// # Errors
    ///
    /// If a page cannot be read.
    pub(super) fn expired(
        &self,
        after: Option<KeyHash>,
        now: Timestamp,
        max: usize,
    ) -> Result<Expired, Error> {
        guarded(|| -> Result<Expired, redb::Error> {
            let table = self.db.begin_read()?.open_table(COUNTS)?;
            let from = after.map_or(Unbounded, |key| Excluded(record::encode_key(key)));
            let mut found = Expired::default();
            for (checked, entry) in table.range::<[u8; KEY_BYTES]>((from, Unbounded))?.enumerate() {
                let (key, value) = entry?;
                let key = record::decode_key(key.value());
                // A value without an expiry is malformed: every start would skip it.
                if record::expires_in(value.value()).is_none_or(|expires| expires <= now) {
                    found.keys.push(key);
                }
                if checked + 1 >= max {
                    found.next = Some(key);
                    break;
                }
            }
            Ok(found)
        })
    }
}

/// Turns a panic into an error: redb asserts its invariants, and a damaged file that breaks one
/// must not end the node.
fn guarded<T, E: Into<Error>>(access: impl FnOnce() -> Result<T, E>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(access)) {
        Ok(result) => result.map_err(E::into),
        Err(_) => Err(Error::Damaged("its pages are inconsistent".to_owned())),
    }
}

/// The secret to use with the file; `None` if it is new.
fn check_origin(db: &Database, origin: &Origin) -> Result<Option<Secret>, Error> {
    let Some([format, cluster, secret]) = read_about(db)? else { return Ok(None) };
    if format != FORMAT {
        return Err(Error::Foreign("of another version's format".to_owned()));
    }
    if cluster != origin.cluster.as_bytes() {
        let theirs = String::from_utf8_lossy(&cluster);
        return Err(Error::Foreign(format!("of cluster {theirs:?}, not {:?}", origin.cluster)));
    }
    match origin.secret.after_open(&secret) {
        None => Err(Error::Foreign("of another cluster secret".to_owned())),
        secret => Ok(secret),
    }
}

/// Format, cluster and secret in the table `about`; `None` if the file is new. A missing entry is
/// empty, which matches no origin.
fn read_about(db: &Database) -> Result<Option<[Vec<u8>; 3]>, redb::Error> {
    let transaction = db.begin_read()?;
    if transaction.list_tables()?.next().is_none() {
        return Ok(None);
    }
    let table = transaction.open_table(ABOUT)?;
    // One transaction creates both tables.
    transaction.open_table(COUNTS)?;
    let entry = |name: &str| -> Result<Vec<u8>, redb::Error> {
        Ok(table.get(name)?.map(|bytes| bytes.value().to_vec()).unwrap_or_default())
    };
    Ok(Some([entry("format")?, entry("cluster")?, entry("secret")?]))
}

/// `None` if nothing was written yet.
fn read_clock(db: &Database) -> Result<Option<Timestamp>, redb::Error> {
    let table = db.begin_read()?.open_table(ABOUT)?;
    let clock = table.get(CLOCK)?;
    let bytes = clock.as_ref().and_then(|bytes| <[u8; 8]>::try_from(bytes.value()).ok());
    Ok(bytes.map(|bytes| Timestamp::from_nanos(u64::from_le_bytes(bytes))))
}

/// Creates the tables of a new file.
fn create(db: &Database, origin: &Origin) -> Result<(), redb::Error> {
    let transaction = db.begin_write()?;
    {
        let mut about = transaction.open_table(ABOUT)?;
        about.insert("format", FORMAT)?;
        about.insert("cluster", origin.cluster.as_bytes())?;
        about.insert("node", origin.node.as_bytes())?;
        about.insert("secret", &*origin.secret.to_bytes())?;
        transaction.open_table(COUNTS)?;
    }
    Ok(transaction.commit()?)
}

// === Error ===

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Error {
    /// The file is of another cluster, secret or format.
    #[error("the file is {0}")]
    Foreign(String),
    /// Its bytes are not those that were written.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    #[error("another process uses the file; give every node a node.data_dir of its own")]
    InUse,
    /// No folder, no permission, no space, no disk.
    #[error("{0}")]
    Io(io::Error),
}

impl Error {
    /// Whether the next start would find the file in the same state, so that it has to be set
    /// aside.
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self, Self::Foreign(_) | Self::Damaged(_))
    }
}

impl From<redb::Error> for Error {
    fn from(error: redb::Error) -> Self {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            // A file that is no database, or is truncated.
            redb::Error::Io(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => {
                Self::Damaged(error.to_string())
            }
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
                Self::Io(io::Error::other("an earlier write failed"))
            }
            redb::Error::UpgradeRequired(version) => {
                Self::Foreign(format!("of redb's file format {version}"))
            }
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::TableDoesNotExist(_) => Self::Foreign("another program's".to_owned()),
            other => Self::Damaged(other.to_string()),
        }
    }
}
