//! The rules in force: a watched folder, a management server, or the examples compiled in.

use std::sync::Arc;

use tidegate_cluster::environment::Entropy;
use tidegate_rules::load;
use tokio_util::sync::CancellationToken;

use super::error::Error;
use crate::config::{Config, EXAMPLES};
use crate::reload::current::Handle;
use crate::reload::watch::{Options, Watcher};
use crate::xds;

/// The rules in force; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RuleBook {
    pub(super) handle: Handle,
    /// Whether an empty book is valid.
    may_be_empty: bool,
}

/// The source of reloads.
#[derive(Debug)]
pub(super) enum Source {
    /// Compiled in, never reloaded.
    Examples,
    Folder(Watcher),
    Server(Box<xds::Client>),
}

impl RuleBook {
    /// Loads the rules for the first time; those of a management server come later.
    pub(super) fn load(
        config: &Config,
        entropy: Arc<dyn Entropy>,
    ) -> Result<(Self, Source), Error> {
        let merge_domains = config.rules.merge_domains;
        let options = load::Options { defaults: config.defaults.clone(), merge_domains };
        let may_be_empty = config.rules.may_be_empty;
        if config.xds.server.is_some() {
            let (client, handle) = xds::Client::new(config.xds.clone(), options, entropy)?;
            // A server may send an empty set of rules.
            return Ok((Self { handle, may_be_empty: true }, Source::Server(Box::new(client))));
        }
        if config.rules.embedded {
            let sources = EXAMPLES.iter().map(|(name, text)| load::Source {
                name: (*name).to_owned(),
                bytes: text.as_bytes().to_vec(),
            });
            let handle = Handle::new(load::parse(&sources.collect::<Vec<_>>(), &options)?);
            tracing::info!("no rules folder: the example rules of domain \"demo\" are in force");
            return Ok((Self { handle, may_be_empty }, Source::Examples));
        }
        let options = Options {
            may_be_missing: may_be_empty && !config.rules.required,
            ..Options::new(&config.rules.path, options)
        };
        let (watcher, handle) = if config.rules.required {
            Watcher::start(options)?
        } else {
            Watcher::start_anyway(options)
        };
        Ok((Self { handle, may_be_empty }, Source::Folder(watcher)))
    }

    /// Why the node has no usable rules, if so. An empty book admits everything, so it counts as a
    /// mistake unless the configuration allows it.
    pub(super) fn lacks(&self) -> Option<Arc<str>> {
        let book = self.handle.book();
        if !book.is_loaded() {
            let error = self.handle.status().error;
            return Some(error.unwrap_or_else(|| "no rules have been loaded yet".into()));
        }
        let is_missing = !self.may_be_empty && book.rules().next().is_none();
        is_missing.then(|| "the rules folder contains no rule".into())
    }
}

impl Source {
    /// Reloads until `stop`.
    pub(super) async fn watch(self, stop: CancellationToken) {
        match self {
            Self::Examples => stop.cancelled().await,
            Self::Folder(watcher) => watcher.run(stop).await,
            Self::Server(client) => client.run(stop).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::system_environment;

    #[test]
    fn a_folder_that_is_not_there_is_lacking_unless_rules_are_not_needed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::default();
        config.rules.required = false;
        let entropy = system_environment().0.entropy;
        for (may_be_empty, is_there, lacks) in
            [(false, false, true), (false, true, true), (true, false, false), (true, true, false)]
        {
            let path = if is_there { "" } else { "rules" };
            config.rules.path = folder.path().join(path);
            config.rules.may_be_empty = may_be_empty;
            let (book, _) = RuleBook::load(&config, entropy.clone()).expect("it starts");
            let why = book.lacks();
            assert_eq!(why.is_some(), lacks, "{may_be_empty} {is_there}: {why:?}");
        }
        std::fs::write(folder.path().join("a.yaml"), "domain: [").expect("written");
        let (book, _) = RuleBook::load(&config, entropy.clone()).expect("it starts");
        assert!(book.lacks().is_some(), "a mistake is not a folder without rules");
    }
}
