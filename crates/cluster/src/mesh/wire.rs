//! The messages between peers. Variants are only ever appended: their order, and the order of
//! fields, is the wire format. `tests/in_process/wire_compat.rs` holds it to the
//! frames in `tests/golden_frames`.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tidegate_limiter::engine::{Delta, State, Verdict};
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::store::{Carried, Counter, Intervention, KeyHash, Made, Settled};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::autopilot::{Complaints, JoinRequest};
use tidegate_ownership::cluster_map::{ClusterId, ClusterMap, MAP_MEMBERS_MAX};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::Member;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::{Epoch, HandoffReply, MemberId, Versions, VoteGrant};

use super::bounded_vec;
pub use super::bounded_vec::COMBINED_VERDICTS_MAX;
use crate::consensus;
use crate::pki::Revocation;

/// The most entries in one [`Sync`]. The sender splits; a receiver refuses more.
pub const SYNC_ENTRIES_MAX: usize = 256;
/// The most entries in one [`Call::States`].
pub const STATE_ENTRIES_MAX: usize = 1_024;
/// The most entries in one [`Call::Digests`].
pub const DIGESTS_MAX: usize = 1_024;
/// The most bytes of a [`Reply::Snapshot`]. A receiver reads no more.
pub const SNAPSHOT_BYTES_MAX: usize = 128 * 1024;
/// The most bytes of [`TraceContext::state`]: what W3C trace context asks of everyone to pass on.
pub const TRACE_STATE_BYTES_MAX: usize = 512;

/// The application error codes of closed connections and reset streams.
pub(super) mod close_code {
    use quinn::VarInt;

    /// The node shuts down.
    pub(in super::super) const LEAVING: VarInt = VarInt::from_u32(0);
    /// The stream carried bytes that are not a valid frame.
    pub(in super::super) const MALFORMED: VarInt = VarInt::from_u32(1);
    /// The hello was refused.
    pub(in super::super) const REFUSED: VarInt = VarInt::from_u32(2);
    /// Another connection between the two nodes is kept.
    pub(in super::super) const REPLACED: VarInt = VarInt::from_u32(3);
    /// One of the connection's streams ended.
    pub(in super::super) const STREAM_FAILED: VarInt = VarInt::from_u32(4);
    /// The certificate of the peer has expired, or its authority is not trusted any more.
    pub(in super::super) const CERTIFICATE: VarInt = VarInt::from_u32(6);
    /// The node has bumped its generation, so its hello is outdated.
    pub(in super::super) const NEW_GENERATION: VarInt = VarInt::from_u32(5);
    /// An edge has not used the connection for a while.
    pub(in super::super) const IDLE: VarInt = VarInt::from_u32(7);
}

// === hello ===

/// The first message on a connection, sent by the dialer. The acceptor answers with a
/// [`HelloReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// A peer of a cluster with another name is refused.
    pub cluster: String,
    /// The sender; must be a name in its certificate, as its region must.
    pub node: NodeId,
    /// With the node the sender's [`Identity`](tidegate_ownership::Identity).
    pub birth: u64,
    pub generation: Generation,
    pub region: String,
    /// The versions of the wire format that the sender speaks, and its cluster still allows.
    pub versions: Versions,
    pub shared: SharedSettings,
    /// The sender's mesh address, by which gossip identifies it.
    pub advertise: SocketAddr,
    /// Fingerprint of the sender's key secret; the secret itself is never sent.
    pub secret: u64,
    /// The sender's system clock, for the first estimate of the offset.
    pub clock: Timestamp,
    /// The highest generation of the receiver that the sender has seen. A receiver whose clock was
    /// set back before its start bumps its generation beyond it.
    pub highest_seen: Option<Generation>,
}

/// The most peers of a node, of all regions. At the bound further nodes are refused.
///
/// It is what gossip has room for: each start of a node takes 41 bytes and its id, 12 more with an
/// IPv6 address, of the 64 KiB of a message. With ids of 63 bytes that is 563 starts: these nodes,
/// and 51 more that ended within the last half minute.
pub const PEERS_MAX: usize = MAP_MEMBERS_MAX - 1;

/// The most edges that are connected to a core. At the bound further ones are refused.
pub const EDGES_MAX: usize = 2_048;

