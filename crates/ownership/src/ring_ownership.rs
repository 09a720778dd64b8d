//! What this node holds on one ring, and how ranges change hands.
//!
//! **Invariant:** of all nodes with a valid lease, no two hold the same token. It rests on four
//! rules:
//!
//! - A range leaves [`RingOwnership::held`] when its release is sent. It returns only when the
//!   receiver refused the release for good. If the receiver is evicted before it replied, it is
//!   unknown whether it had accepted and passed the range on: then the range is claimed.
//! - A claim, by which a node takes over ranges, needs a release from every other member of the
//!   current map, and reports of a majority of the voters that they are at this epoch
//!   ([`Grants::report`](crate::grants::Grants::report)): no other node has a lease then.
//! - A release under an epoch states that the sender holds nothing else of the receiver. It is not
//!   sent while an earlier release waits for a reply and its ranges could come back.
//! - What a node held under one [`MemberId`] is void under another. A lease that lapsed and is
//!   granted again to the same one continues: a map without it would have ended it, and without
//!   such a map no other node may claim.
//!
//! The transfer of ranges to one member:
//!
//! ```text
//! Pending --offer--> Copying --> Copied --freeze--> Frozen --> Flushed --release--> Released
//!   ^                                                 |          |
//!   +----------------- flush failed ------------------+----------+ lease lost
//! ```
//!
//! Each change of the epoch returns every transfer to `Pending`.
//!
//! **Copies.** A release also says that the sender has copied to the receiver what it has of the
//! ranges that the receiver gained. A member that has not released them goes on deciding them, and
//! its hits may be confirmed by a node that has copied and released already. So when a member is
//! gone, each node copies to each owner again what it gained since it last said that it waits for
//! no member ([`RingOwnership::peer_waits_for_none`]), and all that it owns if a member came and
//! went in maps that this node missed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_limiter::units::{Monotonic, Span};

use crate::cluster_map::{Epoch, Identity, MapState, MemberId};
use crate::identity::NodeId;
use crate::lease::{Lease, QuorumRule, VoteGrant};
use crate::ranges::Ranges;
use crate::ring_members::RingMembers;

/// The state machine of one node on one ring.
///
/// Inputs are the methods under "inputs" and the outcomes of steps; [`RingOwnership::next_step`]
/// drains; [`RingOwnership::tick`] is the timeout. Between a step and the report of its outcome, no
/// second step for the same member may be carried out; every input is allowed at any time, and an
/// outcome that arrives after the epoch changed is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RingOwnership {
    me: Identity,
    start: u64,
    members: RingMembers,
    lease: Lease,
    /// As of the last tick.
    lease_until: Monotonic,
    /// The newest epoch that each voter has reported.
    reports: BTreeMap<Identity, Epoch>,
    held: Ranges,
    transfers: BTreeMap<NodeId, Transfer>,
    unacked: BTreeMap<NodeId, UnackedRelease>,
    /// Ranges of other members whose states these members may not have.
    uncopied: BTreeMap<NodeId, Ranges>,
    /// Ranges of other members that they gained since they last waited for no member; a third one
    /// may still decide them.
    unreleased: BTreeMap<NodeId, Ranges>,
    /// The number of the last release to each member.
    release_numbers: BTreeMap<NodeId, u64>,
    /// The members that released to this node under the current epoch.
    released_by: BTreeSet<NodeId>,
    /// The last release of each node, and this node's reply.
    replies: BTreeMap<NodeId, (MemberId, u64, HandoffReply)>,
    transferred: BTreeMap<NodeId, Ranges>,
}

/// The progress of the transfer to one member under the current epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Transfer {
    /// Not yet offered, or the offer was not accepted.
    #[default]
    Pending,
    /// The member is at the same epoch; states are being copied to it.
    Copying,
    /// All states are copied; the ranges are released once nothing else may return to them.
    Copied,
    /// These ranges are frozen; the last changes are being flushed.
    Frozen(Ranges),
    /// Frozen and flushed; the release is to be sent.
    Flushed(Ranges),
    /// The member accepted the release.
    Released,
}

/// A release without a reply. Either side may hold its ranges, so this node decides none of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct UnackedRelease {
    /// The receiver.
    member: MemberId,
    epoch: Epoch,
    number: u64,
    ranges: Ranges,
}

