//! `[defaults]`: what a rule means when it does not say.

use serde::Deserialize;
use tidegate_limiter::policy::{Mode, OnUnavailable};

/// `[defaults]`. The same on every node, or the nodes hold one rule in two ways.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// `mode` of a rule that names none: `strict` or `eventual`.
    ///
    /// Default `strict`: a limit that is written down is held exactly until somebody says
    /// otherwise.
    pub mode: Mode,
    /// `on_unavailable` of a rule that names none: `allow`, `deny` or `local`.
    ///
    /// Default `local`: the node's own share of the limit, so that an outage neither opens the gate
    /// nor closes it. `deny` suits limits that guard money, `allow` those that are a courtesy.
    pub on_unavailable: OnUnavailable,
}
