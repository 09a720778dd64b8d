//! The rules in force: a watched folder, a management server, or the examples compiled in.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_cluster::environment::Entropy;
use tidegate_rules::book::Book;
use tidegate_rules::load;
use tokio_util::sync::CancellationToken;

use super::core::Failed;
use super::error::Error;
use crate::config::{Config, EXAMPLES};
use crate::reload::current::{Handle, Status};
use crate::reload::watch::{Options, Watcher};
use crate::xds;

/// The rules in force; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RuleBook {
    cell: Arc<ArcSwap<Book>>,
    /// `None` when the rules are compiled in and never change.
    watched: Option<Handle>,
    /// Taken by the task that watches.
    source: Arc<Mutex<Option<Source>>>,
    /// Whether an empty book is valid.
    may_be_empty: bool,
}

/// The source of reloads.
#[derive(Debug)]
enum Source {
    Folder(Watcher),
    Server(Box<xds::Client>),
}

impl RuleBook {
    /// Loads the rules for the first time; those of a management server come later.
    pub(super) fn load(config: &Config, entropy: Arc<dyn Entropy>) -> Result<Self, Error> {
        let merge_domains = config.rules.merge_domains;
        let options = load::Options { defaults: config.defaults.clone(), merge_domains };
        if config.xds.server.is_some() {
            let (client, handle) = xds::Client::new(config.xds.clone(), options, entropy)?;
            // A server may send an empty set of rules.
            return Ok(Self::of(&handle, Source::Server(Box::new(client)), true));
        }
        if config.rules.embedded {
            let source = |(name, text): &(&str, &str)| load::Source {
                name: (*name).to_owned(),
                bytes: text.as_bytes().to_vec(),
            };
            let sources: Vec<_> = EXAMPLES.iter().map(source).collect();
            let book = load::parse(&sources, &options)?;
            tracing::info!("no rules folder: the example rules of domain \"demo\" are in force");
            let cell = Arc::new(ArcSwap::from_pointee(book));
            return Ok(Self { cell, watched: None, source: Arc::default(), may_be_empty: false });
        }
        let options = Options::new(&config.rules.path, options);
        let (watcher, handle) = if config.rules.required {
            Watcher::start(options)?
        } else {
            Watcher::start_anyway(options)
        };
        Ok(Self::of(&handle, Source::Folder(watcher), config.rules.may_be_empty))
    }

    fn of(handle: &Handle, source: Source, may_be_empty: bool) -> Self {
        Self {
            cell: handle.cell(),
            watched: Some(handle.clone()),
            source: Arc::new(Mutex::new(Some(source))),
            may_be_empty,
        }
    }

    /// Why the node has no usable rules, if so. An empty book admits everything, so it counts as a
    /// mistake unless the configuration allows it.
    pub(super) fn lacks(&self) -> Option<Arc<str>> {
        let book = self.cell.load();
        if !book.is_loaded() {
            return Some(
                self.status().error.unwrap_or_else(|| "no rules have been loaded yet".into()),
            );
        }
        let is_missing = !self.may_be_empty && book.rules().next().is_none();
        is_missing.then(|| "the rules folder contains no rule".into())
    }

    /// The current book.
    pub(super) fn cell(&self) -> Arc<ArcSwap<Book>> {
        self.cell.clone()
    }

    /// The result of the loads so far.
    pub(super) fn status(&self) -> Status {
        self.watched.as_ref().map(Handle::status).unwrap_or_default()
    }

    /// Waits for a load after `seen`, successful or not. Cancel-safe.
    pub(super) async fn changed_since(&self, seen: &Status) {
        match &self.watched {
            Some(handle) => drop(handle.changed_since(seen).await),
            None => std::future::pending().await,
        }
    }

    /// Reloads from the source until `stop`.
    pub(super) async fn watch(self, stop: CancellationToken) -> Result<(), Failed> {
        let source = self.source.lock().take();
        match source {
            Some(Source::Folder(watcher)) => watcher.run(stop).await,
            Some(Source::Server(client)) => client.run(stop).await,
            None => stop.cancelled().await,
        }
        Ok(())
    }
}