/// What all nodes of a cluster have to be configured with alike: owners of keys follow from the
/// first, and voters wait for the end of the leases of others by the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSettings {
    /// `cluster.vnodes`
    pub vnodes: u32,
    /// `cluster.lease`
    pub lease: Span,
    /// `global.lease`
    pub global_lease: Span,
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloReply {
    Welcome(Hello),
    /// The connection is closed afterwards.
    Refused(Refusal),
}

/// Why a peer is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The cluster name of the refusing side.
    #[error("it belongs to cluster {0:?}; give both the same cluster.name")]
    Cluster(String),
    /// The certificate does not contain the node id of the hello.
    #[error(
        "its certificate is not for node id {0}; issue one with `tidegate ca issue --node {0}`"
    )]
    Name(NodeId),
    #[error(
        "its key secret (tls.secret) is another, or one of both has limits.domain_keys_max; copy \
         the same file to all nodes, and set the key on all or none"
    )]
    Secret,
    /// The refusing side has seen this higher generation of the node.
    #[error("a newer start of it was seen (generation {})", .0.0)]
    Generation(Generation),
    /// The versions that the refusing side speaks.
    #[error(
        "it speaks {0} of the mesh protocol; upgrade all nodes one release at a time, as \
         docs/operations.md says under Upgrading"
    )]
    Version(Versions),
    /// The settings of the refusing side.
    #[error(
        "it has cluster.vnodes = {}, cluster.lease = {} ms and global.lease = {} ms, which must be \
         the same on all nodes; to change them, stop all nodes",
        .0.vnodes, .0.lease.as_nanos() / 1_000_000, .0.global_lease.as_nanos() / 1_000_000
    )]
    Settings(SharedSettings),
    /// A node dialed itself, or two nodes have the same id.
    #[error("it has this node's own id; give every node its own node.id")]
    Own,
    /// The message is not a hello, or is out of bounds.
    #[error("its hello is malformed")]
    Malformed,
    /// The refusing side is connected to [`PEERS_MAX`] other nodes.
    #[error("it is connected to {} nodes already, the most that there may be", PEERS_MAX)]
    Full,
    /// The certificate is not for the region of the hello.
    #[error(
        "the certificate of node {node} is not for region {region}; correct node.region, or issue \
         one with `tidegate ca issue --node {node} --region {region} --renew`"
    )]
    Region { node: NodeId, region: String },
    /// The certificate is not for a node that decides limits.
    #[error("its certificate is not for the role `core`; issue one with `tidegate ca issue`")]
    Role,
    /// The refusing side, a core, is connected to [`EDGES_MAX`] edges.
    #[error("it is connected to {} edges already, the most that there may be", EDGES_MAX)]
    FullOfEdges,
    /// The sender, an edge, has the name of a core.
    #[error("a core has its node.id; give every node its own, edges too")]
    NameOfCore,
    /// The certificate of this node was revoked after it was issued.
    #[error("the certificate of node {0} is revoked; join it again with a new token")]
    Revoked(NodeId),
}

// === calls and replies ===

/// A call or a reply. A reply carries the number of its call. A call with number 0 gets no reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered<T> {
    /// Unique among the calls of a stream.
    pub id: u64,
    pub body: T,
}

