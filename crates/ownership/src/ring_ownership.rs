//! What this node holds on one ring, and how ranges change hands: the machine itself.
//!
//! It is told what happens (the roll changed, a pong came, an offer was answered) and says what to
//! do next ([`Ring::next`]). It reads no clock and sends nothing, so that a test can walk every
//! order of events.
//!
//! **Invariant:** of nodes with a valid lease, no two hold one place. What keeps it:
//!
//! - A range leaves [`Ring::holds`] when its release is sent and comes back only when the receiver
//!   refused it for ever, or is off the roll of a quorum.
//! - A claim waits for a release of every member of the roll under the present epoch, and for a
//!   quorum that tells this epoch.
//! - "I hold nothing of yours" is said under an epoch only while nothing is on its way that might
//!   come back as part of it.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_limiter::units::Span;

use super::lease::{Lease, LeaseState, RecordedGrant};
use super::members::Members;
use super::transfer::{HandoffReply, Step, Transfer, UnackedRelease};
use crate::identity::{Generation, NodeId};
use crate::ranges::Ranges;
use crate::{Epoch, Monotonic};

/// One node's part of one ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    me: NodeId,
    epoch: Epoch,
    /// The highest number met at a peer of another mind.
    floor: u64,
    members: Members,
    lease: Lease,
    lease_state: LeaseState,
    /// Where the others stood when they last answered a ping, and when that was sent.
    told: BTreeMap<NodeId, (Epoch, Monotonic)>,
    held: Ranges,
    transfers: BTreeMap<NodeId, Transfer>,
    pending: BTreeMap<NodeId, UnackedRelease>,
    /// Places of others whose states they may not have.
    uncopied: BTreeMap<NodeId, Ranges>,
    /// The number of the last release to each.
    numbers: BTreeMap<NodeId, u64>,
    /// Who released to this node under the present epoch.
    released: BTreeSet<NodeId>,
    /// The last release of each and its answer.
    answers: BTreeMap<NodeId, (Generation, u64, HandoffReply)>,
    given: BTreeMap<NodeId, Ranges>,
}

