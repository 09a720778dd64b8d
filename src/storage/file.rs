//! The file of counts: a redb database with two tables.
//!
//! | table | key | value |
//! |---|---|---|
//! | `about` | `format`, `cluster`, `node`, `secret` | see [`Origin`] |
//! | `counts` | 16 bytes, place and tag | see [`record`] |
//!
//! **Durable.** One write is one transaction, and it is on the disk (`fdatasync`) when
//! [`File::write`] returns. redb writes beside what is in force and then turns one page, so a crash
//! at any instant leaves the last whole write.
//!
//! **Checked twice.** redb sums its pages, and [`File::open`] has it check all of them; every value
//! has a sum of its own, so that a count is either the one that was written or none.
//!
//! Everything here waits for a disk: it belongs on a thread that may.

use std::ops::Bound::{Excluded, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    TableHandle,
};
use tidegate_limiter::store::{KeyHash, StoredCounter};
use tidegate_limiter::units::Timestamp;

use super::disk::Disk;
use super::error::Error;
use super::origin::{Origin, Secret};
use super::record::{self, KEY_BYTES};

/// The version of the layout: which tables there are and what is in them.
const FORMAT: &[u8] = b"tidegate counts 1";

/// Memory for pages. A round writes what changed and reads little, so more would not help.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
const COUNTS: TableDefinition<'_, [u8; KEY_BYTES], &[u8]> = TableDefinition::new("counts");

/// An open file.
pub struct File {
    db: Database,
}

/// What opening gives.
pub struct Opened {
    /// The file.
    pub file: File,
    /// What its keys are hashed under.
    pub secret: Secret,
    /// Whether it holds nothing yet.
    pub is_new: bool,
}

/// What a write left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Counters that the file holds.
    pub keys: u64,
    /// Counters that were written.
    pub changes: u64,
}

/// A stretch of a walk over the file for what expired.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// What may go.
    pub keys: Vec<KeyHash>,
    /// Where to go on; `None` at the end.
    pub next: Option<KeyHash>,
}

impl File {
    /// Opens the file on `disk`, or begins a new one.
    ///
    /// Repairs what a crash left unfinished, and reads every page once: some 0.1 s for 100 MB.
    pub fn open(disk: &dyn Disk, origin: &Origin) -> Result<Opened, Error> {
        guarded(|| {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            let mut db = disk.open(&builder).map_err(redb::Error::from)?;
            db.check_integrity().map_err(redb::Error::from)?;
            let claimed = claim(&db, origin)?;
            if claimed.is_none() {
                introduce(&db, origin)?;
            }
            let secret = claimed.unwrap_or_else(|| origin.secret.settled());
            Ok(Opened { file: Self { db }, secret, is_new: claimed.is_none() })
        })
    }

    /// Hands every counter to `each`, or why it is none. Fails where the file ends to be readable.
    pub fn read(
        &self,
        mut each: impl FnMut(Result<StoredCounter, record::Error>),
    ) -> Result<(), Error> {
        let mut read = || -> Result<(), redb::Error> {
            let table = self.db.begin_read()?.open_table(COUNTS)?;
            for entry in table.iter()? {
                let (key, value) = entry?;
                each(record::decode(key.value(), value.value()));
            }
            Ok(())
        };
        guarded(|| Ok(read()?))
    }

    /// Forgets `gone`, then keeps `changes`, in one transaction: after an error it is as if nothing
    /// was asked. Then the file is to be opened anew, because redb takes no further write.
    ///
    /// A counter larger than any that a node keeps is left out: one key must not hold up the rest.
    pub fn write(
        &self,
        gone: &[KeyHash],
        changes: impl Iterator<Item = StoredCounter>,
    ) -> Result<Written, Error> {
        let write = || -> Result<Written, redb::Error> {
            let transaction = self.db.begin_write()?;
            let mut written = Written { keys: 0, changes: 0 };
            {
                let mut table = transaction.open_table(COUNTS)?;
                for key in gone {
                    table.remove(record::encode_key(*key))?;
                }
                for counted in changes {
                    if let Ok(value) = record::encode(&counted) {
                        table.insert(record::encode_key(counted.key), &*value)?;
                        written.changes += 1;
                    }
                }
                written.keys = table.len()?;
            }
            transaction.commit()?;
            Ok(written)
        };
        guarded(|| Ok(write()?))
    }