/// A request to a peer, or a message without a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Round-trip probe with the sender's clock. It requests a lease grant.
    Ping {
        /// The sender's system clock.
        clock: Timestamp,
        status: PingStatus,
    },
    /// Decide hits on strict counters that the receiver owns.
    Check(Check),
    /// Merge per-actor counters.
    Sync(Sync),
    /// Merge states of strict counters: replication and range transfer. At most
    /// [`STATE_ENTRIES_MAX`].
    States(Vec<StateEntry>),
    /// A chitchat message. No reply.
    Gossip(Vec<u8>),
    /// A step of a range transfer.
    Handoff(Handoff),
    /// Digests of the sender's states that the receiver replicates. At most [`DIGESTS_MAX`].
    Digests(Vec<Digest>),
    /// Hits were refunded to counters at this token: drop them from the negative cache. No reply.
    Refunded { token: u64 },
    /// About the cluster map of the region, or the global one.
    Map(Group, MapCall),
    /// Requests a lease for the region of the sender.
    GlobalPing(GlobalPing),
    /// Decide several checks of the same strict counters, which the receiver owns. Only to nodes
    /// that speak [`COMBINED_CHECKS`](super::codec::COMBINED_CHECKS).
    CombinedCheck(CombinedCheck),
    /// The sender gives back what it will not spend.
    GiveBack(GiveBack),
    /// Another node was refused: give back what you hold of this key, that of the first counter.
    /// No reply.
    Recall(KeyHash),
    /// Keep an amount of counters free, which the receiver owns. Only to nodes that speak
    /// [`RESERVATIONS`](super::codec::RESERVATIONS).
    Reserve(ReserveCall),
    /// End a reservation, and count what it cost.
    Commit(CommitCall),
    /// Between an edge and a core.
    Edge(EdgeCall),
    /// Orders of operators about keys. Only to nodes that speak
    /// [`INTERVENTIONS`](super::codec::INTERVENTIONS).
    Interventions(InterventionCall),
    /// Request the report of the receiver, for an operator to see. Only to nodes that speak
    /// [`SNAPSHOTS`](super::codec::SNAPSHOTS).
    Snapshot,
    /// Whose certificates are refused. Only to nodes that speak
    /// [`REVOCATIONS`](super::codec::REVOCATIONS).
    Revocations(RevocationCall),
    /// Sign a certificate for the sender and the key in this request (PKCS #10, DER), of at most
    /// [`REQUEST_BYTES_MAX`](crate::pki::REQUEST_BYTES_MAX). Only to nodes that speak
    /// [`REVOCATIONS`](super::codec::REVOCATIONS).
    Certificate(Vec<u8>),
    /// As [`Call::CombinedCheck`], also of one check, some of which belong to traces that are
    /// recorded. Only to nodes that speak [`TRACED_CHECKS`](super::codec::TRACED_CHECKS).
    TracedCheck(Box<TracedCheck>),
    /// Decide checks of limits that their requests carry, of any keys that the receiver owns. Only
    /// to nodes that speak [`CARRIED_CHECKS`](super::codec::CARRIED_CHECKS).
    Carried(Box<CarriedCall>),
}

/// Which map a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Group {
    /// That of a region: its members are the nodes of the region.
    Region,
    /// The global one: its members are nodes that stand for their regions, and every node follows
    /// it.
    Global,
}

/// A call about a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapCall {
    /// A message of the consensus engine. No reply.
    Consensus(Box<consensus::Message>),
    /// A newer map, from the leader. No reply.
    Newer(Box<ClusterMap>),
    /// The newest map of the receiver is asked for, if it is newer than this epoch.
    Fetch { cluster: ClusterId, epoch: Epoch },
    /// The sender asks to become a member.
    Join(JoinRequest),
    /// The sender, a member, is going to leave; `is_empty` once it holds nothing any more.
    Leave { member: MemberId, is_empty: bool },
    /// The first map of a cluster that the sender founds together with the receiver.
    Found(Box<ClusterMap>),
}

/// A call about orders of operators about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterventionCall {
    /// Merge this one.
    Announce(Intervention),
    /// The digest of what the sender has. The reply is [`Reply::Interventions`] if the receiver has
    /// something else.
    Compare { digest: u64 },
}

/// A call about certificates that are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevocationCall {
    /// Merge this one.
    Announce(Revocation),
    /// The digest of what the sender has. The reply is [`Reply::Revocations`] if the receiver has
    /// something else.
    Compare { digest: u64 },
}

/// A call between an edge and a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EdgeCall {
    /// The sender follows the receiver: it is sent [`EdgeCall::Cluster`] at once, unless it has the
    /// one of this revision, and after each change. Repeated while it follows.
    Follow { revision: u64 },
    /// What the sender, which is followed, knows of the cluster. No reply.
    Cluster(Box<ClusterView>),
}

/// What an edge has to know: where keys are decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    /// Of the sender; another one after each change.
    pub revision: u64,
    /// Epoch 0 while it knows none.
    pub region: ClusterMap,
    /// The global map, with `global.founders`.
    pub global: Option<ClusterMap>,
    /// Of all regions, by gossip. Further ones than
    /// [`MEMBERS_MAX`](tidegate_ownership::membership::MEMBERS_MAX) are not read.
    pub members: Vec<Member>,
    /// About how many edges the region has, and not fewer.
    pub edges: u32,
    /// Whether the sender has a lease.
    pub has_lease: bool,
}

