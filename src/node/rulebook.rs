//! The rules in force: a watched folder, or the examples compiled in.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::core::Failed;
use crate::config::{Config, examples};
use crate::rules::book::Book;
use crate::rules::error::Error;
use crate::rules::load;
use crate::rules::watch::{Handle, Options, Status, Watcher};

/// Where the rules in force are found; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RuleBook {
    cell: Arc<ArcSwap<Book>>,
    /// `None` when the rules are compiled in and never change.
    watched: Option<Handle>,
    /// Taken by the one task that watches.
    watcher: Arc<Mutex<Option<Watcher>>>,
}

impl RuleBook {
    /// Loads the rules for the first time.
    pub(super) fn load(config: &Config) -> Result<Self, Error> {
        let merge_domains = config.rules.merge_domains;
        let options = load::Options { defaults: config.defaults.clone(), merge_domains };
        if config.rules.embedded {
            let source = |(name, text): &(&str, &str)| load::Source {
                name: (*name).to_owned(),
                bytes: text.as_bytes().to_vec(),
            };
            let sources: Vec<_> = examples::FILES.iter().map(source).collect();
            let book = load::parse(&sources, &options)?;
            tracing::info!("no rules folder: the example rules of domain \"demo\" are in force");
            let cell = Arc::new(ArcSwap::from_pointee(book));
            return Ok(Self { cell, watched: None, watcher: Arc::default() });
        }
        let options = Options::new(&config.rules.path, options);
        let (watcher, handle) = if config.rules.required {
            Watcher::start(options)?
        } else {
            Watcher::start_anyway(options)
        };
        let watcher = Arc::new(Mutex::new(Some(watcher)));
        Ok(Self { cell: handle.cell(), watched: Some(handle), watcher })
    }

    /// The book of the moment.
    pub(super) fn cell(&self) -> Arc<ArcSwap<Book>> {
        self.cell.clone()
    }

    /// How loading went so far.
    pub(super) fn status(&self) -> Status {
        self.watched.as_ref().map(Handle::status).unwrap_or_default()
    }

    /// Waits until loading went on since `seen`, well or badly. Cancel-safe.
    pub(super) async fn changed_since(&self, seen: &Status) {
        match &self.watched {
            Some(handle) => drop(handle.changed_since(seen).await),
            None => std::future::pending().await,
        }
    }

    /// Watches the folder until `stop`.
    pub(super) async fn watch(self, stop: CancellationToken) -> Result<(), Failed> {
        let watcher = self.watcher.lock().take();
        match watcher {
            Some(watcher) => watcher.run(stop).await,
            None => stop.cancelled().await,
        }
        Ok(())
    }
}