impl Ring {
    /// The part of `me`, which holds nothing and recognises nobody.
    pub fn new(me: NodeId, lease: Span) -> Self {
        Self {
            lease: Lease::new(me.clone(), lease),
            me,
            epoch: Epoch::default(),
            floor: 0,
            members: Members::none(),
            lease_state: LeaseState::Nothing,
            told: BTreeMap::new(),
            held: Ranges::EMPTY,
            transfers: BTreeMap::new(),
            pending: BTreeMap::new(),
            uncopied: BTreeMap::new(),
            numbers: BTreeMap::new(),
            released: BTreeSet::new(),
            answers: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    // === what happens ===

    /// The roll, or who counts, is another.
    pub fn follow(&mut self, members: Members) {
        if members == self.members {
            return;
        }
        let before = std::mem::replace(&mut self.members, members);
        let members = &self.members;
        self.uncopied.retain(|id, _| members.entries.contains_key(id));
        for id in members.entries.keys().filter(|id| **id != self.me) {
            let known = self.uncopied.remove(id).unwrap_or_default();
            let arcs = members.arcs(id);
            let uncopied = known.shared_with(&arcs).with(&members.gained(id, &before));
            self.uncopied.insert(id.clone(), uncopied);
        }
        self.given.retain(|id, _| members.entries.contains_key(id));
        // Who is off the roll of this node alone may still hold what it sent, and ask again.
        self.answers.retain(|id, _| members.entries.contains_key(id) || members.quorum.counts(id));
        self.told.retain(|id, _| members.entries.contains_key(id));
        let number = self.epoch.number.max(self.floor) + 1;
        self.advance(Epoch { number, name: self.members.name() });
    }

    /// A peer stands at `epoch`. A number that no honest peer tells changes nothing: there would be
    /// none above it for the next change.
    pub fn met(&mut self, epoch: Epoch) {
        if epoch.number <= self.epoch.number || epoch.number > Epoch::NUMBER_MAX {
            return;
        }
        if epoch.name == self.epoch.name {
            self.advance(epoch);
        } else {
            self.floor = self.floor.max(epoch.number);
        }
    }

    /// `peer` answered a ping that was sent at `sent`.
    pub fn ponged(
        &mut self,
        peer: &NodeId,
        sent: Monotonic,
        epoch: Option<Epoch>,
        grant: Option<RecordedGrant>,
    ) {
        if let Some(epoch) = epoch {
            let is_older = self.told.get(peer).is_some_and(|(_, at)| *at > sent);
            if self.members.entries.contains_key(peer) && !is_older {
                self.told.insert(peer.clone(), (epoch, sent));
            }
            self.met(epoch);
        }
        if let Some(recognised) = grant {
            self.lease.granted(peer, sent, recognised);
        }
    }

    /// Time passed: the lease is renewed or lost, what is ownerless is claimed. For every pong and
    /// every few milliseconds.
    pub fn tick(&mut self, now: Monotonic) {
        self.lease_state = self.lease.renew(now, &self.members.quorum);
        if let LeaseState::Broken(_) = self.lease_state {
            self.lose_tenure();
        }
        if self.is_agreed(now) {
            self.thaw();
            self.claim();
        }
    }

    /// `peer` offers under `epoch`.
    pub fn offered(&mut self, peer: &NodeId, epoch: Epoch) -> HandoffReply {
        self.met(epoch);
        let is_known = self.members.entries.contains_key(peer);
        if is_known && epoch == self.epoch { HandoffReply::Ready } else { HandoffReply::Later }
    }

    /// `peer` releases `ranges` to this node.
    pub fn released(
        &mut self,
        peer: &NodeId,
        generation: Generation,
        epoch: Epoch,
        number: u64,
        ranges: &Ranges,
    ) -> HandoffReply {
        if let Some((from, last, answer)) = self.answers.get(peer)
            && *from == generation
            && number <= *last
        {
            // An older one was answered before its successor was sent.
            return if number == *last { *answer } else { HandoffReply::Refused };
        }
        let is_seated =
            self.members.entries.get(peer).is_some_and(|seat| seat.generation == generation);
        let is_mine = ranges.without(&self.members.arcs(&self.me)).is_empty();
        if !is_seated {
            return HandoffReply::Later;
        }
        let answer = if epoch == self.epoch && is_mine {
            self.held = self.held.with(ranges);
            for given in self.given.values_mut() {
                *given = given.without(ranges);
            }
            self.released.insert(peer.clone());
            HandoffReply::Taken
        } else {
            HandoffReply::Refused
        };
        self.answers.insert(peer.clone(), (generation, number, answer));
        answer
    }

    // === what to do ===

    /// The next thing to do for `peer`; `None` while there is nothing, or something stands in the
    /// way. A step that freezes ranges takes effect here and now.
    pub fn next(&mut self, peer: &NodeId, now: Monotonic) -> Option<Step> {
        if let Some(UnackedRelease { epoch, number, ranges, .. }) = self.pending.get(peer) {
            return Some(Step::Release { epoch: *epoch, number: *number, ranges: ranges.clone() });
        }
        let arcs = self.members.entries.get(peer)?.arcs.clone();
        let uncopied = self.uncopied.get(peer).cloned().unwrap_or_default();
        let ranges = self.held.shared_with(&arcs);
        match self.transfers.get(peer)? {
            Transfer::Due => Some(Step::Offer(self.epoch)),
            Transfer::Copying => Some(Step::Copy { follows: ranges, copies: uncopied }),
            Transfer::Copied => {
                let may_come_back =
                    self.pending.values().any(|sent| !sent.ranges.shared_with(&arcs).is_empty());
                let has_lease = ranges.is_empty() || self.may_own(now);
                if may_come_back || !has_lease {
                    return None;
                }
                self.transfers.insert(peer.clone(), Transfer::Frozen(ranges));
                Some(Step::Flush)
            }
            Transfer::Frozen(_) => Some(Step::Flush),
            Transfer::Flushed(ranges) => {
                let ranges = ranges.clone();
                if !ranges.is_empty() && !self.may_own(now) {
                    self.transfers.insert(peer.clone(), Transfer::Due);
                    return None;
                }
                Some(self.release(peer, ranges))
            }
            Transfer::Paid => None,
        }
    }

    /// `peer` answered an offer under `epoch`.
    pub fn offer_answered(&mut self, peer: &NodeId, epoch: Epoch, reply: HandoffReply) {
        if reply == HandoffReply::Ready {
            self.move_on(peer, epoch, |debt| match debt {
                Transfer::Due => Transfer::Copying,
                further => further,
            });
        }
    }

    /// Everything that [`Step::Copy`] named was sent to `peer` and answered.
    pub fn copied(&mut self, peer: &NodeId, epoch: Epoch) {
        self.move_on(peer, epoch, |debt| match debt {
            Transfer::Copying => Transfer::Copied,
            other => other,
        });
    }

    /// [`Step::Flush`] was done, or could not be: then the ranges thaw and it begins anew.
    pub fn flushed(&mut self, peer: &NodeId, epoch: Epoch, is_done: bool) {
        self.move_on(peer, epoch, |debt| match debt {
            Transfer::Frozen(ranges) if is_done => Transfer::Flushed(ranges),
            Transfer::Frozen(_) => Transfer::Due,
            other => other,
        });
    }

    /// `peer` answered the release of this number.
    pub fn release_answered(&mut self, peer: &NodeId, number: u64, reply: HandoffReply) {
        let is_it = self.pending.get(peer).is_some_and(|sent| sent.number == number);
        let is_final = matches!(reply, HandoffReply::Taken | HandoffReply::Refused);
        if !is_it || !is_final {
            return;
        }
        let Some(sent) = self.pending.remove(peer) else { return };
        if reply == HandoffReply::Refused {
            self.held = self.held.with(&sent.ranges);
            return;
        }
        if sent.epoch == self.epoch {
            self.transfers.insert(peer.clone(), Transfer::Paid);
            self.uncopied.insert(peer.clone(), Ranges::EMPTY);
        }
        if !sent.ranges.is_empty() && self.members.entries.contains_key(peer) {
            let given = self.given.entry(peer.clone()).or_default();
            // What came back meanwhile is here, not there.
            *given = given.with(&sent.ranges).without(&self.held);
        }
    }

    // === how it stands ===

    /// Where this node stands.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How it stands with the others.
    pub fn lease_state(&self) -> LeaseState {
        self.lease_state
    }

    /// All that it holds, frozen or not.
    pub fn holds(&self) -> &Ranges {
        &self.held
    }

    /// What it decides while it has a lease.
    pub fn decides(&self) -> Ranges {
        self.transfers.values().fold(self.held.clone(), |decides, debt| match debt {
            Transfer::Frozen(ranges) | Transfer::Flushed(ranges) => decides.without(ranges),
            _ => decides,
        })
    }

    /// What it gave away, and to whom.
    pub fn given(&self) -> &BTreeMap<NodeId, Ranges> {
        &self.given
    }

    /// Who is on the ring, and what is whose.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Whether everybody has got what this node owed, and nothing is left here.
    pub fn has_given_all(&self) -> bool {
        self.held.is_empty()
            && self.pending.is_empty()
            && self.transfers.values().all(|debt| *debt == Transfer::Paid)
    }

    /// Whether this node holds what is its own, and everybody has got what it owed.
    pub fn is_settled(&self) -> bool {
        self.members.arcs(&self.me).without(&self.held).is_empty()
            && self.pending.is_empty()
            && self.transfers.values().all(|debt| *debt == Transfer::Paid)
    }

    /// Whether a quorum stood at this epoch within the lease.
    pub fn is_agreed(&self, now: Monotonic) -> bool {
        let span = self.lease.span();
        self.members.quorum.is_met(|id| {
            *id == self.me
                || self
                    .told
                    .get(id)
                    .is_some_and(|(epoch, sent)| *epoch == self.epoch && now < sent.plus(span))
        })
    }

    // === inside ===

    fn may_own(&self, now: Monotonic) -> bool {
        match self.lease_state {
            LeaseState::Whole(until) | LeaseState::Broken(until) => now < until,
            LeaseState::Nothing => false,
        }
    }

    fn advance(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.released.clear();
        let others = self.members.entries.keys().filter(|id| **id != self.me);
        self.transfers = others.map(|id| (id.clone(), Transfer::Due)).collect();
    }

    fn move_on(&mut self, peer: &NodeId, epoch: Epoch, next: impl FnOnce(Transfer) -> Transfer) {
        if epoch != self.epoch {
            return;
        }
        if let Some(debt) = self.transfers.get_mut(peer) {
            *debt = next(std::mem::take(debt));
        }
    }

    fn release(&mut self, peer: &NodeId, ranges: Ranges) -> Step {
        let number = self.numbers.entry(peer.clone()).or_default();
        *number += 1;
        let number = *number;
        self.held = self.held.without(&ranges);
        let epoch = self.epoch;
        let generation =
            self.members.entries.get(peer).map_or(Generation(0), |seat| seat.generation);
        let sent = UnackedRelease { generation, epoch, number, ranges: ranges.clone() };
        self.pending.insert(peer.clone(), sent);
        // A refusal begins anew.
        self.transfers.insert(peer.clone(), Transfer::Due);
        Step::Release { epoch, number, ranges }
    }

    /// What was on its way to a member that a quorum does not recognise any more is here again.
    fn thaw(&mut self) {
        let members = &self.members;
        let is_gone = |id: &NodeId, sent: &UnackedRelease| {
            members.entries.get(id).is_none_or(|seat| seat.generation != sent.generation)
        };
        let gone: Vec<NodeId> = self
            .pending
            .iter()
            .filter(|(id, sent)| is_gone(id, sent))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            if let Some(sent) = self.pending.remove(&id) {
                self.held = self.held.with(&sent.ranges);
            }
        }
    }

    /// Takes what is this node's own and nobody holds.
    fn claim(&mut self) {
        let has_lease = !matches!(self.lease_state, LeaseState::Nothing);
        let all_released = self.transfers.keys().all(|id| self.released.contains(id));
        if has_lease && all_released {
            let own = self.members.arcs(&self.me);
            for given in self.given.values_mut() {
                *given = given.without(&own);
            }
            self.held = self.held.with(&own);
        }
    }

    /// Others may hold what was held here; this node begins as a newcomer, under an epoch under
    /// which everybody says anew what is whose.
    fn lose_tenure(&mut self) {
        self.held = Ranges::EMPTY;
        self.pending.clear();
        self.given.clear();
        let number = self.epoch.number.max(self.floor) + 1;
        self.advance(Epoch { number, ..self.epoch });
    }
}