/// The reply to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Pong {
        /// The receiver's system clock.
        clock: Timestamp,
        /// The receiver's decision clock; `None` until decisions may have used it.
        decision_clock: Option<Timestamp>,
        status: PongStatus,
    },
    /// One verdict per counter.
    Verdicts(#[serde(with = "bounded_vec")] SmallVec<[Verdict; 1]>),
    /// The receiver does not decide the key. No hits were counted.
    NotOwner {
        /// The receiver's epoch.
        epoch: Epoch,
        /// The node that the receiver handed the key's range to.
        holder: Option<NodeId>,
    },
    /// The receiver's per-actor counters of the keys in a [`Sync`].
    ActorCounters {
        /// Since when the members are those by the map of the receiver; 0 if it is not one.
        members: Epoch,
        entries: Vec<SyncEntry>,
    },
    /// The call was applied.
    Done,
    /// The call is malformed or out of bounds.
    Malformed,
    /// To [`Call::Check`]: decided and counted, but no replica confirmed in time. To
    /// [`Call::States`]: not all entries were kept.
    Unconfirmed,
    Handoff(HandoffReply),
    /// The segments of a [`Call::Digests`] in which the receiver's states differ.
    Differing(Vec<u16>),
    /// To [`MapCall::Fetch`]: the newest map, if there is a newer one.
    Map(Option<Box<ClusterMap>>),
    /// To [`MapCall::Join`] and [`MapCall::Leave`]: not by this node, which does not lead; the
    /// leader if it knows one.
    NotLeader(Option<NodeId>),
    /// The deadline of the check had passed when it was read: it was not counted.
    Expired,
    /// To [`Call::GlobalPing`].
    GlobalPong(GlobalPong),
    /// To [`Call::CombinedCheck`].
    CombinedVerdicts(CombinedVerdicts),
    /// To [`Call::Reserve`].
    Reserved {
        /// One per counter.
        #[serde(with = "bounded_vec")]
        verdicts: SmallVec<[Verdict; 1]>,
        /// How long it lasts.
        ttl: Span,
        /// What the call changed.
        made: Option<Made>,
    },
    /// To [`Call::Commit`].
    Committed {
        settled: Settled,
        /// What is left, one per counter.
        #[serde(with = "bounded_vec")]
        verdicts: SmallVec<[Verdict; 1]>,
    },
    /// To [`InterventionCall::Compare`]: all that the receiver has, at most
    /// [`INTERVENTIONS_MAX`](tidegate_limiter::store::INTERVENTIONS_MAX).
    Interventions(Vec<Intervention>),
    /// To [`Call::Snapshot`]: JSON, so that nodes of different releases read of each other what
    /// both know. At most [`SNAPSHOT_BYTES_MAX`].
    Snapshot(Vec<u8>),
    /// To [`RevocationCall::Compare`]: all that the receiver has, at most
    /// [`REVOCATIONS_MAX`](crate::pki::REVOCATIONS_MAX).
    Revocations(Vec<Revocation>),
    /// To [`Call::Certificate`]: the certificate and those up to the authority (PEM). Empty if the
    /// receiver signs none, or not this one.
    Certificate(Vec<u8>),
    /// To [`Call::Carried`], unless the receiver owns none of the keys.
    Carried {
        /// One per check; `None` where the receiver does not own the key and has counted nothing.
        #[serde(with = "bounded_vec::combined")]
        verdicts: SmallVec<[Option<Verdict>; 1]>,
        /// As in [`CombinedVerdicts::is_confirmed`].
        is_confirmed: bool,
    },
}

/// What a node says about itself to the voters of the global map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalPing {
    /// The cluster of its global map; 0 without one.
    pub cluster: ClusterId,
    pub epoch: Epoch,
    /// Its admission to that map; `None` when it does not stand for its region.
    pub member: Option<MemberId>,
    pub complaints: Complaints,
    /// The regions, no homes since the change of this epoch, that have from the sender all counts
    /// of the keys that would move there.
    pub copied: Vec<String>,
    pub homes_changed_at: Epoch,
}

