//! Which peers have messages in flight, and which keys wait for the next one.
//!
//! # Idea
//!
//! A peer has two *lanes*, one for announcements and one for the rounds, so that a count near its
//! limit does not wait behind a large message. A lane has no fixed interval: while messages are in
//! flight, keys that are due wait, and the last reply sends all of them in one message, with their
//! latest counters. So a busy key causes one message per round trip, whatever its rate, and many
//! busy keys share it.
//!
//! **Example.** Key 1 is announced to `b`. Until `b` replies 0.3 ms later, 9 more hits of key 1 and
//! 5 of key 2 become due: one message with both.
//!
//! **Bound:** [`WAITING_MAX`] keys wait in a lane. Further ones return to the store's queue and
//! leave with the next round.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::NodeId;

use crate::mesh::wire::SyncRole;

/// Most keys that wait in one lane.
pub(super) const WAITING_MAX: usize = 16_384;

/// What a peer is sent of some keys, and as whom.
pub(super) type Waiting = BTreeSet<(SyncRole, KeyHash)>;

/// The lanes that are in use.
#[derive(Debug, Default)]
pub(super) struct Lanes(BTreeMap<LaneId, Lane>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LaneId {
    to: NodeId,
    is_urgent: bool,
}

/// Messages without a reply, and what waits for the last.
#[derive(Debug, Default)]
struct Lane {
    in_flight: usize,
    waiting: Waiting,
}

/// What becomes of a key that is due for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is sent now.
    Now,
    /// It leaves with the next message.
    Waits,
    /// There is no room for it.
    Full,
}

impl Lanes {
    /// Whether messages to `to` are in flight.
    pub(super) fn is_busy(&self, to: &NodeId, is_urgent: bool) -> bool {
        self.0.contains_key(&LaneId { to: to.clone(), is_urgent })
    }

    /// Lets a key wait for the next announcement to `to`, if one is in flight.
    pub(super) fn turn(&mut self, to: &NodeId, role: SyncRole, key: KeyHash) -> Turn {
        match self.0.get_mut(&LaneId { to: to.clone(), is_urgent: true }) {
            None => Turn::Now,
            Some(lane) if lane.waiting.len() < WAITING_MAX => {
                lane.waiting.insert((role, key));
                Turn::Waits
            }
            Some(lane) if lane.waiting.contains(&(role, key)) => Turn::Waits,
            Some(_) => Turn::Full,
        }
    }

    /// One more message to `to` is in flight.
    pub(super) fn begin(&mut self, to: &NodeId, is_urgent: bool) {
        self.0.entry(LaneId { to: to.clone(), is_urgent }).or_default().in_flight += 1;
    }

    /// A message to `to` has its reply, or failed. Returns what the same caller has to send next,
    /// before it calls this again.
    pub(super) fn end(&mut self, to: &NodeId, is_urgent: bool) -> Option<Waiting> {
        let id = LaneId { to: to.clone(), is_urgent };
        let lane = self.0.get_mut(&id)?;
        if lane.in_flight > 1 {
            lane.in_flight -= 1;
            return None;
        }
        let waiting = std::mem::take(&mut lane.waiting);
        if waiting.is_empty() {
            self.0.remove(&id);
            return None;
        }
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tag: u64) -> KeyHash {
        KeyHash { token: 1, tag }
    }

    fn peer() -> NodeId {
        NodeId::new("b").expect("a valid name")
    }

    #[test]
    fn keys_that_are_due_meanwhile_leave_together_with_the_last_reply() {
        let (mut lanes, b, role) = (Lanes::default(), peer(), SyncRole::Node);
        assert_eq!(lanes.turn(&b, role, key(1)), Turn::Now);
        lanes.begin(&b, true);
        lanes.begin(&b, true);
        for tag in [1, 2, 1] {
            assert_eq!(lanes.turn(&b, role, key(tag)), Turn::Waits);
        }
        assert!(!lanes.is_busy(&b, false), "the rounds have a lane of their own");
        assert_eq!(lanes.end(&b, true), None, "another is in flight");
        assert_eq!(lanes.end(&b, true), Some(Waiting::from([(role, key(1)), (role, key(2))])));
        assert_eq!(lanes.turn(&b, role, key(3)), Turn::Waits, "these two are in flight");
        assert_eq!(lanes.end(&b, true), Some(Waiting::from([(role, key(3))])));
        assert_eq!(lanes.end(&b, true), None);
        assert_eq!(lanes.turn(&b, role, key(4)), Turn::Now);
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut lanes, b, role) = (Lanes::default(), peer(), SyncRole::Owner);
        lanes.begin(&b, true);
        for tag in 0..WAITING_MAX as u64 {
            assert_eq!(lanes.turn(&b, role, key(tag)), Turn::Waits);
        }
        assert_eq!(lanes.turn(&b, role, key(u64::MAX)), Turn::Full);
        assert_eq!(lanes.turn(&b, role, key(0)), Turn::Waits, "it waits already");
    }
}
