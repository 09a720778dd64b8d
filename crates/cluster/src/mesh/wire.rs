//! What peers say to each other. Enums only append: their order is the wire format.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tidegate_limiter::engine::{Delta, State, Verdict};
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::store::{Counter, KeyHash};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::{Epoch, Epochs, HandoffReply, OwnershipStatus};

use super::bounded_vec;

/// The first message on a connection, from the dialer; the acceptor answers with a
/// [`HelloReply`]. A peer is up only after both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the cluster; another name is refused.
    pub cluster: String,
    /// The sender; must be a name in its certificate.
    pub node: NodeId,
    /// Which start of the sender.
    pub generation: Generation,
    /// The region the sender is in.
    pub region: String,
    /// Where the sender's mesh is reached; gossip knows it by this address.
    pub advertise: SocketAddr,
    /// Tells a shared key secret from another one without telling it.
    pub secret: u64,
    /// The sender's system clock, for the offset.
    pub clock: Timestamp,
    /// The highest generation of the receiver that the sender has met, if any: a receiver whose
    /// clock was set back learns here that its generation is old.
    pub met: Option<Generation>,
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloReply {
    /// Up.
    Welcome(Hello),
    /// Not up; the connection is closed behind it.
    Refused(Refusal),
}

/// Why a peer is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The other side belongs to a cluster of another name.
    #[error("it belongs to cluster {0:?}; give both the same cluster.name")]
    Cluster(String),
    /// The certificate does not name the node that the hello names.
    #[error(
        "its certificate is not for node id {0}; issue one with `tidegate ca issue --node {0}`"
    )]
    Name(NodeId),
    /// The key secrets differ.
    #[error("its key secret (tls.secret) is another; copy the same file to all nodes")]
    Secret,
    /// A newer start of the same node was met already.
    #[error("a newer start of it was met (generation {})", .0.0)]
    Generation(Generation),
    /// A node that calls itself.
    #[error("it has this node's own id; give every node its own node.id")]
    Own,
    /// A message that is not a hello, or one that is out of bounds.
    #[error("its hello is malformed")]
    Malformed,
}

/// A numbered message; replies carry the number of their call. Number 0 wants no reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered<T> {
    /// The call's number on its stream.
    pub id: u64,
    /// The message.
    pub body: T,
}

/// What one peer asks another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Are you there, and what time is it?
    Ping {
        /// The sender's system clock.
        clock: Timestamp,
        /// Where the sender stands.
        ownership_status: OwnershipStatus,
    },
    /// Decide this; you own it.
    Check(Check),
    /// Join these columns.
    Sync(Sync),
    /// Join these strict states: replication and handoff.
    States(Vec<StateEntry>),
    /// A chitchat message; wants no reply of the mesh.
    Gossip(Vec<u8>),
    /// A range of keys changes hands.
    Handoff(Handoff),
    /// These are my counts of which you hold copies, in short; at most [`DIGESTS_MAX`].
    Digests(Vec<Digest>),
    /// Hits were given back to the counters at this place: forget that they are over their limit.
    /// Wants no reply.
    Refunded {
        /// Of the counters.
        token: u64,
    },
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Here I am.
    Pong {
        /// The receiver's system clock.
        clock: Timestamp,
        /// Where the receiver stands; `None` while it only just started.
        epochs: Option<Epochs>,
        /// The receiver recognises the sender, since the roll change of this number.
        grant: Option<u64>,
    },
    /// One verdict a counter.
    Verdicts(#[serde(with = "bounded_vec")] SmallVec<[Verdict; 1]>),
    /// The receiver does not hold the key. It counted nothing.
    NotOwner {
        /// Where the receiver stands.
        epoch: Epoch,
        /// Whom it handed the key to, if it did.
        holder: Option<NodeId>,
    },
    /// What the receiver knows of the keys it was sent.
    ActorCounters(Vec<SyncEntry>),
    /// Done, nothing to tell.
    Done,
    /// The call is malformed or out of bounds.
    Malformed,
    /// Decided and counted, but no replica confirmed the count in time. To [`Call::States`]: looked
    /// at, but not all of it was kept.
    Unconfirmed,
    /// The answer to a [`Handoff`].
    Handoff(HandoffReply),
    /// The buckets of a [`Call::Digests`] in which the receiver's copies differ.
    Differing(Vec<u16>),
}

/// Limits of one descriptor, to be decided together by their owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Unique among the checks of one start of the asker: the owner applies it once, however often
    /// it comes.
    pub id: u64,
    /// Which ring the asker routed by.
    pub scope: Scope,
    /// All counters share their place; at most [`bounded_vec::BOUNDED_VEC_MAX`].
    #[serde(with = "bounded_vec")]
    pub counters: SmallVec<[Counter; 1]>,
    /// What is taken from each.
    pub hits: Hits,
    /// Whether the answer waits for a replica.
    pub durability: Durability,
}

/// One step of a handoff; see `docs/adr/0001-who-owns-a-key.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// On which ring.
    pub scope: Scope,
    /// Under which epoch of it.
    pub epoch: Epoch,
    /// What the sender does.
    pub step: HandoffStep,
}

/// What the sender of a [`Handoff`] does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HandoffStep {
    /// It would send what it has of the receiver's keys. Answered by
    /// [`HandoffReply::Ready`] or [`HandoffReply::Later`].
    Offer,
    /// It holds nothing any more that is the receiver's under this epoch; these ranges were, and
    /// are the receiver's from now on. Answered by [`HandoffReply::Taken`] or
    /// [`HandoffReply::Refused`].
    Release {
        /// One more than that of the sender's last release to this receiver.
        number: u64,
        /// What changes hands; often nothing.
        ranges: Ranges,
    },
}

/// The counts of one bucket of places, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// The upper bits of the places.
    pub bucket: u16,
    /// A sum over keys and states; the order does not matter.
    pub sum: u64,
}

/// Columns of some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// In which capacity the sender speaks.
    pub role: SyncRole,
    /// A key is near its limit: pass it on at once.
    pub urgent: bool,
    /// At most [`SYNC_ENTRIES_MAX`].
    pub entries: Vec<SyncEntry>,
}

/// In which capacity the sender of columns speaks; decides which columns are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SyncRole {
    /// A node tells the key's owner its own column, and wants all columns back.
    Node,
    /// The key's owner tells a node what the others counted.
    Owner,
    /// The key's owner in one region tells the one in another its region's column, and wants the
    /// other region's back.
    Region,
}

/// The columns of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncEntry {
    /// The counter.
    pub key: KeyHash,
    /// Its columns.
    pub actor_counters: Delta,
}

/// The state of one strict counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateEntry {
    /// The counter.
    pub key: KeyHash,
    /// What it counted.
    pub state: State,
    /// From then on it equals absent.
    pub expires: Timestamp,
}

/// Most entries in one [`Sync`]. The sender splits; a receiver that is sent more refuses.
pub const SYNC_ENTRIES_MAX: usize = 256;
/// Most entries in one [`Call::States`].
pub const STATE_ENTRIES_MAX: usize = 1_024;
/// Most entries in one [`Call::Digests`].
pub const DIGESTS_MAX: usize = 1_024;