/// What a node answers to a [`GlobalPing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalPong {
    /// The cluster of its global map; 0 without one.
    pub cluster: ClusterId,
    pub epoch: Epoch,
    /// The newest map that it reports as a voter
    /// ([`RegionGrants`](tidegate_ownership::region_right::RegionGrants)).
    pub report: Epoch,
    /// The epoch under which it grants the region of the sender a lease.
    pub granted: Option<Epoch>,
}

/// What a node says about itself with each ping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingStatus {
    /// The cluster of its map. Without one, with epoch 0: that which it has begun to found, all
    /// ones if it is about to, else 0.
    pub cluster: ClusterId,
    pub epoch: Epoch,
    /// Its admission to that map; `None` when it is no member.
    pub member: Option<MemberId>,
    /// Whether it has a lease.
    pub has_lease: bool,
    /// Its pings to the receiver since the last answer.
    pub unanswered: u32,
    pub complaints: Complaints,
}

/// What a node, as a voter, answers to a ping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PongStatus {
    /// As in [`PingStatus`].
    pub cluster: ClusterId,
    /// The newest map that it knows.
    pub epoch: Epoch,
    /// The newest map that it reports ([`Grants`](tidegate_ownership::grants::Grants)).
    pub report: Epoch,
    pub grant: Option<VoteGrant>,
    /// How long it has run, by a clock that is never set.
    pub running: Span,
}

/// Limits of one descriptor, decided as one unit by their owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Unique among the checks of one incarnation of the sender. The owner applies repeated checks
    /// once.
    pub id: u64,
    /// The ring that the sender used for routing.
    pub scope: Scope,
    /// All counters have the same token. At most [`bounded_vec::BOUNDED_VEC_MAX`].
    #[serde(with = "bounded_vec")]
    pub counters: SmallVec<[Counter; 1]>,
    /// The hits taken from each counter.
    pub hits: Hits,
    /// Whether the reply waits for a replica.
    pub durability: Durability,
    /// When the sender stops waiting, by how long it has run then ([`PongStatus::running`]).
    pub deadline: Span,
}

/// Checks of the same counters, which waited together for their owner. It decides them one after
/// the other, each for itself; the call as a whole is applied once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CombinedCheck {
    /// The first check, and what it has in common with the others. Its deadline is the earliest.
    pub first: Check,
    /// The hits of each further check. With `n` counters at most
    /// [`COMBINED_VERDICTS_MAX`]` / n - 1`.
    #[serde(with = "bounded_vec::combined")]
    pub further: SmallVec<[Hits; 1]>,
    /// The rule is leased, and this is what the sender asks for.
    pub ask: Option<GrantAsk>,
}

/// Checks of limits that their requests carry. The receiver decides them in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedCall {
    /// The id of the first check; each further one has the next. As [`Check::id`].
    pub id: u64,
    pub scope: Scope,
    /// At most [`COMBINED_VERDICTS_MAX`].
    #[serde(with = "bounded_vec::combined")]
    pub checks: SmallVec<[Carried; 1]>,
    /// Whether the reply waits for a replica.
    pub durability: Durability,
    /// Other nodes may have been granted hits of these limits: a refusal asks them back.
    pub is_leased: bool,
    /// As [`Check::deadline`].
    pub deadline: Span,
}

/// Checks, and the traces that some of them belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCheck {
    pub check: CombinedCheck,
    /// One for each check that is recorded, at most [`bounded_vec::BOUNDED_VEC_MAX`]: further ones
    /// end at the sender.
    #[serde(with = "bounded_vec")]
    pub traces: SmallVec<[TraceContext; 1]>,
}

/// The place in a trace that is recorded where what the receiver does belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    pub trace: [u8; 16],
    /// The span that waits for the reply.
    pub span: [u8; 8],
    /// `tracestate` of W3C trace context; at most [`TRACE_STATE_BYTES_MAX`].
    pub state: String,
}

/// Hits that a node wants to admit by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantAsk {
    /// The most hits that it takes.
    pub wanted: u32,
    /// What it holds already.
    pub held: u32,
    /// It has no use for a grant of a shorter term.
    pub shortest: Span,
}

/// Hits that were charged, for the sender of a [`CombinedCheck`] to spend. The number of the grant
/// is the id of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub hits: u32,
    /// How long from the charge; the sender counts it from when it sent the check.
    pub term: Span,
}