/// What the driver has to do next for one member; the outcome is reported to
/// [`RingOwnership`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransferStep {
    /// Send an offer under this epoch.
    Offer(Epoch),
    /// Subscribe the member to every change of `follows` from now on, and send it all states in
    /// `follows` and `copies`.
    Copy {
        /// Ranges that this node still decides, so their states may change during the copy.
        follows: Ranges,
        /// Ranges of the member whose states it may not have.
        copies: Ranges,
    },
    /// Wait until no decision is in progress in the frozen ranges, then send the last changes.
    Flush,
    /// Send a release.
    Release { epoch: Epoch, number: u64, ranges: Ranges },
}

/// The reply to an offer or a release. The order of the variants is the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HandoffReply {
    /// The receiver is at the sender's epoch: copy the states, then release.
    Ready,
    /// The receiver is at another epoch, or does not recognise the sender: retry soon.
    Later,
    /// The receiver holds the released ranges.
    Accepted,
    /// The receiver was at another epoch and will never accept this release.
    Refused,
}

impl RingOwnership {
    /// Node `me`, which holds nothing and has no map; `start` names this run of it
    /// ([`MapMember::start`](crate::cluster_map::MapMember::start)), `lease` is the validity of a
    /// grant.
    pub fn new(me: Identity, start: u64, lease: Span, rule: QuorumRule) -> Self {
        Self {
            lease: Lease::new(me.clone(), lease, rule),
            me,
            start,
            members: RingMembers::default(),
            lease_until: Monotonic::START,
            reports: BTreeMap::new(),
            held: Ranges::EMPTY,
            transfers: BTreeMap::new(),
            unacked: BTreeMap::new(),
            uncopied: BTreeMap::new(),
            unreleased: BTreeMap::new(),
            release_numbers: BTreeMap::new(),
            released_by: BTreeSet::new(),
            replies: BTreeMap::new(),
            transferred: BTreeMap::new(),
        }
    }

    // === inputs ===

    /// A newer map is in force. An older one, or the same, changes nothing. If this node is
    /// admitted under another id than before, or not at all, it drops all that it held.
    pub fn follow(&mut self, members: RingMembers) {
        if members.epoch() <= self.members.epoch() {
            return;
        }
        let was = self.own_id();
        let before = std::mem::replace(&mut self.members, members);
        let members = &self.members;
        let is_one_gone = before.names().any(|id| before.id(id) != members.id(id));
        let has_missed_one = members.have_missed_one(&before);
        let mut uncopied = std::mem::take(&mut self.uncopied);
        let mut unreleased = std::mem::take(&mut self.unreleased);
        for id in members.names().filter(|id| **id != self.me.node) {
            let arcs = members.arcs(id);
            // A member that this node never saw may have taken anything over in between.
            let gained = if has_missed_one { arcs.clone() } else { members.gained(id, &before) };
            let unreleased = unreleased.remove(id).unwrap_or_default();
            let unreleased = unreleased.shared_with(&arcs).with(&gained);
            // The member that is gone may have decided these after this node had copied them.
            let new = if is_one_gone { &unreleased } else { &gained };
            let uncopied = uncopied.remove(id).unwrap_or_default();
            self.uncopied.insert(id.clone(), uncopied.shared_with(&arcs).with(new));
            self.unreleased.insert(id.clone(), unreleased);
        }
        // What goes on to another member is found by the ring; naming the one in between would send
        // every check to it first.
        self.transferred.retain(|id, transferred| {
            *transferred = transferred.shared_with(&members.arcs(id));
            !transferred.is_empty()
        });
        self.replies.retain(|id, (member, ..)| members.has(id, *member));
        self.unacked.retain(|id, sent| members.has(id, sent.member));
        self.reports.retain(|voter, _| members.map().voters.contains(voter));
        self.lease.forget_others(members.map());
        self.released_by.clear();
        let others = members.names().filter(|id| **id != self.me.node);
        self.transfers = others.map(|id| (id.clone(), Transfer::Pending)).collect();
        if was != self.own_id() {
            self.held = Ranges::EMPTY;
            self.unacked.clear();
            self.transferred.clear();
            self.lease_until = Monotonic::START;
        }
    }

