//! What this node holds on one ring, and how ranges change hands.
//!
//! **Invariant:** of all nodes with a valid lease, no two hold the same token. It rests on three
//! rules:
//!
//! - A range leaves [`RingOwnership::held`] when its release is sent. It returns only when the
//!   receiver refused the release for good, or when a quorum has evicted the receiver.
//! - A claim, by which a node takes over ranges, needs a release from every other member under the
//!   current epoch, and a quorum at this epoch.
//! - A release under an epoch states that the sender holds nothing else of the receiver. It is not
//!   sent while an earlier release waits for a reply and its ranges could come back.
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

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_limiter::units::{Monotonic, Span};

use crate::epoch::Epoch;
use crate::identity::{Generation, NodeId};
use crate::lease::{EntryId, Lease, LeaseState};
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
    me: NodeId,
    epoch: Epoch,
    /// The highest number of a peer's epoch that has another fingerprint.
    highest_seen: u64,
    members: RingMembers,
    lease: Lease,
    lease_state: LeaseState,
    /// The epoch in each peer's last answer to a ping, and when that ping was sent.
    peer_epochs: BTreeMap<NodeId, (Epoch, Monotonic)>,
    held: Ranges,
    transfers: BTreeMap<NodeId, Transfer>,
    unacked: BTreeMap<NodeId, UnackedRelease>,
    /// Ranges of other members whose states these members may not have.
    uncopied: BTreeMap<NodeId, Ranges>,
    /// The number of the last release to each member.
    release_numbers: BTreeMap<NodeId, u64>,
    /// The members that released to this node under the current epoch.
    released_by: BTreeSet<NodeId>,
    /// The last release of each node, and this node's reply.
    replies: BTreeMap<NodeId, (Generation, u64, HandoffReply)>,
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
    /// The incarnation of the receiver.
    generation: Generation,
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
    /// Node `me`, which holds nothing and recognises no member; `lease` is the validity of a grant.
    pub fn new(me: NodeId, lease: Span) -> Self {
        Self {
            lease: Lease::new(me.clone(), lease),
            me,
            epoch: Epoch::default(),
            highest_seen: 0,
            members: RingMembers::none(),
            lease_state: LeaseState::None,
            peer_epochs: BTreeMap::new(),
            held: Ranges::EMPTY,
            transfers: BTreeMap::new(),
            unacked: BTreeMap::new(),
            uncopied: BTreeMap::new(),
            release_numbers: BTreeMap::new(),
            released_by: BTreeSet::new(),
            replies: BTreeMap::new(),
            transferred: BTreeMap::new(),
        }
    }

    // === inputs ===

    /// The membership table or the voters changed. Starts a new epoch if that changes this ring.
    pub fn follow(&mut self, members: RingMembers) {
        if members == self.members {
            return;
        }
        let before = std::mem::replace(&mut self.members, members);
        let members = &self.members;
        self.uncopied.retain(|id, _| members.entries.contains_key(id));
        for id in members.entries.keys().filter(|id| **id != self.me) {
            let uncopied = self.uncopied.remove(id).unwrap_or_default();
            let uncopied = uncopied.shared_with(&members.arcs(id));
            self.uncopied.insert(id.clone(), uncopied.with(&members.gained(id, &before)));
        }
        self.transferred.retain(|id, _| members.entries.contains_key(id));
        // A voter that only this node has evicted may still hold what it released, and repeat it.
        self.replies
            .retain(|id, _| members.entries.contains_key(id) || members.quorum.has_voter(id));
        self.peer_epochs.retain(|id, _| members.entries.contains_key(id));
        let number = self.next_epoch_number();
        self.enter_epoch(Epoch { number, name: self.members.fingerprint() });
    }

    /// A peer reported its epoch. A number above [`Epoch::NUMBER_MAX`] is ignored: it would leave
    /// no number for the next change.
    pub fn observe_epoch(&mut self, epoch: Epoch) {
        if epoch.number <= self.epoch.number || epoch.number > Epoch::NUMBER_MAX {
            return;
        }
        if epoch.name == self.epoch.name {
            self.enter_epoch(epoch);
        } else {
            self.highest_seen = self.highest_seen.max(epoch.number);
        }
    }

    /// `peer` answered the ping that was sent at `ping_sent`. Returns whether
    /// [`RingOwnership::tick`] is to be called at once: without a lease, or when the peer's epoch
    /// is another than before. Otherwise the pong only extends the lease, for which the next
    /// regular tick is soon enough.
    pub fn pong_received(
        &mut self,
        peer: &NodeId,
        ping_sent: Monotonic,
        epoch: Option<Epoch>,
        grant: Option<EntryId>,
    ) -> bool {
        let known = self.peer_epochs.get(peer).map(|(epoch, _)| *epoch);
        let is_news = known != epoch && self.members.entries.contains_key(peer);
        let is_urgent = is_news || !matches!(self.lease_state, LeaseState::Held(_));
        if let Some(epoch) = epoch {
            let is_older = self.peer_epochs.get(peer).is_some_and(|(_, at)| *at > ping_sent);
            if self.members.entries.contains_key(peer) && !is_older {
                self.peer_epochs.insert(peer.clone(), (epoch, ping_sent));
            }
            self.observe_epoch(epoch);
        }
        if let Some(grant) = grant {
            self.lease.grant_received(peer, ping_sent, grant);
        }
        is_urgent
    }

    /// Renews or loses the lease, and claims ranges without a holder. To be called after each pong
    /// and every 20 ms.
    pub fn tick(&mut self, now: Monotonic) {
        self.lease_state = self.lease.renew(now, &self.members.quorum);
        if let LeaseState::Interrupted(_) = self.lease_state {
            self.step_down();
        }
        if self.is_agreed(now) {
            self.roll_back();
            self.claim();
        }
    }

    /// `peer` offers its states under `epoch`. Returns the reply to send.
    pub fn offer_received(&mut self, peer: &NodeId, epoch: Epoch) -> HandoffReply {
        self.observe_epoch(epoch);
        let is_member = self.members.entries.contains_key(peer);
        if is_member && epoch == self.epoch { HandoffReply::Ready } else { HandoffReply::Later }
    }

    /// `peer` releases `ranges` to this node. Returns the reply to send; a repeated release gets
    /// the same reply.
    pub fn release_received(
        &mut self,
        peer: &NodeId,
        generation: Generation,
        epoch: Epoch,
        number: u64,
        ranges: &Ranges,
    ) -> HandoffReply {
        if let Some((of, last, reply)) = self.replies.get(peer)
            && *of == generation
            && number <= *last
        {
            // An older release got its reply before its successor was sent.
            return if number == *last { *reply } else { HandoffReply::Refused };
        }
        if !self.members.has(peer, generation) {
            return HandoffReply::Later;
        }
        let are_own = ranges.without(&self.members.arcs(&self.me)).is_empty();
        let reply = if epoch == self.epoch && are_own {
            self.held = self.held.with(ranges);
            for transferred in self.transferred.values_mut() {
                *transferred = transferred.without(ranges);
            }
            self.released_by.insert(peer.clone());
            HandoffReply::Accepted
        } else {
            HandoffReply::Refused
        };
        self.replies.insert(peer.clone(), (generation, number, reply));
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
        let arcs = self.members.entries.get(peer)?.arcs.clone();
        let ranges = self.held.shared_with(&arcs);
        match self.transfers.get(peer)? {
            Transfer::Pending => Some(TransferStep::Offer(self.epoch)),
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
        if sent.epoch == self.epoch {
            self.transfers.insert(peer.clone(), Transfer::Released);
            self.uncopied.insert(peer.clone(), Ranges::EMPTY);
        }
        if !sent.ranges.is_empty() && self.members.entries.contains_key(peer) {
            let transferred = self.transferred.entry(peer.clone()).or_default();
            // Ranges that returned in the meantime are held here.
            *transferred = transferred.with(&sent.ranges).without(&self.held);
        }
    }

    // === state ===

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// As of the last [`RingOwnership::tick`].
    pub fn lease_state(&self) -> LeaseState {
        self.lease_state
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

    /// Whether this node holds nothing and every transfer is complete.
    pub fn has_transferred_all(&self) -> bool {
        self.held.is_empty() && self.are_transfers_complete()
    }

    /// Whether this node holds all ranges it owns and every transfer is complete.
    pub fn is_settled(&self) -> bool {
        self.members.arcs(&self.me).without(&self.held).is_empty() && self.are_transfers_complete()
    }

    /// Whether a quorum reported this epoch within the lease span.
    pub fn is_agreed(&self, now: Monotonic) -> bool {
        let span = self.lease.span();
        self.members.quorum.is_met(|id| {
            let reported = self.peer_epochs.get(id);
            *id == self.me
                || reported.is_some_and(|(epoch, at)| *epoch == self.epoch && now < at.plus(span))
        })
    }

    // === transitions ===

    fn are_transfers_complete(&self) -> bool {
        self.unacked.is_empty()
            && self.transfers.values().all(|transfer| *transfer == Transfer::Released)
    }

    fn has_lease(&self, now: Monotonic) -> bool {
        now < self.lease_state.until()
    }

    fn next_epoch_number(&self) -> u64 {
        self.epoch.number.max(self.highest_seen) + 1
    }

    fn enter_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.released_by.clear();
        let others = self.members.entries.keys().filter(|id| **id != self.me);
        self.transfers = others.map(|id| (id.clone(), Transfer::Pending)).collect();
    }

    fn advance_transfer(
        &mut self,
        peer: &NodeId,
        epoch: Epoch,
        next: impl FnOnce(Transfer) -> Transfer,
    ) {
        if epoch == self.epoch
            && let Some(transfer) = self.transfers.get_mut(peer)
        {
            *transfer = next(std::mem::take(transfer));
        }
    }

    fn release(&mut self, peer: &NodeId, ranges: Ranges) -> TransferStep {
        let number = self.release_numbers.entry(peer.clone()).or_default();
        *number += 1;
        let (number, epoch) = (*number, self.epoch);
        self.held = self.held.without(&ranges);
        let member = self.members.entries.get(peer);
        let generation = member.map_or(Generation(0), |member| member.generation);
        let sent = UnackedRelease { generation, epoch, number, ranges: ranges.clone() };
        self.unacked.insert(peer.clone(), sent);
        // The state after a refusal.
        self.transfers.insert(peer.clone(), Transfer::Pending);
        TransferStep::Release { epoch, number, ranges }
    }

    /// Takes back releases whose receivers have been evicted by a quorum.
    fn roll_back(&mut self) {
        let (members, held) = (&self.members, &mut self.held);
        self.unacked.retain(|id, sent| {
            let is_member = members.has(id, sent.generation);
            if !is_member {
                *held = held.with(&sent.ranges);
            }
            is_member
        });
    }

    /// Takes the ranges that this node owns, if no other member can hold a part of them.
    fn claim(&mut self) {
        let have_all_released = self.transfers.keys().all(|id| self.released_by.contains(id));
        if self.lease_state != LeaseState::None && have_all_released {
            let own = self.members.arcs(&self.me);
            for transferred in self.transferred.values_mut() {
                *transferred = transferred.without(&own);
            }
            self.held = self.held.with(&own);
        }
    }

    /// Drops everything, because other nodes may hold it. The new epoch number makes every member
    /// release again.
    fn step_down(&mut self) {
        self.held = Ranges::EMPTY;
        self.unacked.clear();
        self.transferred.clear();
        let number = self.next_epoch_number();
        self.enter_epoch(Epoch { number, ..self.epoch });
    }
}