/// Hits of a grant that will not be spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveBack {
    pub scope: Scope,
    /// All counters of the check. At most [`bounded_vec::BOUNDED_VEC_MAX`].
    #[serde(with = "bounded_vec")]
    pub counters: SmallVec<[Counter; 1]>,
    /// The number of the grant.
    pub grant: u64,
    /// Those of the grant and more mean all of it.
    pub unspent: u32,
}

/// An amount that is to be kept free. The same reservation may be sent again: it is one, and its
/// time begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveCall {
    /// The ring that the sender used for routing.
    pub scope: Scope,
    /// All counters have the same token. At most [`bounded_vec::BOUNDED_VEC_MAX`].
    #[serde(with = "bounded_vec")]
    pub counters: SmallVec<[Counter; 1]>,
    /// Its key, with the token of the counters.
    pub reservation: KeyHash,
    /// In hits of each counter.
    pub amount: u32,
    /// From when it is made.
    pub ttl: Span,
    /// Whether the reply waits for a replica.
    pub durability: Durability,
    /// When the sender stops waiting, by how long it has run then ([`PongStatus::running`]).
    pub deadline: Span,
}

/// The end of a reservation. The receiver applies it once, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitCall {
    pub scope: Scope,
    /// As in [`ReserveCall::counters`].
    #[serde(with = "bounded_vec")]
    pub counters: SmallVec<[Counter; 1]>,
    pub reservation: KeyHash,
    pub end: End,
    pub durability: Durability,
}

/// How a reservation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Settled {
        /// In hits of each counter; none below zero. Zero releases the reservation.
        cost: Hits,
        /// How long it is remembered that it was applied.
        remembered: Span,
    },
    /// Another limit has refused the request that reserved this: it is as it was before.
    Undone(Made),
}

/// What an owner decided of a [`CombinedCheck`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CombinedVerdicts {
    /// One verdict per counter of the first check, then those of the second, and so on.
    #[serde(with = "bounded_vec::combined")]
    pub verdicts: SmallVec<[Verdict; 1]>,
    /// Whether a replica has stored what was counted, or none needs to. Otherwise those checks that
    /// wait for one count as [`Reply::Unconfirmed`].
    pub is_confirmed: bool,
    pub grant: Option<Grant>,
    /// Other nodes hold grants, so a refusal may end early.
    pub may_end_early: bool,
}

/// A step of a range transfer; see `docs/adr/0001-who-owns-a-key.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// The sender.
    pub member: MemberId,
    /// The sender's epoch.
    pub epoch: Epoch,
    pub step: HandoffStep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HandoffStep {
    /// The sender offers its states of the receiver's keys. Replies: [`HandoffReply::Ready`],
    /// [`HandoffReply::Later`].
    Offer,
    /// The receiver holds these ranges from now on, and the sender holds nothing else that the
    /// receiver owns under this epoch. Replies: [`HandoffReply::Accepted`],
    /// [`HandoffReply::Refused`], [`HandoffReply::Later`].
    Release {
        /// One more than the sender's previous release to this receiver.
        number: u64,
        /// Often empty.
        ranges: Ranges,
    },
}

/// The digest of the states in one segment of the hash circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// The upper 12 bits of the tokens.
    pub segment: u16,
    /// A sum over keys and states, independent of their order.
    pub sum: u64,
}

/// Per-actor counters of some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    pub role: SyncRole,
    /// A key is near its limit: forward the counters at once.
    pub urgent: bool,
    /// At most [`SYNC_ENTRIES_MAX`].
    pub entries: Vec<SyncEntry>,
}

/// The capacity in which a node sends counters. It determines for which actors the sender is
/// authoritative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SyncRole {
    /// A node sends its own counter to the key's owner, and gets the counters of all actors back.
    Node,
    /// The key's owner sends the counters of all other actors to a node.
    Owner,
    /// The key's owner in one region sends its region's counter to the owner in another region, and
    /// gets that region's counter back.
    Region,
}

/// The per-actor counters of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncEntry {
    pub key: KeyHash,
    pub actor_counters: Delta,
}

/// The state of one strict counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateEntry {
    pub key: KeyHash,
    pub state: State,
    /// From then on the state is equivalent to an absent one.
    pub expires: Timestamp,
}
