//! What a node does for its peers.

use futures_util::future::BoxFuture;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::{Epochs, OwnershipStatus};
use tokio::time::Instant;

use super::peer::Peer;
use super::wire::{Call, Reply};

/// Handles the calls of established peers. The methods run on the task that reads the peer's
/// stream, so they must not block.
pub trait Service: Send + Sync + 'static {
    fn handle_call(&self, from: &Peer, call: Call) -> ServiceReply;

    /// A peer sent bytes that are not a valid frame; its stream was closed.
    fn malformed(&self, from: &NodeId);

    /// The ownership status for the ping that is about to be sent to `peer`.
    fn ownership_status(&self, peer: &Peer) -> OwnershipStatus;

    /// A peer answered the ping that was sent at `sent`.
    fn pong_received(&self, from: &Peer, sent: Instant, epochs: Option<Epochs>, grant: Option<u64>);
}

/// The result of [`Service::handle_call`].
pub enum ServiceReply {
    Ready(Reply),
    /// The reply depends on another node and takes a bounded time. It does not delay the replies to
    /// later calls. At most 1,024 per stream are in progress; beyond it the caller gets
    /// [`Reply::Unconfirmed`] at once.
    Deferred(BoxFuture<'static, Reply>),
}
