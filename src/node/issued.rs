//! Who may join, and whose certificate is refused, for `tidegate ca token` and `tidegate ca
//! revoke`.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_cluster::pki::{Bearer, REVOCATIONS_MAX, RevokeError};
use tidegate_cluster::{agreed_time_without, middle_times, revocations};
use tidegate_limiter::units::Span;
use tidegate_ownership::identity::NodeId;

use super::inspect::View;
use super::unreached;
use crate::admin::Refusal;
use crate::admin::certificates::{
    Certificates, RevokedNode, RevokedReport, TokenOrder, TokenReport,
};
use crate::admin::key::{AUDIT, Reached};

/// By how much the clock of this machine may be behind another one's, of which nothing says which
/// is right, for a revocation.
const CLOCKS_APART_MAX: Span = Span::from_secs(60);

impl Certificates for View {
    fn make_token(&self, order: TokenOrder) -> BoxFuture<'_, Result<TokenReport, Refusal>> {
        async move {
            let issuer = self.core.issuer.clone().ok_or_else(|| {
                let text = "this node signs no certificates: join.signer_cert is not set";
                Refusal::Conflict(text.to_owned())
            })?;
            let region = order.region.unwrap_or_else(|| self.config.node.region.clone());
            let (node, role, ttl) = (order.node, order.role, order.ttl);
            let (of_node, of_region) = (node.clone(), region.clone());
            // It reads two files.
            let made = tokio::task::spawn_blocking(move || {
                issuer.make_token(Bearer { node: &of_node, region: &of_region, role }, ttl)
            });
            let made = made.await.map_err(|error| Refusal::Conflict(error.to_string()))?;
            let token = made.map_err(|error| Refusal::Conflict(error.to_string()))?;
            let (name, role) = (&*node, role.name());
            tracing::info!(target: AUDIT, node = name, %region, role, %ttl, "made a token to join");
            let (token, role) = (token.to_string(), role.to_owned());
            Ok(TokenReport { token, node, region, role, expires_in_s: ttl.as_secs_ceil() })
        }
        .boxed()
    }

    fn revoke(
        &self,
        node: String,
        may_be_unknown: bool,
    ) -> BoxFuture<'_, Result<RevokedReport, Refusal>> {
        async move {
            let conflict = |text: &str| Err(Refusal::Conflict(text.to_owned()));
            let Some(mesh) = self.core.mesh() else {
                return conflict("this is a standalone node, which trusts no certificates");
            };
            if self.core.edge.is_some() {
                return conflict("this is an edge, which gives no orders; ask a core");
            }
            let id = NodeId::new(&node).map_err(|error| {
                Refusal::Unknown(format!("{node:?} is not the id of a node: {error}"))
            })?;
            if id == *self.core.incarnation.node() {
                return conflict("this is the node that you ask; ask another to revoke it");
            }
            let is_known = mesh.peer(&id).is_some()
                || mesh.revocations.until(&id).is_some()
                || unreached::members(&self.core).contains_key(&id);
            if !is_known && !may_be_unknown {
                return Err(Refusal::Unknown(format!(
                    "no node {node} is known here: none is connected, a member or revoked; check \
                     the name, or give --unknown to revoke what it may have"
                )));
            }
            let connected = mesh.peer(&id).and_then(|peer| peer.admitted_at());
            // The clock of the node itself has no say in this: a thief may set it.
            let now = agreed_time_without(mesh, &id);
            let [_, late] = middle_times(mesh, Some(&id));
            let behind = late.since(now);
            if behind > CLOCKS_APART_MAX {
                return Err(Refusal::Conflict(format!(
                    "the clock of this machine is {} s behind that of another one, and no third \
                     says which is right: what was issued in between would be accepted on; set the \
                     clocks, or ask the node that is ahead",
                    behind.as_secs_ceil()
                )));
            }
            let revocation = match mesh.revocations.revoke(id, connected, now) {
                Ok(revocation) => revocation,
                Err(RevokeError::Future) => {
                    return conflict(
                        "its certificate begins more than an hour after the time of most nodes; \
                         correct the clock of this machine, or ask another node",
                    );
                }
                Err(RevokeError::Full) => {
                    return Err(Refusal::Conflict(format!(
                        "{REVOCATIONS_MAX} nodes are revoked, and no more can be: replace the \
                         authority (docs/operations.md)"
                    )));
                }
            };
            let announced = revocations::announce(&revocation, mesh).await;
            let not_on_disk = !mesh.revocations.are_kept(revocations::KEEP_PATIENCE).await;
            let reached = unreached::reached(&self.core, &announced, Some(&revocation.node));
            let Reached { confirmed, missed, down } = &reached;
            tracing::info!(
                target: AUDIT, %node, confirmed = confirmed.len(), ?missed, ?down, not_on_disk,
                "revoked the certificates of a node"
            );
            Ok(RevokedReport { revoked: node, reached, not_on_disk })
        }
        .boxed()
    }

    fn revoked(&self) -> Vec<RevokedNode> {
        let all = self.core.mesh().map(|mesh| mesh.revocations.all()).unwrap_or_default();
        let revoked = all.into_iter();
        revoked
            .map(|revoked| RevokedNode { node: revoked.node.to_string(), at: revoked.at.as_secs() })
            .collect()
    }
}
