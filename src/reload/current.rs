//! The book in force, and how its loading went: what a source of rules feeds (a watched folder, a
//! management server) and everybody else reads.
//!
//! **Invariant:** a load that makes no book changes nothing but the status.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_rules::book::Book;
use tokio::sync::watch;

/// Most warnings of a load that are logged; all are in [`Book::warnings`].
const WARNINGS_LOGGED_MAX: usize = 20;

/// What others see of a source of rules. Cheap to clone; outlives the source's task.
#[derive(Clone, Debug)]
pub struct Handle {
    book: Arc<ArcSwap<Book>>,
    status: Arc<watch::Sender<Status>>,
}

/// How the loading went so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Loads that made a book, the first one included.
    pub loads_ok: u64,
    /// Loads that made none.
    pub loads_failed: u64,
    /// Why the last load failed, or why no load is to be expected; `None` when the book is what the
    /// source says.
    pub error: Option<Arc<str>>,
}

impl Handle {
    /// In force is a book that no load made, such as an empty one.
    pub fn new(book: Book) -> Self {
        Self {
            book: Arc::new(ArcSwap::from_pointee(book)),
            status: Arc::new(watch::Sender::new(Status::default())),
        }
    }

    /// The book of this moment. A request takes one and keeps it.
    pub fn book(&self) -> Arc<Book> {
        self.book.load_full()
    }

    /// The place where the book of the moment is found, for those who load it per request.
    pub fn cell(&self) -> Arc<ArcSwap<Book>> {
        Arc::clone(&self.book)
    }

    /// How the loading went so far.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until the status is another than `seen`. Cancel-safe.
    pub async fn changed_since(&self, seen: &Status) -> Status {
        let mut updates = self.status.subscribe();
        match updates.wait_for(|status| status != seen).await {
            Ok(status) => status.clone(),
            // The sender is ours, so it is there as long as we are.
            Err(_) => self.status(),
        }
    }

    /// Ends a load: a book is in force from now on; an error changes nothing but the status.
    pub fn settle(&self, outcome: Result<Book, String>) {
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
                tracing::error!(%error, "load rules; the old rules stay in force");
                self.status.send_modify(|status| {
                    status.loads_failed += 1;
                    status.error = Some(error.into());
                });
            }
        }
    }

    /// Says why no load is to be expected for now. The next good load takes it back.
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