    /// `voter` answered the ping that was sent at `ping_sent` with the epoch that it reports and
    /// its grant. Returns whether [`RingOwnership::tick`] is to be called at once: without a lease,
    /// or when the report is news. Otherwise the pong only extends the lease, for which the next
    /// regular tick is soon enough.
    pub fn pong_received(
        &mut self,
        voter: &Identity,
        ping_sent: Monotonic,
        report: Epoch,
        grant: Option<VoteGrant>,
    ) -> bool {
        let is_news = self.report_received(voter, report);
        if let Some(grant) = grant {
            self.lease.grant_received(voter, ping_sent, grant, self.epoch());
        }
        is_news || self.lease_until <= ping_sent
    }

    /// The clock of this node stood still before `now`, as when a virtual machine is stopped and
    /// goes on: the lease is over, and begins anew with grants in answer to pings sent from now on.
    pub fn clock_stood_still(&mut self, now: Monotonic) {
        self.lease.begin_anew(now);
        self.tick(now);
    }

    /// This node, or a peer, reports `epoch` as a voter. A report is never taken back. Returns
    /// whether it is newer than the one before.
    pub fn report_received(&mut self, voter: &Identity, report: Epoch) -> bool {
        if !self.members.map().voters.contains(voter) {
            return false;
        }
        let known = self.reports.entry(voter.clone()).or_default();
        let is_news = report > *known;
        *known = report.max(*known);
        is_news
    }

    /// `peer`, admitted as `member`, says that it waits for no member under `epoch`: all have
    /// released to it.
    pub fn peer_waits_for_none(&mut self, peer: &NodeId, member: MemberId, epoch: Epoch) {
        if epoch == self.epoch() && self.members.has(peer, member) {
            self.unreleased.insert(peer.clone(), Ranges::EMPTY);
        }
    }

    /// Renews or loses the lease, and claims ranges without a holder. To be called when
    /// [`RingOwnership::pong_received`] asks for it, and every 20 ms.
    pub fn tick(&mut self, now: Monotonic) {
        self.lease_until = match self.own_id() {
            Some(id) => self.lease.end(self.members.map(), id),
            None => Monotonic::START,
        };
        if self.has_lease(now) && self.is_agreed() {
            self.claim();
        }
    }

    /// `peer` offers its states under `epoch`. Returns the reply to send.
    pub fn offer_received(&self, peer: &NodeId, epoch: Epoch) -> HandoffReply {
        let is_current = self.members.contains(peer) && epoch == self.epoch();
        if is_current { HandoffReply::Ready } else { HandoffReply::Later }
    }

    /// `peer`, admitted as `member`, releases `ranges` to this node. Returns the reply to send; a
    /// repeated release gets the same reply.
    pub fn release_received(
        &mut self,
        peer: &NodeId,
        member: MemberId,
        epoch: Epoch,
        number: u64,
        ranges: &Ranges,
    ) -> HandoffReply {
        if let Some((of, last, reply)) = self.replies.get(peer)
            && *of == member
            && number <= *last
        {
            // An older release got its reply before its successor was sent.
            return if number == *last { *reply } else { HandoffReply::Refused };
        }
        if !self.members.has(peer, member) {
            return HandoffReply::Later;
        }
        let are_own = ranges.without(&self.members.arcs(&self.me.node)).is_empty();
        let reply = if epoch == self.epoch() && are_own {
            self.held = self.held.with(ranges);
            for transferred in self.transferred.values_mut() {
                *transferred = transferred.without(ranges);
            }
            self.released_by.insert(peer.clone());
            HandoffReply::Accepted
        } else {
            HandoffReply::Refused
        };
        self.replies.insert(peer.clone(), (member, number, reply));
        reply
    }

    // === steps and their outcomes ===

