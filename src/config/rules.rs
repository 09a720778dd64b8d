//! `[rules]`: where the rules are.

use std::path::PathBuf;

use serde::Deserialize;

/// `[rules]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key, and says yes or no")]
pub struct Rules {
    /// Folder of rule files (`*.yaml`, `*.yml`), or one such file, relative to the configuration
    /// file. Watched: a change applies within two seconds.
    ///
    /// Default `rules`.
    pub path: PathBuf,
    /// Whether a domain may be spread over several files. Their descriptors must differ.
    ///
    /// Default false: a domain that two files name is a mistake.
    pub merge_domains: bool,
    /// Whether the node starts only with rules that load.
    ///
    /// Default true: whoever starts a node with a mistake in a rule wants to know. With false it
    /// starts all the same, is not ready, and takes over the first rules that do load.
    pub required: bool,
    /// Whether a node whose rules are none is ready.
    ///
    /// Default false: without rules every ask passes, and that is no limiter.
    pub may_be_empty: bool,
    /// Set by the loader, not by files: there is neither a configuration file nor a folder at
    /// `path`, so the node runs on [`super::examples::FILES`].
    #[serde(skip)]
    pub embedded: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            path: "rules".into(),
            merge_domains: false,
            required: true,
            may_be_empty: false,
            embedded: false,
        }
    }
}
