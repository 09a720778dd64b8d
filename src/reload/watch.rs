//! Keeps the rule book as the folder is: the I/O edge of the rules, and the only file of them that
//! knows tasks and file events.
//!
//! Events of the file system wake it (usually within 200 ms of a change); where there are none, on
//! network file systems or when the folder itself was replaced, it looks by itself every
//! [`Options::poll`]. Either way it reads the whole folder and compares the bytes with what it read
//! last, so nothing happens without a change. Links are followed while reading, so the swap of a
//! mounted `ConfigMap`'s `..data` is a change like any other.
//!
//! **Invariant:** a folder that makes no book (a mistake in a file, no access, no folder, no files
//! left) changes nothing but the status: the node goes on with the book that it has.
//!
//! ```text
//! Watcher::start(options) ── first load, errors are the caller's ──► (Watcher, Handle)
//! Watcher::run(stop)      ── one task, until `stop` ──► swaps the book, publishes the status
//! ```

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use super::current::{Handle, Status};
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use siphasher::sip128::{Hasher128, SipHasher13};
use tidegate_rules::book::Book;
use tidegate_rules::error::{Error, Reason};
use tidegate_rules::load::{self, Source};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// What is watched and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder, or the one file.
    pub path: PathBuf,
    /// How its files are read.
    pub load: load::Options,
    /// How long after an event the folder is read. Editors and `kubectl` change several things at
    /// once; 100 ms let them finish.
    pub debounce: Duration,
    /// How often the folder is read without an event. With 1.5 s a change applies within 2 s even
    /// where no events come; reading costs some ten µs a file.
    pub poll: Duration,
}

impl Options {
    /// The usual times.
    pub fn new(path: impl Into<PathBuf>, load: load::Options) -> Self {
        let debounce = Duration::from_millis(100);
        Self { path: path.into(), load, debounce, poll: Duration::from_millis(1_500) }
    }
}

/// The task that watches.
#[derive(Debug)]
pub struct Watcher {
    options: Options,
    handle: Handle,
    /// Of what was read last, good or bad.
    digest: u128,
}

impl Watcher {
    /// Loads the folder for the first time. Without a good book there is nothing to go on with, so
    /// here an error is the caller's.
    pub fn start(options: Options) -> Result<(Self, Handle), Error> {
        let sources = load::read(&options.path)?;
        let digest = digest(&sources);
        let book = load::parse(&sources, &options.load)?;
        let handle = Handle::new(Book::default());
        handle.settle(Ok(book));
        Ok((Self { options, handle: handle.clone(), digest }, handle))
    }

    /// The same, but without a good book it goes on with none ([`Book::unloaded`]), and the first
    /// that the folder makes is taken over like any other.
    pub fn start_anyway(options: Options) -> (Self, Handle) {
        let handle = Handle::new(Book::unloaded());
        let read = read_changed(&options.path, &options.load, &Book::default(), 0);
        let digest = read.as_ref().map_or(0, |(digest, _)| *digest);
        if let Some((_, outcome)) = read {
            handle.settle(outcome.map_err(|error| error.to_string()));
        }
        (Self { options, handle: handle.clone(), digest }, handle)
    }

    /// Watches until `stop` is cancelled. Not cancel-safe in itself; cancel the token.
    pub async fn run(mut self, stop: CancellationToken) {
        let (wake, mut woken) = mpsc::channel(1);
        let mut alarm = alarm(&self.options.path, wake.clone());
        // What changed between the first load and the alarm raised no event.
        let mut is_due = true;
        while !stop.is_cancelled() {
            if is_due {
                let Some(has_changed) = stop.run_until_cancelled(self.refresh()).await else {
                    return;
                };
                // A folder that was replaced is another folder to the file system. The new alarm is
                // set before the old one goes, so that nothing happens unseen between them.
                if has_changed || alarm.is_none() {
                    alarm = self::alarm(&self.options.path, wake.clone());
                }
            }
            is_due = tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(self.options.poll) => true,
                _ = woken.recv() => {
                    stop.run_until_cancelled(sleep(self.options.debounce)).await.is_some()
                }
            };
            // What came while the folder settled is covered by the read that follows.
            while woken.try_recv().is_ok() {}
        }
    }

    /// Reads the folder and takes over what changed; says whether anything did.
    async fn refresh(&mut self) -> bool {
        let Options { path, load, .. } = self.options.clone();
        let current = self.handle.book();
        let digest_before = self.digest;
        let reading = tokio::task::spawn_blocking(move || {
            read_changed(&path, &load, &current, digest_before)
        });
        match reading.await {
            Ok(None) => false,
            Ok(Some((digest, outcome))) => {
                self.digest = digest;
                self.handle.settle(outcome.map_err(|error| error.to_string()));
                true
            }
            Err(panicked) => {
                self.handle.settle(Err(format!("the loader failed: {panicked}")));
                true
            }
        }
    }
}

/// Reads and parses; `None` when the bytes, or the error, are those of the last time.
fn read_changed(
    path: &Path,
    options: &load::Options,
    current: &Book,
    digest_before: u128,
) -> Option<(u128, Result<Book, Error>)> {
    let sources = match load::read(path) {
        // Copying tools delete before they write: an empty folder is a moment more often than a
        // wish.
        Ok(sources) if sources.is_empty() && current.domains().next().is_some() => Err(Error {
            file: path.display().to_string().into(),
            at: None,
            key: None,
            reason: Reason::Emptied,
        }),
        other => other,
    };
    let digest = match &sources {
        Ok(sources) => digest(sources),
        Err(error) => {
            let (name, bytes) = (String::from("error"), error.to_string().into_bytes());
            digest(&[Source { name, bytes }])
        }
    };
    if digest == digest_before {
        return None;
    }
    let book = sources.and_then(|sources| load::parse(&sources, options));
    let book = book.map(|mut book| {
        book.carry_stats(current);
        book
    });
    Some((digest, book))
}

/// A hash of names and contents.
fn digest(sources: &[Source]) -> u128 {
    let mut sip = SipHasher13::new();
    for Source { name, bytes } in sources {
        for part in [name.as_bytes(), bytes] {
            sip.write(&(part.len() as u64).to_le_bytes());
            sip.write(part);
        }
    }
    sip.finish128().into()
}

/// Events of the file system, each a wake-up; the channel holds one, more would say the same.
/// `None` when there are none to be had, which leaves the poll.
fn alarm(path: &Path, wake: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let ring = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| is_read(event.kind)) {
            return;
        }
        // Full means that a wake-up is waiting already.
        let _ = wake.try_send(());
    };
    let mut alarm = notify::recommended_watcher(ring).ok()?;
    match alarm.watch(path, RecursiveMode::Recursive) {
        Ok(()) => Some(alarm),
        Err(error) => {
            tracing::debug!(%error, path = %path.display(), "watch rules; polling instead");
            None
        }
    }
}

/// Whether something was only read, as we do ourselves.
fn is_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}