    /// The next step of the transfer to `peer`; `None` while there is none or it has to wait. A
    /// step that freezes or releases ranges has done so when this returns.
    pub fn next_step(&mut self, peer: &NodeId, now: Monotonic) -> Option<TransferStep> {
        if let Some(UnackedRelease { epoch, number, ranges, .. }) = self.unacked.get(peer) {
            let (epoch, number, ranges) = (*epoch, *number, ranges.clone());
            return Some(TransferStep::Release { epoch, number, ranges });
        }
        if !self.members.contains(peer) {
            return None;
        }
        if self.transfers.get(peer) == Some(&Transfer::Released) {
            return None;
        }
        let arcs = self.members.arcs(peer);
        let ranges = self.held.shared_with(&arcs);
        match self.transfers.get(peer)? {
            Transfer::Pending => Some(TransferStep::Offer(self.epoch())),
            Transfer::Copying => {
                let copies = self.uncopied.get(peer).cloned().unwrap_or_default();
                Some(TransferStep::Copy { follows: ranges, copies })
            }
            Transfer::Copied => {
                let mut unacked = self.unacked.values();
                let may_return = unacked.any(|sent| !sent.ranges.shared_with(&arcs).is_empty());
                if may_return || !(ranges.is_empty() || self.has_lease(now)) {
                    return None;
                }
                self.transfers.insert(peer.clone(), Transfer::Frozen(ranges));
                Some(TransferStep::Flush)
            }
            Transfer::Frozen(_) => Some(TransferStep::Flush),
            Transfer::Flushed(ranges) => {
                let ranges = ranges.clone();
                if !ranges.is_empty() && !self.has_lease(now) {
                    self.transfers.insert(peer.clone(), Transfer::Pending);
                    return None;
                }
                Some(self.release(peer, ranges))
            }
            Transfer::Released => None,
        }
    }

    /// `peer` replied to an offer under `epoch`.
    pub fn offer_replied(&mut self, peer: &NodeId, epoch: Epoch, reply: HandoffReply) {
        if reply == HandoffReply::Ready {
            self.advance_transfer(peer, epoch, |transfer| match transfer {
                Transfer::Pending => Transfer::Copying,
                other => other,
            });
        }
    }

    /// [`TransferStep::Copy`] is done: `peer` answered for all states.
    pub fn copied(&mut self, peer: &NodeId, epoch: Epoch) {
        self.advance_transfer(peer, epoch, |transfer| match transfer {
            Transfer::Copying => Transfer::Copied,
            other => other,
        });
    }

    /// [`TransferStep::Flush`] is done or failed. After a failure the ranges are decided here again
    /// and the transfer restarts.
    pub fn flushed(&mut self, peer: &NodeId, epoch: Epoch, is_done: bool) {
        self.advance_transfer(peer, epoch, |transfer| match transfer {
            Transfer::Frozen(ranges) if is_done => Transfer::Flushed(ranges),
            Transfer::Frozen(_) => Transfer::Pending,
            other => other,
        });
    }

    /// `peer` replied to the release with this number.
    pub fn release_replied(&mut self, peer: &NodeId, number: u64, reply: HandoffReply) {
        let is_current = self.unacked.get(peer).is_some_and(|sent| sent.number == number);
        let is_final = matches!(reply, HandoffReply::Accepted | HandoffReply::Refused);
        if !is_current || !is_final {
            return;
        }
        let Some(sent) = self.unacked.remove(peer) else { return };
        if reply == HandoffReply::Refused {
            self.held = self.held.with(&sent.ranges);
            return;
        }
        if sent.epoch == self.epoch() {
            self.transfers.insert(peer.clone(), Transfer::Released);
            self.uncopied.insert(peer.clone(), Ranges::EMPTY);
        }
        if !sent.ranges.is_empty() && self.members.has(peer, sent.member) {
            let transferred = self.transferred.entry(peer.clone()).or_default();
            // Ranges that returned in the meantime are held here.
            *transferred = transferred.with(&sent.ranges).without(&self.held);
        }
    }

    // === state ===

    /// The epoch of the map in force.
    pub fn epoch(&self) -> Epoch {
        self.members.epoch()
    }

    /// This node's admission to the map in force; `None` when it is no member.
    pub fn own_id(&self) -> Option<MemberId> {
        let own = self.members.map().get(&self.me.node)?;
        let is_this = own.identity == self.me && own.start == self.start;
        (is_this && own.state != MapState::Down).then_some(own.id)
    }

    /// When the lease ends, as of the last [`RingOwnership::tick`].
    pub fn lease_until(&self) -> Monotonic {
        self.lease_until
    }

    /// All ranges held, including frozen ones.
    pub fn held(&self) -> &Ranges {
        &self.held
    }

