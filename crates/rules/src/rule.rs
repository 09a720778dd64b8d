//! One rule: the limits of a descriptor, the policy that applies to them, and its defaults.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use smallvec::SmallVec;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::soft_limit::SoftLimit;

use super::metadata::Metadata;
use super::stats::RuleStats;
pub use tidegate_limiter::policy::{Durability, Mode, OnUnavailable, Scope};

/// The limits and the policy of the descriptors that match it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Names the rule in metrics, logs and answers: `domain.key_value.key`, as envoyproxy/ratelimit
    /// names its statistics. Unique in a book.
    pub id: Arc<str>,
    /// The `name` of the rule file, for people.
    pub name: Option<Arc<str>>,
    /// All must admit; none is charged when one refuses. Empty means unlimited.
    pub limits: SmallVec<[Quota; 1]>,
    /// `requests_per_unit` of an unlimited rule: without effect, and reported where
    /// envoyproxy/ratelimit reports it.
    pub unlimited_per_unit: u32,
    /// One per limit, in their order; empty when none of them has one.
    pub soft_limits: Box<[Option<SoftLimit>]>,
    pub mode: Mode,
    /// Which nodes share a strict limit.
    pub scope: Scope,
    /// The answer while the owner is unreachable.
    pub on_unavailable: OnUnavailable,
    /// Whether the owner's answer waits for a replica.
    pub durability: Durability,
    /// Shadow mode: counts and reports, never refuses.
    pub shadow: bool,
    /// A request is over its quota rules only when all of them refuse it.
    pub quota_mode: bool,
    /// Limits of the requests in flight. Only a proxy knows when a request has ended.
    pub in_flight: InFlightLimits,
    /// Names of rules that do not apply to a request to which this rule applies.
    pub replaces: Box<[Arc<str>]>,
    /// Sent to Envoy with a request that this rule admitted.
    pub metadata: Option<Arc<Metadata>>,
    /// This node's statistics of the rule; kept by a reload that keeps the id.
    pub stats: Arc<RuleStats>,
}

impl Rule {
    /// The rule of a limit that is part of a request: strict, with an id made of the request.
    ///
    /// Example: `user=ann` and `path` without a value, in the domain `shop`, are
    /// `shop.user_ann.path`.
    ///
    /// Source: envoyproxy/ratelimit, `src/config/config_impl.go`, `descriptorKey`.
    pub fn brought_along(
        domain: &str,
        entries: &[Entry<'_>],
        limit: Quota,
        on_unavailable: OnUnavailable,
        durability: Durability,
    ) -> Self {
        let mut id = format!("{domain}.");
        for (index, entry) in entries.iter().enumerate() {
            if index > 0 {
                id.push('.');
            }
            id.push_str(entry.key);
            if !entry.value.is_empty() {
                id.extend(["_", entry.value]);
            }
        }
        let limits = smallvec::smallvec![limit];
        Self { limits, on_unavailable, durability, ..Self::usual(id.into()) }
    }

    /// The name of the limit `index` in fields of responses: that of the rule, with the window if
    /// the rule has several limits, and the algorithm if several of them have this window.
    ///
    /// Example: a rule `login` with two limits of a minute and one of an hour has
    /// `login-1m-gcra`, `login-1m-fixed_window` and `login-1h`.
    pub fn limit_name(&self, index: usize) -> Cow<'_, str> {
        let name = self.name.as_deref().unwrap_or(&self.id);
        let Some(quota) = self.limits.get(index).filter(|_| self.limits.len() > 1) else {
            return name.into();
        };
        let window = quota.window();
        match self.limits.iter().filter(|other| other.window() == window).count() {
            1 => format!("{name}-{window}").into(),
            _ => format!("{name}-{window}-{}", quota.algorithm().name()).into(),
        }
    }

    /// The rule of all limits that clients pass with their requests (`CL.THROTTLE`): the mode, and
    /// the answer while the owner is unreachable.
    pub fn of_clients(mode: Mode, on_unavailable: OnUnavailable) -> Self {
        Self { mode, on_unavailable, ..Self::usual("clients".into()) }
    }

    /// Whether `verdicts`, one per limit, admit a request above one of the soft limits.
    #[inline]
    pub fn is_soft_limited(&self, verdicts: &[Verdict]) -> bool {
        !self.soft_limits.is_empty() && verdicts.iter().all(|verdict| verdict.allowed) && {
            let soft_limits = self.soft_limits.iter().zip(&self.limits).zip(verdicts);
            soft_limits
                .filter_map(|((soft, quota), verdict)| Some((soft.as_ref()?, quota, verdict)))
                .any(|(soft, quota, verdict)| soft.is_exceeded(quota, verdict))
        }
    }

    /// A rule without limits and with default policy.
    pub(super) fn usual(id: Arc<str>) -> Self {
        Self {
            id,
            name: None,
            limits: SmallVec::new(),
            unlimited_per_unit: 0,
            soft_limits: Box::default(),
            mode: Mode::Strict,
            scope: Scope::default(),
            on_unavailable: OnUnavailable::default(),
            durability: Durability::default(),
            shadow: false,
            quota_mode: false,
            in_flight: InFlightLimits::default(),
            replaces: Box::default(),
            metadata: None,
            stats: Arc::default(),
        }
    }
}

/// How many requests of a descriptor may be in flight at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InFlightLimits {
    /// `concurrency`: at all nodes together.
    pub everywhere: Option<u32>,
    /// `node_concurrency`: at each node.
    pub at_node: Option<u32>,
}

impl InFlightLimits {
    /// Whether there is any.
    pub const fn is_limited(&self) -> bool {
        self.everywhere.is_some() || self.at_node.is_some()
    }
}

/// `[defaults]`. It must be the same on every node, otherwise nodes apply one rule differently.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// `mode` of a rule without one: `strict`, `leased` or `eventual`.
    ///
    /// Default `strict`: a limit is exact unless the rule opts out.
    pub mode: Mode,
    /// `on_unavailable` of a rule without one: `allow`, `deny` or `local`.
    ///
    /// Default `local`: the node's own share of the limit, so that an outage neither admits nor
    /// denies everything. Use `deny` for limits that protect money, `allow` for optional ones.
    pub on_unavailable: OnUnavailable,
}
