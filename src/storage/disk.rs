//! The location of the storage file: a path, or memory in tests.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use redb::{Builder, Database, DatabaseError};
use tidegate_limiter::units::Timestamp;

/// Most files that are kept aside; the oldest is deleted for the next. A disk that damages every
/// file must not fill up with them.
pub const ASIDE_MAX: usize = 3;

pub trait Disk: Debug + Send + Sync {
    /// Opens the file, or creates an empty one.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, is in use, or is not a database.
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError>;

    /// Moves the file out of the way and returns its new path. The file must be closed.
    ///
    /// # Errors
    ///
    /// If the file cannot be renamed, or an older one cannot be deleted.
    fn set_aside(&self, now: Timestamp) -> io::Result<PathBuf>;

    /// Whether the path still leads to the file that was opened last. A file that was deleted or
    /// replaced can still be written, but no later start reads it.
    fn is_in_place(&self) -> bool;

    /// For logs and status.
    fn path(&self) -> &Path;
}

/// How often it is tried to open a file that is in use, and the pause between two attempts: a
/// process that was drained has said so a moment before it lets go of its files.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Opens a database, which the process before this one may still have for a moment. Blocks.
///
/// # Errors
///
/// Those of `open`; that it is in use after two seconds.
pub(super) fn when_free(
    open: impl Fn() -> Result<Database, DatabaseError>,
) -> Result<Database, DatabaseError> {
    for _ in 1..ATTEMPTS {
        match open() {
            Err(DatabaseError::DatabaseAlreadyOpen) => std::thread::sleep(PAUSE),
            opened => return opened,
        }
    }
    open()
}

/// A file in a folder.
#[derive(Debug)]
pub struct PathOnDisk {
    path: PathBuf,
    opened: Mutex<Option<Inode>>,
}

/// Identifies a file whatever its path, as long as it is open. Read without opening the path: a
/// node that is out of file descriptors has not lost its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    /// That of the file at `path`.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|metadata| Self::of(&metadata))
    }

    fn of(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), number: metadata.ino() }
    }
}

impl PathOnDisk {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), opened: Mutex::new(None) }
    }

    /// The prefix of the names of files that were set aside.
    fn aside_prefix(&self) -> OsString {
        let mut prefix = self.path.file_name().unwrap_or_default().to_owned();
        prefix.push(".aside-");
        prefix
    }

    /// The files that were set aside before, oldest first.
    fn asides(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let prefix = self.aside_prefix();
        let prefix = prefix.to_string_lossy();
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            let seconds = name.to_string_lossy().strip_prefix(&*prefix).map(str::parse::<u64>);
            if let Some(Ok(seconds)) = seconds {
                found.push((seconds, folder.join(name)));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }
}

impl Disk for PathOnDisk {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let mut options = OpenOptions::new();
        // The file of a standalone node contains its secret.
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&self.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file").into());
        }
        *self.opened.lock() = Some(Inode::of(&metadata));
        builder.create_file(file)
    }

    fn set_aside(&self, now: Timestamp) -> io::Result<PathBuf> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or_else(|| Path::new("."));
        let before = self.asides(folder)?;
        for oldest in before.iter().take((before.len() + 1).saturating_sub(ASIDE_MAX)) {
            fs::remove_file(oldest)?;
        }
        let mut name = self.aside_prefix();
        name.push(now.as_secs().to_string());
        let aside = folder.join(name);
        fs::rename(&self.path, &aside)?;
        Ok(aside)
    }

    fn is_in_place(&self) -> bool {
        let opened = *self.opened.lock();
        Inode::at(&self.path).ok() == opened
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