    /// The ranges that this node decides while it has a lease: held and not frozen.
    pub fn decides(&self) -> Ranges {
        self.transfers.values().fold(self.held.clone(), |decides, transfer| match transfer {
            Transfer::Frozen(ranges) | Transfer::Flushed(ranges) => decides.without(ranges),
            _ => decides,
        })
    }

    /// The ranges that were handed over, by receiver.
    pub fn transferred(&self) -> &BTreeMap<NodeId, Ranges> {
        &self.transferred
    }

    pub fn members(&self) -> &RingMembers {
        &self.members
    }

    /// The members that have not released to this node at this epoch.
    pub fn waits_for(&self) -> impl Iterator<Item = MemberId> {
        let missing = self.transfers.keys().filter(|id| !self.released_by.contains(*id));
        missing.filter_map(|id| self.members.id(id))
    }

    /// The members to which this node has not released at this epoch although it has a lease.
    pub fn cannot_release_to(&self, now: Monotonic) -> impl Iterator<Item = MemberId> {
        let has_lease = self.has_lease(now);
        let is_incomplete = move |state: &Transfer| has_lease && *state != Transfer::Released;
        let incomplete = self.transfers.iter().filter(move |(_, state)| is_incomplete(state));
        incomplete.filter_map(|(id, _)| self.members.id(id))
    }

    /// Whether this node holds nothing and every transfer is complete.
    pub fn has_transferred_all(&self) -> bool {
        self.held.is_empty() && self.are_transfers_complete()
    }

    /// Whether this node holds all ranges it owns and every transfer is complete.
    pub fn is_settled(&self) -> bool {
        let own = self.members.arcs(&self.me.node);
        own.without(&self.held).is_empty() && self.are_transfers_complete()
    }

    /// Whether every member decides what it owns by the map in force, as each of them has said, so
    /// that no other one needs what this node holds of it.
    pub fn are_all_settled(&self) -> bool {
        let are_empty =
            |by_member: &BTreeMap<NodeId, Ranges>| by_member.values().all(Ranges::is_empty);
        self.is_settled() && are_empty(&self.unreleased) && are_empty(&self.uncopied)
    }

    /// Whether a majority of the voters has reported this epoch or a newer one.
    pub fn is_agreed(&self) -> bool {
        let has_reported = |voter: &Identity| {
            self.reports.get(voter).is_some_and(|reported| *reported >= self.epoch())
        };
        self.members.map().voters.is_majority(has_reported)
    }

    // === transitions ===

    fn are_transfers_complete(&self) -> bool {
        self.unacked.is_empty()
            && self.transfers.values().all(|transfer| *transfer == Transfer::Released)
    }

    fn has_lease(&self, now: Monotonic) -> bool {
        now < self.lease_until
    }

    fn advance_transfer(
        &mut self,
        peer: &NodeId,
        epoch: Epoch,
        next: impl FnOnce(Transfer) -> Transfer,
    ) {
        if epoch == self.epoch()
            && let Some(transfer) = self.transfers.get_mut(peer)
        {
            *transfer = next(std::mem::take(transfer));
        }
    }

    fn release(&mut self, peer: &NodeId, ranges: Ranges) -> TransferStep {
        let number = self.release_numbers.entry(peer.clone()).or_default();
        *number += 1;
        let (number, epoch) = (*number, self.epoch());
        self.held = self.held.without(&ranges);
        let member = self.members.id(peer).unwrap_or_default();
        let sent = UnackedRelease { member, epoch, number, ranges: ranges.clone() };
        self.unacked.insert(peer.clone(), sent);
        // The state after a refusal.
        self.transfers.insert(peer.clone(), Transfer::Pending);
        TransferStep::Release { epoch, number, ranges }
    }

    /// Takes the ranges that this node owns, if no other member can hold a part of them.
    fn claim(&mut self) {
        // Most ticks find nothing to claim.
        if self.members.owns_within(&self.me.node, &self.held) {
            return;
        }
        if self.transfers.keys().all(|id| self.released_by.contains(id)) {
            let own = self.members.arcs(&self.me.node);
            for transferred in self.transferred.values_mut() {
                *transferred = transferred.without(&own);
            }
            self.held = self.held.with(&own);
        }
    }
}
