//! Reloads the rule book when its folder changes.
//!
//! Events of the file system trigger a reload (usually within 200 ms of a change). Without
//! events (on network file systems, or after the folder itself was replaced) the folder is polled
//! every [`Options::poll`]. Either way the whole folder is read and its bytes are compared with
//! those of the last read, so nothing happens without a change. Links are followed while reading,
//! so the swap of a mounted `ConfigMap`'s `..data` is a change like any other.
//!
//! **Invariant:** a folder that cannot be loaded (an error in a file, no access, no folder, no
//! files left) changes nothing but the status: the current book stays in force.
//!
//! ```text
//! Watcher::start(options) ── first load, returns its error ──► (Watcher, Handle)
//! Watcher::run(stop)      ── one task, until `stop` ──► swaps the book, publishes the status
//! ```

use std::fs;
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

use super::files::read_again;

/// What is watched and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder, or the one file.
    pub path: PathBuf,
    /// How its files are read.
    pub load: load::Options,
    /// Delay between an event and the read. Editors and `kubectl` change several files at once;
    /// 100 ms let them finish.
    pub debounce: Duration,
    /// How often the folder is read without an event. With 1.5 s a change applies within 2 s even
    /// where no events come; reading costs some ten µs a file.
    pub poll: Duration,
    /// Whether a path that does not exist is an empty folder.
    pub may_be_missing: bool,
}

impl Options {
    /// Options with the default times.
    pub fn new(path: impl Into<PathBuf>, load: load::Options) -> Self {
        let debounce = Duration::from_millis(100);
        let poll = Duration::from_millis(1_500);
        Self { path: path.into(), load, debounce, poll, may_be_missing: false }
    }
}

/// The task that watches.
#[derive(Debug)]
pub struct Watcher {
    options: Options,
    handle: Handle,
    /// Hash of what was read last, valid or not.
    digest: u128,
}

impl Watcher {
    /// Loads the folder for the first time.
    ///
    /// # Errors
    ///
    /// The folder cannot be loaded: there is no earlier book to keep.
    pub fn start(options: Options) -> Result<(Self, Handle), Error> {
        let (digest, sources) = read(&options, &Book::default());
        let book = load::parse(&sources?, &options.load)?;
        Ok(Self::with(options, digest, Ok(book)))
    }

    /// Like [`Watcher::start`], but a folder that cannot be loaded is not an error: the book is
    /// [`Book::unloaded`] until a reload succeeds.
    pub fn start_anyway(options: Options) -> (Self, Handle) {
        let (digest, sources) = read(&options, &Book::default());
        let book = sources.and_then(|sources| load::parse(&sources, &options.load));
        Self::with(options, digest, book)
    }

    fn with(options: Options, digest: u128, first: Result<Book, Error>) -> (Self, Handle) {
        let handle = Handle::new(Book::unloaded());
        handle.finish_load(first.map_err(|error| error.to_string()));
        (Self { options, handle: handle.clone(), digest }, handle)
    }

    /// Watches until `stop` is cancelled. Not cancel-safe; cancel the token.
    pub async fn run(mut self, stop: CancellationToken) {
        let (wake, mut woken) = mpsc::channel(1);
        let mut alarm = alarm(&self.options.path, wake.clone());
        // A change between the first load and the start of the watch raised no event.
        let mut is_due = true;
        while !stop.is_cancelled() {
            if is_due {
                let Some(has_changed) = stop.run_until_cancelled(self.refresh()).await else {
                    return;
                };
                // A replaced folder is another folder to the file system. The new watch starts
                // before the old one ends, so that no change is missed in between.
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
            // Events during the delay are covered by the read that follows.
            while woken.try_recv().is_ok() {}
        }
    }

    /// Reads the folder and applies changes. Returns whether there were any.
    async fn refresh(&mut self) -> bool {
        let options = self.options.clone();
        let current = self.handle.book();
        let digest_before = self.digest;
        let reading = read_again(&self.options.path, move || {
            let (digest, sources) = read(&options, &current);
            let book = || {
                let mut book = load::parse(&sources?, &options.load)?;
                book.carry_stats(&current);
                Ok::<_, Error>(book)
            };
            (digest != digest_before).then(|| (digest, book()))
        });
        match reading.await {
            Ok(None) => false,
            Ok(Some((digest, outcome))) => {
                self.digest = digest;
                self.handle.finish_load(outcome.map_err(|error| error.to_string()));
                true
            }
            Err(panicked) => {
                self.handle.finish_load(Err(panicked));
                true
            }
        }
    }
}

/// Reads the folder; that it is empty is an error while `current` has rules. The hash is that of
/// the files or of the error.
fn read(options: &Options, current: &Book) -> (u128, Result<Vec<Source>, Error>) {
    let Options { path, may_be_missing, .. } = options;
    let is_missing = || *may_be_missing && path.try_exists().is_ok_and(|exists| !exists);
    // A pipe would block this thread until there is a writer.
    let is_readable = |it: fs::Metadata| it.is_dir() || it.is_file();
    let read = if is_missing() {
        Ok(Vec::new())
    } else if fs::metadata(path).is_ok_and(|it| !is_readable(it)) {
        Err(Error {
            file: path.display().to_string().into(),
            at: None,
            key: None,
            reason: Reason::Unreadable("it is neither a file nor a folder".into()),
        })
    } else {
        load::read(path)
    };
    let sources = match read {
        // Copying tools delete before they write, so an empty folder is usually temporary.
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
    (digest, sources)
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

/// Events of the file system as wake-ups; the channel holds one, since more carry no information.
/// `None` when events are not available; polling remains.
fn alarm(path: &Path, wake: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let on_event = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| is_read(event.kind)) {
            return;
        }
        // Full means that a wake-up is already queued.
        let _ = wake.try_send(());
    };
    let mut alarm = notify::recommended_watcher(on_event).ok()?;
    match alarm.watch(path, RecursiveMode::Recursive) {
        Ok(()) => Some(alarm),
        Err(error) => {
            tracing::debug!(%error, path = %path.display(), "cannot watch the rules folder; polling it instead");
            None
        }
    }
}

/// Whether something was only read, as the watcher itself does.
fn is_read(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}
