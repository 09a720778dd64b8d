//! Asking a key's owner over the mesh.

use std::time::Duration;

use smallvec::SmallVec;

use crate::cluster::identity::NodeId;
use crate::cluster::mesh::wire::{Call, Check, Reply};
use crate::cluster::mesh::{CallError, LaneKind, Mesh};
use crate::engine::Verdict;

/// Why an owner gave no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoVerdict {
    /// It owns the key no longer, or not yet; its view and ours differ.
    NotOwner,
    /// It did not answer, or not in time.
    Unreachable(CallError),
}

/// Asks `owner` to decide `check` within `deadline`. Cancel-safe, though the owner may count an ask
/// whose caller has gone.
pub(super) async fn ask(
    mesh: &Mesh,
    owner: &NodeId,
    check: &Check,
    deadline: Duration,
) -> Result<SmallVec<[Verdict; 1]>, NoVerdict> {
    let call = Call::Check(check.clone());
    match mesh.call(owner, LaneKind::Checks, call, deadline).await {
        Ok(Reply::Verdicts(verdicts)) if verdicts.len() == check.counters.len() => Ok(verdicts),
        Ok(Reply::NotOwner { .. }) => Err(NoVerdict::NotOwner),
        Ok(other) => {
            tracing::warn!(%owner, ?other, "an owner answered a check with something else");
            Err(NoVerdict::Unreachable(CallError::Closed))
        }
        Err(error) => Err(NoVerdict::Unreachable(error)),
    }
}
