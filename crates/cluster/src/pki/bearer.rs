//! What a certificate says: which node it is for, and from when until when it is valid.
//!
//! **Example.** The certificate of node `n1` in region `eu` has the DNS names `n1`,
//! `mesh.tidegate`, `eu.region.tidegate` and `core.role.tidegate`. A node id and a region have no
//! dot, so none of these names is another one. A certificate of a [signer](super::Signer) has
//! `n1.node.tidegate` instead of `n1`.

use serde::Deserialize;
use tidegate_limiter::units::{Span, Timestamp};

/// The node that a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bearer<'a> {
    pub node: &'a str,
    pub region: &'a str,
    pub role: Role,
}

/// What a node does in its cluster: `node.role`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It owns keys, votes and gossips.
    #[default]
    Core,
    /// It answers beside a service, and owns nothing ([`edge`](crate::edge)).
    Edge,
}

impl<'a> Bearer<'a> {
    /// A node of the role [`Role::Core`].
    pub const fn core(node: &'a str, region: &'a str) -> Self {
        Self { node, region, role: Role::Core }
    }
}

impl Role {
    /// The role that [`Role::name`] names.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Core, Self::Edge].into_iter().find(|role| role.name() == name)
    }

    /// As in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Edge => "edge",
        }
    }

    /// The name in the certificates of nodes of this role.
    pub const fn in_certificate(self) -> &'static str {
        match self {
            Self::Core => "core.role.tidegate",
            Self::Edge => "edge.role.tidegate",
        }
    }
}

/// Whom a signer may sign for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Nodes of this region alone.
    pub region: Option<&'a str>,
    /// Nodes of this role alone.
    pub role: Option<Role>,
}

/// The validity period of a certificate, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// The name that every node certificate carries and that peers dial by.
pub const MESH_NAME: &str = "mesh.tidegate";

/// What the names of all nodes, regions and roles end in.
pub(super) const NODES: &str = "node.tidegate";
pub(super) const REGIONS: &str = "region.tidegate";
pub(super) const ROLES: &str = "role.tidegate";
/// The label between the time of an admission and [`NODES`], which a signer may sign.
const ADMISSIONS: &str = "admitted";

/// The name of a node in a certificate of a signer. An authority's own name the node id itself; a
/// signer's cannot, because the names that it may sign end alike.
pub(super) fn node_name(node: &str) -> String {
    format!("{node}.{NODES}")
}

/// The name in the certificates of the nodes of `region`.
pub fn region_name(region: &str) -> String {
    format!("{region}.{REGIONS}")
}

/// The name of an admission at `at`, in a certificate that was signed later; see
/// [`admitted_at`](super::admitted_at). It is no node's: those have one label less.
pub(super) fn admission_name(at: Timestamp) -> String {
    format!("{}.{ADMISSIONS}.{NODES}", at.as_secs())
}

/// The time in a name that is that of an admission.
pub(super) fn admission(name: &str) -> Option<Timestamp> {
    let secs = name.strip_suffix(NODES)?.strip_suffix('.')?.strip_suffix(ADMISSIONS)?;
    secs.strip_suffix('.')?.parse().ok().map(Timestamp::from_secs)
}

/// Certificates begin this long before they are issued, because the clock of a node may be behind
/// that of the machine that issues them.
pub const BACKDATED: Span = Span::from_secs(3_600);

/// The longest time before its end in which a certificate is to be renewed.
const RENEWAL_MAX: Span = Span::from_secs(30 * 86_400);

impl Validity {
    /// Whether the certificate is to be renewed at `now`: in the last third of its time, and in the
    /// last 30 days of a longer one.
    pub fn is_renewal_due(&self, now: Timestamp) -> bool {
        now >= self.renewal_due_at()
    }

    /// From when on [`Validity::is_renewal_due`].
    pub fn renewal_due_at(&self) -> Timestamp {
        let third = Span::from_nanos(self.not_after.since(self.not_before).as_nanos() / 3);
        self.not_after.minus(third.min(RENEWAL_MAX))
    }

    /// The middle of the time in which it is to be renewed.
    pub fn renewal_half_over_at(&self) -> Timestamp {
        let due = self.renewal_due_at();
        due.plus(Span::from_nanos(self.not_after.since(due).as_nanos() / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_in_its_last_third_or_its_last_30_days() {
        let day = Span::from_secs(86_400);
        let at = |days: u64| Timestamp::from_secs(days * 86_400);
        for (days, due) in [(365, 335), (90, 60), (9, 6)] {
            let validity = Validity { not_before: at(100), not_after: at(100 + days) };
            assert!(!validity.is_renewal_due(at(100 + due).minus(Span::from_secs(1))), "{days}");
            assert!(validity.is_renewal_due(at(100 + due)), "{days}");
            assert!(validity.is_renewal_due(validity.not_after.plus(day)), "{days}");
        }
    }
}