    /// How many counters it holds.
    pub fn keys(&self) -> Result<u64, Error> {
        let count =
            || -> Result<u64, redb::Error> { Ok(self.db.begin_read()?.open_table(COUNTS)?.len()?) };
        guarded(|| Ok(count()?))
    }

    /// Looks at `max` counters from behind `after` on for those that expired by `now`.
    pub fn expired(
        &self,
        after: Option<KeyHash>,
        now: Timestamp,
        max: usize,
    ) -> Result<Expired, Error> {
        let look = || -> Result<Expired, redb::Error> {
            let table = self.db.begin_read()?.open_table(COUNTS)?;
            let from = after.map_or(Unbounded, |key| Excluded(record::encode_key(key)));
            let mut found = Expired::default();
            for (looked, entry) in table.range::<[u8; KEY_BYTES]>((from, Unbounded))?.enumerate() {
                let (key, value) = entry?;
                let key = record::decode_key(key.value());
                // What has no expiry is no value: every start would skip it.
                if record::expires_in(value.value()).is_none_or(|expires| expires <= now) {
                    found.keys.push(key);
                }
                if looked + 1 >= max {
                    found.next = Some(key);
                    break;
                }
            }
            Ok(found)
        };
        guarded(|| Ok(look()?))
    }
}

/// redb holds its own invariants by panicking. A file whose bytes break one is torn, and no reason
/// for a node to end.
fn guarded<T>(access: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(access))
        .unwrap_or_else(|_| Err(Error::Torn("its pages contradict each other".to_owned())))
}

/// Reads whose file it is; `None` when it is new.
fn claim(db: &Database, origin: &Origin) -> Result<Option<Secret>, Error> {
    let Some(About { format, cluster, secret }) = about(db)? else { return Ok(None) };
    if format != FORMAT {
        return Err(Error::Foreign("of another tidegate's format".to_owned()));
    }
    if cluster != origin.cluster.as_bytes() {
        let theirs = String::from_utf8_lossy(&cluster);
        return Err(Error::Foreign(format!("of cluster {theirs:?}, not {:?}", origin.cluster)));
    }
    match origin.secret.agree(&secret) {
        None => Err(Error::Foreign("of another cluster secret".to_owned())),
        agreed => Ok(agreed),
    }
}

/// What a file says of itself.
struct About {
    format: Vec<u8>,
    cluster: Vec<u8>,
    secret: Vec<u8>,
}

/// `None` when the file is new. A part that is missing reads as empty, and is nobody's.
fn about(db: &Database) -> Result<Option<About>, Error> {
    let read = || -> Result<Option<About>, redb::Error> {
        let transaction = db.begin_read()?;
        let tables: Vec<String> =
            transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
        if tables.is_empty() {
            return Ok(None);
        }
        let table = transaction.open_table(ABOUT)?;
        // Both tables are made by one transaction.
        transaction.open_table(COUNTS)?;
        let part = |name: &str| -> Result<Vec<u8>, redb::Error> {
            Ok(table.get(name)?.map(|bytes| bytes.value().to_vec()).unwrap_or_default())
        };
        Ok(Some(About {
            format: part("format")?,
            cluster: part("cluster")?,
            secret: part("secret")?,
        }))
    };
    Ok(read()?)
}

/// Writes into a new file whose it is.
fn introduce(db: &Database, origin: &Origin) -> Result<(), Error> {
    let write = || -> Result<(), redb::Error> {
        let transaction = db.begin_write()?;
        {
            let mut about = transaction.open_table(ABOUT)?;
            about.insert("format", FORMAT)?;
            about.insert("cluster", origin.cluster.as_bytes())?;
            about.insert("node", origin.node.as_bytes())?;
            about.insert("secret", &*origin.secret.written())?;
            transaction.open_table(COUNTS)?;
        }
        Ok(transaction.commit()?)
    };
    Ok(write()?)
}
