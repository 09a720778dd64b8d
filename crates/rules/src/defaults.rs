//! `[defaults]`: defaults of rules.

use serde::Deserialize;
use tidegate_limiter::policy::{Mode, OnUnavailable};

/// `[defaults]`. It must be the same on every node, otherwise nodes apply one rule differently.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// `mode` of a rule without one: `strict` or `eventual`.
    ///
    /// Default `strict`: a limit is exact unless the rule opts out.
    pub mode: Mode,
    /// `on_unavailable` of a rule without one: `allow`, `deny` or `local`.
    ///
    /// Default `local`: the node's own share of the limit, so that an outage neither admits nor
    /// denies everything. Use `deny` for limits that protect money, `allow` for optional ones.
    pub on_unavailable: OnUnavailable,
}
