//! The book in force and the status of its loading: written by a source of rules (a watched
//! folder, a management server), read by everything else.
//!
//! **Invariant:** a failed load changes nothing but the status.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_rules::book::Book;
use tokio::sync::watch;

/// Most warnings of a load that are logged; all are in [`Book::warnings`].
const WARNINGS_LOGGED_MAX: usize = 20;

/// The read side of a source of rules. Cheap to clone; outlives the source's task.
#[derive(Clone, Debug)]
pub struct Handle {
    book: Arc<ArcSwap<Book>>,
    status: Arc<watch::Sender<Status>>,
}

/// The result of the loads so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Successful loads since the start. Rules that are part of the program are not loaded.
    pub loads_ok: u64,
    /// Failed loads.
    pub loads_failed: u64,
    /// Why the last load failed, or why no load is expected; `None` when the book is up to date.
    pub error: Option<Arc<str>>,
}

impl Handle {
    /// Starts with `book`, which does not count as a load.
    pub fn new(book: Book) -> Self {
        Self {
            book: Arc::new(ArcSwap::from_pointee(book)),
            status: Arc::new(watch::Sender::new(Status::default())),
        }
    }

    /// The current book.
    pub fn book(&self) -> Arc<Book> {
        self.book.load_full()
    }

    /// The cell of the current book, for callers that load it once per request.
    pub fn cell(&self) -> Arc<ArcSwap<Book>> {
        Arc::clone(&self.book)
    }

    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until the status differs from `seen`. Cancel-safe.
    pub async fn changed_since(&self, seen: &Status) -> Status {
        let mut updates = self.status.subscribe();
        match updates.wait_for(|status| status != seen).await {
            Ok(status) => status.clone(),
            // Unreachable: the sender is a field of `self`.
            Err(_) => self.status(),
        }
    }

    /// Records the result of a load: a book replaces the current one; an error changes only the
    /// status.
    pub fn finish_load(&self, outcome: Result<Book, String>) {
        match outcome {
            Ok(book) => {
                log_loaded(&book);
                self.book.store(Arc::new(book));
                self.status.send_modify(|status| {
                    status.loads_ok += 1;
                    status.error = None;
                });
            }
            Err(error) => {
                tracing::error!(%error, "failed to load rules; the current rules stay in force");
                self.status.send_modify(|status| {
                    status.loads_failed += 1;
                    status.error = Some(error.into());
                });
            }
        }
    }

    /// Records why no load is expected for now. The next successful load clears it.
    pub fn cut_off(&self, why: String) {
        self.status.send_modify(|status| status.error = Some(why.into()));
    }
}

fn log_loaded(book: &Book) {
    let fingerprint = format_args!("{:016x}", book.fingerprint()).to_string();
    tracing::info!(rules = book.rules().count(), fingerprint, "rules loaded");
    for warning in book.warnings().iter().take(WARNINGS_LOGGED_MAX) {
        tracing::warn!("{warning}");
    }
}
